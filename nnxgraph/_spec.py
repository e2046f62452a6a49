"""What is static of a Variable: its kind and metadata, which a box of initializers may bring along."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ._frame import Birthplace, check_change
from ._static import held_by, own_copy, packed, static_key
from ._typing import MISSING, Missing
from .errors import AttributeNotFoundError

if TYPE_CHECKING:
    from ._variable import Variable

Hook = Callable[..., Any]

_HOOKS = ("on_create_value", "on_get_value", "on_set_value", "on_add_axis", "on_remove_axis")
_SHARDING_ALIASES = ("sharding", "out_sharding")
_interning = threading.Lock()


class VariableSpec:
    """What is static of a Variable: its kind and metadata. Interned, so `is` compares."""

    __slots__ = ("__weakref__", "hooks", "kind", "metadata")
    _table: ClassVar[weakref.WeakValueDictionary[Any, VariableSpec]] = weakref.WeakValueDictionary()

    kind: type[Variable[Any]]
    metadata: Mapping[str, Any]
    hooks: Mapping[str, tuple[Hook, ...]]

    @classmethod
    def of(cls, kind: type[Variable[Any]], metadata: Mapping[str, Any]) -> VariableSpec:
        """The one spec of this kind with this metadata."""
        key = (kind, frozenset((n, static_key(v), *held_by(v)) for n, v in metadata.items()))
        spec = cls._table.get(key)
        if spec is None:
            spec = object.__new__(cls)
            spec.kind = kind
            spec.metadata = {name: own_copy(value) for name, value in metadata.items()}
            spec.hooks = {h: found for h in _HOOKS if (found := _hooks_of(kind, metadata, h))}
            with _interning:
                spec = cls._table.setdefault(key, spec)
        return spec

    def __reduce__(self) -> tuple[Any, ...]:
        return (_interned, (self.kind, packed(dict(self.metadata))))

    def __repr__(self) -> str:
        return f"VariableSpec({self.kind.__name__}, {self.metadata})"


def _interned(kind: type[Variable[Any]], metadata: Mapping[str, Any]) -> VariableSpec:
    """`VariableSpec.of` as a function, which all ways of pickling find by its name."""
    return VariableSpec.of(kind, metadata)


def _hooks_of(kind: type, metadata: Mapping[str, Any], name: str) -> tuple[Hook, ...]:
    """The hooks of one name: the method of the class, then those in the metadata."""
    method = getattr(kind, name, None)
    extra = metadata.get(name, ())
    extra = tuple(extra) if isinstance(extra, (list, tuple)) else (extra,)
    return ((method,) if method is not None else ()) + extra


class VariableMetadata:
    """A raw value with metadata, as `with_metadata` makes it; a Variable takes both over.

    Args:
        raw_value: The value.
        on_set_value: Hooks `(variable, value) -> value` that run when a value is set.
        on_get_value: Hooks that run when the value is read.
        on_create_value: Hooks that run when the Variable is made.
        on_add_axis: Hooks `(variable, axis_index, axis_name)` that run when a transform adds an axis.
        on_remove_axis: Hooks that run when a transform removes an axis.
        metadata: Further metadata.

    Example:
        >>> box = nnx.VariableMetadata(jnp.ones(2), metadata={'tag': 'frozen'})
        >>> nnx.Param(box).tag
        'frozen'
    """

    def __init__(
        self,
        raw_value: Any,
        on_set_value: Any = (),
        on_get_value: Any = (),
        on_create_value: Any = (),
        on_add_axis: Any = (),
        on_remove_axis: Any = (),
        metadata: Mapping[str, Any] | None = None,
    ):
        hooks = {
            "on_set_value": on_set_value,
            "on_get_value": on_get_value,
            "on_create_value": on_create_value,
            "on_add_axis": on_add_axis,
            "on_remove_axis": on_remove_axis,
        }
        self.raw_value = raw_value
        self.metadata = {name: hook for name, hook in hooks.items() if hook != ()} | dict(metadata or {})


def with_metadata(
    initializer: Callable[..., Any],
    on_set_value: Any = (),
    on_get_value: Any = (),
    on_create_value: Any = (),
    on_add_axis: Any = (),
    on_remove_axis: Any = (),
    **metadata: Any,
) -> Callable[..., Any]:
    """Wrap an initializer so that the Variables made from its values get metadata.

    Args:
        initializer: A callable `(key, shape, dtype) -> array`.
        on_set_value: Hook or hooks `(variable, value) -> value` that run when a value is set.
        on_get_value: Hook or hooks that run when the value is read.
        on_create_value: Hook or hooks that run when the Variable is made.
        on_add_axis: Hook or hooks `(variable, axis_index, axis_name)`.
        on_remove_axis: Hook or hooks `(variable, axis_index, axis_name)`.
        **metadata: Further metadata.

    Returns:
        An initializer whose values a Variable unwraps together with the metadata.

    Example:
        >>> init = nnx.with_metadata(nnx.initializers.zeros_init(), axes=('in', 'out'))
        >>> nnx.Linear(2, 3, kernel_init=init, rngs=nnx.Rngs(0)).kernel.axes
        ('in', 'out')
    """

    def wrapped(*args: Any, **kwargs: Any) -> VariableMetadata:
        value = initializer(*args, **kwargs)
        return VariableMetadata(
            value,
            on_set_value,
            on_get_value,
            on_create_value,
            on_add_axis,
            on_remove_axis,
            metadata,
        )

    return wrapped


def canonical(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with one spelling for the sharding names."""
    metadata = dict(metadata)
    for alias in _SHARDING_ALIASES:
        if alias in metadata:
            metadata.setdefault("sharding_names", metadata.pop(alias))
    return metadata


class HasSpec:
    """The part of a Variable that is its kind and metadata."""

    __slots__ = ("_nnx_born_in", "_spec")
    _nnx_born_in: Birthplace
    _spec: VariableSpec

    def _describe(self) -> str:
        """The Variable in a few words, for texts."""
        raise NotImplementedError

    @property
    def _metadata(self) -> Mapping[str, Any]:
        """The metadata."""
        return self._spec.metadata

    @property
    def sharding_names(self) -> Any:
        """The axis names that shard the value, None if there are none."""
        return self._metadata.get("sharding_names")

    def get_metadata(
        self,
        name: str | None = None,
        default: Any = MISSING,
        *,
        exclude_required: bool | None = None,
    ) -> Any:
        """One entry of the metadata, or a dict of all.

        Args:
            name: The entry; all of them if left out.
            default: What to return if there is no such entry.
            exclude_required: Accepted for compatibility; every entry is optional here.

        Raises:
            AttributeNotFoundError: If there is no such entry and no default.
        """
        if name is None:
            return own_copy(self._metadata)
        if name in self._metadata:
            return own_copy(self._metadata[name])
        if isinstance(default, Missing):
            raise AttributeNotFoundError(self._describe(), name, tuple(self._metadata), True)
        return default

    def has_metadata(self, name: str) -> bool:
        """Whether the metadata has an entry."""
        return name in self._metadata

    def set_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Set entries of the metadata.

        Args:
            *args: A name and a value, or a mapping that replaces all metadata.
            **kwargs: Entries to set.
        """
        if len(args) == 2:
            kwargs[args[0]] = args[1]
            args = ()
        check_change(self, "metadata", lambda: False)
        base = canonical(dict(*args)) if args else self._metadata
        set_spec(self, VariableSpec.of(self._spec.kind, {**base, **canonical(kwargs)}))

    def del_metadata(self, name: str) -> None:
        """Remove an entry of the metadata.

        Raises:
            AttributeNotFoundError: If there is no such entry.
        """
        self.get_metadata(name)
        self.set_metadata({k: v for k, v in self._metadata.items() if k != name})

    def add_axis(self, axis_index: int, axis_name: str | None) -> None:
        """A transform added an axis to the value: name it in the sharding, run the `on_add_axis` hooks.

        Args:
            axis_index: Where the new axis stands; negative ones count from the end of the new shape.
            axis_name: Its name in the sharding.
        """
        names = self.sharding_names
        if names is not None:
            at = axis_index if axis_index >= 0 else len(names) + 1 + axis_index
            self.set_metadata(sharding_names=(*names[:at], axis_name, *names[at:]))
        for hook in self._spec.hooks.get("on_add_axis", ()):
            hook(self, axis_index, axis_name)

    def remove_axis(self, axis_index: int, axis_name: str | None) -> None:
        """A transform took an axis from the value: drop its name, run the `on_remove_axis` hooks.

        Args:
            axis_index: Where the axis stands; negative ones count from the end.
            axis_name: Its name in the sharding.
        """
        names = self.sharding_names
        if names is not None:
            at = axis_index % len(names)
            self.set_metadata(sharding_names=(*names[:at], *names[at + 1 :]))
        for hook in self._spec.hooks.get("on_remove_axis", ()):
            hook(self, axis_index, axis_name)


# Give a Variable another interned spec; its kind stays.
set_spec: Callable[[HasSpec, VariableSpec], None] = HasSpec.__dict__["_spec"].__set__
