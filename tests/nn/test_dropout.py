"""Dropout: what is dropped, when, and where keys come from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import LayerInputError, LayerOptionError, MissingKeyError


def make(rate=0.5, seed=0, **options):
    return nnx.Dropout(rate, rngs=nnx.Rngs(seed), **options)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_entries_are_zero_at_the_rate_and_scaled_else(rate):
    x = jnp.full((400, 400), 3.0)
    y = make(rate)(x)
    dropped = y == 0
    assert float(dropped.mean()) == pytest.approx(rate, abs=0.01)
    assert jnp.allclose(y[~dropped], 3.0 / (1 - rate))


def test_gradient_is_the_mask():
    layer = make(0.25)
    key = jax.random.key(3)
    mask = layer(jnp.ones((50, 50)), rngs=key)
    gradient = jax.grad(lambda x: layer(x, rngs=key).sum())(jnp.full((50, 50), 2.0))
    assert jnp.array_equal(gradient, mask)


def test_each_call_draws_another_mask():
    layer, x = make(), jnp.ones((20, 20))
    assert not jnp.array_equal(layer(x), layer(x))


def test_layers_made_from_the_same_rngs_draw_different_masks():
    rngs, x = nnx.Rngs(0), jnp.ones((20, 20))
    first, second = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
    assert not jnp.array_equal(first(x), second(x))
    assert first.rngs is not second.rngs


def test_rate_zero_returns_the_inputs_and_draws_nothing():
    layer, x = make(0.0), jnp.ones(3)
    assert jnp.array_equal(layer(x), x)
    assert int(layer.rngs.count[...]) == 0
    assert jnp.array_equal(nnx.Dropout(0)(x), x)


@pytest.mark.parametrize("rate", [1, 1.0])
def test_rate_one_returns_zeros_with_a_finite_gradient(rate):
    layer = make(rate)
    y, gradient = jax.value_and_grad(lambda x: layer(x, rngs=jax.random.key(0)).sum())(jnp.ones(3))
    assert y == 0
    assert gradient.tolist() == [0, 0, 0]


def test_train_and_eval():
    layer, x = make(), jnp.ones((20, 20))
    layer.eval()
    assert jnp.array_equal(layer(x), x)
    assert int(layer.rngs.count[...]) == 0
    layer.train()
    assert not jnp.array_equal(layer(x), x)


def test_mode_of_the_call_comes_before_that_of_the_layer():
    layer, x = make(deterministic=True), jnp.ones((20, 20))
    assert jnp.array_equal(layer(x), x)
    assert not jnp.array_equal(layer(x, deterministic=False), x)


@pytest.mark.parametrize("dims", [(0,), (-1,), (0, 2), ()])
def test_broadcast_dims_are_dropped_together(dims):
    y = np.asarray(make(broadcast_dims=dims)(jnp.ones((6, 7, 8))))
    for axis in range(3):
        alike = (y == y.take([0], axis)).all()
        assert alike == (axis in {dim % 3 for dim in dims})


def test_stream_is_found_by_its_name():
    x = jnp.ones((20, 20))
    rngs = lambda: nnx.Rngs(params=0, noise=1)
    layer = nnx.Dropout(0.5, rng_collection="noise", rngs=rngs())
    assert layer.rngs.tag == "noise"
    other = nnx.Dropout(0.5, rng_collection="noise")
    assert other(x, rngs=rngs()).shape == x.shape


def test_call_may_give_streams_one_stream_or_a_key():
    layer, x = nnx.Dropout(0.5), jnp.ones((20, 20))
    assert layer.rngs is None
    first = layer(x, rngs=nnx.Rngs(dropout=3))
    assert jnp.array_equal(first, layer(x, rngs=nnx.Rngs(dropout=3)))
    assert jnp.array_equal(first, layer(x, rngs=nnx.Rngs(dropout=3).dropout))
    assert jnp.array_equal(first, layer(x, rngs=nnx.Rngs(dropout=3).dropout()))


def test_streams_of_the_call_come_before_that_of_the_layer():
    layer, x = make(), jnp.ones((20, 20))
    layer(x, rngs=nnx.Rngs(7))
    assert int(layer.rngs.count[...]) == 0


def test_layer_may_be_made_from_one_stream():
    layer = nnx.Dropout(0.5, rngs=nnx.Rngs(0).dropout)
    assert layer(jnp.ones(3)).shape == (3,)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype_is_that_of_the_inputs(dtype):
    assert make(0.1)(jnp.ones((4, 4), dtype)).dtype == dtype


def test_integers_become_floats():
    assert make(0.1)(jnp.ones((4, 4), int)).dtype == jnp.float32


def test_jit_counts_on_as_eager_does():
    eager, jitted, x = make(), make(), jnp.ones((20, 20))
    step = nnx.jit(lambda m, x: m(x))
    for _ in range(3):
        assert jnp.array_equal(step(jitted, x), eager(x))


def test_rate_may_be_traced():
    layer = nnx.Dropout(jnp.asarray(0.5))
    assert set(layer(jnp.ones(50), rngs=nnx.Rngs(0)).tolist()) == {0.0, 2.0}


def test_view_sets_the_mode():
    layer = make()
    layer.set_view()
    assert layer.deterministic is False
    layer.set_view(deterministic=True)
    assert layer.deterministic is True


@pytest.mark.parametrize("rate", [-0.1, 1.1, "0.5", None, True])
def test_error_for_a_rate_out_of_range(rate):
    with pytest.raises(LayerOptionError) as error:
        nnx.Dropout(rate)
    assert str(error.value) == f"Dropout: found rate = {rate!r}. Expected a number in [0, 1]."


def test_error_without_a_stream():
    with pytest.raises(MissingKeyError) as error:
        nnx.Dropout(0.5, rng_collection="noise")(jnp.ones(3))
    assert str(error.value) == (
        "Dropout: found no random stream, neither in the call nor on the layer. Expected one named "
        "'noise' (or a default stream), since the layer is not deterministic. Write "
        "`Dropout(..., rngs=nnx.Rngs(0))` where the layer is made, `layer(x, rngs=nnx.Rngs(noise=0))` "
        "where it is called, or call `model.eval()` to turn the randomness off."
    )


def test_error_for_streams_that_lack_the_name():
    with pytest.raises(KeyError, match="Rngs has no stream 'dropout' and no default"):
        nnx.Dropout(0.5)(jnp.ones(3), rngs=nnx.Rngs(params=0))


def test_error_for_dims_that_the_inputs_lack():
    with pytest.raises(LayerInputError) as error:
        make(broadcast_dims=(2,))(jnp.ones((3, 4)))
    assert str(error.value) == (
        "Dropout: found inputs = an array of 2 dimensions. "
        "Expected one that has each of the axes broadcast_dims=(2,) once."
    )
