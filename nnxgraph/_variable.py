"""Variables: mutable boxes for the values of a model.

A `Variable` holds a value (an array, or a pytree of arrays), has a kind (its class: `Param`, `BatchStat`,
...), metadata, and identity. Kind and metadata together are its *spec*, which is interned: two Variables
alike have one and the same spec object, so that comparing them costs a pointer comparison.

Values are read and written through the running frame (`_frame`): the same Variable has a value of its own
in each lifted function that runs.
"""

from __future__ import annotations

import builtins
import copy
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey

from . import _frame
from ._operators import Operators
from ._repr import short
from ._static import own_copy, static_key
from ._typing import MISSING, Missing
from .errors import (
    AttributeNotFoundError,
    KindMismatchError,
    UnsupportedVariableError,
    ValueMismatchError,
)

A = TypeVar("A")
Hook = Callable[..., Any]

_HOOKS = ("on_create_value", "on_get_value", "on_set_value", "on_add_axis", "on_remove_axis")
_ARRAY_FIRST = frozenset({"shape", "dtype", "ndim", "size"})
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
        key = (kind, frozenset((name, static_key(value)) for name, value in metadata.items()))
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
        return (VariableSpec.of, (self.kind, dict(self.metadata)))

    def __repr__(self) -> str:
        return f"VariableSpec({self.kind.__name__}, {self.metadata})"


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


class Variable(Operators, Generic[A]):
    """A mutable box for a value, with a kind (the class), metadata, and identity.

    Reading `variable[...]` gives the value, `variable[...] = x` replaces it; arithmetic and the functions
    of `jax.numpy` work on it as on the array. In-place operators update this Variable, whoever else holds it.

    Args:
        value: An array, or a pytree of arrays; a `VariableMetadata` box is unwrapped.
        hijax: Whether the Variable keeps its state under raw JAX transforms; False or None here.
        ref: Whether the value is a `jax.Ref`; False or None here.
        eager_sharding: Whether sharding metadata is applied at once; kept as metadata if given.
        **metadata: Anything else to remember, readable as attributes.

    Raises:
        UnsupportedVariableError: If `hijax` or `ref` is true.

    Example:
        >>> v = nnx.Variable(jnp.array([1.0, 2.0]), tag='scale')
        >>> v += 1
        >>> v[...].tolist(), v.tag
        ([2.0, 3.0], 'scale')
    """

    __slots__ = ("__weakref__", "_frame", "_spec", "_value")
    __array_priority__ = 100  # numpy_array + variable is the Variable's affair, as it is a jax.Array's

    _value: A
    _spec: VariableSpec
    _frame: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(cls)

    def __init__(
        self,
        value: Any,
        *,
        hijax: bool | None = None,
        ref: bool | None = None,
        eager_sharding: bool | None = None,
        **metadata: Any,
    ):
        kind = type(self)
        if hijax or ref:
            raise UnsupportedVariableError(kind.__name__, "hijax" if hijax else "ref")
        if isinstance(value, VariableMetadata):
            metadata = value.metadata | metadata
            value = value.raw_value
        elif isinstance(value, Variable):
            value = value.get_raw_value()
        if eager_sharding is not None:
            metadata["eager_sharding"] = eager_sharding
        _set_spec(self, VariableSpec.of(kind, _canonical(metadata)))
        _set_frame(self, _frame.birthplace())
        _set_value(self, value)
        if self._spec.hooks:
            _set_value(self, self._run_hooks("on_create_value", value))

    # The value.

    def get_raw_value(self) -> A:
        """The value as it is stored, without `on_get_value` hooks."""
        if _frame.thread.frame is self._frame:
            return self._value
        return _frame.read(self)  # type: ignore[no-any-return]  # the same A in another frame

    def set_raw_value(self, value: Any, *, _unsafe_bypass_check: bool = False) -> None:
        """Store a value without `on_set_value` hooks.

        Raises:
            TraceWriteError: If the value could not be handed back from here.
        """
        if _unsafe_bypass_check:
            _set_value(self, value)
        else:
            _frame.write(self, value)

    def get_value(self, *, index: Any = MISSING) -> Any:
        """The value, or a part of it.

        Args:
            index: What stands in the brackets of `value[index]`; all of it if left out.
        """
        value = self.get_raw_value()
        if self._spec.hooks:
            value = self._run_hooks("on_get_value", value)
        if isinstance(index, Missing) or index is Ellipsis:
            return value
        return value[_plain_index(index)]  # type: ignore[index]  # arrays and dicts

    def set_value(self, value: Any, *, index: Any = MISSING) -> None:
        """Replace the value, or a part of it.

        Args:
            value: The new value; of any shape and dtype if `index` is left out.
            index: What stands in the brackets of `value[index] = ...`.

        Raises:
            ValueMismatchError: If an index is given and the value does not fit.
            TraceWriteError: If the value could not be handed back from here.
        """
        if isinstance(value, Variable):
            value = value.get_value()
        if not isinstance(index, Missing):
            value = self._with_part(index, value)
        if self._spec.hooks:
            value = self._run_hooks("on_set_value", value)
        _frame.write(self, value)

    def _with_part(self, index: Any, part: Any) -> Any:
        """The present value with one part replaced."""
        now = self.get_raw_value()
        if index is Ellipsis:
            return _fitted(self, now, part) if _is_array(now) else part
        index = _plain_index(index)
        if _is_array(now):
            part = _same_kind(self, now, part)
            try:
                return jnp.asarray(now).at[index].set(part)
            except ValueError as error:
                raise ValueMismatchError(self._describe(), short(part), str(error)) from None
        changed: Any = copy.copy(now)
        changed[index] = part
        return changed

    @property
    def value(self) -> Any:
        """The value; the same as `variable[...]`."""
        return self.get_value()

    @value.setter
    def value(self, value: Any) -> None:
        self.set_value(value)

    @property
    def raw_value(self) -> A:
        """The value as it is stored, without hooks."""
        return self.get_raw_value()

    def __getitem__(self, index: Any) -> Any:
        return self.get_value(index=index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.set_value(value, index=index)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.get_value()(*args, **kwargs)

    def _run_hooks(self, name: str, value: Any) -> Any:
        for hook in self._spec.hooks.get(name, ()):
            value = hook(self, value)
        return value

    # Kind and metadata.

    @property
    def _metadata(self) -> Mapping[str, Any]:
        return self._spec.metadata

    @property
    def type(self) -> builtins.type[Variable[A]]:
        """The kind: the class of the Variable."""
        return type(self)

    @property
    def var_type(self) -> builtins.type[Variable[A]]:
        """The kind: the class of the Variable."""
        return type(self)

    @property
    def hijax(self) -> bool:
        """Whether the Variable keeps its state under raw JAX transforms."""
        return False

    @property
    def ref(self) -> bool:
        """Whether the value is a `jax.Ref`."""
        return False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return np.shape(self.get_value())

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
            raise AttributeNotFoundError(self._describe(), name, tuple(self._metadata))
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
        base = _canonical(dict(*args)) if args else self._metadata
        _set_spec(self, VariableSpec.of(type(self), {**base, **_canonical(kwargs)}))

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

    # Copies.

    @classmethod
    def from_metadata(cls, value: Any, attributes: Mapping[str, Any]) -> Any:
        """A Variable of this kind with a raw value and metadata, without running hooks."""
        return new_variable(VariableSpec.of(cls, _canonical(attributes)), value)

    def replace(self, value: Any = MISSING, *, _copy_ref: bool = True, **updates: Any) -> Any:
        """A new Variable of the same kind with another raw value or other metadata.

        Args:
            value: The new raw value; the present one if left out.
            **updates: Metadata to change.

        Raises:
            KindMismatchError: If the value is a Variable of another kind.
        """
        if isinstance(value, Variable):
            if type(value) is not type(self):
                raise KindMismatchError(type(self).__name__, type(value).__name__)
            value = value.get_raw_value()
        raw = self.get_raw_value() if isinstance(value, Missing) else value
        spec = self._spec
        if updates:
            spec = VariableSpec.of(type(self), {**self._metadata, **_canonical(updates)})
        return new_variable(spec, raw)

    def copy(self, value: Any = MISSING, *, _copy_ref: bool = True, **updates: Any) -> Any:
        """A new Variable with the same kind, value and metadata, but for the changes given."""
        return self.replace(value, _copy_ref=_copy_ref, **updates)

    def to_state(self, value: Any = MISSING, *, _copy_ref: bool = True, **updates: Any) -> Any:
        """A new Variable as it stands in a State; the same as `copy`."""
        return self.replace(value, _copy_ref=_copy_ref, **updates)

    def copy_from(self, other: Variable[A]) -> None:
        """Take over value and metadata of another Variable of the same kind.

        Raises:
            KindMismatchError: If the kinds differ.
        """
        if type(other) is not type(self):
            raise KindMismatchError(type(self).__name__, type(other).__name__)
        self.update_from_state(other)

    def update_from_state(self, variable_state: Variable[A]) -> None:
        """Take over raw value and metadata of a Variable from a State."""
        _frame.write(self, variable_state.get_raw_value())
        _set_spec(self, VariableSpec.of(type(self), variable_state._metadata))

    def create_value(self, value: Any) -> Any:
        """The value that a new Variable would store: `value` after the `on_create_value` hooks."""
        return self._run_hooks("on_create_value", value)

    # Python's protocols.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_spec", "_value", "_frame"):
            raise AttributeError(name)
        if name in _ARRAY_FIRST and hasattr(value := self.get_value(), name):
            return getattr(value, name)
        metadata = self._spec.metadata
        if name in metadata:
            return own_copy(metadata[name])
        value = self.get_value()
        if hasattr(value, name):
            return getattr(value, name)
        raise AttributeNotFoundError(self._describe(), name, (*metadata, *dir(value)))

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            object.__setattr__(self, name, value)
        elif name.startswith("__"):  # typing notes `Param[Array](...)` as __orig_class__
            raise AttributeError(name)
        else:
            self.set_metadata(**{name: value})

    def __delattr__(self, name: str) -> None:
        self.del_metadata(name)

    def __jax_array__(self) -> Any:
        return self.get_value()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.get_value(), dtype=dtype, copy=copy)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return jnp

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.get_value().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.get_value().__dlpack_device__()

    def __copy__(self) -> Any:
        return self.replace()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        value = jax.tree.map(copy_array, self.get_raw_value())
        memo[id(self)] = twin = new_variable(self._spec, value)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return (new_variable, (self._spec, _picklable(self.get_raw_value())))

    def _describe(self) -> str:
        """`Param(float32[2,3])`, for texts."""
        value = self._value
        shown = short(value) if _is_array(value) else type(value).__name__
        return f"{type(self).__name__}({shown})"

    def __repr__(self) -> str:
        metadata = "".join(f", {name}={_shown(value)}" for name, value in self._metadata.items())
        return self._describe()[:-1] + metadata + ")"


_set_value = Variable.__dict__["_value"].__set__
_set_spec = Variable.__dict__["_spec"].__set__
_set_frame = Variable.__dict__["_frame"].__set__


def new_variable(spec: VariableSpec, value: Any) -> Any:
    """A Variable of a known spec, born here; runs no hook."""
    variable = object.__new__(spec.kind)
    _set_spec(variable, spec)
    _set_frame(variable, _frame.birthplace())
    _set_value(variable, value.value if type(value) is PackedKey else value)
    return variable


def set_spec(variable: Variable[Any], spec: VariableSpec) -> None:
    """Give a Variable another interned spec; its kind stays."""
    _set_spec(variable, spec)


class PackedKey:
    """A typed PRNG key in a pickle: its raw data and the name of its implementation."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        impl = str(jax.random.key_impl(self.value))
        return (_unpack_key, (np.asarray(jax.random.key_data(self.value)), impl))


def _unpack_key(data: Any, impl: str) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(data), impl=impl)


def _picklable(value: Any) -> Any:
    return PackedKey(value) if isinstance(value, jax.Array) and is_key(value) else value


def _canonical(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with one spelling for the sharding names."""
    metadata = dict(metadata)
    for alias in _SHARDING_ALIASES:
        if alias in metadata:
            metadata.setdefault("sharding_names", metadata.pop(alias))
    return metadata


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _shown(x: Any) -> str:
    """A value of the metadata for a text: an array without its contents."""
    return short(x) if _is_array(x) and not isinstance(x, type) else repr(x)


def copy_array(x: Any) -> Any:
    """An array in a buffer of its own; any other leaf as it is."""
    return x.copy() if _is_array(x) and hasattr(x, "copy") else x


def is_key(x: Any) -> bool:
    """Whether a value is an array of typed random keys."""
    return hasattr(x, "dtype") and bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def _plain_index(index: Any) -> Any:
    """An index in which Variables are replaced by their values."""
    if isinstance(index, tuple):
        return tuple(map(_plain_index, index))
    return index.get_value() if isinstance(index, Variable) else index


def _fitted(variable: Variable[Any], now: Any, new: Any) -> Any:
    """`new` with the shape and dtype of `now`; the same object if it has them."""
    if isinstance(now, jax.ShapeDtypeStruct) or isinstance(new, jax.ShapeDtypeStruct):
        return new
    new = _same_kind(variable, now, new)
    if np.shape(new) == np.shape(now):
        return new
    try:
        return jnp.broadcast_to(new, np.shape(now))
    except ValueError:
        raise ValueMismatchError(
            variable._describe(),
            short(new),
            f"shape {np.shape(new)} does not broadcast to {np.shape(now)}",
        ) from None


_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}


def _same_kind(variable: Variable[Any], now: Any, new: Any) -> Any:
    """`new` with the dtype of `now`, refused where that would lose its kind (float to int)."""
    if isinstance(new, jax.Array) and new.dtype == now.dtype and not new.weak_type:
        return new
    new = jnp.asarray(new)
    if new.dtype == now.dtype:
        return jnp.asarray(new, dtype=now.dtype)
    if is_key(now) or is_key(new) or _RANKS.get(_kind(new), 2) > _RANKS.get(_kind(now), 2):
        raise ValueMismatchError(
            variable._describe(), short(new), f"dtype {new.dtype} would be cut down to {now.dtype}"
        )
    return new.astype(now.dtype)


def _kind(x: Any) -> str:
    dtype = x.dtype
    return "f" if jnp.issubdtype(dtype, jnp.floating) else np.dtype(dtype).kind


def _register(cls: type[Variable[Any]]) -> None:
    """Make a kind a JAX pytree: one child, the raw value; the spec is static."""
    key = GetAttrKey("value")
    jax.tree_util.register_pytree_with_keys(
        cls,
        lambda v: (((key, v.get_raw_value()),), v._spec),
        lambda spec, children: new_variable(spec, children[0]),
        lambda v: ((v.get_raw_value(),), v._spec),
    )


_register(Variable)


class Param(Variable[A]):
    """A parameter: what an optimizer trains.

    Example:
        >>> nnx.Param(jnp.ones(2))
        Param(float32[2])
    """

    __slots__ = ()


class BatchStat(Variable[A]):
    """A running statistic of a normalisation layer.

    Example:
        >>> nnx.BatchStat(jnp.zeros(2))
        BatchStat(float32[2])
    """

    __slots__ = ()


class Cache(Variable[A]):
    """What a layer keeps from one decoding step to the next.

    Example:
        >>> nnx.Cache(jnp.zeros((2, 4)))
        Cache(float32[2,4])
    """

    __slots__ = ()


class Intermediate(Variable[A]):
    """A value that `Module.sow` recorded.

    Example:
        >>> nnx.Intermediate(jnp.zeros(2))
        Intermediate(float32[2])
    """

    __slots__ = ()


class Perturbation(Intermediate[A]):
    """A zero that `Module.perturb` added to an intermediate value, to take gradients at that place.

    Example:
        >>> nnx.Perturbation(jnp.zeros(2))
        Perturbation(float32[2])
    """

    __slots__ = ()
