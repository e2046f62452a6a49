"""The keys and values that attention has seen: how a decode cache is filled.

A cache has room for `capacity` positions, of which the first `index` are filled. Appending writes
new positions behind those; position t of the new ones then sees all up to `index + t`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._variable import Cache
from ..errors import DecodeCacheError
from ._types import Array, ArrayLike

ADVICE = "Write `layer.init_cache(inputs.shape)` with the shape of all inputs together."


class Cached(NamedTuple):
    """What attention over a cache needs to know."""

    key: Array  # (..., capacity, kv_heads, head_dim)
    value: Array  # (..., capacity, kv_heads, head_dim)
    visible: Array  # (length, capacity), which position each query sees
    overflow: Array  # whether the new positions did not fit


def check_room(layer: str, new: Array, cached: Array, index: Array) -> None:
    """That the new positions fit behind those that are there (if their number is known)."""
    if new.shape[:-3] != cached.shape[:-3]:
        found = f"one for batch axes {cached.shape[:-3]}"
        expected = f"one for the inputs' batch axes {new.shape[:-3]}"
        raise DecodeCacheError(layer, found, expected, ADVICE)
    length, capacity = new.shape[-3], cached.shape[-3]
    filled = 0 if isinstance(index, jax.core.Tracer) else int(index)
    if filled + length > capacity:
        found = f"{length} new positions behind {filled} others"
        expected = f"no more than {capacity} in all, the length that it was made for"
        instead = "Make a longer one with `layer.init_cache`."
        raise DecodeCacheError(layer, found, expected, instead)


def append(
    layer: str,
    variables: tuple[Cache[Array] | None, Cache[Array] | None, Cache[Array] | None],
    key: Array,
    value: Array,
) -> Cached:
    """Writes keys and values into the cache: its Variables of keys, values and fill level."""
    cached_key, cached_value, cache_index = variables
    if cached_key is None or cached_value is None or cache_index is None:
        found = "none, but the layer is called with decode=True"
        raise DecodeCacheError(layer, found, "a cache made before the first call", ADVICE)
    index = cache_index[...]
    check_room(layer, key, cached_key[...], index)
    for variable, new in ((cached_key, key), (cached_value, value)):
        old = variable[...]
        axis = old.ndim - 3
        variable[...] = jax.lax.dynamic_update_slice_in_dim(
            old, new.astype(old.dtype), index, axis
        )  # (..., capacity, kv_heads, head_dim)
    keys, length = cached_key[...], key.shape[-3]
    cache_index[...] = index + length
    positions = jnp.arange(keys.shape[-3], dtype=index.dtype)  # (capacity,)
    last_seen = index + positions[:length]  # (length,)
    visible = positions[None, :] <= last_seen[:, None]  # (length, capacity)
    return Cached(keys, cached_value[...], visible, index + length > keys.shape[-3])


def restrict(mask: ArrayLike | None, visible: Array) -> Array:
    """A mask of what both the user's mask and the cache let through."""
    if mask is None:
        return visible
    given = jnp.atleast_2d(jnp.asarray(mask).astype(bool))
    extra = (1,) * (given.ndim - visible.ndim)
    return given & jnp.reshape(visible, (*extra, *visible.shape))  # (..., length, capacity)
