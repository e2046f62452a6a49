"""The meeting with optax: a transformation that compares and pickles, and trees as optax sees them.

optax wants arrays in trees of one shape: parameters, gradients and the moments over them must have equal
structure. An `Optimizer` holds Variables instead, which live, are written, and may get other metadata. A
`Layout` remembers how each tree looked when `tx.init` saw it, so that optax meets the same structure at
every step, and masks and labels made from `nnx.state(model, wrt)` fit.

    nnx.state(model, wrt)   State of Param      -- tx.init -->   moments: State of Param, counts: arrays
                                                                          |  stored            ^  restored
                                        Optimizer.opt_state:     State of OptVariable, OptArray
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .._printing import Opened, opened
from .._repr import short
from .._spec import VariableSpec
from .._state import State, from_flat_state, to_flat_state
from .._state_functions import map_state
from .._typing import Path
from .._variable import Variable, new_variable
from .._variable_names import register_variable_name
from ..errors import OptimizerArgumentError, TransformationPickleError

try:
    import cloudpickle
except ImportError:  # pragma: no cover - it is only needed to pickle what pickle cannot
    cloudpickle = None

Items = list[tuple[Path, Any]]

_VALUE_HOOKS = ("on_create_value", "on_get_value", "on_set_value")
_SHARDING = ("sharding_names", "eager_sharding", "on_add_axis", "on_remove_axis")


@register_variable_name("OptState")
class OptState(Variable[Any]):
    """What an optimizer keeps from one step to the next.

    Example:
        >>> nnx.OptState(jnp.uint32(0))
        OptState( # 1 (4 B)
          value=Array(0, dtype=uint32)
        )
    """

    __slots__ = ()


@register_variable_name("OptArray")
class OptArray(OptState):
    """An array of an optimizer that belongs to no parameter: a step count, an injected hyperparameter.

    Example:
        >>> optimizer = nnx.Optimizer(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), optax.adam(1e-3), wrt=nnx.Param)
        >>> optimizer.opt_state[0].count
        OptArray( # 1 (4 B)
          value=Array(0, dtype=int32)
        )
    """

    __slots__ = ()


@register_variable_name("OptVariable")
class OptVariable(OptState):
    """A value that an optimizer keeps for one parameter, at the parameter's path and with its metadata.

    Example:
        >>> optimizer = nnx.Optimizer(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), optax.adam(1e-3), wrt=nnx.Param)
        >>> optimizer.opt_state[0].mu['kernel']
        OptVariable( # 6 (24 B)
          value=Array([[0., 0., 0.], [0., 0., 0.]], dtype=float32)
        )
    """

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Transformation:
    """What the user gave as `tx`: a transformation of gradients, or a function that makes one.

    It is static, so two built alike compare equal, and pickles where its parts can be.
    """

    given: Any

    def made(self) -> Any:
        """The transformation itself."""
        if _is_transformation(self.given):
            return self.given
        problem = None
        made = self.given
        if callable(self.given):
            try:
                made = self.given()
            except TypeError as error:
                problem = error
        if not _is_transformation(made):
            raise OptimizerArgumentError(
                "Optimizer",
                f"tx = {short(self.given)}",
                "an optax transformation, or a function without arguments that makes one",
                "Write tx=optax.adam(1e-3), or tx=functools.partial(optax.adam, 1e-3).",
            ) from problem
        return made

    def __deepcopy__(self, memo: Any) -> Transformation:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickle.dumps(self.given)
        except Exception as error:  # pickle raises many kinds
            if cloudpickle is None:
                raise TransformationPickleError(short(self.given)) from error
            return (_transformation_from, (cloudpickle.dumps(self.given),))
        return (Transformation, (self.given,))


def _open(transformation: Transformation) -> Opened | None:
    """How a Transformation is shown: as what the user gave."""
    return opened.dispatch(type(transformation.given))(transformation.given)


opened.register(Transformation, _open)


def _transformation_from(pickled: bytes) -> Transformation:
    """The Transformation around what cloudpickle wrote."""
    return Transformation(pickle.loads(pickled))


def _is_transformation(x: Any) -> bool:
    """Whether a value has what optax calls: `init` and `update`."""
    return not isinstance(x, type) and hasattr(x, "init") and hasattr(x, "update")


def update_function(tx: Any) -> Callable[..., Any]:
    """The `update` of a transformation, made to take the extra arguments that it has no use for."""
    if isinstance(tx, optax.GradientTransformation):
        tx = optax.with_extra_args_support(tx)
    return tx.update  # type: ignore[no-any-return]  # optax is not typed


class Layout:
    """How optax sees the parameters and its own state: the spec of each leaf, None for a plain array."""

    __slots__ = ("_hash", "opt_state", "params")

    params: tuple[tuple[Path, VariableSpec | None], ...]
    opt_state: tuple[VariableSpec | None, ...]

    def __init__(
        self,
        params: tuple[tuple[Path, VariableSpec | None], ...],
        opt_state: tuple[VariableSpec | None, ...],
    ):
        self.params = params
        self.opt_state = opt_state
        self._hash = hash((params, opt_state))

    def params_from(self, values: Mapping[Path, Any]) -> Any:
        """The tree that optax takes for parameters, with these values."""
        return tree_of([(path, _filled(spec, values[path])) for path, spec in self.params])

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Layout
            and self._hash == other._hash
            and self.params == other.params
            and self.opt_state == other.opt_state
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Layout({len(self.params)} parameter{'s' * (len(self.params) != 1)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Layout, (self.params, self.opt_state))


def items_of(tree: Any) -> Items:
    """(path, leaf) pairs of a State; of anything else, itself at the empty path."""
    return list(to_flat_state(tree)) if isinstance(tree, State) else [((), tree)]


def tree_of(items: Items) -> Any:
    """The State of (path, leaf) pairs; the leaf itself if its path is empty."""
    return items[0][1] if len(items) == 1 and not items[0][0] else from_flat_state(items)


def raw(leaf: Any) -> Any:
    """The raw value of a Variable, anything else as it is."""
    return leaf.get_raw_value() if isinstance(leaf, Variable) else leaf


def spec_of(leaf: Any) -> VariableSpec | None:
    """The spec of a Variable, None for anything else."""
    return leaf._spec if isinstance(leaf, Variable) else None


def _filled(spec: VariableSpec | None, value: Any) -> Any:
    """A value in a Variable of a spec; the value itself if there is none."""
    return value if spec is None else new_variable(spec, value)


def is_array(x: Any) -> bool:
    """Whether a leaf of an optax state is data, not a function or another static value."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, bool, int, float, complex))


def _is_hole(x: Any) -> bool:
    """Whether a value stands where optax masked one out."""
    return x is None or isinstance(x, optax.MaskedNode)


def _is_leaf(x: Any) -> bool:
    """Whether an optax state is not opened further."""
    return isinstance(x, Variable) or _is_hole(x)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves and treedef of an optax state; Variables and masked places are leaves."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_leaf)
    return leaves, treedef


def stored(opt_state: Any, params: Any) -> Any:
    """An optax state as an Optimizer holds it: an OptVariable for each parameter's leaf, else OptArrays."""
    known = dict(items_of(params))

    def outer(x: Any) -> Any:
        if isinstance(x, State):
            return map_state(lambda path, leaf: _stored_in_state(leaf, known.get(path)), x)
        return _stored_in_state(x, known.get(())) if isinstance(x, Variable) else _as_array(x)

    return jax.tree.map(outer, opt_state, is_leaf=lambda x: isinstance(x, State) or _is_leaf(x))


def _as_array(x: Any) -> Any:
    """A leaf that belongs to no parameter, as an Optimizer holds it."""
    return OptArray(_array(x)) if is_array(x) else x


def _array(x: Any) -> Any:
    """An array with a dtype of its own: optax starts some counts as weakly typed, and ends them as not."""
    x = jnp.asarray(x) if isinstance(x, (bool, int, float, complex)) else x
    return x.astype(x.dtype) if getattr(x, "weak_type", False) else x


def _stored_in_state(leaf: Any, param: Any) -> Any:
    """A leaf that mirrors a parameter."""
    value = raw(leaf)
    if _is_hole(value):
        return value
    if isinstance(leaf, Variable) or is_array(value):
        return OptVariable.from_metadata(jax.tree.map(_array, value), _inherited(param, value))
    return jax.tree.map(_as_array, value)


def _inherited(param: Any, value: Any) -> dict[str, Any]:
    """The metadata of a parameter that also holds for a value kept for it."""
    if not isinstance(param, Variable):
        return {}
    same_shape = shapes(value) == shapes(raw(param))
    left_out = _VALUE_HOOKS if same_shape else (*_VALUE_HOOKS, *_SHARDING)
    return {name: x for name, x in param.get_metadata().items() if name not in left_out}


def shapes(value: Any) -> Any:
    """The shapes of the arrays in a value, and how they hang together."""
    leaves, treedef = jax.tree.flatten(value)
    return treedef, list(map(np.shape, leaves))


def restored(opt_state: Any, specs: Sequence[VariableSpec | None]) -> Any:
    """What optax knows, from what an Optimizer holds."""
    leaves, treedef = flatten(opt_state)
    filled = [_filled(spec, raw(leaf)) for leaf, spec in zip(leaves, specs, strict=True)]
    return jax.tree.unflatten(treedef, filled)


def matched(opt_state: Any, new: Any) -> list[tuple[Variable[Any], Any]] | None:
    """(held Variable, new value) pairs; None if the new optax state does not fit into what is held."""
    old_leaves, old_def = flatten(opt_state)
    new_leaves, new_def = flatten(new)
    if old_def != new_def or not all(map(_fits, old_leaves, new_leaves)):
        return None
    pairs = zip(old_leaves, new_leaves, strict=True)
    return [(old, jax.tree.map(_array, raw(leaf))) for old, leaf in pairs if isinstance(old, Variable)]


def _fits(old: Any, new: Any) -> bool:
    """Whether a new leaf can be written into what is held."""
    if isinstance(old, OptState):
        return not _is_hole(raw(new)) and (isinstance(new, Variable) or is_array(new))
    return old is raw(new) or (_is_hole(old) and type(old) is type(raw(new)))


class Owned:
    """Gives each place an array of its own, so that donating one place does not delete another's."""

    def __init__(self, taken: Any = ()):
        self._taken = {id(x): x for x in jax.tree.leaves(taken)}

    def __call__(self, value: Any, copy_scalars: bool = False) -> Any:
        """A value without arrays that stand elsewhere."""

        def own(x: Any) -> Any:
            if isinstance(x, jax.core.Tracer) or not isinstance(x, jax.Array):
                return x
            x = x.copy() if id(x) in self._taken or (copy_scalars and x.ndim == 0) else x
            self._taken[id(x)] = x
            return x

        return jax.tree.map(own, value)
