"""Short descriptions of values for texts: types and shapes, never contents."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from ._typing import Path

_KEY_DTYPE = jax.dtypes.prng_key


def short(x: Any) -> str:
    """A value in a few words: `float32[2,3]`, `dict with 2 entries`, `'relu'`."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"{_dtype_name(x.dtype)}[{','.join(map(str, x.shape))}]"
    if x is None or isinstance(x, (bool, int, float, complex, str)):
        return repr(x) if len(repr(x)) <= 60 else f"a {type(x).__name__} of length {len(repr(x))}"
    if isinstance(x, (list, tuple, dict, set)):
        return f"a {type(x).__name__} with {len(x)} entries"
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
