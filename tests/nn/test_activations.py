"""Activation functions against their formulas in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from tests.nn.reference import assert_close, draw, gradients, to_float32

X = 3 * draw(4, 256)
ERF = np.vectorize(math.erf)
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def elu(x, alpha=1.0):
    return np.where(x > 0, x, alpha * np.expm1(x))


FORMULAS = {
    "celu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "elu": elu,
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "glu": lambda x: x[..., :128] * sigmoid(x[..., 128:]),
    "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_silu": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "identity": lambda x: x,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "log_sigmoid": lambda x: -np.log1p(np.exp(-x)),
    "log_softmax": lambda x: np.log(softmax(x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "selu": lambda x: SELU_SCALE * elu(x, SELU_ALPHA),
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "soft_sign": lambda x: x / (1 + np.abs(x)),
    "softmax": softmax,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "standardize": lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
    "swish": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
}

formulas = pytest.mark.parametrize(("name", "formula"), FORMULAS.items(), ids=FORMULAS.keys())


@formulas
def test_forward_is_the_formula(name, formula):
    assert_close(getattr(nnx, name)(to_float32(X)), formula(X))


@formulas
def test_gradient_is_that_of_the_formula(name, formula):
    # Central differences in float64, along a random direction, away from the kinks.
    function = getattr(nnx, name)
    direction, step = draw(4, 256, seed=1), 1e-6
    cotangent = draw(*formula(X).shape, seed=2)
    gradient = jax.grad(lambda x: (function(x) * to_float32(cotangent)).sum())(to_float32(X))
    ours = (np.asarray(gradient, np.float64) * direction).sum()
    moved = (formula(X + step * direction) - formula(X - step * direction)) / (2 * step)
    expected = (moved * cotangent).sum()
    assert ours == pytest.approx(expected, abs=1e-5 * np.abs(moved * cotangent).sum())


def test_exact_gelu():
    assert_close(nnx.gelu(to_float32(X), approximate=False), 0.5 * X * (1 + ERF(X / math.sqrt(2))))


def test_logsumexp():
    assert_close(nnx.logsumexp(to_float32(X), axis=-1), np.log(np.exp(X).sum(-1)))


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis):
    x = jnp.array([[0, 2], [1, 5], [-1, 2]])
    expected = np.moveaxis(np.eye(7)[np.asarray(x)] * (np.asarray(x) >= 0)[..., None], -1, axis)[:]
    encoded = nnx.one_hot(x, 7, axis=axis)
    assert encoded.dtype == jnp.float32
    assert np.array_equal(encoded, expected)
    assert nnx.one_hot(x, 7, dtype=bool).dtype == bool


def test_one_hot_with_a_sharding():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        sharding = jax.sharding.PartitionSpec("data", None)
        encoded = nnx.one_hot(jnp.arange(16), 4, out_sharding=sharding)
    assert encoded.sharding.spec == sharding


def test_prelu():
    layer, dy = nnx.PReLU(0.25), draw(4, 256, seed=1)
    assert_close(layer(to_float32(X)), np.where(X >= 0, X, 0.25 * X))
    params, dx = gradients(layer, dy, X)
    assert_close(dx, np.where(X >= 0, dy, 0.25 * dy))
    assert_close(params["negative_slope"][...], np.array((np.minimum(X, 0) * dy).sum()), 1e-5)


def test_prelu_starts_with_a_slope_of_one_hundredth():
    assert nnx.PReLU()(jnp.array([-1.0])).tolist() == [pytest.approx(-0.01)]


def test_dtypes_of_prelu():
    layer = nnx.PReLU(param_dtype=jnp.bfloat16, negative_slope_metadata={"tag": 1})
    assert layer.negative_slope.dtype == jnp.bfloat16
    assert layer.negative_slope.tag == 1
    assert layer(jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16
    assert layer(jnp.ones(3)).dtype == jnp.float32
    assert nnx.PReLU(dtype=jnp.float16)(jnp.ones(3)).dtype == jnp.float16
