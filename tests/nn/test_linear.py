"""Linear: numbers, dtypes, hooks, metadata, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import nnxgraph as nnx
from nnxgraph.errors import LayerInputError, LayerOptionError
from tests.nn.reference import QUICK, assert_close, draw, gradients, randomize, to_float32, value

shapes = pytest.mark.parametrize("batch", [(), (5,), (2, 3, 4)], ids=str)
biases = pytest.mark.parametrize("use_bias", [True, False])


def make(din=256, dout=320, **options):
    return randomize(nnx.Linear(din, dout, rngs=nnx.Rngs(0), **QUICK | options))


@shapes
@biases
def test_forward_is_the_affine_map(batch, use_bias):
    layer = make(use_bias=use_bias)
    x = draw(*batch, 256)
    bias = value(layer.bias) if use_bias else 0.0
    assert_close(layer(to_float32(x)), x @ value(layer.kernel) + bias)


@shapes
@biases
def test_gradients_are_those_of_the_affine_map(batch, use_bias):
    layer = make(use_bias=use_bias)
    x, dy = draw(*batch, 256), draw(*batch, 320, seed=1)
    params, dx = gradients(layer, dy, x)
    rows, drows = x.reshape(-1, 256), dy.reshape(-1, 320)
    assert_close(dx, dy @ value(layer.kernel).T)
    assert_close(params["kernel"][...], rows.T @ drows)
    if use_bias:
        assert_close(params["bias"][...], drows.sum(0))


def test_layer_without_bias_has_none():
    layer = make(2, 3, use_bias=False)
    assert layer.bias is None
    assert nnx.to_flat_state(nnx.state(layer)).paths == (("kernel",),)


def test_jit_gives_what_eager_gives():
    layer, x = make(), to_float32(draw(4, 256))
    assert_close(nnx.jit(lambda m, x: m(x))(layer, x), np.asarray(layer(x), np.float64), 1e-6)


def test_default_kernel_has_variance_one_over_fan_in():
    layer = nnx.Linear(256, 512, rngs=nnx.Rngs(0))
    assert float(layer.kernel[...].std() * 16) == pytest.approx(1, abs=0.02)
    assert not layer.bias[...].any()


@pytest.mark.parametrize(
    ("inputs", "param", "dtype", "result"),
    [
        ("float32", "float32", None, "float32"),
        ("bfloat16", "float32", None, "float32"),
        ("bfloat16", "bfloat16", None, "bfloat16"),
        ("float16", "bfloat16", None, "float32"),
        ("float32", "float32", "bfloat16", "bfloat16"),
        ("float32", "bfloat16", "float16", "float16"),
        ("int32", "float32", None, "float32"),
        ("int32", "bfloat16", None, "bfloat16"),
        ("float32", "float8_e4m3fn", None, "float32"),
        ("bfloat16", "float8_e4m3fn", None, "bfloat16"),
    ],
)
def test_dtype_of_the_result(inputs, param, dtype, result):
    init = lambda key, shape, dtype: jnp.ones(shape, dtype)
    layer = nnx.Linear(
        4, 3, dtype=dtype, param_dtype=param, kernel_init=init, bias_init=init, rngs=nnx.Rngs(0)
    )
    assert layer.kernel.dtype == layer.bias.dtype == param
    y = layer(jnp.ones((2, 4), inputs))
    assert y.dtype == result
    assert y.astype("float32").tolist() == [[5.0] * 3] * 2


def test_bfloat16_can_accumulate_and_return_float32():
    layer = make(dtype=jnp.bfloat16, preferred_element_type=jnp.float32)
    x = draw(3, 256)
    y = layer(to_float32(x))
    assert y.dtype == jnp.float32
    rounded = [np.asarray(jnp.asarray(a, jnp.bfloat16), np.float64) for a in (x, value(layer.kernel))]
    bias = np.asarray(layer.bias[...].astype(jnp.bfloat16), np.float64)
    assert_close(y, rounded[0] @ rounded[1] + bias)


def test_precision_and_preferred_type_reach_dot_general():
    seen = {}

    def dot_general(lhs, rhs, dimension_numbers, **options):
        seen.update(options)
        return jax.lax.dot_general(lhs, rhs, dimension_numbers, **options)

    highest = jax.lax.Precision.HIGHEST
    make(4, 3, dot_general=dot_general, precision=highest)(jnp.ones((1, 4)))
    assert seen == {"precision": highest}
    make(4, 3, dot_general=dot_general, preferred_element_type=jnp.float32)(jnp.ones((1, 4)))
    assert seen == {"precision": None, "preferred_element_type": jnp.float32}


class ScaledDot(nnx.Module):
    """A dot_general that owns a Variable and counts its calls."""

    def __init__(self):
        self.scale = nnx.Param(jnp.array(2.0))
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, lhs, rhs, dimension_numbers, **options):
        self.calls[...] += 1
        return jax.lax.dot_general(lhs, rhs, dimension_numbers, **options) * self.scale[...]


def test_dot_general_may_own_variables():
    layer = make(4, 3, use_bias=False, dot_general=ScaledDot())
    assert ("dot_general", "scale") in nnx.to_flat_state(nnx.state(layer)).paths
    x = to_float32(draw(2, 4))
    scale = value(layer.dot_general.scale)
    assert_close(layer(x), scale * np.asarray(x, np.float64) @ value(layer.kernel))
    assert int(layer.dot_general.calls[...]) == 1


def test_promote_dtype_is_called_on_all_operands():
    seen = []

    def promote(args, /, *, dtype=None, inexact=True):
        seen.append((len(args), dtype))
        return nnx.promote_dtype(args, dtype=jnp.float16, inexact=inexact)

    layer = make(4, 3, dtype=jnp.float32, promote_dtype=promote)
    assert layer(jnp.ones((1, 4))).dtype == jnp.float16
    assert seen == [(3, jnp.float32)]


def test_metadata_is_that_of_the_params():
    layer = make(4, 3, kernel_metadata={"names": ("in", "out")}, bias_metadata={"decay": False})
    assert layer.kernel.names == ("in", "out")
    assert layer.bias.decay is False


def test_initializer_with_metadata():
    init = nnx.with_metadata(nnx.initializers.ones, names=("in", "out"))
    layer = nnx.Linear(4, 3, kernel_init=init, rngs=nnx.Rngs(0))
    assert layer.kernel.names == ("in", "out")
    assert layer.kernel.shape == (4, 3)


def test_inputs_may_be_numpy_arrays_and_variables():
    layer = make(2, 3)
    assert layer(np.ones((1, 2))).tolist() == layer(nnx.Variable(jnp.ones((1, 2)))).tolist()


def test_out_sharding_is_that_of_the_result():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        layer = make(16, 24)
        x = jax.device_put(jnp.ones((16, 16)), NamedSharding(mesh, PartitionSpec("data", None)))
        kernel = jax.device_put(layer.kernel[...], NamedSharding(mesh, PartitionSpec()))
        layer.kernel.set_value(kernel)
        y = layer(x, out_sharding=PartitionSpec("data", None))
    assert y.sharding.spec == PartitionSpec("data", None)


@pytest.mark.parametrize("features", [0, -3, 2.0, "4", None, True])
def test_feature_sizes_are_whole_numbers(features):
    with pytest.raises(LayerOptionError) as error:
        nnx.Linear(4, features, rngs=nnx.Rngs(0))
    assert str(error.value) == (
        f"Linear: found out_features = {features!r}. Expected a whole number, 1 or more."
    )


def test_feature_sizes_may_be_numpy_integers():
    assert type(nnx.Linear(np.int64(4), np.int64(3), rngs=nnx.Rngs(0)).in_features) is int


def test_error_for_inputs_of_other_features():
    with pytest.raises(LayerInputError) as error:
        make(4, 3)(jnp.ones((2, 5)))
    assert str(error.value) == (
        "Linear: found inputs = an array of shape (2, 5). Expected its last axis to be in_features=4. "
        "Make the layer with in_features=5, or pass it 4 features."
    )


def test_error_for_a_scalar():
    with pytest.raises(LayerInputError, match=r"found inputs = an array of shape \(\)\. Expected"):
        make(4, 3)(1.0)


def test_error_names_the_subclass():
    class Head(nnx.Linear):
        pass

    with pytest.raises(ValueError, match=r"^Head: found inputs"):
        Head(4, 3, rngs=nnx.Rngs(0))(jnp.ones(5))
