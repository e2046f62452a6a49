"""The values of Variables: which fit where, and how they are copied and packed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._repr import short
from .errors import ModuleInVariableError, ValueMismatchError


def is_array(x: Any) -> bool:
    """Whether a value has a shape and a dtype."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def is_object(x: Any) -> bool:
    """Whether a value is a Pytree of ours, which has Variables of its own."""
    return hasattr(type(x), "_nnx_class_marks")


def check_no_object(kind: type, value: Any) -> None:
    """Refuse a Module as the value of a Variable, or in it."""
    if hasattr(value, "shape") and not is_object(value):
        return
    for x in jax.tree.leaves(value, is_leaf=is_object):
        if is_object(x):
            raise ModuleInVariableError(kind.__name__, type(x).__name__)


def copy_array(x: Any) -> Any:
    """An array in a buffer of its own; any other leaf as it is."""
    return x.copy() if is_array(x) and hasattr(x, "copy") else x


def is_key(x: Any) -> bool:
    """Whether a value is an array of typed random keys."""
    return hasattr(x, "dtype") and bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def fitted(variable: Any, now: Any, new: Any) -> Any:
    """`new` with the shape and dtype of `now`; the same object if it has them."""
    if isinstance(now, jax.ShapeDtypeStruct) or isinstance(new, jax.ShapeDtypeStruct):
        return new
    new = same_kind(variable, now, new)
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


def same_kind(variable: Any, now: Any, new: Any) -> Any:
    """`new` with the dtype of `now`, refused where that would lose its kind (float to int)."""
    if not isinstance(new, jax.Array):
        new = jnp.asarray(new)
    if new.dtype == now.dtype:
        keeps = not getattr(new, "weak_type", False) or getattr(now, "weak_type", False)
        return new if keeps else jnp.asarray(new, dtype=now.dtype)
    if is_key(now) or is_key(new) or _RANKS.get(_kind(new), 2) > _RANKS.get(_kind(now), 2):
        raise ValueMismatchError(
            variable._describe(), short(new), f"dtype {new.dtype} would be cut down to {now.dtype}"
        )
    return new.astype(now.dtype)


def _kind(x: Any) -> str:
    """The kind of an array's numbers, with all floats alike."""
    dtype = x.dtype
    return "f" if jnp.issubdtype(dtype, jnp.floating) else np.dtype(dtype).kind


class PackedKey:
    """A typed PRNG key in a pickle: its raw data and the name of its implementation."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        impl = str(jax.random.key_impl(self.value))
        return (_unpack_key, (np.asarray(jax.random.key_data(self.value)), impl))


def _unpack_key(data: Any, impl: str) -> Any:
    """The typed key of its raw data."""
    return jax.random.wrap_key_data(jnp.asarray(data), impl=impl)


def picklable(value: Any) -> Any:
    """A value as it goes into a pickle."""
    return PackedKey(value) if isinstance(value, jax.Array) and is_key(value) else value
