"""BatchNorm: statistics of the batch, running averages, masks, mapped axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import LayerInputError, LayerOptionError, UnboundAxisWarning
from tests.nn.reference import (
    assert_close,
    draw,
    gradients,
    moments,
    normalize,
    normalize_backward,
    randomize,
    to_float32,
    value,
)

variances = pytest.mark.parametrize("fast", [True, False])


def make(features=256, **options):
    return randomize(nnx.BatchNorm(features, rngs=nnx.Rngs(0), **options))


def affine(layer):
    """Scale and bias, or what stands for none."""
    scale = 1.0 if layer.scale is None else value(layer.scale)
    return scale, 0.0 if layer.bias is None else value(layer.bias)


@variances
@pytest.mark.parametrize("batch", [(7,), (2, 5), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"use_scale": False}], ids=str)
def test_training(batch, options, fast):
    layer = make(use_fast_variance=fast, **options)
    x, dy = 2 * draw(*batch, 256) + 1, draw(*batch, 256, seed=1)
    axes = tuple(range(len(batch)))
    scale, bias = affine(layer)
    params, dx = gradients(layer, dy, x)
    assert_close(layer(to_float32(x)), normalize(x, axes, scale, bias, 1e-5))
    expected, normal = normalize_backward(x, axes, scale, 1e-5, dy)
    assert_close(dx, expected)
    if layer.scale is not None:
        assert_close(params["scale"][...], (dy * normal).sum(axes))
    if layer.bias is not None:
        assert_close(params["bias"][...], dy.sum(axes))


def test_running_averages_follow_the_batches():
    layer = make(momentum=0.9)
    mean, variance = np.zeros(256), np.ones(256)
    for step in range(3):
        x = draw(16, 256, seed=step) * (step + 1) + step
        layer(to_float32(x))
        batch_mean, batch_variance = moments(np.asarray(to_float32(x), np.float64), (0,))
        mean = 0.9 * mean + 0.1 * batch_mean[0]
        variance = 0.9 * variance + 0.1 * batch_variance[0]
    assert_close(layer.mean[...], mean)
    assert_close(layer.var[...], variance)


def test_inference_uses_the_running_averages_and_leaves_them_alone():
    layer = make()
    layer.mean[...] = to_float32(draw(256, seed=3))
    layer.var[...] = to_float32(draw(256, seed=4) ** 2 + 0.5)
    mean, variance = value(layer.mean), value(layer.var)
    x, dy = draw(7, 256), draw(7, 256, seed=1)
    scale, bias = affine(layer)
    layer.eval()
    expected = (x - mean) / np.sqrt(variance + 1e-5) * scale + bias
    assert_close(layer(to_float32(x)), expected)
    _, dx = gradients(layer, dy, x)
    assert_close(dx, dy * scale / np.sqrt(variance + 1e-5))
    assert np.array_equal(value(layer.mean), mean)


def test_mode_of_the_call_comes_before_that_of_the_layer():
    layer, x = make(), to_float32(draw(7, 256))
    layer(x, use_running_average=True)
    assert not layer.mean[...].any()
    layer.eval()
    layer(x, use_running_average=False)
    assert layer.mean[...].any()
    layer.train()
    assert layer.use_running_average is False


def test_features_along_another_axis():
    layer = make(axis=1)
    x = draw(3, 256, 4)
    scale, bias = (v[:, None] for v in affine(layer))
    assert_close(layer(to_float32(x)), normalize(x, (0, 2), scale, bias, 1e-5))
    assert layer.mean.shape == (256,)
    layer.eval()
    assert layer(to_float32(x)).shape == x.shape


@variances
def test_mask_chooses_what_statistics_are_of(fast):
    layer = make(use_fast_variance=fast, momentum=0.0)
    x, dy = draw(4, 6, 256), draw(4, 6, 256, seed=1)
    mask = np.arange(6)[None, :, None] < np.array([6, 3, 1, 0])[:, None, None]
    scale, bias = affine(layer)
    _, dx = gradients(layer, dy, x, mask=jnp.asarray(mask))
    assert_close(layer(to_float32(x), mask=mask), normalize(x, (0, 1), scale, bias, 1e-5, mask))
    assert_close(dx, normalize_backward(x, (0, 1), scale, 1e-5, dy, mask)[0])
    mean, variance = moments(x, (0, 1), mask)
    assert_close(layer.mean[...], mean.ravel())
    assert_close(layer.var[...], variance.ravel())


def test_features_of_which_the_mask_keeps_nothing_leave_their_averages_alone():
    layer = make(4, momentum=0.5)
    mask = jnp.array([True, False, True, False])
    layer(to_float32(draw(8, 4)) + 5, mask=mask)
    assert (layer.mean[...] != 0).tolist() == mask.tolist()
    assert (layer.var[...] == 1).tolist() == (~mask).tolist()


def test_empty_batch_leaves_the_averages_alone():
    layer = make(4)
    assert layer(jnp.zeros((0, 4))).shape == (0, 4)
    assert layer.mean[...].tolist() == [0.0] * 4


@variances
def test_statistics_over_a_mapped_axis_are_those_of_the_whole_batch(fast):
    x = to_float32(draw(4, 6, 256))
    whole, layer = make(use_fast_variance=fast), make(use_fast_variance=fast, axis_name="batch")
    expected = whole(x.reshape(24, 256)).reshape(x.shape)
    y = nnx.vmap(lambda m, x: m(x), in_axes=(None, 0), axis_name="batch")(layer, x)
    assert_close(y, np.asarray(expected, np.float64), 1e-6)
    assert_close(layer.mean[...], value(whole.mean), 1e-6)
    assert_close(layer.var[...], value(whole.var), 1e-6)


def test_masked_statistics_over_a_mapped_axis_weigh_lanes_by_their_entries():
    x = to_float32(draw(2, 6, 256))
    mask = np.arange(6)[None, :, None] < np.array([6, 1])[:, None, None]
    whole, layer = make(), make(axis_name="batch")
    expected = whole(x.reshape(12, 256), mask=mask.reshape(12, 1)).reshape(x.shape)
    call = lambda x, mask: layer(x, use_running_average=False, mask=mask)
    graphdef, state = nnx.split(layer)
    call = lambda x, mask: nnx.merge(graphdef, state)(x, mask=mask)
    y = jax.vmap(call, axis_name="batch")(x, jnp.asarray(mask))
    assert_close(y, np.asarray(expected, np.float64), 1e-6)


def test_several_mapped_axes():
    x = to_float32(draw(2, 3, 5, 256))
    whole, layer = make(), make(axis_name=("a", "b"))
    expected = whole(x.reshape(30, 256)).reshape(x.shape)
    graphdef, state = nnx.split(layer)
    call = lambda x: nnx.merge(graphdef, state)(x)
    y = jax.vmap(jax.vmap(call, axis_name="b"), axis_name="a")(x)
    assert_close(y, np.asarray(expected, np.float64), 1e-6)


def test_inference_needs_no_mapped_axis():
    layer = make(axis_name="batch", use_running_average=True)
    assert layer(to_float32(draw(3, 256))).shape == (3, 256)


def test_training_outside_of_the_mapped_axis_warns():
    layer, x = make(axis_name="batch"), to_float32(draw(3, 256))
    with pytest.warns(UnboundAxisWarning, match="^BatchNorm: found no mapped axis") as found:
        y = layer(x)
    assert len(found) == 1
    assert found[0].filename == __file__
    assert jnp.array_equal(y, make()(x))


@pytest.mark.parametrize(
    ("inputs", "param", "dtype", "result"),
    [
        ("float32", "float32", None, "float32"),
        ("bfloat16", "float32", None, "float32"),
        ("bfloat16", "bfloat16", None, "bfloat16"),
        ("float32", "float32", "bfloat16", "bfloat16"),
        ("int32", "float32", None, "float32"),
    ],
)
def test_dtypes(inputs, param, dtype, result):
    layer = make(4, param_dtype=param, dtype=dtype)
    assert layer(jnp.ones((2, 4), inputs)).dtype == result
    assert layer.scale.dtype == layer.bias.dtype == param
    assert layer.mean.dtype == layer.var.dtype == "float32"
    layer.eval()
    assert layer(jnp.ones((2, 4), inputs)).dtype == result


def test_jit_gives_what_eager_gives():
    eager, jitted, x = make(), make(), to_float32(draw(7, 256))
    y = nnx.jit(lambda m, x: m(x))(jitted, x)
    assert_close(y, np.asarray(eager(x), np.float64), 1e-6)
    assert_close(jitted.mean[...], value(eager.mean), 1e-6)


def test_averages_are_updated_once_under_grad():
    layer, plain, x = make(), make(), to_float32(draw(7, 256))
    nnx.grad(lambda m, x: m(x).sum())(layer, x)
    plain(x)
    assert_close(layer.mean[...], value(plain.mean), 1e-6)


def test_metadata_is_that_of_the_params():
    layer = make(4, scale_metadata={"tag": 1}, bias_metadata={"tag": 2})
    assert (layer.scale.tag, layer.bias.tag) == (1, 2)


def test_view_sets_the_mode():
    layer = make(4)
    layer.set_view()
    assert layer.use_running_average is False
    layer.set_view(use_running_average=True)
    assert layer.use_running_average is True


def test_error_for_other_features():
    with pytest.raises(LayerInputError) as error:
        make(4, axis=1)(jnp.ones((2, 5, 4)))
    assert str(error.value) == (
        "BatchNorm: found x = an array of shape (2, 5, 4). Expected its axis -2 to be "
        "num_features=4. Make the layer with num_features=5, or pass it 4 features."
    )


@pytest.mark.parametrize("momentum", [-0.1, 1.5, "0.9"])
def test_error_for_a_momentum_out_of_range(momentum):
    with pytest.raises(LayerOptionError) as error:
        make(4, momentum=momentum)
    assert str(error.value) == (f"BatchNorm: found momentum = {momentum!r}. Expected a number in [0, 1].")
