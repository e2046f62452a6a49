"""Embed: rows by index, the tied output head, indices out of range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import LayerInputError, LayerOptionError
from tests.nn.reference import assert_close, draw, gradients, randomize, to_float32, value

ZEROS = nnx.initializers.zeros
INDICES = np.random.default_rng(0).integers(0, 300, size=(4, 50))


def make(rows=300, features=256, **options):
    return randomize(nnx.Embed(rows, features, rngs=nnx.Rngs(0), embedding_init=ZEROS, **options))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8"])
def test_rows_are_read(dtype):
    layer = make()
    indices = INDICES % 100
    rows = layer(jnp.asarray(indices, dtype))
    assert rows.shape == (4, 50, 256)
    assert np.array_equal(rows, value(layer.embedding)[indices])


def test_a_single_index():
    layer = make(3, 2)
    assert layer(2).tolist() == layer.embedding[...][2].tolist()


def test_gradient_adds_up_the_cotangents_of_a_row():
    layer = make()
    dy = draw(4, 50, 256)
    graphdef, state = nnx.split(layer)
    expected = np.zeros((300, 256))
    np.add.at(expected, INDICES, dy)

    def loss(state):
        return (nnx.merge(graphdef, state)(jnp.asarray(INDICES)) * to_float32(dy)).sum()

    assert_close(jax.grad(loss)(state)["embedding"][...], expected)


@pytest.mark.parametrize("batch", [(), (7,), (2, 5)], ids=str)
def test_attend_is_the_product_with_the_transposed_table(batch):
    layer = make()
    x = draw(*batch, 256)
    assert_close(layer.attend(to_float32(x)), x @ value(layer.embedding).T)


def test_gradients_of_attend():
    layer = make()
    x, dy = draw(7, 256), draw(7, 300, seed=1)
    head = Head(layer)
    params, dx = gradients(head, dy, x)
    assert_close(dx, dy @ value(layer.embedding))
    assert_close(params["embed"]["embedding"][...], dy.T @ x)


class Head(nnx.Module):
    """The output head of a table."""

    def __init__(self, embed):
        self.embed = embed

    def __call__(self, x):
        return self.embed.attend(x)


def test_rows_have_length_one_on_average():
    table = nnx.Embed(1000, 256, rngs=nnx.Rngs(0)).embedding[...]
    assert float((table**2).sum(-1).mean()) == pytest.approx(1, abs=0.02)


def test_indices_out_of_range_give_nan():
    rows = make(3, 2)(jnp.array([0, 3, -1, 1000]))
    assert jnp.isnan(rows).all(axis=1).tolist() == [False, True, True, True]


def test_indices_out_of_range_may_give_zeros():
    layer = make(3, 2, out_of_range="zero")
    rows = layer(jnp.array([2, 3, -1]))
    assert rows.tolist() == [layer.embedding[...][2].tolist(), [0, 0], [0, 0]]


def test_indices_out_of_range_may_be_clipped():
    layer = make(3, 2, out_of_range="clip")
    assert jnp.array_equal(layer(jnp.array([-5, 7])), layer(jnp.array([0, 2])))


@pytest.mark.parametrize("policy", ["nan", "zero"])
def test_no_gradient_flows_through_indices_out_of_range(policy):
    layer = make(3, 2, out_of_range=policy)
    graphdef, state = nnx.split(layer)
    loss = lambda state: nnx.merge(graphdef, state)(jnp.array([1, 3, -1])).sum()
    assert jax.grad(loss)(state)["embedding"][...].tolist() == [[0, 0], [1, 1], [0, 0]]


def test_dtypes():
    layer = make(3, 2, dtype=jnp.bfloat16)
    assert layer.embedding.dtype == jnp.float32
    assert layer(jnp.array([0])).dtype == jnp.bfloat16
    assert layer.attend(jnp.ones((1, 2))).dtype == jnp.bfloat16
    assert make(3, 2, param_dtype=jnp.float16)(jnp.array([0])).dtype == jnp.float16


def test_promote_dtype_is_called():
    layer = make(3, 2, promote_dtype=lambda args, **options: tuple(2 * x for x in args))
    assert layer(jnp.array([1])).tolist() == (2 * layer.embedding[...][1:2]).tolist()


def test_metadata_is_that_of_the_param():
    assert make(3, 2, embedding_metadata={"names": ("v", "d")}).embedding.names == ("v", "d")


def test_jit_gives_what_eager_gives():
    layer = make()
    assert jnp.array_equal(nnx.jit(lambda m, i: m(i))(layer, INDICES), layer(INDICES))


def test_error_for_indices_that_are_no_integers():
    with pytest.raises(LayerInputError) as error:
        make(3, 2)(jnp.ones(4))
    assert str(error.value) == (
        "Embed: found inputs = an array of dtype float32. Expected indices of an integer dtype. "
        "Write `embed(inputs.astype(int))`, or `embed.attend(inputs)` for the output head."
    )


def test_error_for_a_mask_as_indices():
    with pytest.raises(LayerInputError, match="an array of dtype bool"):
        make(3, 2)(jnp.ones(4, bool))


def test_error_for_a_query_of_other_features():
    with pytest.raises(LayerInputError) as error:
        make(3, 2).attend(jnp.ones((4, 5)))
    assert str(error.value) == (
        "Embed: found query = an array of shape (4, 5). Expected its last axis to be features=2. "
        "Make the layer with features=5, or pass it 2 features."
    )


def test_error_for_an_unknown_policy():
    with pytest.raises(LayerOptionError) as error:
        make(3, 2, out_of_range="wrap")
    assert str(error.value) == ("Embed: found out_of_range = 'wrap'. Expected one of 'nan', 'zero', 'clip'.")
