"""How layers make their parameters."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from .._rngs import Rngs
from .._spec import VariableMetadata
from .._variable import Param
from . import initializers
from ._types import Array, Dtype, Initializer, Metadata, Shape

default_kernel_init = initializers.lecun_normal()
default_bias_init = initializers.zeros
default_scale_init = initializers.ones


def init_param(
    initializer: Initializer, rngs: Rngs, shape: Shape, dtype: Dtype, metadata: Metadata
) -> Param[Array]:
    """A Param with a fresh value."""
    return Param(initializer(rngs.params(), shape, dtype), **metadata)


def init_optional_param(
    used: bool, initializer: Initializer, rngs: Rngs, shape: Shape, dtype: Dtype, metadata: Metadata
) -> Param[Array] | None:
    """A Param with a fresh value, or None if the layer has none."""
    return init_param(initializer, rngs, shape, dtype, metadata) if used else None


def value_of(param: Param[Array] | None) -> Any:
    """The value of a Param that may be None."""
    return None if param is None else param[...]


def matrix_initializer(initializer: Initializer, batch: Shape, fan_in: Shape, fan_out: Shape) -> Initializer:
    """Draws a kernel of many axes as a matrix, so that fan-in and fan-out come out right."""

    def draw(key: Array, shape: Shape, dtype: Dtype) -> Any:
        keys = jax.random.split(key, math.prod(batch)) if batch else [key]
        matrix = (math.prod(fan_in), math.prod(fan_out))
        drawn = [initializer(k, matrix, dtype) for k in keys]
        if isinstance(drawn[0], VariableMetadata):  # made by nnx.with_metadata
            stacked = jnp.stack([box.raw_value for box in drawn])  # (prod(batch), *matrix)
            drawn[0].raw_value = jnp.reshape(stacked, shape)
            return drawn[0]
        return jnp.reshape(jnp.stack(drawn), shape)  # (*batch, *fan_in, *fan_out)

    return draw
