"""The attention layer: projections to heads, attention, projection back; a cache to decode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from .._module import Module
from .._rngs import Rngs, RngStream
from .._variable import Cache
from ..errors import DecodeCacheError, LayerInputError, LayerOptionError
from ._attention import dot_product_attention
from ._checks import check_features, name_of, positive_int, real_between
from ._decode_cache import append, restrict
from ._dropout import draw_key, fork_stream, never_drops
from ._dtypes import promote_dtype as default_promote_dtype
from ._linear import LinearGeneral, without_none
from ._norm import LayerNorm
from ._params import default_bias_init, default_kernel_init
from ._types import (
    NO_METADATA,
    Array,
    ArrayLike,
    AttentionFn,
    DotGeneral,
    Dtype,
    Initializer,
    Metadata,
    OutSharding,
    PrecisionLike,
    PromoteDtype,
    Shape,
)


def first(option: int | None, default: int) -> int:
    """The option if it is given, else the default."""
    return default if option is None else option


def check_divides(layer: object, argument: str, value: int, dividend: str, number: int) -> None:
    """That one option divides another."""
    if number % value:
        expected = f"a divisor of {dividend}={number}"
        raise LayerOptionError(name_of(layer), argument, str(value), expected)


class MultiHeadAttention(Module):
    """Multi-head attention, also grouped-query attention: fewer key and value heads.

    `out(attention(query(x_q), key(x_k), value(x_v)))`. A query whose keys are all masked gets
    zeros from the attention, so the layer returns the bias of `out` there.

    **Decoding.** After `init_cache`, calls with `decode=True` append keys and values to the
    cache, one position or several at once, and each position sees those up to itself: together they
    give what one causal pass over all positions gives. A call that does not fit into the cache any
    more is an error; under jit, where the fill level is not known, its outputs are NaN.

    Attention Is All You Need (Vaswani et al., 2017), https://arxiv.org/abs/1706.03762;
    GQA (Ainslie et al., 2023), https://arxiv.org/abs/2305.13245.

    Args:
        num_heads: The number of query heads.
        in_features: The size of the last axis of the inputs of queries.
        qkv_features: The size of all query heads together, a multiple of `num_heads`; None means
            `in_features`. A head has `head_dim = qkv_features // num_heads`.
        out_features: The size of the outputs' last axis; None means `in_features`.
        num_kv_heads: The number of key and value heads, a divisor of `num_heads`, which is the
            default.
        in_kv_features: The size of the last axis of the inputs of keys and values; None means
            `in_features`.
        dtype: The dtype to compute in; None means that of inputs and parameters together.
        param_dtype: The dtype of the parameters.
        broadcast_dropout: Whether all batch entries and heads drop the same attention weights.
        dropout_rate: The probability that an attention weight is dropped, in `[0, 1]`.
        deterministic: Whether dropout is off; None counts as False until `model.eval()`.
        precision: The precision of the products, see `jax.lax.Precision`.
        kernel_init: Initializer of the kernels.
        out_kernel_init: Initializer of the kernel of `out`; None means `kernel_init`.
        bias_init: Initializer of the biases.
        out_bias_init: Initializer of the bias of `out`; None means `bias_init`.
        use_bias: Whether the projections have biases.
        attention_fn: What attends, called as `nnx.dot_product_attention`; it is given
            `is_causal` and `input_positions` only where the call sets them.
        decode: Whether calls use the cache; None counts as False.
        normalize_qk: Whether queries and keys pass a LayerNorm over `head_dim`.
        qkv_promote_dtype: The function that casts in the projections to queries, keys and values.
        out_promote_dtype: The function that casts in `out`.
        ln_promote_dtype: The function that casts in the LayerNorms.
        qkv_dot_general: What computes the products in those projections.
        out_dot_general: What computes the product in `out`.
        qkv_dot_general_cls: Called without arguments, once for each, to make `qkv_dot_general`.
        out_dot_general_cls: Called without arguments to make `out_dot_general`.
        preferred_element_type: The dtype that the projections accumulate in and return.
        rngs: Where keys come from: stream `params` for the initializers, `dropout` for dropout.
        keep_rngs: Whether the layer keeps a stream of its own for dropout; if not, calls give
            `rngs`.
        kernel_metadata: Metadata for the Params of the kernels of queries, keys and values.
        out_kernel_metadata: Metadata for the kernel of `out`.
        bias_metadata: Metadata for their biases.
        out_bias_metadata: Metadata for the bias of `out`.
        query_ln_scale_metadata: Metadata for the scale of the queries' LayerNorm.
        key_ln_scale_metadata: Metadata for the scale of the keys' LayerNorm.

    Raises:
        LayerOptionError: A size is not a whole number of at least 1, `num_heads` does not divide
            `qkv_features`, `num_kv_heads` does not divide `num_heads`, or the rate is not in
            `[0, 1]`.

    Attributes:
        query: LinearGeneral to `(num_heads, head_dim)`.
        key: LinearGeneral to `(num_kv_heads, head_dim)`.
        value: LinearGeneral to `(num_kv_heads, head_dim)`.
        out: LinearGeneral from `(num_heads, head_dim)` to `out_features`.
        query_ln: LayerNorm of the queries' heads, or None.
        key_ln: LayerNorm of the keys' heads, or None.
        rngs: The layer's own stream for dropout, or None.
        cached_key: Cache of shape `(..., max_length, num_kv_heads, head_dim)`, or None.
        cached_value: Cache of the same shape, or None.
        cache_index: Cache of shape `()`, how many positions are filled, or None.

    Example:
        >>> layer = nnx.MultiHeadAttention(4, 16, rngs=nnx.Rngs(0))
        >>> x = jnp.ones((2, 5, 16))
        >>> layer(x, is_causal=True).shape
        (2, 5, 16)
        >>> layer.init_cache(x.shape)
        >>> layer(x[:, :3], decode=True).shape, int(layer.cache_index[...])
        ((2, 3, 16), 3)
    """

    cached_key: Cache[Array] | None
    cached_value: Cache[Array] | None
    cache_index: Cache[Array] | None

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None = None,
        out_features: int | None = None,
        num_kv_heads: int | None = None,
        in_kv_features: int | None = None,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        broadcast_dropout: bool = True,
        dropout_rate: float = 0.0,
        deterministic: bool | None = None,
        precision: PrecisionLike = None,
        kernel_init: Initializer = default_kernel_init,
        out_kernel_init: Initializer | None = None,
        bias_init: Initializer = default_bias_init,
        out_bias_init: Initializer | None = None,
        use_bias: bool = True,
        attention_fn: AttentionFn = dot_product_attention,
        decode: bool | None = None,
        normalize_qk: bool = False,
        qkv_promote_dtype: PromoteDtype = default_promote_dtype,
        out_promote_dtype: PromoteDtype = default_promote_dtype,
        ln_promote_dtype: PromoteDtype = default_promote_dtype,
        qkv_dot_general: DotGeneral | None = None,
        out_dot_general: DotGeneral | None = None,
        qkv_dot_general_cls: Callable[[], DotGeneral] | None = None,
        out_dot_general_cls: Callable[[], DotGeneral] | None = None,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        keep_rngs: bool = True,
        kernel_metadata: Metadata = NO_METADATA,
        out_kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
        out_bias_metadata: Metadata = NO_METADATA,
        query_ln_scale_metadata: Metadata = NO_METADATA,
        key_ln_scale_metadata: Metadata = NO_METADATA,
    ) -> None:
        self._set_sizes(num_heads, in_features, qkv_features, out_features, num_kv_heads, in_kv_features)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.broadcast_dropout = broadcast_dropout
        self.dropout_rate = real_between(self, "dropout_rate", dropout_rate, 0.0, 1.0)
        self.deterministic = deterministic
        self.precision = precision
        self.use_bias = use_bias
        self.attention_fn = attention_fn
        self.decode = decode
        self.normalize_qk = normalize_qk
        self.preferred_element_type = preferred_element_type
        self.keep_rngs = keep_rngs
        to_heads = self._projection(
            rngs,
            kernel_init=kernel_init,
            bias_init=bias_init,
            promote_dtype=qkv_promote_dtype,
            dot_general=qkv_dot_general,
            dot_general_cls=qkv_dot_general_cls,
            kernel_metadata=kernel_metadata,
            bias_metadata=bias_metadata,
        )
        self.query = to_heads(self.in_features, (self.num_heads, self.head_dim))
        self.key = to_heads(self.in_kv_features, (self.num_kv_heads, self.head_dim))
        self.value = to_heads(self.in_kv_features, (self.num_kv_heads, self.head_dim))
        self.out = self._projection(
            rngs,
            kernel_init=out_kernel_init or kernel_init,
            bias_init=out_bias_init or bias_init,
            promote_dtype=out_promote_dtype,
            dot_general=out_dot_general,
            dot_general_cls=out_dot_general_cls,
            kernel_metadata=out_kernel_metadata,
            bias_metadata=out_bias_metadata,
        )((self.num_heads, self.head_dim), self.out_features, axis=(-2, -1))
        self.query_ln = self._head_norm(ln_promote_dtype, rngs, query_ln_scale_metadata)
        self.key_ln = self._head_norm(ln_promote_dtype, rngs, key_ln_scale_metadata)
        own_stream = keep_rngs and not never_drops(self.dropout_rate)
        self.rngs = fork_stream(rngs if own_stream else None, "dropout")
        self.cached_key = self.cached_value = self.cache_index = None

    def _set_sizes(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None,
        out_features: int | None,
        num_kv_heads: int | None,
        in_kv_features: int | None,
    ) -> None:
        """Sets what the shapes follow from, defaults filled in and checked."""
        self.num_heads = positive_int(self, "num_heads", num_heads)
        self.in_features = positive_int(self, "in_features", in_features)
        self.qkv_features = positive_int(self, "qkv_features", first(qkv_features, in_features))
        self.out_features = positive_int(self, "out_features", first(out_features, in_features))
        self.num_kv_heads = positive_int(self, "num_kv_heads", first(num_kv_heads, num_heads))
        kv_features = first(in_kv_features, in_features)
        self.in_kv_features = positive_int(self, "in_kv_features", kv_features)
        check_divides(self, "num_heads", self.num_heads, "qkv_features", self.qkv_features)
        check_divides(self, "num_kv_heads", self.num_kv_heads, "num_heads", self.num_heads)
        self.head_dim = self.qkv_features // self.num_heads

    def _projection(self, rngs: Rngs, **options: Any) -> Callable[..., LinearGeneral]:
        """What makes a projection with these options and those that all projections share."""
        return functools.partial(
            LinearGeneral,
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
            rngs=rngs,
            **options,
        )

    def _head_norm(
        self, promote_dtype: PromoteDtype, rngs: Rngs, scale_metadata: Metadata
    ) -> LayerNorm | None:
        """The LayerNorm of each head of queries or keys, if the layer has them."""
        if not self.normalize_qk:
            return None
        return LayerNorm(
            self.head_dim,
            use_bias=False,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            promote_dtype=promote_dtype,
            rngs=rngs,
            scale_metadata=scale_metadata,
        )

    def __call__(
        self,
        inputs_q: ArrayLike,
        inputs_k: ArrayLike | None = None,
        inputs_v: ArrayLike | None = None,
        *,
        mask: ArrayLike | None = None,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | Array | None = None,
        sow_weights: bool = False,
        decode: bool | None = None,
        is_causal: bool = False,
        out_sharding: OutSharding = None,
        qkv_sharding: OutSharding = None,
        input_positions: ArrayLike | None = None,
    ) -> Array:
        """Attends.

        Args:
            inputs_q: What queries are made of, `(..., q_length, in_features)`.
            inputs_k: What keys are made of, `(..., kv_length, in_kv_features)`; None means
                `inputs_q`.
            inputs_v: What values are made of, `(..., kv_length, in_kv_features)`; None means
                `inputs_k`.
            mask: Which key each query may look at: true or nonzero where it may; broadcastable to
                `(..., num_heads, q_length, kv_length)`. With `decode`, kv_length is that of the
                cache.
            deterministic: Whether dropout is off; None means the layer's attribute.
            rngs: Streams, one stream or a key for dropout, in place of the layer's own stream.
            sow_weights: Whether to sow the weights as the Intermediate `attention_weights`.
            decode: Whether to use the cache; None means the layer's attribute.
            is_causal: Whether query i sees only the keys up to and with i. Decoding always is
                causal.
            out_sharding: The sharding of the result under a mesh with explicit axes.
            qkv_sharding: The sharding of queries, keys and values, `(..., length, heads,
                head_dim)`.
            input_positions: Positions, handed on to `attention_fn`.

        Returns:
            An array `(..., q_length, out_features)`.

        Raises:
            LayerInputError: An input or the mask does not fit, or values are given without keys.
            MissingKeyError: Dropout is on, and neither the call nor the layer has a stream.
            DecodeCacheError: There is no cache, it is of another shape, or it is full.
        """
        inputs_k, inputs_v = self._key_value_inputs(inputs_q, inputs_k, inputs_v)
        query = self.query(inputs_q, out_sharding=qkv_sharding)  # (..., q_length, heads, head_dim)
        key = self.key(inputs_k, out_sharding=qkv_sharding)  # (..., kv_length, kv_heads, head_dim)
        value = self.value(inputs_v, out_sharding=qkv_sharding)
        if self.query_ln is not None and self.key_ln is not None:
            query, key = self.query_ln(query), self.key_ln(key)
        overflow = None
        if self.decode if decode is None else decode:
            variables = (self.cached_key, self.cached_value, self.cache_index)
            key, value, visible, overflow = append(name_of(self), variables, key, value)
            mask, is_causal = restrict(mask, visible), False  # the mask is causal
        off = self.deterministic if deterministic is None else deterministic
        dropping = not off and not never_drops(self.dropout_rate)
        x = self.attention_fn(
            query,
            key,
            value,
            mask=mask,
            dropout_rng=draw_key(self, "dropout", rngs, self.rngs) if dropping else None,
            dropout_rate=self.dropout_rate,
            broadcast_dropout=self.broadcast_dropout,
            deterministic=not dropping,
            dtype=self.dtype,
            precision=self.precision,
            module=self if sow_weights else None,
            **without_none(is_causal=is_causal or None, input_positions=input_positions),
        )  # (..., q_length, heads, head_dim)
        outputs = self.out(x, out_sharding=out_sharding)  # (..., q_length, out_features)
        return outputs if overflow is None else jnp.where(overflow, jnp.nan, outputs)

    def _key_value_inputs(
        self, inputs_q: ArrayLike, inputs_k: ArrayLike | None, inputs_v: ArrayLike | None
    ) -> tuple[ArrayLike, ArrayLike]:
        """What keys and values are made of, defaults filled in; checks all last axes."""
        if inputs_k is None and inputs_v is not None:
            raise LayerInputError(
                name_of(self),
                "inputs_k",
                "None, but inputs_v is given",
                "both or inputs_k alone",
                "Write `layer(inputs_q, inputs_k, inputs_v)`.",
            )
        keys = inputs_q if inputs_k is None else inputs_k
        values = keys if inputs_v is None else inputs_v
        check_features(self, "inputs_q", jnp.shape(inputs_q), self.in_features, "in_features")
        for argument, array in (("inputs_k", keys), ("inputs_v", values)):
            check_features(self, argument, jnp.shape(array), self.in_kv_features, "in_kv_features")
        return keys, values

    def init_cache(self, input_shape: Shape, dtype: Dtype = jnp.float32) -> None:
        """Makes an empty cache, or empties the one that is there.

        Args:
            input_shape: The shape of all inputs together, `(..., max_length, in_features)`.
            dtype: The dtype of the cache.

        Raises:
            DecodeCacheError: The shape is not of that form.

        Example:
            >>> layer = nnx.MultiHeadAttention(4, 16, num_kv_heads=2, rngs=nnx.Rngs(0))
            >>> layer.init_cache((8, 100, 16))
            >>> layer.cached_key.shape
            (8, 100, 2, 4)
        """
        if len(input_shape) < 2 or min(input_shape) < 1:
            raise DecodeCacheError(
                name_of(self),
                f"input_shape={input_shape}",
                "(..., max_length, in_features)",
                "Write `layer.init_cache((batch_size, max_length, in_features))`.",
            )
        shape = (*input_shape[:-1], self.num_kv_heads, self.head_dim)
        self.cached_key = Cache(jnp.zeros(shape, dtype))
        self.cached_value = Cache(jnp.zeros(shape, dtype))
        self.cache_index = Cache(jnp.zeros((), jnp.int32))

    def set_view(
        self,
        deterministic: bool | None = None,
        decode: bool | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
    ) -> None:
        """Sets the attributes that are given; `nnx.view` calls it on a view of the layer.

        Args:
            deterministic: Whether dropout is off.
            decode: Whether calls use the cache.
            batch_size: Together with `max_length`: makes an empty cache for a batch of that size.
            max_length: The length of that cache.

        Raises:
            DecodeCacheError: Only one of `batch_size` and `max_length` is given.

        Example:
            >>> layer = nnx.MultiHeadAttention(2, 8, rngs=nnx.Rngs(0))
            >>> layer.set_view(decode=True, batch_size=3, max_length=10)
            >>> layer.cached_key.shape
            (3, 10, 2, 4)
        """
        if deterministic is not None:
            self.deterministic = deterministic
        if decode is not None:
            self.decode = decode
        if batch_size is None and max_length is None:
            return
        if batch_size is None or max_length is None:
            raise DecodeCacheError(
                name_of(self),
                f"batch_size={batch_size}, max_length={max_length}",
                "both of them",
                "Write `nnx.view(model, decode=True, batch_size=1, max_length=100)`.",
            )
        self.init_cache((batch_size, max_length, self.in_features))
