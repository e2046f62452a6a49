"""Embedding tables, read by index and, transposed, as an output head."""

from __future__ import annotations

import jax.numpy as jnp

from .._module import Module
from .._rngs import Rngs
from ..errors import LayerInputError
from . import initializers
from ._checks import check_features, name_of, one_of, positive_int
from ._dtypes import promote_dtype as default_promote_dtype
from ._linear import without_none
from ._params import init_param
from ._types import (
    NO_METADATA,
    Array,
    ArrayLike,
    Dtype,
    Initializer,
    Metadata,
    OutSharding,
    PromoteDtype,
)

# Rows of variance 1 / features, so that an embedding has a length of about one.
default_embedding_init = initializers.variance_scaling(1.0, "fan_in", "normal", in_axis=1, out_axis=0)

OUT_OF_RANGE = ("nan", "zero", "clip")


class Embed(Module):
    """A table of vectors, one for each index.

    An index outside `0 <= i < num_embeddings`, negative ones included, gives what
    `out_of_range` says: `'nan'` (the default) a row of NaN, which cannot be missed, `'zero'`
    a row of zeros (for padding), `'clip'` the nearest row. No gradient flows to the table in the
    first two.

    Args:
        num_embeddings: The number of rows.
        features: The length of a row.
        dtype: The dtype of the result; None means that of the table.
        param_dtype: The dtype of the table.
        embedding_init: Initializer of the table.
        promote_dtype: The function that casts the table (and in `attend` the query).
        out_of_range: What an index outside of the table gives: `'nan'`, `'zero'` or `'clip'`.
        rngs: Where the initializer's key comes from, stream `params`.
        embedding_metadata: Metadata for the Param.

    Raises:
        LayerOptionError: A size is not a whole number of at least 1, or `out_of_range` has
            another value.

    Attributes:
        embedding: Param of shape `(num_embeddings, features)`.

    Example:
        >>> layer = nnx.Embed(5, 3, rngs=nnx.Rngs(0))
        >>> vectors = layer(jnp.array([[0, 4, 4, 1]]))
        >>> vectors.shape, layer.attend(vectors).shape
        ((1, 4, 3), (1, 4, 5))
    """

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        embedding_init: Initializer = default_embedding_init,
        promote_dtype: PromoteDtype = default_promote_dtype,
        out_of_range: str = "nan",
        rngs: Rngs,
        embedding_metadata: Metadata = NO_METADATA,
    ) -> None:
        self.num_embeddings = positive_int(self, "num_embeddings", num_embeddings)
        self.features = positive_int(self, "features", features)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.promote_dtype = promote_dtype
        self.out_of_range = one_of(self, "out_of_range", out_of_range, OUT_OF_RANGE)
        shape = (self.num_embeddings, self.features)
        self.embedding = init_param(embedding_init, rngs, shape, param_dtype, embedding_metadata)

    def __call__(self, inputs: ArrayLike, out_sharding: OutSharding = None) -> Array:
        """Reads rows.

        Args:
            inputs: Indices `(...)`, integers.
            out_sharding: The sharding of the result under a mesh with explicit axes.

        Returns:
            An array `(..., features)`.

        Raises:
            LayerInputError: The inputs are not integers.
        """
        indices = jnp.asarray(inputs)
        if not jnp.issubdtype(indices.dtype, jnp.integer):
            raise LayerInputError(
                name_of(self),
                "inputs",
                f"an array of dtype {indices.dtype}",
                "indices of an integer dtype",
                "Write `embed(inputs.astype(int))`, or `embed.attend(inputs)` for the output head.",
            )
        (table,) = self.promote_dtype((self.embedding[...],), dtype=self.dtype, inexact=False)
        rows: Array = table.at[indices].get(
            mode="clip" if self.out_of_range == "clip" else "fill",
            fill_value=0 if self.out_of_range == "zero" else None,
            wrap_negative_indices=False,
            out_sharding=out_sharding,
        )  # (..., features)
        return rows

    def attend(self, query: ArrayLike, out_sharding: OutSharding = None) -> Array:
        """Scores vectors against every row, as an output head: `query @ embedding.T`.

        Args:
            query: An array `(..., features)`.
            out_sharding: The sharding of the result under a mesh with explicit axes.

        Returns:
            An array `(..., num_embeddings)`.

        Raises:
            LayerInputError: The query's last axis is not `features`.
        """
        check_features(self, "query", jnp.shape(query), self.features, "features")
        x, table = self.promote_dtype((query, self.embedding[...]), dtype=self.dtype)
        return jnp.einsum(
            "...d,nd->...n", x, table, **without_none(out_sharding=out_sharding)
        )  # (..., num_embeddings)
