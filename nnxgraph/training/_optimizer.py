"""`Optimizer`: an optax transformation, its state, and the parameters it updates.

`update` reads the parameters that `wrt` selects, lets optax compute from their gradients what to add, and
writes parameters and state at the very end, when nothing can fail any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import optax

from .._filters import Filter
from .._frame import check_write, reading_constants
from .._pytree import Pytree
from .._repr import path_text, short
from .._state import State, from_flat_state
from .._typing import MISSING, Missing
from .._variable import Param, Variable, new_variable
from ..errors import (
    GradientMismatchError,
    NoParametersError,
    OptimizerArgumentError,
    ParametersChangedError,
)
from ..graph._edit import update as update_node
from ..graph._functional import variables
from ._extra_arguments import call_update, ready_for_optax
from ._optax import (
    Items,
    Layout,
    OptState,
    Owned,
    Transformation,
    flatten,
    is_array,
    items_of,
    matched,
    raw,
    restored,
    shapes,
    spec_of,
    stored,
    tree_of,
)

M = TypeVar("M")


class Optimizer(Pytree, Generic[M]):
    """Trains the parameters of a model with an optax transformation.

    Args:
        model: The object that holds the parameters; the optimizer does not keep it.
        tx: An optax transformation, or a function without arguments that makes one, such as
            `functools.partial(optax.adam, 1e-3)`, which pickles.
        wrt: A filter that selects the parameters to train, `nnx.Param` for all.
        graph: False to refuse shared Variables.

    Attributes:
        step: How many updates were made.
        opt_state: The state of `tx`. What it keeps for a parameter is an `OptVariable` at the path of the
            parameter and with its metadata, all other arrays are `OptArray`.
        wrt: The filter.

    Raises:
        OptimizerArgumentError: If `wrt` is missing or `tx` is no transformation.
        NoParametersError: If `wrt` selects nothing.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
        >>> grads = nnx.grad(lambda m: (m(jnp.ones((1, 2))) ** 2).mean())(model)
        >>> updates = optimizer.update(model, grads)
        >>> int(optimizer.step[...])
        1
    """

    step: OptState
    opt_state: Any
    wrt: Filter
    _layout: Layout

    def __init__(self, model: M, tx: Any, *, wrt: Filter = MISSING, graph: bool | None = None):
        if isinstance(wrt, Missing):
            raise OptimizerArgumentError(
                "Optimizer",
                "no wrt",
                "a filter that selects the parameters to train",
                "Write nnx.Optimizer(model, tx, wrt=nnx.Param) to train all of them.",
            )
        live = _parameters(model, wrt, graph)
        layout = Layout(tuple((path, spec_of(leaf)) for path, leaf in live), ())
        self.step = OptState(jnp.zeros((), jnp.uint32))
        self.tx = tx
        self.wrt = wrt
        params = layout.params_from({path: raw(leaf) for path, leaf in live})
        with _inside_optax():
            opt_state = self.tx.init(params)
        self.opt_state, self._layout = _held(opt_state, layout, params)

    @property
    def tx(self) -> Any:
        """The optax transformation."""
        return vars(self)["tx"].made()

    @tx.setter
    def tx(self, tx: Any) -> None:
        transformation = Transformation(tx)
        transformation.made()
        vars(self)["tx"] = transformation

    def optax_state(self) -> Any:
        """The state as optax itself has it, without Variables of our own.

        Functions of optax that read a state take it together with `nnx.state(model, wrt)`.
        """
        return restored(self.opt_state, self._layout.opt_state)

    def update(self, model: M = MISSING, grads: Any = MISSING, /, **extra: Any) -> State:  # type: ignore[assignment]  # the sentinel is for our own error text
        """Update the parameters of a model in place, from their gradients.

        Args:
            model: The model that the optimizer was made for, or one with the same parameters.
            grads: A State with a gradient for each parameter, as `nnx.grad` returns it; what it holds
                beyond `wrt` is left out.
            **extra: Further arguments of the transformation, such as `value`, `grad` and `value_fn` for
                `optax.lbfgs`. `value_fn` is a function of the State of the parameters or of the model.

        Returns:
            What was added to each parameter.

        Raises:
            OptimizerArgumentError: If the arguments are not those that the transformation takes.
            GradientMismatchError: If a gradient is missing or has another shape.
            ParametersChangedError: If the model has other parameters than at the start.
            ValueFunctionError: If `value_fn` takes neither the State nor the model.

            After any error nothing is changed.
        """
        _check_call(model, grads, extra)
        return self._update(model, grads, extra)

    def _update(self, model: Any, grads: Any, extra: dict[str, Any]) -> State:
        """Compute all, then write all."""
        live = _parameters(model, self.wrt, None)
        self._check_parameters(model, live)
        given = self._aligned("grads", grads, live)
        params = self._layout.params_from({path: raw(leaf) for path, leaf in live})
        extra = {name: self._extra_aligned(name, x, live) for name, x in extra.items()}
        ready = ready_for_optax(extra, model)
        with _inside_optax():
            updates, opt_state = call_update(self.tx, given, self.optax_state(), params, ready)
            new = optax.apply_updates(params, updates)
        self._write(model, live, new, opt_state)
        specs = dict(live)
        return tree_of(  # type: ignore[no-any-return]  # a Variable only if the model is one
            [(path, _like(specs[path], raw(leaf))) for path, leaf in items_of(updates)]
        )

    def _check_parameters(self, model: Any, live: Items) -> None:
        """Refuse a model whose parameters are at other paths than those at the start."""
        known = {path for path, _ in self._layout.params}
        found = {path for path, _ in live}
        if known != found:
            gone = tuple(_where(path) for path, _ in self._layout.params if path not in found)
            new = tuple(_where(path) for path, _ in live if path not in known)
            raise ParametersChangedError("Optimizer.update", type(model).__name__, gone, new)

    def _aligned(self, name: str, given: Any, live: Items) -> Any:
        """A State like the gradients, cut down to the parameters and laid out as optax knows them."""
        found = dict(items_of(given))
        problems = []
        for path, leaf in live:
            if path not in found:
                problems.append(f"{_where(path)} is missing")
            elif shapes(raw(found[path])) != shapes(raw(leaf)):
                expected = _shape_text(raw(leaf))
                problems.append(f"{_where(path)} is {expected}, found {_shape_text(raw(found[path]))}")
        if problems:
            raise GradientMismatchError("Optimizer.update", name, tuple(problems))
        return self._layout.params_from({path: raw(leaf) for path, leaf in found.items()})

    def _extra_aligned(self, name: str, given: Any, live: Items) -> Any:
        """An extra argument; a State over the parameters is laid out like the gradients."""
        if not isinstance(given, State):
            return given
        covers = {path for path, _ in live} <= {path for path, _ in items_of(given)}
        return self._aligned(name, given, live) if covers or name == "grad" else given

    def _write(self, model: Any, live: Items, new: Any, opt_state: Any) -> None:
        """Write parameters and state, after all that can fail."""
        own = Owned()
        values = {path: own(raw(leaf)) for path, leaf in items_of(new)}
        plain = [(path, values[path]) for path, leaf in live if not isinstance(leaf, Variable)]
        writes = [(leaf, values[path]) for path, leaf in live if isinstance(leaf, Variable)]
        writes.append((self.step, self.step.get_raw_value() + 1))
        pairs = matched(self.opt_state, opt_state)
        rebuilt = _held(opt_state, self._layout, new) if pairs is None else None
        writes += [(held, own(value)) for held, value in pairs or ()]
        for variable, _ in writes:
            check_write(variable)
        if plain:
            update_node(model, from_flat_state(plain))
        for variable, value in writes:
            variable.set_raw_value(value)
        if rebuilt is not None:
            self.opt_state, self._layout = rebuilt


class ModelAndOptimizer(Optimizer[M]):
    """An `Optimizer` that keeps the model, so that `update` takes the gradients alone.

    Args:
        model: The model.
        tx: An optax transformation, or a function without arguments that makes one.
        wrt: A filter that selects the parameters to train.
        graph: False to refuse shared Variables.

    Attributes:
        model: The model.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> optimizer = nnx.ModelAndOptimizer(model, optax.sgd(0.1))
        >>> grads = nnx.grad(lambda m: (m(jnp.ones((1, 2))) ** 2).mean())(optimizer.model)
        >>> updates = optimizer.update(grads)
        >>> list(updates)
        ['kernel', 'bias']
    """

    model: M

    def __init__(self, model: M, tx: Any, *, wrt: Filter = Param, graph: bool | None = None):
        super().__init__(model, tx, wrt=wrt, graph=graph)
        self.model = model

    def update(self, grads: Any, _second: Any = MISSING, /, **extra: Any) -> State:  # type: ignore[override]  # it has the model
        """Update the parameters of the model in place, from their gradients.

        Args:
            grads: A State with a gradient for each parameter.
            **extra: Further arguments of the transformation.

        Returns:
            What was added to each parameter.

        Raises:
            OptimizerArgumentError: If the arguments are not those that the transformation takes.
            GradientMismatchError: If a gradient is missing or has another shape.

            After any error nothing is changed.
        """
        if not isinstance(_second, Missing):
            raise OptimizerArgumentError(
                "ModelAndOptimizer.update",
                "two arguments",
                "the gradients alone, since the optimizer has the model",
                "Write optimizer.update(grads), or make it with nnx.Optimizer(model, tx, wrt=nnx.Param) "
                "to write optimizer.update(model, grads).",
            )
        _check_gradients("ModelAndOptimizer.update", grads, self.model)
        return self._update(self.model, grads, extra)


@contextlib.contextmanager
def _inside_optax() -> Iterator[None]:
    """The promotion rules that optax is written for, and masks in `tx` are constants."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), reading_constants():
        yield


def _parameters(model: Any, wrt: Filter, graph: bool | None) -> Items:
    """The live Variables, and plain arrays, that a filter selects, with their paths."""
    live = items_of(variables(model, wrt, graph=graph))
    if not live:
        kinds = {type(leaf).__name__ for _, leaf in items_of(variables(model))}
        model_name, wrt_name = type(model).__name__, getattr(wrt, "__name__", repr(wrt))
        raise NoParametersError("Optimizer", model_name, wrt_name, tuple(sorted(kinds)))
    return live


def _held(opt_state: Any, layout: Layout, params: Any) -> tuple[Any, Layout]:
    """An optax state as the optimizer holds it, and how to give it back."""
    own = Owned(params)
    opt_state = jax.tree.map(lambda x: own(x, copy_scalars=True), opt_state)
    specs = tuple(map(spec_of, flatten(opt_state)[0]))
    return stored(opt_state, params), Layout(layout.params, specs)


def _check_call(model: Any, grads: Any, extra: dict[str, Any]) -> None:
    """Refuse the call forms of other times and places, with what to type."""
    where, instead = "Optimizer.update", "Write optimizer.update(model, grads)."
    if isinstance(model, Missing) or extra.keys() & {"model", "grads"}:
        found = " and ".join(f"{name}=..." for name in extra) or "no argument"
        raise OptimizerArgumentError(where, found, "the model and the gradients by position", instead)
    if isinstance(grads, Missing):
        keeps = "To leave the model out, make it with nnx.ModelAndOptimizer(model, tx)."
        both = "the model and the gradients"
        raise OptimizerArgumentError(where, "one argument", both, f"{instead} {keeps}")
    if isinstance(model, State) and not isinstance(grads, State):
        raise OptimizerArgumentError(where, "a State first", "the model first", instead)
    _check_gradients(where, grads, model)


def _check_gradients(where: str, grads: Any, model: Any) -> None:
    """Refuse gradients that are no State."""
    if isinstance(grads, State) or (isinstance(grads, Variable) and isinstance(model, Variable)):
        return
    raise OptimizerArgumentError(
        where,
        f"grads = {short(grads)}",
        "a State of gradients",
        "Write grads = nnx.grad(loss)(model), or nnx.state(grads, wrt) for gradients in a Module.",
    )


def _where(path: Any) -> str:
    """A path in a text."""
    return path_text(path) or "the value"


def _shape_text(value: Any) -> str:
    """What the shape of a value is, in a text."""
    return short(value) if is_array(value) else f"a {type(value).__name__}"


def _like(leaf: Any, value: Any) -> Any:
    """A value in a Variable like that of a parameter."""
    return new_variable(leaf._spec, value) if isinstance(leaf, Variable) else value
