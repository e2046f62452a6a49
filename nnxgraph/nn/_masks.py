"""Attention masks: which query may look at which key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..errors import LayerInputError
from ._dtypes import promote_dtype
from ._types import Array, ArrayLike, Dtype


def make_attention_mask(
    query_input: ArrayLike,
    key_input: ArrayLike,
    pairwise_fn: Callable[..., Any] = jnp.multiply,
    extra_batch_dims: int = 0,
    dtype: Dtype = jnp.float32,
) -> Array:
    """Makes an attention mask by comparing every query position with every key position.

    With the default `pairwise_fn`, from arrays that are 1 at tokens and 0 at padding, the mask
    lets tokens look at tokens.

    Args:
        query_input: An array `(..., q_length)`.
        key_input: An array `(..., kv_length)`.
        pairwise_fn: Called with `(..., q_length, 1)` and `(..., 1, kv_length)`.
        extra_batch_dims: How many batch axes of size one to add in front.
        dtype: The dtype of the mask.

    Returns:
        A mask `(..., 1, q_length, kv_length)`, where the axis of size one stands for the heads.

    Example:
        >>> nnx.make_attention_mask(jnp.array([1, 1, 0]), jnp.array([1, 0]))[0]
        Array([[1., 0.],
               [1., 0.],
               [0., 0.]], dtype=float32)
    """
    queries, keys = promote_dtype((query_input, key_input), inexact=False)
    queries = jnp.expand_dims(queries, -1)  # (..., q_length, 1)
    keys = jnp.expand_dims(keys, -2)  # (..., 1, kv_length)
    mask = jnp.expand_dims(pairwise_fn(queries, keys), -3)  # (..., 1, q_length, kv_length)
    mask = jnp.expand_dims(mask, tuple(range(extra_batch_dims)))
    return mask.astype(dtype)


def make_causal_mask(x: ArrayLike, extra_batch_dims: int = 0, dtype: Dtype = jnp.float32) -> Array:
    """Makes a mask that lets each position look at itself and at those before it.

    Args:
        x: An array `(..., length)`, of which only the shape is used.
        extra_batch_dims: How many batch axes of size one to add in front.
        dtype: The dtype of the mask.

    Returns:
        A mask `(..., 1, length, length)`.

    Example:
        >>> nnx.make_causal_mask(jnp.zeros(3))[0]
        Array([[1., 0., 0.],
               [1., 1., 0.],
               [1., 1., 1.]], dtype=float32)
    """
    shape = jnp.shape(x)
    positions = jnp.broadcast_to(jnp.arange(shape[-1]), shape)  # (..., length)
    return make_attention_mask(positions, positions, jnp.greater_equal, extra_batch_dims, dtype)


def combine_masks(*masks: ArrayLike | None, dtype: Dtype = jnp.float32) -> Array | None:
    """Combines masks: what all of them let through.

    Args:
        *masks: Masks that broadcast to each other and have as many axes; None stands for no mask.
        dtype: The dtype of the result.

    Returns:
        The mask, or None if no mask is given.

    Raises:
        LayerInputError: The masks differ in their number of axes.

    Example:
        >>> nnx.combine_masks(jnp.array([1, 1, 0]), None, jnp.array([0, 1, 1]))
        Array([0., 1., 0.], dtype=float32)
    """
    given = [jnp.asarray(mask).astype(bool) for mask in masks if mask is not None]
    if not given:
        return None
    shapes = [mask.shape for mask in given]
    if len({len(shape) for shape in shapes}) > 1:
        raise LayerInputError(
            "combine_masks",
            "masks",
            f"arrays of shapes {', '.join(map(str, shapes))}",
            "masks with as many axes as each other",
            "Write `mask[:, None, None, :]` for a mask of keys.",
        )
    combined = given[0]
    for mask in given[1:]:
        combined = jnp.logical_and(combined, mask)
    return combined.astype(dtype)
