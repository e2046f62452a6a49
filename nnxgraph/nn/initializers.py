"""Initializers: functions `(key, shape, dtype) -> array` for the parameters of layers.

They are those of `jax.nn.initializers`, and two more spellings of zeros and ones. Each name but
`zeros` and `ones` is called to make an initializer:
`kernel_init=nnx.initializers.lecun_normal()`.
"""

from __future__ import annotations

from jax.nn.initializers import constant as constant
from jax.nn.initializers import delta_orthogonal as delta_orthogonal
from jax.nn.initializers import glorot_normal as glorot_normal
from jax.nn.initializers import glorot_uniform as glorot_uniform
from jax.nn.initializers import he_normal as he_normal
from jax.nn.initializers import he_uniform as he_uniform
from jax.nn.initializers import kaiming_normal as kaiming_normal
from jax.nn.initializers import kaiming_uniform as kaiming_uniform
from jax.nn.initializers import lecun_normal as lecun_normal
from jax.nn.initializers import lecun_uniform as lecun_uniform
from jax.nn.initializers import normal as normal
from jax.nn.initializers import ones as ones
from jax.nn.initializers import orthogonal as orthogonal
from jax.nn.initializers import truncated_normal as truncated_normal
from jax.nn.initializers import uniform as uniform
from jax.nn.initializers import variance_scaling as variance_scaling
from jax.nn.initializers import xavier_normal as xavier_normal
from jax.nn.initializers import xavier_uniform as xavier_uniform
from jax.nn.initializers import zeros as zeros

from ._types import Initializer


def zeros_init() -> Initializer:
    """Makes the initializer of zeros.

    Returns:
        A function `(key, shape, dtype=float) -> array`, the same as `zeros`.

    Example:
        >>> nnx.initializers.zeros_init()(jax.random.key(0), (3,), jnp.float32)
        Array([0., 0., 0.], dtype=float32)
    """
    return zeros


def ones_init() -> Initializer:
    """Makes the initializer of ones.

    Returns:
        A function `(key, shape, dtype=float) -> array`, the same as `ones`.

    Example:
        >>> nnx.initializers.ones_init()(jax.random.key(0), (3,), jnp.float32)
        Array([1., 1., 1.], dtype=float32)
    """
    return ones


__all__ = [
    "constant",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "ones_init",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
    "zeros_init",
]
