"""Dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._module import Module
from .._rngs import Rngs, RngStream
from ..errors import MissingKeyError
from ._checks import canonical_axes, name_of, real_between
from ._dtypes import promote_dtype
from ._types import Array, ArrayLike


def fork_stream(rngs: Rngs | RngStream | None, name: str) -> RngStream | None:
    """A stream of the layer's own, so that layers made from the same Rngs draw different keys."""
    if rngs is None:
        return None
    stream = rngs if isinstance(rngs, RngStream) else rngs[name]
    return stream.fork()


def draw_key(
    layer: object, name: str, given: Rngs | RngStream | Array | None, own: RngStream | None
) -> Array:
    """The next key: of what the call gave (streams or a key), else of the layer's own stream."""
    source = own if given is None else given
    if source is None:
        raise MissingKeyError(name_of(layer), name)
    if isinstance(source, Rngs):
        source = source[name]
    return source() if isinstance(source, RngStream) else source


def never_drops(rate: Any) -> bool:
    """Whether the rate is zero; one that is traced may be anything."""
    return isinstance(rate, int | float) and rate == 0


def drop(x: Array, key: Array, rate: Any, mask_shape: tuple[int, ...]) -> Array:
    """Zeroes entries with probability rate; scales the others so that the mean stays the same."""
    if isinstance(rate, int | float) and rate == 1:
        return jnp.zeros_like(x)  # the scale would be 1 / 0
    kept = jax.random.bernoulli(key, 1.0 - rate, mask_shape)
    scaled = x / jnp.asarray(1.0 - rate, dtype=x.dtype)
    return jnp.where(jnp.broadcast_to(kept, x.shape), scaled, jnp.zeros_like(x))


class Dropout(Module):
    """Sets entries to zero at random while training, and scales the others by `1 / (1 - rate)`.

    The layer draws its keys from a stream of its own, forked from `rngs` when the layer is made.
    `model.eval()` turns it off, `model.train()` on.

    Dropout: A Simple Way to Prevent Neural Networks from Overfitting (Srivastava et al., 2014).

    Args:
        rate: The probability that an entry is dropped, in `[0, 1]`.
        broadcast_dims: Axes along which entries are dropped or kept together.
        deterministic: Whether the layer starts turned off.
        rng_collection: The name of the stream that keys come from.
        rngs: The streams, or one stream. None means that each call has to give `rngs`.

    Raises:
        LayerOptionError: The rate is not a number in `[0, 1]`.

    Attributes:
        deterministic: Whether the layer is off.
        rngs: The layer's own stream, or None.

    Example:
        >>> layer = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        >>> x = jnp.ones((4, 8))
        >>> sorted(set(layer(x).ravel().tolist()))
        [0.0, 2.0]
        >>> bool((layer(x, deterministic=True) == x).all())
        True
    """

    def __init__(
        self,
        rate: float,
        *,
        broadcast_dims: Sequence[int] = (),
        deterministic: bool = False,
        rng_collection: str = "dropout",
        rngs: Rngs | RngStream | None = None,
    ) -> None:
        self.rate = real_between(self, "rate", rate, 0.0, 1.0)
        self.broadcast_dims = tuple(broadcast_dims)
        self.deterministic = deterministic
        self.rng_collection = rng_collection
        self.rngs = fork_stream(rngs, rng_collection)

    def __call__(
        self,
        inputs: ArrayLike,
        *,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | Array | None = None,
    ) -> Array:
        """Drops entries.

        Args:
            inputs: An array `(...)`.
            deterministic: Whether to return the inputs as they are; None means the layer's
                attribute.
            rngs: Streams, one stream or a key to use in place of the layer's own stream.

        Returns:
            An array of the same shape.

        Raises:
            MissingKeyError: Neither the call nor the layer has a stream.
            LayerInputError: The inputs lack one of the `broadcast_dims`.
        """
        off = self.deterministic if deterministic is None else deterministic
        if off or never_drops(self.rate):
            return jnp.asarray(inputs)
        (x,) = promote_dtype((inputs,))
        together = canonical_axes(self, "broadcast_dims", self.broadcast_dims, x.ndim)
        mask_shape = tuple(1 if axis in together else n for axis, n in enumerate(x.shape))
        key = draw_key(self, self.rng_collection, rngs, self.rngs)
        return drop(x, key, self.rate, mask_shape)

    def set_view(self, deterministic: bool | None = None) -> None:
        """Sets the attributes that are given; `nnx.view` calls it on a view of the layer.

        Args:
            deterministic: Whether the layer is off.

        Example:
            >>> layer = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
            >>> layer.set_view(deterministic=True)
            >>> layer.deterministic
            True
        """
        if deterministic is not None:
            self.deterministic = deterministic
