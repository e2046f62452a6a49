import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.demo._model import Transformer, rotary_attention, rotate
from nnxgraph.demo._settings import PRESETS

SETTINGS = dataclasses.replace(PRESETS["tiny"], layers=3, width=16, heads=2, dropout=0.5)
VOCABULARY = 11


@functools.cache
def tokens():
    return jax.random.randint(jax.random.key(5), (2, 9), 0, VOCABULARY)


@functools.cache
def original():
    return Transformer(SETTINGS, VOCABULARY, rngs=nnx.Rngs(0))


@pytest.fixture
def model():
    return nnx.clone(original())


@nnx.jit
def apply(model, tokens):
    return model(tokens)


def test_rotation_keeps_lengths_and_leaves_the_first_position():
    x = jax.random.normal(jax.random.key(0), (2, 7, 3, 8))
    rotated = rotate(x)
    assert rotated.shape == x.shape
    np.testing.assert_allclose(jnp.linalg.norm(rotated, axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(rotated[:, 0], x[:, 0])


def test_scores_depend_on_the_distance_alone():
    q, k = jax.random.normal(jax.random.key(0), (2, 8))
    turned_q = rotate(jnp.broadcast_to(q, (1, 20, 1, 8)))[0, :, 0]  # (20, 8), the same query everywhere
    turned_k = rotate(jnp.broadcast_to(k, (1, 20, 1, 8)))[0, :, 0]
    scores = turned_q @ turned_k.T  # (20, 20)
    for distance in (-7, 0, 3):
        diagonal = jnp.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
    assert abs(scores[0, 0] - scores[0, 3]) > 1e-3


def test_embedding_and_head_share_one_param(model):
    assert model.head.embedding is model.embed.embedding
    assert [("embed", "embedding"), ("head", "embedding")] in [
        list(paths) for paths in nnx.find_duplicates(model, only=nnx.Param)
    ]


def test_first_guess_is_near_uniform(model):
    logits = apply(model, tokens())
    assert logits.shape == (2, 9, VOCABULARY)
    loss = -jax.nn.log_softmax(logits).mean()
    assert float(loss) == pytest.approx(math.log(VOCABULARY), abs=0.05)


def test_character_does_not_see_those_that_follow(model):
    model.eval()
    changed = tokens().at[:, 5].set((tokens()[:, 5] + 1) % VOCABULARY)
    before, after = apply(model, tokens()), apply(model, changed)
    np.testing.assert_allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert (jnp.abs(before[:, 5:] - after[:, 5:]).max(axis=(0, 2)) > 1e-4).all()


def plain_forward(model, tokens):
    """The same network with a Python loop over layers, in numpy and float64."""
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    p = {".".join(map(str, path)): np.asarray(v.get_value(), np.float64) for path, v in flat}

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def turn(x):  # (B, T, H, K)
        half = x.shape[-1] // 2
        angle = np.arange(x.shape[1])[:, None] / 10_000.0 ** (np.arange(half) / half)
        z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[None, :, None]
        return np.concatenate([z.real, z.imag], -1)

    x = p["embed.embedding"][np.asarray(tokens)] * math.sqrt(SETTINGS.width)
    visible = np.tril(np.ones((x.shape[1],) * 2))
    for i in range(SETTINGS.layers):
        b = {k.removeprefix("blocks."): v[i] for k, v in p.items() if k.startswith("blocks.")}
        h = norm(x, b["attention_norm.scale"])
        q, k, v = (
            np.einsum("btd,dhk->bthk", h, b[f"attention.{n}.kernel"]) for n in ("query", "key", "value")
        )
        scores = np.einsum("bqhk,bshk->bhqs", turn(q), turn(k)) / math.sqrt(q.shape[-1])
        weights = np.exp(scores) * visible
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("bhqs,bshk,hkd->bqd", weights, v, b["attention.out.kernel"])
        h = norm(x, b["mlp_norm.scale"])
        x = x + gelu(h @ b["widen.kernel"]) @ b["narrow.kernel"]
    return norm(x, p["head.norm.scale"]) @ p["embed.embedding"].T


def test_logits_are_those_of_an_independent_formula(model):
    model.eval()
    params = nnx.state(model, nnx.Param)
    rng = np.random.default_rng(0)  # all parameters at random, scales too
    noisy = jax.tree.map(lambda a: a + jnp.asarray(rng.normal(0, 0.1, a.shape), a.dtype), params)
    nnx.update(model, noisy)
    expected = plain_forward(model, tokens())
    assert np.abs(np.asarray(apply(model, tokens())) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_layers_start_with_weights_of_their_own(model):
    kernel = model.blocks.widen.kernel[...]  # (L, D, 4D)
    assert kernel.shape == (3, 16, 64)
    assert float(jnp.abs(kernel[0] - kernel[1]).max()) > 0.1


def test_each_layer_draws_a_dropout_of_its_own_and_another_one_next_time(model):
    keys = jax.random.key_data(model.blocks.dropout.rngs.key[...])  # (L, 2)
    assert len({tuple(key) for key in keys.tolist()}) == SETTINGS.layers
    assert (apply(model, tokens()) != apply(model, tokens())).any()
    assert model.blocks.dropout.rngs.count[...].tolist() == [4, 4, 4]  # two draws in each call
    model.eval()
    assert (apply(model, tokens()) == apply(model, tokens())).all()


def test_attention_passes_its_options_on():
    x = jnp.ones((1, 3, 1, 2))
    v = jnp.arange(3.0).reshape(1, 3, 1, 1)
    seen = rotary_attention(jnp.zeros_like(x), jnp.zeros_like(x), v, is_causal=True)
    np.testing.assert_allclose(seen.ravel(), [0.0, 0.5, 1.0], rtol=1e-6)
