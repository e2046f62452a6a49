"""Types that the signatures of the layers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
from jax.typing import ArrayLike, DTypeLike

Array: TypeAlias = jax.Array
Shape: TypeAlias = tuple[int, ...]
Axes: TypeAlias = int | Sequence[int]
Dtype: TypeAlias = DTypeLike
PrecisionLike: TypeAlias = jax.lax.PrecisionLike
OutSharding: TypeAlias = jax.sharding.NamedSharding | jax.sharding.PartitionSpec | None

AxisName: TypeAlias = str | Sequence[str] | None
AxisIndexGroups: TypeAlias = Sequence[Sequence[int]] | None

# (key, shape, dtype) -> array, or the metadata box that nnx.with_metadata makes.
Initializer: TypeAlias = Callable[..., Any]
# Called as promote_dtype((x, kernel, bias), dtype=dtype); None stands for an absent argument.
PromoteDtype: TypeAlias = Callable[..., tuple[Any, ...]]
# Called as jax.lax.dot_general is; may be a Module that owns Variables.
DotGeneral: TypeAlias = Callable[..., Array]
# Called as jax.lax.conv_general_dilated is.
ConvGeneralDilated: TypeAlias = Callable[..., Array]
# Called as nnx.dot_product_attention is.
AttentionFn: TypeAlias = Callable[..., Array]

Metadata: TypeAlias = Mapping[str, Any]
NO_METADATA: Metadata = MappingProxyType({})

__all__ = [
    "NO_METADATA",
    "Array",
    "ArrayLike",
    "AttentionFn",
    "Axes",
    "AxisIndexGroups",
    "AxisName",
    "ConvGeneralDilated",
    "DotGeneral",
    "Dtype",
    "Initializer",
    "Metadata",
    "OutSharding",
    "PrecisionLike",
    "PromoteDtype",
    "Shape",
]
