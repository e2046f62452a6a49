"""Decoding with MultiHeadAttention: the cache gives what one causal pass gives."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import DecodeCacheError
from tests.nn.reference import QUICK, assert_close, draw, randomize, to_float32


def make(heads=4, features=256, **options):
    return randomize(nnx.MultiHeadAttention(heads, features, rngs=nnx.Rngs(0), **QUICK | options))


def full_pass(layer, x):
    """What one causal pass gives, for comparison."""
    return np.asarray(layer(x, is_causal=True, decode=False), np.float64)


@functools.partial(nnx.jit, static_argnames="is_causal")
def step(layer, x, mask=None, is_causal=False):
    """One call that fills the cache."""
    return layer(x, decode=True, mask=mask, is_causal=is_causal)


def decode(layer, x, sizes, **options):
    """The outputs of calls with so many positions each, along the length."""
    parts = np.split(np.arange(x.shape[-2]), np.cumsum(sizes)[:-1])
    return jnp.concatenate([step(layer, x[..., p, :], **options) for p in parts], axis=-2)


@pytest.mark.parametrize("sizes", [[1] * 6, [4, 1, 1], [2, 3, 1], [6]], ids=str)
@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"normalize_qk": True}], ids=str)
def test_decoding_gives_what_one_causal_pass_gives(sizes, options):
    layer, x = make(**options), to_float32(draw(2, 6, 256))
    layer.init_cache((2, 8, 256))
    assert_close(decode(layer, x, sizes), full_pass(layer, x))
    assert int(layer.cache_index[...]) == 6


@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_any_number_of_batch_axes(batch):
    layer, x = make(2, 8), to_float32(draw(*batch, 4, 8))
    layer.init_cache(x.shape)
    assert_close(decode(layer, x, [3, 1]), full_pass(layer, x))


def test_is_causal_makes_no_difference():
    x = to_float32(draw(2, 5, 256))
    outputs = []
    for is_causal in (True, False):
        layer = make()
        layer.init_cache(x.shape)
        outputs.append(decode(layer, x, [1] * 5, is_causal=is_causal))
    assert jnp.array_equal(*outputs)


def test_mask_goes_with_that_of_the_cache():
    layer, x = make(), to_float32(draw(2, 6, 256))
    seen = jnp.array([True, False, True, True, False, True])
    layer.init_cache(x.shape)
    expected = layer(x, is_causal=True, mask=seen[None, :])
    assert_close(decode(layer, x, [2, 3, 1], mask=seen), np.asarray(expected, np.float64))


def test_cache_is_as_wide_as_the_key_heads():
    layer = make(4, 32, num_kv_heads=2)
    layer.init_cache((3, 10, 32), jnp.bfloat16)
    assert layer.cached_key.shape == layer.cached_value.shape == (3, 10, 2, 8)
    assert layer.cached_key.dtype == jnp.bfloat16
    assert [type(v) for v in (layer.cached_key, layer.cached_value, layer.cache_index)] == [nnx.Cache] * 3
    assert layer(jnp.ones((3, 1, 32)), decode=True).dtype == jnp.float32


def test_init_cache_empties_the_cache():
    layer, x = make(2, 8), to_float32(draw(1, 3, 8))
    layer.init_cache(x.shape)
    first = decode(layer, x, [1, 2])
    layer.init_cache(x.shape)
    assert jnp.array_equal(decode(layer, x, [1, 2]), first)


def test_attribute_turns_decoding_on():
    layer, x = make(2, 8, decode=True), to_float32(draw(1, 3, 8))
    layer.init_cache(x.shape)
    layer(x)
    assert int(layer.cache_index[...]) == 3
    layer(x, decode=False)
    assert int(layer.cache_index[...]) == 3


def test_view_sets_modes_and_makes_the_cache():
    layer = make(2, 8)
    layer.set_view()
    assert (layer.decode, layer.deterministic, layer.cached_key) == (None, None, None)
    layer.set_view(deterministic=True, decode=True, batch_size=3, max_length=10)
    assert (layer.decode, layer.deterministic) == (True, True)
    assert layer.cached_key.shape == (3, 10, 2, 4)


def test_jit_decodes_as_eager_does_in_one_trace():
    layer, x = make(), to_float32(draw(2, 5, 256))
    layer.init_cache(x.shape)
    other = nnx.clone(layer)
    traces = []

    @nnx.jit
    def counted(layer, x):
        traces.append(1)
        return layer(x, decode=True)

    for i in range(5):
        token = x[:, i : i + 1]
        assert_close(counted(layer, token), np.asarray(other(token, decode=True), np.float64), 1e-6)
    assert len(traces) == 1
    assert int(layer.cache_index[...]) == int(other.cache_index[...]) == 5


def test_error_when_the_cache_is_full():
    layer = make(2, 8)
    layer.init_cache((1, 4, 8))
    layer(jnp.ones((1, 3, 8)), decode=True)
    cached = layer.cached_key[...]
    with pytest.raises(DecodeCacheError) as error:
        layer(jnp.ones((1, 2, 8)), decode=True)
    assert str(error.value) == (
        "MultiHeadAttention: decode cache: found 2 new positions behind 3 others. Expected no more than "
        "4 in all, the length that it was made for. Make a longer one with `layer.init_cache`."
    )
    assert int(layer.cache_index[...]) == 3
    assert jnp.array_equal(layer.cached_key[...], cached)


def test_outputs_are_nan_when_the_cache_is_full_under_jit():
    layer = make(2, 8)
    layer.init_cache((1, 2, 8))
    finite = [bool(jnp.isfinite(step(layer, jnp.ones((1, 1, 8)))).all()) for _ in range(4)]
    assert finite == [True, True, False, False]


def test_error_under_jit_for_more_positions_than_the_cache_has():
    layer = make(2, 8)
    layer.init_cache((1, 2, 8))
    with pytest.raises(DecodeCacheError, match="found 3 new positions behind 0 others"):
        nnx.jit(lambda layer, x: layer(x, decode=True))(layer, jnp.ones((1, 3, 8)))


def test_error_without_a_cache():
    with pytest.raises(DecodeCacheError) as error:
        make(2, 8)(jnp.ones((1, 2, 8)), decode=True)
    assert str(error.value) == (
        "MultiHeadAttention: decode cache: found none, but the layer is called with decode=True. "
        "Expected a cache made before the first call. Write `layer.init_cache(inputs.shape)` with the "
        "shape of all inputs together."
    )


def test_error_for_another_batch_size():
    layer = make(2, 8)
    layer.init_cache((3, 4, 8))
    with pytest.raises(DecodeCacheError) as error:
        layer(jnp.ones((2, 1, 8)), decode=True)
    assert str(error.value) == (
        "MultiHeadAttention: decode cache: found one for batch axes (3,). Expected one for the inputs' "
        "batch axes (2,). Write `layer.init_cache(inputs.shape)` with the shape of all inputs together."
    )


@pytest.mark.parametrize("shape", [(8,), (0, 4, 8), ()])
def test_error_for_a_shape_that_is_none(shape):
    with pytest.raises(DecodeCacheError) as error:
        make(2, 8).init_cache(shape)
    assert str(error.value) == (
        f"MultiHeadAttention: decode cache: found input_shape={shape}. Expected (..., max_length, "
        "in_features). Write `layer.init_cache((batch_size, max_length, in_features))`."
    )


def test_error_for_half_of_a_shape():
    with pytest.raises(DecodeCacheError) as error:
        make(2, 8).set_view(batch_size=3)
    assert str(error.value) == (
        "MultiHeadAttention: decode cache: found batch_size=3, max_length=None. Expected both of them. "
        "Write `nnx.view(model, decode=True, batch_size=1, max_length=100)`."
    )
