"""dot_product_attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import LayerInputError
from tests.nn.reference import TOLERANCE, assert_close, attend, attend_backward, draw, to_float32


def causal(length, keys):
    """1 where a key is hidden, since it comes later."""
    return ~np.tri(length, keys, dtype=bool)


def random_hidden(*shape):
    """A mask that hides a third, but no row as a whole."""
    hidden = np.random.default_rng(0).random(shape) < 1 / 3
    hidden[..., 0] = False
    return hidden


# batch, query heads, key heads, value depth, options: what is passed, and what the formula takes
CASES = {
    "plain": ((2,), 4, 4, 64, {}, {}),
    "no batch": ((), 4, 4, 64, {}, {}),
    "two batch axes": ((2, 3), 2, 2, 64, {}, {}),
    "grouped": ((2,), 6, 2, 64, {}, {}),
    "one key head": ((2,), 4, 1, 64, {}, {}),
    "another depth of values": ((2,), 4, 2, 32, {}, {}),
    "causal": ((2,), 4, 4, 64, {"is_causal": True}, {"hidden": causal(9, 11)}),
    "bias": ((2,), 4, 4, 64, {"bias": draw(4, 9, 11)}, {"bias": draw(4, 9, 11)}),
    "bias of keys": ((2,), 4, 2, 64, {"bias": draw(11)}, {"bias": draw(11)}),
    "mask": (
        (2,),
        4,
        4,
        64,
        {"mask": ~random_hidden(2, 1, 9, 11)},
        {"hidden": random_hidden(2, 1, 9, 11)},
    ),
    "mask of numbers": (
        (2,),
        4,
        2,
        64,
        {"mask": 1.0 - random_hidden(9, 11)},
        {"hidden": random_hidden(9, 11)},
    ),
    "all": (
        (2,),
        4,
        2,
        64,
        {"mask": ~random_hidden(4, 9, 11), "bias": draw(2, 1, 9, 11), "is_causal": True},
        {"hidden": random_hidden(4, 9, 11) | causal(9, 11), "bias": draw(2, 1, 9, 11)},
    ),
}

cases = pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "depth", "options", "formula"), CASES.values(), ids=CASES.keys()
)


def inputs(batch, heads, kv_heads, depth):
    """Queries, keys and values of 256 features in all, and a cotangent."""
    return (
        draw(*batch, 9, heads, 64, seed=1),
        draw(*batch, 11, kv_heads, 64, seed=2),
        draw(*batch, 11, kv_heads, depth, seed=3),
        draw(*batch, 9, heads, depth, seed=4),
    )


def repeat(x, times):
    """Each key head once for every query head of its group."""
    return np.repeat(x, times, axis=-2)


def sum_groups(x, times):
    """The adjoint of repeat."""
    return x.reshape(*x.shape[:-2], -1, times, x.shape[-1]).sum(-2)


@cases
def test_forward_is_the_formula(batch, heads, kv_heads, depth, options, formula):
    q, k, v, _ = inputs(batch, heads, kv_heads, depth)
    expected, _ = attend(q, *(repeat(x, heads // kv_heads) for x in (k, v)), **formula)
    options = {n: to_float32(x) if n == "bias" else x for n, x in options.items()}
    assert_close(nnx.dot_product_attention(*map(to_float32, (q, k, v)), **options), expected)


@cases
def test_gradients_are_those_of_the_formula(batch, heads, kv_heads, depth, options, formula):
    q, k, v, dy = inputs(batch, heads, kv_heads, depth)
    group = heads // kv_heads
    k_all, v_all = repeat(k, group), repeat(v, group)
    _, weights = attend(q, k_all, v_all, **formula)
    dq, dk, dv, dscores = attend_backward(q, k_all, v_all, weights, dy)
    options = dict(options)
    bias = options.pop("bias", np.zeros(1))

    def loss(q, k, v, bias):
        y = nnx.dot_product_attention(q, k, v, bias, **options)
        return (y * to_float32(dy)).sum()

    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*map(to_float32, (q, k, v, bias)))
    assert_close(grads[0], dq)
    assert_close(grads[1], sum_groups(dk, group))
    assert_close(grads[2], sum_groups(dv, group))
    axes = tuple(range(dscores.ndim - bias.ndim))
    dbias = dscores.sum(axes)
    ones = tuple(i for i, n in enumerate(bias.shape) if n == 1)
    # The sum over all keys is zero but for rounding, so measure it by its terms.
    scale = np.abs(dscores).max() / max(np.abs(dbias.sum(ones, keepdims=True)).max(), 1e-300)
    assert_close(grads[3], dbias.sum(ones, keepdims=True), TOLERANCE * max(1, 10 * scale))


@pytest.mark.parametrize("how", ["mask", "bias"])
def test_rows_that_are_hidden_as_a_whole_are_zero_and_have_no_gradient(how):
    q, k, v, dy = inputs((2,), 4, 2, 64)
    hidden = random_hidden(2, 4, 9, 11)
    hidden[:, :, 3] = True
    hidden[1] = True
    bias = jnp.where(hidden, -jnp.inf, 0.0)
    options = {"mask": ~hidden} if how == "mask" else {"bias": bias}
    expected, weights = attend(q, repeat(k, 2), repeat(v, 2), hidden=hidden)
    dq, dk, dv, _ = attend_backward(q, repeat(k, 2), repeat(v, 2), weights, dy)

    def loss(q, k, v):
        y = nnx.dot_product_attention(q, k, v, **options)
        return (y * to_float32(dy)).sum(), y

    grads, y = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*map(to_float32, (q, k, v)))
    assert not y[1].any()
    assert not y[0, 3].any()
    assert_close(y, expected)
    assert_close(grads[0], dq)
    assert_close(grads[1], sum_groups(dk, 2))
    assert_close(grads[2], sum_groups(dv, 2))


def test_large_scores_do_not_overflow():
    q, k, v, _ = inputs((), 2, 2, 64)
    y = nnx.dot_product_attention(*map(to_float32, (1e4 * q, 1e4 * k, v)))
    assert jnp.isfinite(y).all()


def test_hidden_keys_may_hold_anything_finite():
    q, k, v, _ = map(to_float32, inputs((), 2, 2, 64))
    mask = jnp.arange(11) < 6
    y = nnx.dot_product_attention(q, k, v, mask=mask)
    other = nnx.dot_product_attention(q, k.at[6:].set(1e6), v.at[6:].set(1e6), mask=mask)
    assert jnp.array_equal(y, other)


@pytest.mark.parametrize(
    ("inputs_dtype", "dtype", "result"),
    [
        ("float32", None, "float32"),
        ("bfloat16", None, "bfloat16"),
        ("float32", "bfloat16", "bfloat16"),
        ("float16", None, "float16"),
        ("int32", None, "float32"),
    ],
)
def test_dtype_of_the_result(inputs_dtype, dtype, result):
    x = jnp.ones((2, 5, 4, 8), inputs_dtype)
    assert nnx.dot_product_attention(x, x, x, dtype=dtype).dtype == result


def test_bfloat16_scores_are_computed_in_float32():
    q, k, v, _ = (np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in inputs((2,), 4, 4, 64))
    y = nnx.dot_product_attention(*(jnp.asarray(x, jnp.bfloat16) for x in (8 * q, k, v)))
    assert_close(y, attend(8 * q, k, v)[0], 2e-2)


@pytest.mark.parametrize("broadcast", [True, False])
def test_dropout_of_weights(broadcast):
    x = jnp.ones((3, 50, 2, 4))
    identity = jnp.broadcast_to(jnp.eye(50)[None, :, None, :], (3, 50, 2, 50))
    weights = nnx.dot_product_attention(
        x,
        x,
        identity,
        broadcast_dropout=broadcast,
        dropout_rng=jax.random.key(0),
        dropout_rate=0.25,
    )  # (batch, query, head, key)
    dropped = weights == 0
    assert float(dropped.mean()) == pytest.approx(0.25, abs=0.03)
    assert jnp.allclose(weights[~dropped], 1 / 50 / 0.75)
    shared = bool((dropped == dropped[:1, :, :1]).all())
    assert shared == broadcast


def test_dropout_is_off_when_deterministic():
    q, k, v, _ = map(to_float32, inputs((2,), 4, 4, 64))
    y = nnx.dot_product_attention(q, k, v, dropout_rate=0.5, deterministic=True)
    assert jnp.array_equal(y, nnx.dot_product_attention(q, k, v))


def test_dropout_takes_a_stream():
    x = jnp.ones((3, 5, 2, 4))
    stream = nnx.Rngs(dropout=0).dropout
    nnx.dot_product_attention(x, x, x, dropout_rng=stream, dropout_rate=0.5)
    assert int(stream.count[...]) == 1


def test_weights_are_sown_on_the_module():
    q, k, v, _ = inputs((2,), 4, 2, 64)
    module = nnx.Module()
    nnx.dot_product_attention(*map(to_float32, (q, k, v)), module=module)
    (weights,) = nnx.pop(module, nnx.Intermediate)["attention_weights"][...]
    assert_close(weights, attend(q, repeat(k, 2), repeat(v, 2))[1])


def test_jit_gives_what_eager_gives():
    q, k, v, _ = map(to_float32, inputs((2,), 4, 2, 64))
    f = lambda q, k, v: nnx.dot_product_attention(q, k, v, is_causal=True)
    assert_close(jax.jit(f)(q, k, v), np.asarray(f(q, k, v), np.float64), 1e-6)


def test_vmap_gives_what_batches_give():
    q, k, v, _ = map(to_float32, inputs((2,), 4, 2, 64))
    batched = np.asarray(nnx.dot_product_attention(q, k, v), np.float64)
    assert_close(jax.vmap(nnx.dot_product_attention)(q, k, v), batched, 1e-6)


@pytest.mark.parametrize(
    ("query", "key", "value", "expected"),
    [
        ((5, 8), (5, 8), (5, 8), "(..., length, heads, depth) each"),
        ((5, 4, 8), (5, 4, 8), (6, 4, 8), "keys and values of one length and one number of heads"),
        ((5, 4, 8), (5, 4, 8), (5, 2, 8), "keys and values of one length and one number of heads"),
        ((2, 5, 4, 8), (5, 4, 8), (5, 4, 8), "the same batch axes for queries and keys"),
        ((5, 4, 8), (5, 4, 6), (5, 4, 6), "the same depth for queries and keys"),
        (
            (5, 4, 8),
            (5, 3, 8),
            (5, 3, 8),
            "a number of query heads that is a multiple of the number of key heads",
        ),
    ],
)
def test_error_for_shapes_that_do_not_fit(query, key, value, expected):
    with pytest.raises(LayerInputError) as error:
        nnx.dot_product_attention(*map(jnp.ones, (query, key, value)))
    assert str(error.value) == (
        f"dot_product_attention: found query, key, value = arrays of shapes {query}, {key}, {value}. "
        f"Expected {expected}."
    )


@pytest.mark.parametrize("argument", ["mask", "bias"])
def test_error_for_a_mask_or_bias_that_does_not_fit(argument):
    x = jnp.ones((2, 5, 4, 8))
    with pytest.raises(LayerInputError) as error:
        nnx.dot_product_attention(x, x, x, **{argument: jnp.ones((2, 5, 5))})
    assert str(error.value) == (
        f"dot_product_attention: found {argument} = an array of shape (2, 5, 5). Expected one that "
        "broadcasts to (..., heads, q_length, kv_length) = (2, 4, 5, 5)."
    )


def test_error_for_dropout_without_a_key():
    x = jnp.ones((5, 4, 8))
    with pytest.raises(LayerInputError) as error:
        nnx.dot_product_attention(x, x, x, dropout_rate=0.5)
    assert str(error.value) == (
        "dot_product_attention: found dropout_rng = None. Expected a key, as dropout_rate=0.5 and "
        "deterministic=False. Pass `dropout_rng=jax.random.key(0)` or `deterministic=True`."
    )
