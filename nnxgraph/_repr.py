"""Texts for values on one line.

`short` describes a value in an error: types and shapes, never contents. `value_text` shows a value as a part
of a printed object, small arrays by value; it never raises and never waits for a device.
"""

from __future__ import annotations

import functools
import math
import re
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._typing import Path

_KEY_DTYPE = jax.dtypes.prng_key
SMALL_ARRAY = 8  # elements that are shown by value
LONGEST_TEXT = 96  # characters of one value
_REFS: tuple[type, ...] = (jax.Ref,) if hasattr(jax, "Ref") else ()
_UNITS = ("KB", "MB", "GB", "TB")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def short(x: Any) -> str:
    """A value in a few words: `float32[2,3]`, `dict with 2 entries`, `'relu'`."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"{_dtype_name(x.dtype)}[{','.join(map(str, x.shape))}]"
    if x is None or isinstance(x, (bool, int, float, complex, str)):
        return repr(x) if len(repr(x)) <= 60 else f"a {type(x).__name__} of length {len(repr(x))}"
    if isinstance(x, (list, tuple, dict, set)):
        return f"a {type(x).__name__} with {len(x)} {'entry' if len(x) == 1 else 'entries'}"
    if isinstance(x, type):
        return f"the class {x.__name__}"
    if hasattr(x, "__qualname__") or isinstance(x, functools.partial):
        return f"the function {function_name(x)}"
    return f"a {type(x).__name__}"


def _dtype_name(dtype: Any) -> str:
    """A dtype in its short form."""
    return str(np.dtype(dtype)) if isinstance(dtype, (np.dtype, type)) else str(dtype)


def function_name(f: Any) -> str:
    """The name of a callable, as a user would say it."""
    inner = getattr(f, "func", f)
    return getattr(inner, "__qualname__", None) or type(inner).__name__


def path_text(path: Path) -> str:
    """A path as Python would write it: `.encoder.layers[0].kernel`."""
    parts = [f".{k}" if isinstance(k, str) and k.isidentifier() else f"[{k!r}]" for k in path]
    return "".join(parts)


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    """A text on one line and not too long."""
    text = " ".join(text[: 4 * longest].split()) if len(text) > longest or "\n" in text else text
    return text if len(text) <= longest else text[: longest - 3] + "..."


def is_sized_array(x: Any) -> bool:
    """Whether a value is an array, with values or without."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, *_REFS))


def array_size(x: Any) -> tuple[int, int]:
    """How many elements an array has, and how many bytes; nothing for shapes that are not known yet."""
    try:
        count = math.prod(map(int, x.shape))
        return count, count * int(x.dtype.itemsize)
    except Exception:  # symbolic dimensions raise errors of several kinds
        return 0, 0


def bytes_text(count: int) -> str:
    """A number of bytes for people: `24 B`, `1.2 KB`, `3.4 MB`."""
    if count < 1000:
        return f"{count} B"
    power = min((len(str(count)) - 1) // 3, len(_UNITS))
    return f"{count / 1000**power:,.1f} {_UNITS[power - 1]}"


def size_text(count: int, size: int) -> str:
    """A number of elements and their bytes: `1,200 (4.8 KB)`."""
    return f"{count:,} ({bytes_text(size)})"


def array_text(x: Any) -> str:
    """An array: by value if it is small and at hand, else by dtype and shape."""
    kind = short(x)
    if isinstance(x, _REFS):
        return f"Ref({kind})"
    if isinstance(x, jax.ShapeDtypeStruct):
        return f"{kind} abstract"
    if isinstance(x, jax.core.Tracer):
        return f"{kind} traced"
    if isinstance(x, jax.Array) and x.is_deleted():
        return f"{kind} deleted"
    try:
        return _contents(x) if _is_at_hand(x) else kind
    except Exception:  # a transfer guard, a failed computation: what is known of it is still true
        return kind


def _is_at_hand(x: Any) -> bool:
    """Whether the values of an array can be read at once, and are few."""
    if not 0 < x.size <= SMALL_ARRAY or jnp.issubdtype(x.dtype, _KEY_DTYPE):
        return False
    if not isinstance(x, jax.Array):
        return not x.dtype.hasobject
    return bool(x.is_fully_addressable and (not hasattr(x, "is_ready") or x.is_ready()))


def _contents(x: Any) -> str:
    """The values of an array as one would write them."""
    values = np.array2string(np.asarray(x), separator=", ", precision=4, max_line_width=10**6)
    values = " ".join(values.split())
    if isinstance(x, np.generic):
        return f"{type(x).__name__}({values})"
    return f"{'Array' if isinstance(x, jax.Array) else 'array'}({values}, dtype={x.dtype})"


def repr_of(cls: type) -> Any:
    """The function that shows the objects of a class."""
    return cls.__repr__


class _Busy(threading.local):
    """The values whose own `__repr__` is running in each thread."""

    def __init__(self) -> None:
        self.ids: set[int] = set()


_busy = _Busy()


def value_text(x: Any) -> str:
    """A value on one line, in short; says so if it cannot be shown."""
    if id(x) in _busy.ids:
        return f"{type(x).__name__}(...)"
    _busy.ids.add(id(x))
    try:
        return cut(_value_text(x))
    except Exception as error:  # whatever the user's own __repr__ or __getattr__ raises
        return f"<{type(error).__name__} in repr>"
    finally:
        _busy.ids.discard(id(x))


def _value_text(x: Any) -> str:
    """A value, not cut yet."""
    if is_sized_array(x):
        return array_text(x)
    if isinstance(x, (str, bytes)):
        return f"{x[: LONGEST_TEXT - 20]!r}..." if len(x) > LONGEST_TEXT - 20 else repr(x)
    if isinstance(x, type):
        return x.__name__
    if isinstance(x, np.dtype):
        return str(x)
    if callable(x) and isinstance(name := getattr(x, "__qualname__", None), str):
        return name
    if repr_of(type(x)) is repr_of(object):
        return f"<{type(x).__name__}>"
    return _ADDRESS.sub("", repr(x))
