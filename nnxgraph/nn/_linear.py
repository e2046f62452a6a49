"""Dense layers: an affine map of the last axis (Linear) or of several axes (LinearGeneral)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from .._module import Module
from .._rngs import Rngs
from ..errors import LayerInputError, LayerOptionError
from ._checks import canonical_axes, check_features, name_of, positive_int, positive_ints
from ._dtypes import promote_dtype as default_promote_dtype
from ._params import (
    default_bias_init,
    default_kernel_init,
    init_optional_param,
    init_param,
    matrix_initializer,
    value_of,
)
from ._types import (
    NO_METADATA,
    Array,
    ArrayLike,
    Axes,
    DotGeneral,
    Dtype,
    Initializer,
    Metadata,
    OutSharding,
    PrecisionLike,
    PromoteDtype,
    Shape,
)

NO_BATCH_AXES: Mapping[int, int] = MappingProxyType({})


def without_none(**keywords: Any) -> dict[str, Any]:
    """The keywords that are set, so that a user's hook need not know those that are not."""
    return {name: value for name, value in keywords.items() if value is not None}


def add_bias(outputs: Array, bias: Array | None) -> Array:
    """Adds a bias along the last axes, in the dtype of the outputs."""
    if bias is None:
        return outputs
    shape = (1,) * (outputs.ndim - bias.ndim) + bias.shape
    return outputs + jnp.reshape(bias.astype(outputs.dtype), shape)


class Linear(Module):
    """An affine map of the last axis: `inputs @ kernel + bias`.

    Args:
        in_features: The size of the inputs' last axis.
        out_features: The size of the outputs' last axis.
        use_bias: Whether to add a bias.
        dtype: The dtype to compute in; None means that of inputs and parameters together.
        param_dtype: The dtype of the parameters.
        precision: The precision of the product, see `jax.lax.Precision`.
        kernel_init: Initializer of the kernel.
        bias_init: Initializer of the bias.
        dot_general: What computes the product, called as `jax.lax.dot_general`; it may be a
            Module that owns Variables.
        promote_dtype: The function that casts inputs and parameters, called as
            `promote_dtype((inputs, kernel, bias), dtype=dtype)`.
        preferred_element_type: The dtype to accumulate in and to return.
        rngs: Where the initializers' keys come from, stream `params`.
        kernel_metadata: Metadata for the kernel's Param.
        bias_metadata: Metadata for the bias's Param.

    Raises:
        LayerOptionError: A feature size is not a whole number of at least 1.

    Attributes:
        kernel: Param of shape `(in_features, out_features)`.
        bias: Param of shape `(out_features,)`, or None.

    Example:
        >>> layer = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 3))).shape
        (2, 4)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        dot_general: DotGeneral = jax.lax.dot_general,
        promote_dtype: PromoteDtype = default_promote_dtype,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ) -> None:
        self.in_features = positive_int(self, "in_features", in_features)
        self.out_features = positive_int(self, "out_features", out_features)
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.dot_general = dot_general
        self.promote_dtype = promote_dtype
        self.preferred_element_type = preferred_element_type
        shape = (self.in_features, self.out_features)
        self.kernel = init_param(kernel_init, rngs, shape, param_dtype, kernel_metadata)
        self.bias = init_optional_param(use_bias, bias_init, rngs, shape[1:], param_dtype, bias_metadata)

    def __call__(self, inputs: ArrayLike, out_sharding: OutSharding = None) -> Array:
        """Applies the map.

        Args:
            inputs: An array `(..., in_features)`.
            out_sharding: The sharding of the result under a mesh with explicit axes.

        Returns:
            An array `(..., out_features)`.

        Raises:
            LayerInputError: The inputs' last axis is not `in_features`.
        """
        check_features(self, "inputs", jnp.shape(inputs), self.in_features, "in_features")
        operands = (inputs, self.kernel[...], value_of(self.bias))
        x, kernel, bias = self.promote_dtype(operands, dtype=self.dtype)
        outputs = self.dot_general(
            x,  # (..., in_features)
            kernel,
            (((x.ndim - 1,), (0,)), ((), ())),
            precision=self.precision,
            **without_none(preferred_element_type=self.preferred_element_type, out_sharding=out_sharding),
        )  # (..., out_features)
        return add_bias(outputs, bias)


class LinearGeneral(Module):
    """An affine map of one or more axes to one or more new last axes.

    Args:
        in_features: The sizes of the axes that are mapped, one int or several.
        out_features: The sizes of the new last axes, one int or several.
        axis: Which axes of the inputs are mapped, as many as `in_features`.
        batch_axis: Sizes of batch axes by axis, `{axis: size}`: each index along them has a
            kernel and a bias of its own. They are the leading axes, `0, 1, ...`.
        use_bias: Whether to add a bias.
        dtype: The dtype to compute in; None means that of inputs and parameters together.
        param_dtype: The dtype of the parameters.
        kernel_init: Initializer of the kernel, which it sees as a matrix `(prod(in_features),
            prod(out_features))`, one for each batch index.
        bias_init: Initializer of the bias.
        precision: The precision of the product, see `jax.lax.Precision`.
        promote_dtype: The function that casts inputs and parameters.
        dot_general: What computes the product, called as `jax.lax.dot_general`, its default.
        dot_general_cls: Called without arguments to make `dot_general`.
        preferred_element_type: The dtype to accumulate in and to return.
        rngs: Where the initializers' keys come from, stream `params`.
        kernel_metadata: Metadata for the kernel's Param.
        bias_metadata: Metadata for the bias's Param.

    Raises:
        LayerOptionError: A size is not a whole number of at least 1, there are not as many axes as
            `in_features`, or the batch axes are not the leading ones.

    Attributes:
        kernel: Param of shape `(*batch_sizes, *in_features, *out_features)`.
        bias: Param of shape `(*batch_sizes, *out_features)`, or None.

    Example:
        >>> heads = nnx.LinearGeneral(8, (2, 4), rngs=nnx.Rngs(0))
        >>> heads(jnp.ones((3, 8))).shape
        (3, 2, 4)
        >>> merge = nnx.LinearGeneral((2, 4), 8, axis=(-2, -1), rngs=nnx.Rngs(0))
        >>> merge(jnp.ones((3, 2, 4))).shape
        (3, 8)
    """

    def __init__(
        self,
        in_features: Axes,
        out_features: Axes,
        *,
        axis: Axes = -1,
        batch_axis: Mapping[int, int] = NO_BATCH_AXES,
        use_bias: bool = True,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        precision: PrecisionLike = None,
        promote_dtype: PromoteDtype = default_promote_dtype,
        dot_general: DotGeneral | None = None,
        dot_general_cls: Callable[[], DotGeneral] | None = None,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ) -> None:
        self.in_features = positive_ints(self, "in_features", in_features)
        self.out_features = positive_ints(self, "out_features", out_features)
        self.axis = (axis,) if isinstance(axis, int) else tuple(axis)
        self.batch_axis = dict(batch_axis)
        if len(self.axis) != len(self.in_features):
            expected = f"as many axes as in_features={self.in_features}"
            raise LayerOptionError(name_of(self), "axis", repr(axis), expected)
        if sorted(self.batch_axis) != list(range(len(self.batch_axis))):
            expected = "the leading axes 0, 1, ... as keys"
            raise LayerOptionError(name_of(self), "batch_axis", repr(self.batch_axis), expected)
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.promote_dtype = promote_dtype
        self.dot_general = dot_general_cls() if dot_general_cls else dot_general
        self.preferred_element_type = preferred_element_type
        batch = tuple(self.batch_axis[i] for i in range(len(self.batch_axis)))
        fans = (batch, self.in_features, self.out_features)
        draw = matrix_initializer(kernel_init, *fans)
        self.kernel = init_param(draw, rngs, sum(fans, ()), param_dtype, kernel_metadata)
        shape = batch + self.out_features
        self.bias = init_optional_param(use_bias, bias_init, rngs, shape, param_dtype, bias_metadata)

    def _check_shape(self, shape: Shape) -> Shape:
        """The mapped axes counted from the front, of an input that has the right sizes."""
        axes = canonical_axes(self, "axis", self.axis, len(shape))
        wanted = dict(zip(axes, self.in_features, strict=True)) | self.batch_axis
        if any(axis >= len(shape) or shape[axis] != size for axis, size in wanted.items()):
            raise LayerInputError(
                name_of(self),
                "inputs",
                f"an array of shape {shape}",
                f"sizes by axis to be {wanted} (in_features={self.in_features}, axis={self.axis})",
            )
        return axes

    def __call__(self, inputs: ArrayLike, out_sharding: OutSharding = None) -> Array:
        """Applies the map.

        Args:
            inputs: An array with `in_features` along `axis`.
            out_sharding: The sharding of the result under a mesh with explicit axes.

        Returns:
            An array `(*batch, *other_axes, *out_features)`: the mapped axes are gone.

        Raises:
            LayerInputError: An axis of the inputs has the wrong size.
        """
        axes = self._check_shape(jnp.shape(inputs))
        operands = (inputs, self.kernel[...], value_of(self.bias))
        x, kernel, bias = self.promote_dtype(operands, dtype=self.dtype)
        batch = tuple(range(len(self.batch_axis)))
        kernel_axes = tuple(range(len(batch), len(batch) + len(axes)))
        dot_general = self.dot_general or jax.lax.dot_general
        outputs = dot_general(
            x,  # (*batch, ..., *in_features) in any order of axes
            kernel,  # (*batch, *in_features, *out_features)
            ((axes, kernel_axes), (batch, batch)),
            precision=self.precision,
            **without_none(preferred_element_type=self.preferred_element_type, out_sharding=out_sharding),
        )  # (*batch, ..., *out_features)
        if bias is None:
            return outputs
        free = outputs.ndim - bias.ndim
        bias_shape = bias.shape[: len(batch)] + (1,) * free + bias.shape[len(batch) :]
        return add_bias(outputs, jnp.reshape(bias, bias_shape))
