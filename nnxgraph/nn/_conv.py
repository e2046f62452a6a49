"""Convolution over any number of spatial axes, channels last."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from .._module import Module
from .._rngs import Rngs
from ..errors import LayerInputError, LayerOptionError
from ._checks import check_features, name_of, positive_int, positive_ints
from ._dtypes import promote_dtype as default_promote_dtype
from ._linear import add_bias, without_none
from ._padding import Padding, check_padding, pad_inputs
from ._params import (
    default_bias_init,
    default_kernel_init,
    init_optional_param,
    init_param,
    value_of,
)
from ._types import (
    NO_METADATA,
    Array,
    ArrayLike,
    ConvGeneralDilated,
    Dtype,
    Initializer,
    Metadata,
    OutSharding,
    PrecisionLike,
    PromoteDtype,
    Shape,
)


def channels_last(spatial: int) -> jax.lax.ConvDimensionNumbers:
    """Inputs and outputs (batch, *spatial, features), kernel (*spatial, in, out)."""
    inputs = (0, spatial + 1, *range(1, spatial + 1))
    kernel = (spatial + 1, spatial, *range(spatial))
    return jax.lax.ConvDimensionNumbers(inputs, kernel, inputs)


def check_groups(layer: object, groups: int, in_features: int, out_features: int) -> int:
    """That both feature counts are multiples of the number of groups."""
    groups = positive_int(layer, "feature_group_count", groups)
    if in_features % groups or out_features % groups:
        raise LayerOptionError(
            name_of(layer),
            "feature_group_count",
            str(groups),
            f"a divisor of in_features={in_features} and of out_features={out_features}",
        )
    return groups


def check_mask(layer: object, mask: ArrayLike | None, shape: Shape) -> ArrayLike | None:
    """That the mask has the shape of the kernel."""
    if mask is not None and jnp.shape(mask) != shape:
        found = f"an array of shape {jnp.shape(mask)}"
        raise LayerOptionError(name_of(layer), "mask", found, f"the kernel's shape {shape}")
    return mask


class Conv(Module):
    """A convolution (cross-correlation, as everywhere in deep learning) plus a bias; channels last.

    Args:
        in_features: The number of input channels.
        out_features: The number of output channels.
        kernel_size: The size of the kernel along each spatial axis; an int means one axis.
        strides: The step of the kernel, one int or one for each spatial axis; None means 1.
        padding: `'SAME'`, `'VALID'`, `'CIRCULAR'`, `'REFLECT'`, `'CAUSAL'` (one axis), an
            int, or for each spatial axis an int or a pair `(before, after)`.
        input_dilation: The spacing of the inputs' entries, with zeros between them.
        kernel_dilation: The spacing of the kernel's entries.
        feature_group_count: The number of groups that channels are divided into; each group of
            outputs sees one group of inputs.
        use_bias: Whether to add a bias.
        mask: What the kernel is multiplied by at each call, an array of the kernel's shape.
        dtype: The dtype to compute in; None means that of inputs and parameters together.
        param_dtype: The dtype of the parameters.
        precision: The precision of the products, see `jax.lax.Precision`.
        kernel_init: Initializer of the kernel.
        bias_init: Initializer of the bias.
        conv_general_dilated: What computes the convolution, called as
            `jax.lax.conv_general_dilated`; it may be a Module that owns Variables.
        promote_dtype: The function that casts inputs and parameters, called as
            `promote_dtype((inputs, kernel, bias), dtype=dtype)`.
        preferred_element_type: The dtype to accumulate in and to return.
        rngs: Where the initializers' keys come from, stream `params`.
        kernel_metadata: Metadata for the kernel's Param.
        bias_metadata: Metadata for the bias's Param.

    Raises:
        LayerOptionError: A size, stride, dilation, padding, group count or mask has no meaning.

    Attributes:
        kernel: Param of shape `(*kernel_size, in_features // feature_group_count, out_features)`.
        bias: Param of shape `(out_features,)`, or None.

    Example:
        >>> layer = nnx.Conv(3, 8, kernel_size=(3, 3), strides=2, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 28, 28, 3))).shape
        (1, 14, 14, 8)
        >>> layer = nnx.Conv(4, 4, kernel_size=3, padding='CAUSAL', rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((10, 4))).shape
        (10, 4)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] | None = 1,
        *,
        padding: Padding = "SAME",
        input_dilation: int | Sequence[int] | None = 1,
        kernel_dilation: int | Sequence[int] | None = 1,
        feature_group_count: int = 1,
        use_bias: bool = True,
        mask: ArrayLike | None = None,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        conv_general_dilated: ConvGeneralDilated = jax.lax.conv_general_dilated,
        promote_dtype: PromoteDtype = default_promote_dtype,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ) -> None:
        self.in_features = positive_int(self, "in_features", in_features)
        self.out_features = positive_int(self, "out_features", out_features)
        self.kernel_size = positive_ints(self, "kernel_size", kernel_size)
        for_each = len(self.kernel_size)
        self.strides = positive_ints(self, "strides", 1 if strides is None else strides, for_each)
        self.input_dilation = positive_ints(
            self, "input_dilation", 1 if input_dilation is None else input_dilation, for_each
        )
        self.kernel_dilation = positive_ints(
            self, "kernel_dilation", 1 if kernel_dilation is None else kernel_dilation, for_each
        )
        self.padding = check_padding(self, padding, self.kernel_size, self.input_dilation)
        self.feature_group_count = check_groups(
            self, feature_group_count, self.in_features, self.out_features
        )
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.conv_general_dilated = conv_general_dilated
        self.promote_dtype = promote_dtype
        self.preferred_element_type = preferred_element_type
        group_features = self.in_features // self.feature_group_count
        shape = (*self.kernel_size, group_features, self.out_features)
        self.mask = check_mask(self, mask, shape)
        self.kernel = init_param(kernel_init, rngs, shape, param_dtype, kernel_metadata)
        self.bias = init_optional_param(use_bias, bias_init, rngs, shape[-1:], param_dtype, bias_metadata)

    def _check_shape(self, shape: Shape) -> None:
        """That the inputs have the spatial axes and the channels."""
        spatial = len(self.kernel_size)
        if len(shape) <= spatial:
            raise LayerInputError(
                name_of(self),
                "inputs",
                f"an array of shape {shape}",
                f"{spatial} spatial axes, for kernel_size={self.kernel_size}, and one of features",
            )
        check_features(self, "inputs", shape, self.in_features, "in_features")

    def __call__(self, inputs: ArrayLike, out_sharding: OutSharding = None) -> Array:
        """Applies the convolution.

        Args:
            inputs: An array `(..., *spatial, in_features)`, with any number of batch axes.
            out_sharding: The sharding of the result under a mesh with explicit axes.

        Returns:
            An array `(..., *new_spatial, out_features)`.

        Raises:
            LayerInputError: The inputs have too few axes or other channels, or nothing would be
                left of a spatial axis.
        """
        self._check_shape(jnp.shape(inputs))
        operands = (inputs, self.kernel[...], value_of(self.bias))
        x, kernel, bias = self.promote_dtype(operands, dtype=self.dtype)
        if self.mask is not None:
            kernel = kernel * jnp.asarray(self.mask).astype(kernel.dtype)
        spatial = len(self.kernel_size)
        batch = x.shape[: -spatial - 1]
        shape = x.shape
        x = jnp.reshape(x, (math.prod(batch), *x.shape[-spatial - 1 :]))  # (B, *spatial, din)
        x, padding = pad_inputs(
            x,
            self.padding,
            self.kernel_size,
            self.strides,
            self.kernel_dilation,
            self.input_dilation,
        )
        outputs = self.conv_general_dilated(
            x,
            kernel,
            self.strides,
            padding,
            lhs_dilation=self.input_dilation,
            rhs_dilation=self.kernel_dilation,
            dimension_numbers=channels_last(spatial),
            feature_group_count=self.feature_group_count,
            precision=self.precision,
            **without_none(preferred_element_type=self.preferred_element_type),
        )  # (B, *new_spatial, dout)
        if 0 in outputs.shape[1:-1]:
            raise LayerInputError(
                name_of(self),
                "inputs",
                f"an array of shape {shape}, of which outputs {outputs.shape[1:-1]} would be left",
                f"spatial axes that a kernel of kernel_size={self.kernel_size}, "
                f"kernel_dilation={self.kernel_dilation} fits into",
            )
        outputs = add_bias(outputs, bias)
        return jnp.reshape(
            outputs, batch + outputs.shape[1:], **without_none(out_sharding=out_sharding)
        )  # (..., *new_spatial, dout)
