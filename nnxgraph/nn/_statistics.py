"""Mean and variance over some axes, and what normalisation layers do with them.

Three steps that the layers share: `find_mapped_axes` (do the statistics reach over the lanes of a
transform?), `compute_moments` (of the entries that a mask keeps) and `normalize`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import LayerInputError, UnboundAxisWarning
from ._checks import name_of
from ._types import Array, ArrayLike, AxisIndexGroups, AxisName, Shape


class Reduction(NamedTuple):
    """What statistics are taken over, and how."""

    axes: Shape
    mapped_axes: tuple[str, ...]
    axis_index_groups: AxisIndexGroups
    use_fast_variance: bool
    subtract_mean: bool = True

    def total(self, *values: Array) -> tuple[Array, ...]:
        """Sums over the axes, kept as axes of size one, and over the lanes of the mapped axes."""
        sums = tuple(jnp.sum(value, axis=self.axes, keepdims=True) for value in values)
        if not self.mapped_axes:
            return sums
        psum: Callable[..., tuple[Array, ...]] = jax.lax.psum
        return psum(sums, self.mapped_axes, axis_index_groups=self.axis_index_groups)


class Moments(NamedTuple):
    """Statistics, with the reduced axes kept as axes of size one."""

    mean: Array
    variance: Array
    size: Array  # of how many entries


def find_mapped_axes(layer: object, axis_name: AxisName, stacklevel: int) -> tuple[str, ...]:
    """Those of the named axes that are mapped here; warns if some are not."""
    names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name or ())
    mapped = tuple(name for name in names if _is_mapped(name))
    if missing := tuple(name for name in names if name not in mapped):
        warnings.warn(UnboundAxisWarning(name_of(layer), missing), stacklevel=stacklevel + 1)
    return mapped


def _is_mapped(name: str) -> bool:
    """Whether a transform around this call maps an axis of that name."""
    try:
        jax.lax.axis_size(name)
    except NameError:
        return False
    return True


def broadcast_mask(layer: object, mask: ArrayLike | None, shape: Shape) -> Array | None:
    """The mask as booleans of the inputs' shape."""
    if mask is None:
        return None
    mask_shape = jnp.shape(mask)
    try:
        fits = np.broadcast_shapes(mask_shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise LayerInputError(
            name_of(layer),
            "mask",
            f"an array of shape {mask_shape}",
            f"one that broadcasts to the inputs' shape {shape}",
            "Write `mask[..., None]` for a mask without the feature axis.",
        )
    return jnp.broadcast_to(jnp.asarray(mask).astype(bool), shape)


def compute_moments(x: Array, reduction: Reduction, mask: Array | None = None) -> Moments:
    """Mean and (biased) variance of the entries that the mask keeps; zeros where it keeps none."""

    def square(values: Array) -> Array:
        return jnp.real(values * jnp.conj(values))  # |x|², also for complex x

    def keep(values: Array) -> Array:
        return values if mask is None else jnp.where(mask, values, jnp.zeros_like(values))

    x = keep(x)  # a masked NaN does not count
    real = jnp.real(x).dtype
    entries = math.prod(x.shape[axis] for axis in reduction.axes)
    counted = jnp.full((1,) * x.ndim, entries, real) if mask is None else mask.astype(real)
    if not reduction.subtract_mean:
        power, size = reduction.total(square(x), counted)
        return Moments(jnp.zeros_like(power), power / jnp.maximum(size, 1), size)
    if reduction.use_fast_variance:  # E|x|² - |E x|², in one pass
        total, power, size = reduction.total(x, square(x), counted)
        mean = total / jnp.maximum(size, 1)
        variance = power / jnp.maximum(size, 1) - square(mean)
        return Moments(mean, jnp.maximum(variance, 0), size)
    total, size = reduction.total(x, counted)
    mean = total / jnp.maximum(size, 1)
    (power,) = reduction.total(square(keep(x - mean)))
    return Moments(mean, power / jnp.maximum(size, 1), size)


def align_features(values: Array, axes: Shape, ndim: int) -> Array:
    """Gives per-feature values the rank of the inputs, with size one off the feature axes."""
    values = jnp.transpose(values, np.argsort(axes).tolist())
    sizes = iter(values.shape)
    return jnp.reshape(values, [next(sizes) if axis in axes else 1 for axis in range(ndim)])


def normalize(
    x: Array, mean: Array, variance: Array, scale: Array | None, bias: Array | None, epsilon: float
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; all of one rank."""
    factor = jax.lax.rsqrt(variance + jnp.asarray(epsilon, variance.dtype)).astype(x.dtype)
    if scale is not None:
        factor = factor * scale
    y = (x - mean) * factor
    return y if bias is None else y + bias
