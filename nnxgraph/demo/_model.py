"""A character-level transformer.

Letters of the shapes: B windows in a batch, T characters of a window, D width, H heads, K depth of a
head, V tokens, L layers.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

import nnxgraph as nnx

from ._settings import Settings

EMBEDDING_DEVIATION = 0.02  # small, so that the first logits are near zero


def rotate(x: jax.Array) -> jax.Array:
    """Turns pairs of features by angles that grow with the position, (B, T, H, K).

    RoFormer: Enhanced Transformer with Rotary Position Embedding (Su et al., 2021).
    """
    length, depth = x.shape[-3], x.shape[-1]
    frequencies = 10_000.0 ** -jnp.linspace(0.0, 1.0, depth // 2, endpoint=False)  # (K/2,)
    angles = jnp.outer(jnp.arange(length, dtype=x.dtype), frequencies)  # (T, K/2)
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]  # (1, T, 1, K/2)
    a, b = jnp.split(x, 2, axis=-1)  # (B, T, H, K/2) each
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)  # (B, T, H, K)


def rotary_attention(query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
    """Attention whose scores depend on how far apart two characters are, (B, T, H, K)."""
    return nnx.dot_product_attention(rotate(query), rotate(key), value, **options)


class Block(nnx.Module):
    """One layer: characters look back at others, then each thinks for itself."""

    def __init__(self, settings: Settings, *, rngs: nnx.Rngs) -> None:
        width = settings.width
        # What a layer adds shrinks with the number of layers, so the sum keeps its scale.
        to_residual = nnx.initializers.variance_scaling(
            1.0 / (2 * settings.layers), "fan_in", "truncated_normal"
        )
        self.attention_norm = nnx.RMSNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            settings.heads,
            width,
            use_bias=False,
            attention_fn=rotary_attention,
            out_kernel_init=to_residual,
            rngs=rngs,
        )
        self.mlp_norm = nnx.RMSNorm(width, rngs=rngs)
        self.widen = nnx.Linear(width, 4 * width, use_bias=False, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, use_bias=False, kernel_init=to_residual, rngs=rngs)
        self.dropout = nnx.Dropout(settings.dropout, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.dropout(self.attention(self.attention_norm(x), is_causal=True))  # (B, T, D)
        hidden = nnx.gelu(self.widen(self.mlp_norm(x)))  # (B, T, 4D)
        return x + self.dropout(self.narrow(hidden))  # (B, T, D)


class Head(nnx.Module):
    """Scores for the next character. Its weights are the embedding itself, shared, not copied."""

    def __init__(self, embedding: nnx.Param[jax.Array], *, rngs: nnx.Rngs) -> None:
        self.norm = nnx.RMSNorm(embedding.shape[-1], rngs=rngs)
        self.embedding = embedding

    def __call__(self, x: jax.Array) -> jax.Array:
        logits: jax.Array = self.norm(x) @ self.embedding[...].T  # (B, T, V)
        return logits


class Transformer(nnx.Module):
    """Embedding, a stack of blocks, and a head that shares its weights with the embedding.

    The blocks are one Block whose arrays have a leading axis of layers: `vmap` makes it, `scan`
    applies it, so compiling takes as long as for one layer. `remat` keeps only what stands between
    layers for the backward pass.
    """

    def __init__(self, settings: Settings, vocabulary: int, *, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=settings.layers)
        @nnx.vmap
        def make_blocks(rngs: nnx.Rngs) -> Block:
            return Block(settings, rngs=rngs)

        self.embed = nnx.Embed(
            vocabulary,
            settings.width,
            embedding_init=nnx.initializers.normal(EMBEDDING_DEVIATION),
            rngs=rngs,
        )
        self.dropout = nnx.Dropout(settings.dropout, rngs=rngs)
        self.blocks = make_blocks(rngs)  # every array is (L, ...)
        self.head = Head(self.embed.embedding, rngs=rngs)
        self.train()

    def __call__(self, tokens: jax.Array) -> jax.Array:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        @nnx.remat
        def through(x: jax.Array, block: Block) -> jax.Array:
            return block(x)  # (B, T, D)

        x = self.embed(tokens) * math.sqrt(self.embed.features)  # (B, T) -> (B, T, D)
        x = through(self.dropout(x), self.blocks)  # (B, T, D)
        return self.head(x)  # (B, T, V)
