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
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey

from . import _frame, _jax
from ._operators import Operators
from ._printing import Opened, has_own_repr, opened, tree_text
from ._repr import short
from ._spec import HasSpec, VariableMetadata, VariableSpec, canonical, set_spec
from ._static import own_copy
from ._trees import own_containers
from ._typing import MISSING, Missing
from ._values import (
    PackedKey,
    check_no_object,
    copy_array,
    fitted,
    is_array,
    picklable,
    same_kind,
)
from .errors import (
    AttributeNotFoundError,
    KindMismatchError,
    UnsupportedVariableError,
    ValueMismatchError,
)

A = TypeVar("A")

_ARRAY_FIRST = frozenset({"shape", "dtype", "ndim", "size"})


class Variable(Operators, HasSpec, Generic[A]):
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
        ModuleInVariableError: If a Module or another object with attributes is or is in the value.

    Example:
        >>> v = nnx.Variable(jnp.array([1.0, 2.0]), tag='scale')
        >>> v += 1
        >>> v[...].tolist(), v.tag
        ([2.0, 3.0], 'scale')
    """

    __slots__ = ("__weakref__", "_value")
    __array_priority__ = 100  # numpy_array + variable is the Variable's affair, as it is a jax.Array's

    _value: A

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
        check_no_object(kind, value)
        if eager_sharding is not None:
            metadata["eager_sharding"] = eager_sharding
        set_spec(self, VariableSpec.of(kind, canonical(metadata)))
        _set_frame(self, _frame.born_here(self))
        _set_value(self, value)
        if self._spec.hooks:
            _set_value(self, self._run_hooks("on_create_value", value))

    # The value.

    def get_raw_value(self) -> A:
        """The value as it is stored, without `on_get_value` hooks."""
        if _frame.thread.frame is self._nnx_born_in:
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
        return value[_jax.plain_index(index)]  # type: ignore[index]  # arrays and dicts

    def set_value(self, value: Any, *, index: Any = MISSING) -> None:
        """Replace the value, or a part of it.

        Args:
            value: The new value; of any shape and dtype if `index` is left out.
            index: What stands in the brackets of `value[index] = ...`.

        Raises:
            ValueMismatchError: If an index is given and the value does not fit.
            TraceWriteError: If the value could not be handed back from here.
            ModuleInVariableError: If a Module is or is in the value.
        """
        if isinstance(value, Variable):
            value = value.get_value()
        if not isinstance(index, Missing):
            value = self._with_part(index, value)
        check_no_object(type(self), value)
        if self._spec.hooks:
            value = self._run_hooks("on_set_value", value)
        _frame.write(self, value)

    def _with_part(self, index: Any, part: Any) -> Any:
        """The present value with one part replaced."""
        now = self.get_raw_value()
        if index is Ellipsis:
            return fitted(self, now, part) if is_array(now) else part
        index = _jax.plain_index(index)
        if isinstance(now, jax.ShapeDtypeStruct):
            raise ValueMismatchError(self._describe(), short(part), "there is no value yet")
        if is_array(now):
            part = same_kind(self, now, part)
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
        """A value after the hooks of one name."""
        for hook in self._spec.hooks.get(name, ()):
            value = hook(self, value)
        return value

    # The kind.

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

    # Copies.

    @classmethod
    def from_metadata(cls, value: Any, attributes: Mapping[str, Any]) -> Any:
        """A Variable of this kind with a raw value and metadata, without running hooks."""
        return new_variable(VariableSpec.of(cls, canonical(attributes)), value)

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
        raw = own_containers(self.get_raw_value()) if isinstance(value, Missing) else value
        spec = self._spec
        if updates:
            spec = VariableSpec.of(type(self), {**self._metadata, **canonical(updates)})
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
        self.update_from_state(other)

    def update_from_state(self, variable_state: Variable[A]) -> None:
        """Take over raw value and metadata of a Variable of the same kind from a State.

        Raises:
            KindMismatchError: If the kinds differ.
        """
        if type(variable_state) is not type(self):
            raise KindMismatchError(type(self).__name__, type(variable_state).__name__)
        _frame.write(self, own_containers(variable_state.get_raw_value()))
        set_spec(self, VariableSpec.of(type(self), variable_state._metadata))

    def create_value(self, value: Any) -> Any:
        """The value that a new Variable would store: `value` after the `on_create_value` hooks."""
        return self._run_hooks("on_create_value", value)

    # Python's protocols.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_spec", "_value", "_nnx_born_in"):
            raise AttributeError(name)
        if name in _ARRAY_FIRST and hasattr(value := self.get_value(), name):
            return getattr(value, name)
        metadata = self._spec.metadata
        if name in metadata:
            return own_copy(metadata[name])
        value = self.get_value()
        if hasattr(value, name):
            return getattr(value, name)
        raise AttributeNotFoundError(self._describe(), name, tuple({*metadata, *dir(value), *dir(self)}))

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
        return self.get_value().__array_namespace__(api_version=api_version)

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
        return (new_variable, (self._spec, picklable(self.get_raw_value())))

    def _describe(self) -> str:
        """`Param(float32[2,3])`, for texts."""
        value = self._value
        shown = short(value) if is_array(value) else type(value).__name__
        return f"{type(self).__name__}({shown})"

    __repr__ = tree_text


_set_value = Variable.__dict__["_value"].__set__
_set_frame = HasSpec.__dict__["_nnx_born_in"].__set__


def new_variable(spec: VariableSpec, value: Any) -> Any:
    """A Variable of a known spec, born here; runs no hook."""
    variable = object.__new__(spec.kind)
    set_spec(variable, spec)
    _set_frame(variable, _frame.born_here(variable))
    _set_value(variable, value.value if type(value) is PackedKey else value)
    return variable


def _open(variable: Variable[Any]) -> Opened:
    """How a Variable is shown: the value without hooks, as the running frame sees it, and the metadata."""
    with _frame.reading_constants():
        value = Variable.get_raw_value(variable)
    kind = type(variable)
    pairs = [("value", value), *variable._spec.metadata.items()]
    name, text = kind.__name__, has_own_repr(kind)
    return Opened(f"{name}(", ")", pairs, id(variable), is_object=True, kind=name, text=text)


opened.register(Variable, _open)


def _register(cls: type[Variable[Any]]) -> None:
    """Make a kind a JAX pytree: one child, the raw value; the spec is static. And an array, to JAX."""
    key = GetAttrKey("value")
    jax.tree_util.register_pytree_with_keys(
        cls,
        lambda v: (((key, v.get_raw_value()),), v._spec),
        lambda spec, children: new_variable(spec, *children),
        lambda v: ((v.get_raw_value(),), v._spec),
    )
    _jax.register_array_like(cls, cls.get_value)


_register(Variable)


class Param(Variable[A]):
    """A parameter: what an optimizer trains.

    Example:
        >>> nnx.Param(jnp.ones(2))
        Param( # 2 (8 B)
          value=Array([1., 1.], dtype=float32)
        )
    """

    __slots__ = ()


class BatchStat(Variable[A]):
    """A running statistic of a normalisation layer.

    Example:
        >>> nnx.BatchStat(jnp.zeros(2))
        BatchStat( # 2 (8 B)
          value=Array([0., 0.], dtype=float32)
        )
    """

    __slots__ = ()


class Cache(Variable[A]):
    """What a layer keeps from one decoding step to the next.

    Example:
        >>> nnx.Cache(jnp.zeros((2, 8)))
        Cache( # 16 (64 B)
          value=float32[2,8]
        )
    """

    __slots__ = ()


class Intermediate(Variable[A]):
    """A value that `Module.sow` recorded.

    Example:
        >>> nnx.Intermediate(jnp.zeros(2))
        Intermediate( # 2 (8 B)
          value=Array([0., 0.], dtype=float32)
        )
    """

    __slots__ = ()


class Perturbation(Intermediate[A]):
    """A zero that `Module.perturb` added to an intermediate value, to take gradients at that place.

    Example:
        >>> nnx.Perturbation(jnp.zeros(2))
        Perturbation( # 2 (8 B)
          value=Array([0., 0.], dtype=float32)
        )
    """

    __slots__ = ()
