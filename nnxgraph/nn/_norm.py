"""Normalisation layers: LayerNorm, RMSNorm, BatchNorm.

Statistics are computed in float32 or wider, whatever the dtype of the inputs; the result has the
dtype that inputs and parameters have in common, or the layer's `dtype`.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._module import Module
from .._rngs import Rngs
from .._variable import BatchStat
from ..errors import LayerOptionError
from ._checks import (
    canonical_axes,
    check_features,
    name_of,
    positive_int,
    positive_ints,
    real_between,
)
from ._dtypes import common_dtype, wider
from ._dtypes import promote_dtype as default_promote_dtype
from ._params import default_bias_init, default_scale_init, init_optional_param, value_of
from ._statistics import (
    Moments,
    Reduction,
    align_features,
    broadcast_mask,
    compute_moments,
    find_mapped_axes,
    normalize,
)
from ._types import (
    NO_METADATA,
    Array,
    ArrayLike,
    Axes,
    AxisIndexGroups,
    AxisName,
    Dtype,
    Initializer,
    Metadata,
    PromoteDtype,
    Shape,
)


def feature_shape(layer: object, num_features: Axes, feature_axes: Axes) -> Shape:
    """The shape of scale and bias: one size for each feature axis."""
    count = 1 if isinstance(feature_axes, int) else len(feature_axes)
    shape = positive_ints(layer, "num_features", num_features)
    if len(shape) != count:
        expected = f"one size for each of feature_axes={feature_axes!r}"
        raise LayerOptionError(name_of(layer), "num_features", repr(num_features), expected)
    return shape


def check_feature_axes(
    layer: LayerNorm | RMSNorm, shape: Shape, feature_axes: Axes, features: Shape
) -> Shape:
    """The feature axes counted from the front, of an input that has the right sizes there."""
    axes = canonical_axes(layer, "feature_axes", feature_axes, len(shape))
    for axis, size in zip(axes, features, strict=True):
        from_the_end = axis - len(shape)
        check_features(layer, "x", shape, size, "num_features", from_the_end)
    return axes


def widen(
    layer: LayerNorm | RMSNorm | BatchNorm, x: ArrayLike, axes: Shape
) -> tuple[Array, Array | None, Array | None, np.dtype[Any]]:
    """Inputs, scale and bias in float32 or wider, of one rank; and the dtype of the result."""
    scale, bias = value_of(layer.scale), value_of(layer.bias)
    result_dtype = common_dtype((x, scale, bias), layer.dtype)
    wide_dtype = wider(result_dtype)
    wide, scale, bias = layer.promote_dtype((x, scale, bias), dtype=wide_dtype)
    aligned = [None if v is None else align_features(v, axes, wide.ndim) for v in (scale, bias)]
    return wide, aligned[0], aligned[1], result_dtype


def normalize_each(
    layer: LayerNorm | RMSNorm, x: ArrayLike, mask: ArrayLike | None, subtract_mean: bool
) -> Array:
    """LayerNorm and RMSNorm: statistics of each example over the reduction axes."""
    shape = jnp.shape(x)
    feature_axes = check_feature_axes(layer, shape, layer.feature_axes, layer.feature_shape)
    reduction = Reduction(
        canonical_axes(layer, "reduction_axes", layer.reduction_axes, len(shape)),
        find_mapped_axes(layer, layer.axis_name, stacklevel=3),
        layer.axis_index_groups,
        layer.use_fast_variance,
        subtract_mean,
    )
    wide, scale, bias, dtype = widen(layer, x, feature_axes)
    moments = compute_moments(wide, reduction, broadcast_mask(layer, mask, shape))
    return normalize(wide, moments.mean, moments.variance, scale, bias, layer.epsilon).astype(dtype)


class LayerNorm(Module):
    """Normalises each example over its features, then scales and shifts.

    `(x - mean) / sqrt(variance + epsilon) * scale + bias`, with mean and variance over the
    `reduction_axes`. Layer Normalization (Ba et al., 2016), https://arxiv.org/abs/1607.06450.

    Args:
        num_features: The size of the feature axis (or a size for each of `feature_axes`).
        epsilon: Added to the variance.
        dtype: The dtype of the result; None means that of inputs and parameters together.
        param_dtype: The dtype of the parameters.
        use_bias: Whether to add a bias.
        use_scale: Whether to multiply by a scale.
        bias_init: Initializer of the bias.
        scale_init: Initializer of the scale.
        reduction_axes: The axes that mean and variance are taken over.
        feature_axes: The axes that scale and bias run along.
        axis_name: A mapped axis, or several, whose lanes share the statistics.
        axis_index_groups: Groups of lanes along it that share them, see `jax.lax.psum`.
        use_fast_variance: Whether to compute the variance as E[x²] - E[x]², in one pass; False is
            slower, and right also where the mean is far larger than the deviation.
        promote_dtype: The function that casts inputs and parameters.
        rngs: Where the initializers' keys come from, stream `params`.
        bias_metadata: Metadata for the bias's Param.
        scale_metadata: Metadata for the scale's Param.

    Raises:
        LayerOptionError: `num_features` does not fit `feature_axes`, or `epsilon` is
            negative.

    Attributes:
        scale: Param of shape `(num_features,)`, or None.
        bias: Param of shape `(num_features,)`, or None.

    Example:
        >>> layer = nnx.LayerNorm(2, rngs=nnx.Rngs(0))
        >>> layer(jnp.array([[1.0, 3.0], [10.0, 30.0]])).round(2)
        Array([[-1.,  1.],
               [-1.,  1.]], dtype=float32)
    """

    def __init__(
        self,
        num_features: Axes,
        *,
        epsilon: float = 1e-6,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = default_bias_init,
        scale_init: Initializer = default_scale_init,
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: AxisName = None,
        axis_index_groups: AxisIndexGroups = None,
        use_fast_variance: bool = True,
        promote_dtype: PromoteDtype = default_promote_dtype,
        rngs: Rngs,
        bias_metadata: Metadata = NO_METADATA,
        scale_metadata: Metadata = NO_METADATA,
    ) -> None:
        self.num_features = num_features
        self.feature_shape = feature_shape(self, num_features, feature_axes)
        self.epsilon = real_between(self, "epsilon", epsilon, 0.0, math.inf)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.use_bias = use_bias
        self.use_scale = use_scale
        self.reduction_axes = reduction_axes
        self.feature_axes = feature_axes
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance
        self.promote_dtype = promote_dtype
        shape = self.feature_shape
        self.scale = init_optional_param(use_scale, scale_init, rngs, shape, param_dtype, scale_metadata)
        self.bias = init_optional_param(use_bias, bias_init, rngs, shape, param_dtype, bias_metadata)

    def __call__(self, x: ArrayLike, *, mask: ArrayLike | None = None) -> Array:
        """Normalises.

        Args:
            x: An array `(..., num_features)`.
            mask: Which entries the statistics are taken of, broadcastable to the shape of `x`.
                Where it keeps none, mean and variance are zero.

        Returns:
            An array of the same shape.

        Raises:
            LayerInputError: The feature axis has another size, or the mask does not fit.
        """
        return normalize_each(self, x, mask, subtract_mean=True)


class RMSNorm(Module):
    """Divides each example by the root of the mean of its squares, then scales.

    `x / sqrt(mean(x²) + epsilon) * scale`, with the mean over the `reduction_axes`.
    Root Mean Square Layer Normalization (Zhang and Sennrich, 2019),
    https://arxiv.org/abs/1910.07467.

    Args:
        num_features: The size of the feature axis (or a size for each of `feature_axes`).
        epsilon: Added to the mean square.
        dtype: The dtype of the result; None means that of inputs and parameters together.
        param_dtype: The dtype of the scale.
        use_scale: Whether to multiply by a scale.
        scale_init: Initializer of the scale.
        reduction_axes: The axes that the mean square is taken over.
        feature_axes: The axes that the scale runs along.
        axis_name: A mapped axis, or several, whose lanes share the statistics.
        axis_index_groups: Groups of lanes along it that share them, see `jax.lax.psum`.
        use_fast_variance: Accepted as for LayerNorm; a mean square has one way to compute it.
        promote_dtype: The function that casts inputs and parameters.
        rngs: Where the initializer's key comes from, stream `params`.
        scale_metadata: Metadata for the Param.

    Raises:
        LayerOptionError: `num_features` does not fit `feature_axes`, or `epsilon` is
            negative.

    Attributes:
        scale: Param of shape `(num_features,)`, or None.

    Example:
        >>> layer = nnx.RMSNorm(2, rngs=nnx.Rngs(0))
        >>> layer(jnp.array([[2.0, -2.0]])).round(2)
        Array([[ 1., -1.]], dtype=float32)
    """

    def __init__(
        self,
        num_features: Axes,
        *,
        epsilon: float = 1e-6,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        use_scale: bool = True,
        scale_init: Initializer = default_scale_init,
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: AxisName = None,
        axis_index_groups: AxisIndexGroups = None,
        use_fast_variance: bool = True,
        promote_dtype: PromoteDtype = default_promote_dtype,
        rngs: Rngs,
        scale_metadata: Metadata = NO_METADATA,
    ) -> None:
        self.num_features = num_features
        self.feature_shape = feature_shape(self, num_features, feature_axes)
        self.epsilon = real_between(self, "epsilon", epsilon, 0.0, math.inf)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.use_scale = use_scale
        self.reduction_axes = reduction_axes
        self.feature_axes = feature_axes
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance
        self.promote_dtype = promote_dtype
        shape = self.feature_shape
        self.scale = init_optional_param(use_scale, scale_init, rngs, shape, param_dtype, scale_metadata)
        self.bias = None

    def __call__(self, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
        """Normalises.

        Args:
            x: An array `(..., num_features)`.
            mask: Which entries the mean square is taken of, broadcastable to the shape of `x`.

        Returns:
            An array of the same shape.

        Raises:
            LayerInputError: The feature axis has another size, or the mask does not fit.
        """
        return normalize_each(self, x, mask, subtract_mean=False)


class BatchNorm(Module):
    """Normalises each feature over the batch, then scales and shifts; keeps running averages.

    While training, mean and (biased) variance are those of the batch, over all axes but the feature
    axis, and the running averages become `momentum * running + (1 - momentum) * batch`. With
    `use_running_average`, which `model.eval()` sets, the running averages are used and left
    alone.

    With an `axis_name`, the statistics are of all lanes of that mapped axis together. Called
    where no such axis is mapped, they are those of the call alone, with a warning; with
    `use_running_average` no axis is needed.

    Batch Normalization (Ioffe and Szegedy, 2015), https://arxiv.org/abs/1502.03167.

    Args:
        num_features: The size of the feature axis.
        use_running_average: Whether the layer starts in inference mode.
        axis: The feature axis.
        momentum: How much of the running averages is kept at each call, in `[0, 1]`.
        epsilon: Added to the variance.
        dtype: The dtype of the result; None means that of inputs and parameters together.
        param_dtype: The dtype of the parameters.
        use_bias: Whether to add a bias.
        use_scale: Whether to multiply by a scale.
        bias_init: Initializer of the bias.
        scale_init: Initializer of the scale.
        axis_name: A mapped axis, or several, whose lanes share the statistics.
        axis_index_groups: Groups of lanes along it that share them, see `jax.lax.psum`.
        use_fast_variance: Whether to compute the variance as E[x²] - E[x]², in one pass; False is
            slower, and right also where the mean is far larger than the deviation.
        promote_dtype: The function that casts inputs and parameters.
        rngs: Where the initializers' keys come from, stream `params`.
        bias_metadata: Metadata for the bias's Param.
        scale_metadata: Metadata for the scale's Param.

    Raises:
        LayerOptionError: `num_features` is not a whole number of at least 1, `momentum` is not
            in `[0, 1]`, or `epsilon` is negative.

    Attributes:
        mean: BatchStat of shape `(num_features,)`, the running mean.
        var: BatchStat of shape `(num_features,)`, the running variance.
        scale: Param of shape `(num_features,)`, or None.
        bias: Param of shape `(num_features,)`, or None.
        use_running_average: Whether the layer uses the running averages.

    Example:
        >>> layer = nnx.BatchNorm(1, momentum=0.9, rngs=nnx.Rngs(0))
        >>> layer(jnp.array([[1.0], [3.0]])).ravel().round(3)
        Array([-1.,  1.], dtype=float32)
        >>> layer.mean[...].round(3), layer.var[...].round(3)
        (Array([0.2], dtype=float32), Array([1.], dtype=float32))
    """

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool = False,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = default_bias_init,
        scale_init: Initializer = default_scale_init,
        axis_name: AxisName = None,
        axis_index_groups: AxisIndexGroups = None,
        use_fast_variance: bool = True,
        promote_dtype: PromoteDtype = default_promote_dtype,
        rngs: Rngs,
        bias_metadata: Metadata = NO_METADATA,
        scale_metadata: Metadata = NO_METADATA,
    ) -> None:
        self.num_features = positive_int(self, "num_features", num_features)
        self.use_running_average = use_running_average
        self.axis = axis
        self.momentum = real_between(self, "momentum", momentum, 0.0, 1.0)
        self.epsilon = real_between(self, "epsilon", epsilon, 0.0, math.inf)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.use_bias = use_bias
        self.use_scale = use_scale
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance
        self.promote_dtype = promote_dtype
        shape = (self.num_features,)
        # Small steps of the averages would be lost in half precision.
        stat_dtype = wider(np.dtype(param_dtype))
        self.mean: BatchStat[Array] = BatchStat(jnp.zeros(shape, stat_dtype))
        self.var: BatchStat[Array] = BatchStat(jnp.ones(shape, stat_dtype))
        self.scale = init_optional_param(use_scale, scale_init, rngs, shape, param_dtype, scale_metadata)
        self.bias = init_optional_param(use_bias, bias_init, rngs, shape, param_dtype, bias_metadata)

    def __call__(
        self,
        x: ArrayLike,
        use_running_average: bool | None = None,
        *,
        mask: ArrayLike | None = None,
    ) -> Array:
        """Normalises, and while training updates the running averages.

        Args:
            x: An array `(..., num_features)`, or with the features along `axis`.
            use_running_average: Whether to use the running averages; None means the layer's
                attribute.
            mask: Which entries the statistics are taken of, broadcastable to the shape of `x`. A
                feature of which it keeps nothing leaves its running averages alone.

        Returns:
            An array of the same shape.

        Raises:
            LayerInputError: The feature axis has another size, or the mask does not fit.
        """
        shape = jnp.shape(x)
        (axis,) = canonical_axes(self, "axis", self.axis, len(shape))
        check_features(self, "x", shape, self.num_features, "num_features", axis - len(shape))
        wide, scale, bias, dtype = widen(self, x, (axis,))
        if self.use_running_average if use_running_average is None else use_running_average:
            stats = (self.mean[...].astype(wide.dtype), self.var[...].astype(wide.dtype))
            mean, variance = (align_features(v, (axis,), wide.ndim) for v in stats)
            return normalize(wide, mean, variance, scale, bias, self.epsilon).astype(dtype)
        reduction = Reduction(
            tuple(i for i in range(wide.ndim) if i != axis),
            find_mapped_axes(self, self.axis_name, stacklevel=2),
            self.axis_index_groups,
            self.use_fast_variance,
        )
        moments = compute_moments(wide, reduction, broadcast_mask(self, mask, shape))
        self._update_averages(moments)
        mean, variance = moments.mean, moments.variance
        return normalize(wide, mean, variance, scale, bias, self.epsilon).astype(dtype)

    def _update_averages(self, moments: Moments) -> None:
        """Moves the running averages towards the batch, for the features that the batch has."""
        kept = jnp.where(moments.size > 0, self.momentum, 1.0)
        kept = jnp.broadcast_to(kept, moments.mean.shape).reshape(-1)  # (num_features,)
        for running, batch in ((self.mean, moments.mean), (self.var, moments.variance)):
            old = running[...]
            share = kept.astype(old.dtype)
            running[...] = share * old + (1 - share) * batch.reshape(-1).astype(old.dtype)

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Sets the attributes that are given; `nnx.view` calls it on a view of the layer.

        Args:
            use_running_average: Whether the layer uses the running averages.

        Example:
            >>> layer = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
            >>> layer.set_view(use_running_average=True)
            >>> layer.use_running_average
            True
        """
        if use_running_average is not None:
            self.use_running_average = use_running_average
