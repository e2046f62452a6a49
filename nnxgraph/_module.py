"""`Module`: the base of layers and models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ._filters import Filter, filters_to_predicates
from ._pytree import Pytree
from ._recorder import OUTPUT, Slot, open_recorders, recorders_of, unwrapped
from ._typing import MISSING, Key, Missing, Path
from ._variable import Perturbation, Variable
from .errors import NameTakenError, UnknownAttributesError
from .graph._registry import node_type
from .graph._traverse import iter_children, iter_graph


class Module(Pytree):
    """Base of layers and models: plain attributes, shared references, mutable state.

    Example:
        >>> class Net(nnx.Module):
        ...     def __init__(self, *, rngs):
        ...         self.layers = [nnx.Linear(2, 2, rngs=rngs) for _ in range(3)]
        ...     def __call__(self, x):
        ...         for layer in self.layers:
        ...             x = layer(x)
        ...         return x
        >>> Net(rngs=nnx.Rngs(0))(jnp.ones((1, 2))).shape
        (1, 2)
    """

    def train(self, **attributes: Any) -> None:
        """Put this module and those below it in training mode.

        Sets `deterministic=False` and `use_running_average=False` wherever a module has the attribute.

        Args:
            **attributes: Further attributes to set; some module must have each.

        Raises:
            UnknownAttributesError: If no module has one of the further attributes.
        """
        self._set_mode(attributes, deterministic=False, use_running_average=False)

    def eval(self, **attributes: Any) -> None:
        """Put this module and those below it in evaluation mode.

        Sets `deterministic=True` and `use_running_average=True` wherever a module has the attribute.

        Args:
            **attributes: Further attributes to set; some module must have each.

        Raises:
            UnknownAttributesError: If no module has one of the further attributes.
        """
        self._set_mode(attributes, deterministic=True, use_running_average=True)

    def _set_mode(self, own: dict[str, Any], **attributes: Any) -> None:
        """Set the user's attributes, which must exist, and those of the mode where they do."""
        self.set_attributes(**own)
        self.set_attributes(raise_if_not_found=False, **attributes)

    def set_attributes(
        self,
        *filters: Filter,
        raise_if_not_found: bool = True,
        graph: bool | None = None,
        **attributes: Any,
    ) -> None:
        """Set attributes on this module and those below it, wherever they exist.

        A module has an attribute if the instance has it, or if its class has a default for it or a property
        with a setter.

        Args:
            *filters: Which modules to change: filters over the path and the module, such as a type of
                modules or `nnx.PathContains('encoder')`. All if there are none.
            raise_if_not_found: Whether an attribute that no module has is an error.
            graph: False to refuse shared Variables.
            **attributes: The attributes and their new values.

        Raises:
            UnknownAttributesError: If no module has one of the attributes; then nothing is changed.

        Example:
            >>> model = nnx.Dict(encoder=nnx.Dropout(0.1), decoder=nnx.Dropout(0.1))
            >>> model.set_attributes(nnx.PathContains('encoder'), deterministic=True, rate=0.5)
            >>> model.encoder.rate, model.decoder.rate
            (0.5, 0.1)
        """
        where = f"{type(self).__name__}.set_attributes"
        set_where_found(where, self, filters or (...,), raise_if_not_found, graph, attributes)

    def iter_modules(self) -> Iterator[tuple[Path, Module]]:
        """This module and those below it with their paths, children first."""
        return iter_modules(self)

    def iter_children(self) -> Iterator[tuple[Key, Module]]:
        """The modules right below this one, as `nnx.iter_module_children` gives them."""
        return iter_module_children(self)

    def sow(
        self,
        variable_type: type[Variable[Any]],
        name: str,
        value: Any,
        reduce_fn: Callable[[Any, Any], Any] = lambda old, new: (*old, new),
        init_fn: Callable[[], Any] = lambda: (),
        capture_noop: bool | None = None,
    ) -> bool:
        """Record an intermediate value.

        Under `nnx.capture` the value goes to the capture and leaves nothing in the module. Otherwise it
        goes to an attribute, which grows with each call: a jitted function whose module grows is traced
        anew, so take the values out with `nnx.pop` in the same function, or use `nnx.capture`.

        Args:
            variable_type: The kind of the Variable that records, such as `nnx.Intermediate`.
            name: The name of the attribute, or of the entry in what `nnx.capture` returns.
            value: The value, an array or a pytree; Variables in it are replaced by their values.
            reduce_fn: `(old, value) -> new`; by default appends to a tuple.
            init_fn: The value before the first; by default an empty tuple.
            capture_noop: True to record nothing where no capture runs. None means False.

        Returns:
            Whether the value was recorded.

        Raises:
            NameTakenError: If the attribute exists and is no Variable of that kind.
            CaptureTraceError: If a capture runs, and the value could not reach it from here.

        Example:
            >>> class Net(nnx.Module):
            ...     def __call__(self, x):
            ...         self.sow(nnx.Intermediate, 'h', 2 * x)
            ...         return x
            >>> y, state = nnx.capture(Net(), nnx.Intermediate)(jnp.ones(()))
            >>> [h.item() for h in state['h'].get_value()]
            [2.0]
        """
        where = f"{type(self).__name__}.sow"
        found = _attributes(self).get(name)
        taken = getattr(type(self), name, None) if found is None else found
        if type(found) is not variable_type and (found is not None or callable(taken)):
            raise NameTakenError(where, name, type(taken).__name__, variable_type.__name__)
        value = unwrapped(value)
        known = recorders_of(self)
        takers = [(r, p) for r, p in known if r.wants(variable_type)]
        if takers:
            slot = Slot((*takers[0][1], name), variable_type)
            takers[0][0].record(where, slot, lambda old: reduce_fn(old, value), init_fn)
        elif known or not _sows_here(where, variable_type, capture_noop):
            return False
        else:
            old = init_fn() if found is None else found.get_value()
            _keep(self, name, variable_type, reduce_fn(old, value))
        return True

    def perturb(
        self,
        name: str,
        value: Any,
        variable_type: type[Variable[Any]] = Perturbation,
        capture_noop: bool | None = None,
    ) -> Any:
        """Add a perturbation to a value, to take gradients at this place.

        Under `nnx.capture` for this kind the perturbation is recorded; it is the one in `init`, or zero.
        Otherwise it is the Variable that the module has under this name, if it has one. No state is made.

        Args:
            name: The name of the perturbation.
            value: The value, an array or a pytree of arrays.
            variable_type: The kind of the Variable.
            capture_noop: True to return the value as it is where no capture runs. None means False.

        Returns:
            `value` plus the perturbation; `value` itself if there is none.

        Raises:
            CaptureTraceError: If a capture runs, and does not know this module from here.

        Example:
            >>> class Net(nnx.Module):
            ...     def __call__(self, x):
            ...         return 3 * self.perturb('h', x)
            >>> net = Net()
            >>> y, zeros = nnx.capture(net, nnx.Perturbation)(jnp.ones(()))
            >>> grads = jax.grad(lambda p: nnx.capture(net, init=p)(jnp.ones(()))[0])(zeros)
            >>> grads['h'][...].item()
            3.0
        """
        where = f"{type(self).__name__}.perturb"
        found = _attributes(self).get(name)
        known = recorders_of(self)
        if not known:
            for recorder in open_recorders():
                if variable_type in recorder.kinds or recorder.begins_with_values:
                    recorder.check_place(where, copies_return=False)
            if capture_noop:
                return value
        own = found if isinstance(found, variable_type) else None
        given = next((v for r, p in known if (v := r.initial((*p, name))) is not None), own)
        added = None if given is None else given.get_value()
        takers = [(r, p) for r, p in known if r.wants(variable_type)]
        if takers:
            added = jax.tree.map(jnp.zeros_like, value) if added is None else added
            slot = Slot((*takers[0][1], name), variable_type)
            takers[0][0].record(where, slot, lambda _: added, lambda: None)
        return value if added is None else jax.tree.map(jnp.add, value, added)


def _sows_here(where: str, kind: type[Variable[Any]], capture_noop: bool | None) -> bool:
    """Whether a module that no capture knows sows into its attributes: what a capture wants comes back."""
    wanting = [recorder for recorder in open_recorders() if recorder.wants(kind)]
    for recorder in wanting:
        recorder.check_place(where, copies_return=True)
    return bool(wanting) or not capture_noop


def _keep(module: Module, name: str, kind: type[Variable[Any]], value: Any) -> None:
    """Put a sown value into an attribute."""
    found = _attributes(module).get(name)
    if found is None:
        setattr(module, name, kind(value))
    else:
        found.set_value(value)


def record_output(module: Any, output: Any) -> None:
    """Record what a call of a module returned, for the innermost capture that asks for it."""
    where = f"{type(module).__name__}.{OUTPUT}"
    wanting = [(recorder, kind) for recorder in open_recorders() if (kind := recorder.outputs) is not None]
    for recorder, kind in wanting:
        path = recorder.path_of(module)
        if path is not None:
            slot = Slot((*path, OUTPUT), kind)
            recorder.record(where, slot, lambda old: (*old, unwrapped(output)), lambda: ())
            return
    if wanting:
        recorder, kind = wanting[0]
        recorder.check_place(where, copies_return=True)
        found = _attributes(module).get(OUTPUT)
        old = () if found is None else found.get_value()
        _keep(module, OUTPUT, kind, (*old, unwrapped(output)))


def _attributes(module: Module) -> Mapping[Any, Any]:
    """The attributes of a module, or the entries of one that is a container."""
    return node_type(type(module)).attributes(module)


def set_where_found(
    where: str,
    node: Any,
    filters: tuple[Filter, ...],
    raise_if_not_found: bool,
    graph: bool | None,
    attributes: Mapping[str, Any],
) -> None:
    """Set attributes on the modules of a graph that match a filter, wherever they exist; all or none."""
    predicates = filters_to_predicates(filters)
    chosen = [m for path, m in iter_modules(node, graph=graph) if any(p(path, m) for p in predicates)]
    targets = [(m, name) for m in chosen for name in attributes if _has(m, name)]
    unknown = attributes.keys() - {name for _, name in targets}
    if unknown and raise_if_not_found:
        known = {name for m in chosen for name in _attributes(m) if isinstance(name, str)}
        raise UnknownAttributesError(
            where, tuple(n for n in attributes if n in unknown), tuple(sorted(known))
        )
    before = [(m, dict(_attributes(m)), dict(node_type(type(m)).marks(m))) for m, _ in targets]
    try:
        for module, name in targets:
            setattr(module, name, attributes[name])
    except Exception:
        for module, old, marks in reversed(before):
            node_type(type(module)).replace(module, old, marks)
        raise


def _has(module: Module, name: str) -> bool:
    """Whether a module has an attribute that can be set: of its own, a default of the class, a property."""
    if name in _attributes(module):
        return True
    found = inspect.getattr_static(type(module), name, MISSING)
    if isinstance(found, property):
        return found.fset is not None
    return not (isinstance(found, Missing) or hasattr(type(found), "__get__"))  # no method


def iter_modules(module: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Module]]:
    """All modules of a graph with their paths, children before their parents.

    Args:
        module: The object.
        graph: False to refuse shared Variables.

    Returns:
        An iterator of (path, module).

    Example:
        >>> [path for path, _ in nnx.iter_modules(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))]
        [()]
    """
    return ((path, x) for path, x in iter_graph(module, graph=graph) if isinstance(x, Module))


def iter_module_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Key, Module]]:
    """The modules right below a module: its attributes, and what stands in its plain containers.

    Args:
        node: The module.
        graph: False to refuse shared Variables.

    Returns:
        An iterator of (key, module), each module once. The key is the name of the attribute; for a module
        in a list, tuple or dict it is the path to it, such as `('layers', 0)`.

    Example:
        >>> class Net(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.layers = [nnx.Linear(2, 2, rngs=rngs)]
        ...         self.head = nnx.Linear(2, 1, rngs=rngs)
        >>> [key for key, _ in nnx.iter_module_children(Net(nnx.Rngs(0)))]
        [('layers', 0), 'head']
    """
    return ((key, x) for key, x in iter_children(node, graph=graph) if isinstance(x, Module))
