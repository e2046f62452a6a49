"""In which dtype a layer computes.

A layer stores its parameters in `param_dtype` and computes in `dtype`. When `dtype` is None
the layer computes in the dtype that its inputs and parameters have in common, by JAX's standard
rules. The casts are explicit, so they also work under `jax.numpy_dtype_promotion('strict')`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import DtypeNotInexactError
from ._types import Array, Dtype


def _is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether this is a float of one byte or less, which JAX promotes to no other dtype."""
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 2


def _joint_dtype(arrays: Sequence[Array]) -> np.dtype[Any]:
    """What all promote to by JAX's standard rules; narrow floats give way to others."""
    narrow = {x.dtype for x in arrays if _is_narrow(x.dtype)}
    others = [x for x in arrays if x.dtype not in narrow]
    joint: np.dtype[Any] = np.dtype(bool)
    if others:
        with jax.numpy_dtype_promotion("standard"):
            joint = np.dtype(jnp.result_type(*others))
    if not narrow or jnp.issubdtype(joint, jnp.inexact):
        return joint
    return narrow.pop() if len(narrow) == 1 else np.dtype("float32")


def common_dtype(args: Sequence[Any], dtype: Dtype | None = None, *, inexact: bool = True) -> np.dtype[Any]:
    """The dtype that `promote_dtype` casts to; see there."""
    if dtype is not None:
        chosen: np.dtype[Any] = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
        if inexact and not jnp.issubdtype(chosen, jnp.inexact):
            raise DtypeNotInexactError(str(chosen))
        return chosen
    chosen = _joint_dtype([jnp.asarray(x) for x in args if x is not None])
    return chosen if jnp.issubdtype(chosen, jnp.inexact) or not inexact else wider(chosen)


def wider(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype, but no narrower than float32: for sums of many terms, and in place of integers."""
    if _is_narrow(dtype):
        return np.dtype("float32")
    with jax.numpy_dtype_promotion("standard"):
        joint: np.dtype[Any] = np.dtype(jnp.promote_types(dtype, jnp.float32))
    return joint


def promote_dtype(
    args: Sequence[Any], /, *, dtype: Dtype | None = None, inexact: bool = True
) -> tuple[Any, ...]:
    """Casts all arguments to one dtype.

    This is what the layers call on their inputs and parameters before they compute, and the default
    of their `promote_dtype` argument: pass a function of your own to a layer to change the rule.

    Args:
        args: A tuple of arrays (of any shapes), Variables, numbers, or None for an absent one.
        dtype: The dtype to cast to. None means the dtype that all arguments have in common by JAX's
            standard promotion; a float8 or float4 array, being storage only, gives way to any other
            floating dtype.
        inexact: Whether the result has to be floating or complex. Integers then become `float32`
            when `dtype` is None.

    Returns:
        A tuple as long as `args`: the cast arrays, with None where None was.

    Raises:
        DtypeNotInexactError: `dtype` is an integer or bool dtype, but `inexact` is true.

    Example:
        >>> x, kernel, bias = nnx.promote_dtype((jnp.ones(2, int), jnp.ones(2, jnp.bfloat16), None))
        >>> x.dtype, kernel.dtype, bias
        (dtype(bfloat16), dtype(bfloat16), None)
    """
    chosen = common_dtype(args, dtype, inexact=inexact)
    return tuple(None if x is None else jnp.asarray(x).astype(chosen) for x in args)
