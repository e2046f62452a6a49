"""Conv: numbers of every option against a sum over kernel taps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from tests.nn.reference import (
    QUICK,
    assert_close,
    convolve,
    convolve_backward,
    draw,
    full_kernel,
    gradients,
    randomize,
    source_rows,
    to_float32,
    value,
)

# kernel size, spatial shape, options
CASES = {
    "1d": ((3,), (9,), {}),
    "2d": ((3, 3), (6, 5), {}),
    "3d": ((2, 3, 1), (4, 3, 2), {}),
    "even kernel": ((4,), (9,), {}),
    "one tap": ((1, 1), (3, 4), {}),
    "valid": ((3, 2), (6, 5), {"padding": "VALID"}),
    "strides": ((3, 3), (7, 6), {"strides": 2}),
    "strides by axis": ((3, 2), (7, 6), {"strides": (1, 3)}),
    "strides, valid": ((3, 2), (7, 6), {"strides": (2, 3), "padding": "VALID"}),
    "one int": ((3,), (9,), {"padding": 2}),
    "ints": ((3, 3), (6, 5), {"padding": (2, 0)}),
    "pairs": ((3, 3), (6, 5), {"padding": ((2, 0), (1, 3))}),
    "negative padding": ((3,), (9,), {"padding": ((-1, 2),)}),
    "causal": ((3,), (9,), {"padding": "CAUSAL"}),
    "causal, dilated": ((3,), (9,), {"padding": "CAUSAL", "kernel_dilation": 2}),
    "causal, strides": ((4,), (9,), {"padding": "CAUSAL", "strides": 2}),
    "circular": ((3,), (9,), {"padding": "CIRCULAR"}),
    "circular, even kernel": ((4, 3), (5, 6), {"padding": "CIRCULAR"}),
    "circular, strides": ((3,), (9,), {"padding": "CIRCULAR", "strides": 2}),
    "circular, dilated": ((3,), (9,), {"padding": "CIRCULAR", "kernel_dilation": 3}),
    "circular, wraps twice": ((7,), (2,), {"padding": "CIRCULAR"}),
    "reflect": ((3, 5), (6, 7), {"padding": "REFLECT"}),
    "reflect, even kernel": ((4,), (9,), {"padding": "REFLECT"}),
    "kernel dilation": ((3, 2), (9, 8), {"kernel_dilation": (2, 3)}),
    "input dilation": ((3, 2), (5, 4), {"input_dilation": (2, 3)}),
    "input dilation, valid": ((3,), (5,), {"input_dilation": 2, "padding": "VALID"}),
    "all dilations": (
        (3,),
        (8,),
        {"input_dilation": 3, "kernel_dilation": 2, "strides": 2, "padding": ((1, 4),)},
    ),
    "groups": ((3,), (9,), {"feature_group_count": 4}),
    "depthwise": ((3, 3), (5, 6), {"feature_group_count": 256}),
    "no bias": ((3,), (9,), {"use_bias": False}),
}

cases = pytest.mark.parametrize(("size", "spatial", "options"), CASES.values(), ids=CASES.keys())


def make(size, din=256, dout=256, **options):
    return randomize(nnx.Conv(din, dout, size, rngs=nnx.Rngs(0), **QUICK | options))


def per_axis(option, axes):
    return (option,) * axes if isinstance(option, int | str) else option


def rows_of(size, spatial, options):
    """The selection matrices that the options stand for."""
    axes = len(size)
    padding = per_axis(options.get("padding", "SAME"), axes)
    padding = [(side, side) if isinstance(side, int) else side for side in padding]
    numbers = [per_axis(options.get(o, 1), axes) for o in ("strides", "kernel_dilation", "input_dilation")]
    return [source_rows(*each) for each in zip(spatial, size, *numbers, padding, strict=True)]


@cases
def test_forward_is_the_sum_over_taps(size, spatial, options):
    layer = make(size, **options)
    x = draw(2, *spatial, 256)
    kernel = full_kernel(value(layer.kernel), options.get("feature_group_count", 1))
    bias = value(layer.bias) if layer.bias is not None else 0.0
    expected = convolve(x, kernel, rows_of(size, spatial, options)) + bias
    assert_close(layer(to_float32(x)), expected)


@cases
def test_gradients_are_those_of_the_sum_over_taps(size, spatial, options):
    layer = make(size, **options)
    x = draw(2, *spatial, 256)
    groups = options.get("feature_group_count", 1)
    rows = rows_of(size, spatial, options)
    dy = draw(2, *(row[0].shape[0] for row in rows), 256, seed=1)
    params, dx = gradients(layer, dy, x)
    expected, dkernel = convolve_backward(x, full_kernel(value(layer.kernel), groups), rows, dy)
    assert_close(dx, expected)
    within = full_kernel(np.ones(layer.kernel.shape), groups).astype(bool)
    assert_close(full_kernel(np.asarray(params["kernel"][...], np.float64), groups), dkernel * within)
    if layer.bias is not None:
        assert_close(params["bias"][...], dy.reshape(-1, 256).sum(0))


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,), (2, 0)], ids=str)
def test_any_number_of_batch_axes(batch):
    layer = make((3, 3), 4, 5)
    x = to_float32(draw(*batch, 6, 5, 4))
    y = layer(x)
    assert y.shape == (*batch, 6, 5, 5)
    if y.size:
        flat = layer(x.reshape(-1, 6, 5, 4)).reshape(y.shape)
        assert_close(y, np.asarray(flat, np.float64), 1e-6)


def test_int_kernel_size_is_one_axis():
    assert make(3, 4, 5).kernel.shape == (3, 4, 5)


def test_none_means_one():
    layer = make((3,), 4, 5, strides=None, kernel_dilation=None, input_dilation=None)
    assert layer.strides == layer.kernel_dilation == layer.input_dilation == (1,)


def test_strides_may_be_positional():
    layer = nnx.Conv(4, 5, (3, 3), (2, 2), rngs=nnx.Rngs(0), **QUICK)
    assert layer(jnp.ones((1, 8, 8, 4))).shape == (1, 4, 4, 5)


def test_causal_output_depends_on_no_later_input():
    layer = make((3,), 4, 5, padding="CAUSAL")
    x = to_float32(draw(9, 4))
    assert jnp.array_equal(layer(x)[:5], layer(x.at[5:].set(jnp.nan))[:5])


def test_mask_multiplies_the_kernel():
    mask = np.random.default_rng(0).integers(0, 2, size=(3, 256, 256))
    masked, plain = make((3,), mask=mask), make((3,))
    x = draw(2, 9, 256)
    rows = rows_of((3,), (9,), {})
    expected = convolve(x, value(plain.kernel) * mask, rows) + value(plain.bias)
    assert_close(masked(to_float32(x)), expected)
    dy = draw(2, 9, 256, seed=1)
    params, _ = gradients(masked, dy, x)
    _, dkernel = convolve_backward(x, value(plain.kernel), rows, dy)
    assert_close(params["kernel"][...], dkernel * mask)


@pytest.mark.parametrize("padding", ["SAME", "CIRCULAR", "REFLECT", "CAUSAL"])
def test_jit_gives_what_eager_gives(padding):
    layer, x = make((3,), padding=padding), to_float32(draw(2, 9, 256))
    assert_close(nnx.jit(lambda m, x: m(x))(layer, x), np.asarray(layer(x), np.float64), 1e-6)


def test_default_kernel_has_variance_one_over_fan_in():
    layer = nnx.Conv(64, 256, (2, 2), rngs=nnx.Rngs(0))
    assert float(layer.kernel[...].std() * 16) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("inputs", "param", "dtype", "preferred", "result"),
    [
        ("float32", "float32", None, None, "float32"),
        ("bfloat16", "float32", None, None, "float32"),
        ("bfloat16", "bfloat16", None, None, "bfloat16"),
        ("float32", "float32", "bfloat16", None, "bfloat16"),
        ("float32", "float32", "bfloat16", "float32", "float32"),
        ("int32", "float32", None, None, "float32"),
    ],
)
def test_dtype_of_the_result_and_of_gradients(inputs, param, dtype, preferred, result):
    layer = make((3,), 4, 5, dtype=dtype, param_dtype=param, preferred_element_type=preferred)
    y = layer(jnp.ones((1, 8, 4), inputs))
    assert y.dtype == result
    params, _ = gradients(layer, np.ones(y.shape), draw(1, 8, 4)) if result == "float32" else (0, 0)
    assert not params or params["kernel"].dtype == param


def test_options_reach_conv_general_dilated():
    seen = {}

    def convolution(lhs, rhs, strides, padding, **options):
        seen.update(options, strides=strides, padding=padding)
        return jax.lax.conv_general_dilated(lhs, rhs, strides, padding, **options)

    highest = jax.lax.Precision.HIGHEST
    layer = make((3,), 4, 5, conv_general_dilated=convolution, precision=highest, strides=2)
    assert layer(jnp.ones((1, 8, 4))).shape == (1, 4, 5)
    assert seen["precision"] == highest
    assert seen["strides"] == (2,)
    assert "preferred_element_type" not in seen


def test_metadata_is_that_of_the_params():
    layer = make((3,), 4, 5, kernel_metadata={"tag": 1}, bias_metadata={"tag": 2})
    assert (layer.kernel.tag, layer.bias.tag) == (1, 2)
