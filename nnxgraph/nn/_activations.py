"""Activation functions: those of `jax.nn`, one_hot with a sharding, and the learnt PReLU."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.nn import celu as celu
from jax.nn import elu as elu
from jax.nn import gelu as gelu
from jax.nn import glu as glu
from jax.nn import hard_sigmoid as hard_sigmoid
from jax.nn import hard_silu as hard_silu
from jax.nn import hard_swish as hard_swish
from jax.nn import hard_tanh as hard_tanh
from jax.nn import identity as identity
from jax.nn import leaky_relu as leaky_relu
from jax.nn import log_sigmoid as log_sigmoid
from jax.nn import log_softmax as log_softmax
from jax.nn import logsumexp as logsumexp
from jax.nn import relu as relu
from jax.nn import relu6 as relu6
from jax.nn import selu as selu
from jax.nn import sigmoid as sigmoid
from jax.nn import silu as silu
from jax.nn import soft_sign as soft_sign
from jax.nn import softmax as softmax
from jax.nn import softplus as softplus
from jax.nn import standardize as standardize
from jax.nn import swish as swish
from jax.numpy import tanh as tanh

from .._module import Module
from .._variable import Param
from ._dtypes import promote_dtype as default_promote_dtype
from ._types import NO_METADATA, Array, ArrayLike, Dtype, Metadata, OutSharding, PromoteDtype


def one_hot(
    x: ArrayLike,
    num_classes: int,
    *,
    dtype: Dtype | None = None,
    axis: int = -1,
    out_sharding: OutSharding = None,
) -> Array:
    """One-hot encodes class indices; an index outside `0 <= i < num_classes` gives zeros.

    Args:
        x: Class indices `(...)`, integers.
        num_classes: The number of classes.
        dtype: The dtype of the result; None means the default float.
        axis: Where the new axis of size `num_classes` stands.
        out_sharding: The sharding of the result under a mesh with explicit axes.

    Returns:
        An array of zeros and ones, `(..., num_classes)` for `axis=-1`.

    Example:
        >>> nnx.one_hot(jnp.array([0, 2, 7]), 3)
        Array([[1., 0., 0.],
               [0., 0., 1.],
               [0., 0., 0.]], dtype=float32)
    """
    encoded = jax.nn.one_hot(x, num_classes, dtype=dtype, axis=axis)  # (..., num_classes)
    if out_sharding is None:
        return encoded
    reshard: Callable[..., Array] = jax.sharding.reshard
    return reshard(encoded, out_sharding)


class PReLU(Module):
    """Leaky ReLU whose slope for negative inputs is learnt: `x if x >= 0 else slope * x`.

    Delving Deep into Rectifiers (He et al., 2015), https://arxiv.org/abs/1502.01852.

    Args:
        negative_slope_init: The slope to start from.
        dtype: The dtype to compute in; None means that of the inputs and the slope together.
        param_dtype: The dtype of the slope.
        promote_dtype: The function that casts inputs and parameters, called as
            `promote_dtype((inputs, slope), dtype=dtype)`.
        negative_slope_metadata: Metadata for the Param.

    Attributes:
        negative_slope: The slope, a Param of shape `()`.

    Example:
        >>> layer = nnx.PReLU(0.25)
        >>> layer(jnp.array([-4.0, 3.0]))
        Array([-1.,  3.], dtype=float32)
    """

    def __init__(
        self,
        negative_slope_init: float = 0.01,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        promote_dtype: PromoteDtype = default_promote_dtype,
        negative_slope_metadata: Metadata = NO_METADATA,
    ) -> None:
        slope = jnp.asarray(negative_slope_init, dtype=param_dtype)
        self.negative_slope: Param[Array] = Param(slope, **negative_slope_metadata)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.promote_dtype = promote_dtype

    def __call__(self, inputs: ArrayLike) -> Array:
        """Applies the activation.

        Args:
            inputs: An array `(...)`.

        Returns:
            An array of the same shape.
        """
        x, slope = self.promote_dtype((inputs, self.negative_slope[...]), dtype=self.dtype)
        return jnp.where(x >= 0, x, jnp.broadcast_to(slope, x.shape) * x)
