"""Attention as a function: softmax(query · key / sqrt(depth)) · value, by heads.

Letters of the shapes: ... batch axes, L queries, S keys, H query heads, K key and value heads (a
divisor of H), G = H / K query heads that share a key head, D depth of queries and keys, V depth of
values.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from .._module import Module
from .._rngs import RngStream
from .._variable import Intermediate
from ..errors import LayerInputError
from ._dropout import drop, never_drops
from ._dtypes import promote_dtype as default_promote_dtype
from ._dtypes import wider
from ._types import Array, ArrayLike, Dtype, PrecisionLike, PromoteDtype, Shape

NAME = "dot_product_attention"


def check_shapes(query: Shape, key: Shape, value: Shape) -> None:
    """That queries, keys and values fit each other."""
    problem = ""
    if min(len(query), len(key), len(value)) < 3:
        problem = "(..., length, heads, depth) each"
    elif key[:-1] != value[:-1]:
        problem = "keys and values of one length and one number of heads"
    elif query[:-3] != key[:-3]:
        problem = "the same batch axes for queries and keys"
    elif query[-1] != key[-1]:
        problem = "the same depth for queries and keys"
    elif key[-2] == 0 or query[-2] % key[-2]:
        problem = "a number of query heads that is a multiple of the number of key heads"
    if problem:
        found = f"arrays of shapes {query}, {key}, {value}"
        raise LayerInputError(NAME, "query, key, value", found, problem)


def broadcast_to_weights(argument: str, array: Array, shape: Shape) -> Array:
    """Broadcasts a mask or bias to the shape of the attention weights."""
    try:
        fits = np.broadcast_shapes(array.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        found = f"an array of shape {array.shape}"
        expected = f"one that broadcasts to (..., heads, q_length, kv_length) = {shape}"
        raise LayerInputError(NAME, argument, found, expected)
    return jnp.broadcast_to(array, shape)


def softmax_or_zero(logits: Array, hidden: Array) -> Array:
    """Softmax over the last axis of the entries that are not hidden; zeros where all are."""
    lowest = np.finfo(logits.dtype).min.item()  # no narrower than float32
    weights = jax.nn.softmax(jnp.where(hidden, lowest, logits), axis=-1)
    # Where all entries are hidden the softmax is uniform.
    return jnp.where(hidden.all(axis=-1, keepdims=True), jnp.zeros_like(weights), weights)


def multiply_by_keys(query: Array, key: Array, precision: PrecisionLike, dtype: Dtype) -> Array:
    """The product of each query with each key of its head, (..., H, L, S)."""
    product = functools.partial(jnp.einsum, precision=precision, preferred_element_type=dtype)
    *batch, length, heads, depth = query.shape
    kv_heads = key.shape[-2]
    if heads == kv_heads:  # a group axis of size one would cost a fifth more
        return product("...lhd,...shd->...hls", query, key)
    grouped = jnp.reshape(query, (*batch, length, kv_heads, heads // kv_heads, depth))  # (..., L, K, G, D)
    scores = product("...lkgd,...skd->...kgls", grouped, key)  # (..., K, G, L, S)
    return jnp.reshape(scores, (*batch, heads, length, key.shape[-3]))  # (..., H, L, S)


def multiply_by_values(weights: Array, value: Array, precision: PrecisionLike) -> Array:
    """The values, weighted for each query of the head, (..., L, H, V)."""
    product = functools.partial(jnp.einsum, precision=precision)
    *batch, heads, length, keys = weights.shape
    kv_heads, depth = value.shape[-2:]
    if heads == kv_heads:
        return product("...hls,...shv->...lhv", weights, value)
    grouped = jnp.reshape(weights, (*batch, kv_heads, heads // kv_heads, length, keys))  # (..., K, G, L, S)
    outputs = product("...kgls,...skv->...lkgv", grouped, value)  # (..., L, K, G, V)
    return jnp.reshape(outputs, (*batch, length, heads, depth))  # (..., L, H, V)


def attention_weights(
    query: Array,
    key: Array,
    bias: ArrayLike | None,
    mask: ArrayLike | None,
    is_causal: bool,
    precision: PrecisionLike,
) -> Array:
    """The softmax of the scores, (..., H, L, S), computed in float32 or wider."""
    wide = wider(query.dtype)
    scores = multiply_by_keys(query, key, precision, wide)  # (..., H, L, S)
    scores = scores / jnp.asarray(math.sqrt(query.shape[-1]), wide)
    shape = scores.shape
    hidden = []
    if bias is not None:
        scores = scores + broadcast_to_weights("bias", jnp.asarray(bias).astype(wide), shape)
        hidden.append(jnp.isneginf(scores))  # a bias may be a mask, too
    if mask is not None:
        hidden.append(~broadcast_to_weights("mask", jnp.asarray(mask).astype(bool), shape))
    if is_causal:
        earlier = jnp.tri(shape[-2], shape[-1], dtype=bool)  # (L, S)
        hidden.append(~jnp.broadcast_to(earlier, shape))
    if not hidden:
        return jax.nn.softmax(scores, axis=-1)
    return softmax_or_zero(scores, functools.reduce(jnp.logical_or, hidden))


def drop_weights(weights: Array, rate: float, rng: Array | RngStream | None, broadcast: bool) -> Array:
    """Dropout of attention weights, by default the same in all batch entries and heads."""
    if rng is None:
        expected = f"a key, as dropout_rate={rate} and deterministic=False"
        instead = "Pass `dropout_rng=jax.random.key(0)` or `deterministic=True`."
        raise LayerInputError(NAME, "dropout_rng", "None", expected, instead)
    key = rng() if isinstance(rng, RngStream) else rng
    shared = (1,) * (weights.ndim - 2) + weights.shape[-2:]
    return drop(weights, key, rate, shared if broadcast else weights.shape)


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: Array | RngStream | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    module: Module | None = None,
    promote_dtype: PromoteDtype = default_promote_dtype,
    is_causal: bool = False,
) -> Array:
    """Attention by heads: `softmax(query · key / sqrt(depth) + bias) · value`.

    Scores and softmax are computed in float32 or wider. With fewer key heads than query heads, each
    key head serves a group of query heads that follow each other (grouped-query attention). A query
    all of whose keys are hidden, by the mask or by a bias of minus infinity, gets zeros.

    Attention Is All You Need (Vaswani et al., 2017), https://arxiv.org/abs/1706.03762.

    Args:
        query: An array `(..., q_length, heads, depth)`.
        key: An array `(..., kv_length, kv_heads, depth)`, where `heads` is a multiple of
            `kv_heads`.
        value: An array `(..., kv_length, kv_heads, v_depth)`.
        bias: Added to the scores; broadcastable to `(..., heads, q_length, kv_length)`.
        mask: Which key each query may look at: true or nonzero where it may; broadcastable like
            `bias`.
        broadcast_dropout: Whether all batch entries and heads drop the same weights.
        dropout_rng: The key (or stream) for dropout.
        dropout_rate: The probability that a weight is dropped.
        deterministic: Whether dropout is off.
        dtype: The dtype to compute in; None means that of query, key and value together.
        precision: The precision of the products, see `jax.lax.Precision`.
        module: A Module on which the weights are sown as the Intermediate `attention_weights`.
        promote_dtype: The function that casts query, key and value.
        is_causal: Whether query i sees only the keys up to and with i.

    Returns:
        An array `(..., q_length, heads, v_depth)`.

    Raises:
        LayerInputError: Shapes do not fit each other, or dropout has no key.

    Example:
        >>> q = k = v = jnp.ones((2, 5, 4, 8))
        >>> nnx.dot_product_attention(q, k, v, is_causal=True).shape
        (2, 5, 4, 8)
        >>> nothing = jnp.zeros((5, 5), bool)
        >>> float(nnx.dot_product_attention(q, k, v, mask=nothing).sum())
        0.0
    """
    q, k, v = promote_dtype((query, key, value), dtype=dtype)
    check_shapes(q.shape, k.shape, v.shape)
    weights = attention_weights(q, k, bias, mask, is_causal, precision)  # (..., H, L, S)
    weights = weights.astype(v.dtype)
    if module is not None:
        module.sow(Intermediate, "attention_weights", weights)
    if not deterministic and not never_drops(dropout_rate):
        weights = drop_weights(weights, dropout_rate, dropout_rng, broadcast_dropout)
    return multiply_by_values(weights, v, precision)  # (..., L, H, V)
