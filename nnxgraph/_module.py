"""`Module`: the base of layers and models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ._filters import Filter, filters_to_predicates
from ._pytree import Pytree
from ._typing import Key, Path
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

        Args:
            *filters: Which modules to change; all if there are none.
            raise_if_not_found: Whether an attribute that no module has is an error.
            graph: False to refuse shared Variables.
            **attributes: The attributes and their new values.

        Raises:
            UnknownAttributesError: If no module has one of the attributes; then nothing is changed.
        """
        predicates = filters_to_predicates(filters) or (lambda path, x: True,)
        chosen = [m for path, m in iter_modules(self, graph=graph) if any(p(path, m) for p in predicates)]
        unknown = [name for name in attributes if not any(name in _attributes(m) for m in chosen)]
        if unknown and raise_if_not_found:
            known = sorted({name for m in chosen for name in _attributes(m)})
            raise UnknownAttributesError(type(self).__name__, tuple(unknown), tuple(known))
        for module in chosen:
            for name, value in attributes.items():
                if name in _attributes(module):
                    setattr(module, name, value)

    def iter_modules(self) -> Iterator[tuple[Path, Module]]:
        """This module and those below it with their paths, children first."""
        return iter_modules(self)

    def iter_children(self) -> Iterator[tuple[Key, Module]]:
        """The modules right below this one with the names of their attributes."""
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
        """Record an intermediate value in an attribute; `nnx.pop` collects what was recorded.

        Args:
            variable_type: The kind of the Variable that records, such as `nnx.Intermediate`.
            name: The name of the attribute.
            value: The value.
            reduce_fn: `(old, value) -> new`; by default appends to a tuple.
            init_fn: The value before the first; by default an empty tuple.
            capture_noop: Accepted for compatibility.

        Returns:
            True: the value was recorded.

        Raises:
            NameTakenError: If the attribute exists and is no Variable of that kind.
        """
        found = _attributes(self).get(name)
        if found is None:
            setattr(self, name, variable_type(reduce_fn(init_fn(), value)))
        elif type(found) is variable_type:
            found.set_value(reduce_fn(found.get_value(), value))
        else:
            where = f"{type(self).__name__}.sow"
            raise NameTakenError(where, name, type(found).__name__, variable_type.__name__)
        return True

    def perturb(
        self,
        name: str,
        value: Any,
        variable_type: type[Variable[Any]] = Perturbation,
        capture_noop: bool | None = None,
    ) -> Any:
        """Add the Variable `name` to a value, if the module has it, to take gradients at this place.

        Args:
            name: The name of the attribute that holds the perturbation.
            value: The value, of any shape.
            variable_type: The kind of the Variable.
            capture_noop: Accepted for compatibility.

        Returns:
            `value` plus the perturbation; `value` itself if the module has none. No state is made: set
            `module.name = nnx.Perturbation(jnp.zeros(shape))` first.
        """
        found = _attributes(self).get(name)
        return value + found.get_value() if isinstance(found, variable_type) else value


def _attributes(module: Module) -> Mapping[Any, Any]:
    """The attributes of a module, or the entries of one that is a container."""
    return node_type(type(module)).attributes(module)


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


def iter_module_children(module: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Key, Module]]:
    """The modules right below a module with the names of their attributes.

    Args:
        module: The module.
        graph: False to refuse shared Variables.

    Returns:
        An iterator of (name, module).

    Example:
        >>> list(nnx.iter_module_children(nnx.Linear(2, 3, rngs=nnx.Rngs(0))))
        []
    """
    return ((key, x) for key, x in iter_children(module, graph=graph) if isinstance(x, Module))
