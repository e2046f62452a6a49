"""LayerNorm and RMSNorm."""

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
    normalize,
    normalize_backward,
    randomize,
    rms_normalize,
    rms_normalize_backward,
    to_float32,
    value,
)

both = pytest.mark.parametrize("kind", [nnx.LayerNorm, nnx.RMSNorm])
variances = pytest.mark.parametrize("fast", [True, False])


def make(kind=nnx.LayerNorm, features=256, **options):
    return randomize(kind(features, rngs=nnx.Rngs(0), **options))


def affine(layer):
    """Scale and bias, or what stands for none."""
    scale = 1.0 if layer.scale is None else value(layer.scale)
    return scale, 0.0 if layer.bias is None else value(layer.bias)


@variances
@pytest.mark.parametrize("batch", [(), (7,), (2, 5)], ids=str)
@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"use_scale": False}], ids=str)
def test_layer_norm(batch, options, fast):
    layer = make(use_fast_variance=fast, epsilon=1e-3, **options)
    x, dy = 2 * draw(*batch, 256) + 1, draw(*batch, 256, seed=1)
    scale, bias = affine(layer)
    assert_close(layer(to_float32(x)), normalize(x, (-1,), scale, bias, 1e-3))
    params, dx = gradients(layer, dy, x)
    expected, normal = normalize_backward(x, (-1,), scale, 1e-3, dy)
    assert_close(dx, expected)
    if layer.scale is not None:
        assert_close(params["scale"][...], (dy * normal).reshape(-1, 256).sum(0))
    if layer.bias is not None:
        assert_close(params["bias"][...], dy.reshape(-1, 256).sum(0))


@pytest.mark.parametrize("batch", [(), (7,), (2, 5)], ids=str)
@pytest.mark.parametrize("use_scale", [True, False])
def test_rms_norm(batch, use_scale):
    layer = make(nnx.RMSNorm, epsilon=1e-3, use_scale=use_scale)
    x, dy = 2 * draw(*batch, 256) + 1, draw(*batch, 256, seed=1)
    scale, _ = affine(layer)
    assert_close(layer(to_float32(x)), rms_normalize(x, scale, 1e-3))
    params, dx = gradients(layer, dy, x)
    expected, dscale = rms_normalize_backward(x, scale, 1e-3, dy)
    assert_close(dx, expected)
    if use_scale:
        assert_close(params["scale"][...], dscale)


def test_slow_variance_is_right_far_from_zero():
    x = draw(4, 256) + 1000.0
    x = np.asarray(to_float32(x), np.float64)
    layer = make(use_fast_variance=False)
    assert_close(layer(to_float32(x)), normalize(x, (-1,), *affine(layer), 1e-6), 1e-3)


def test_variance_is_never_negative():
    x = jnp.full((1, 256), 1e4, jnp.float32)
    layer = make(use_bias=False)
    assert jnp.abs(layer(x)).max() < 1e4  # not the NaN of a root of less than zero


def test_reduction_over_several_axes():
    layer = make(reduction_axes=(-2, -1))
    x, dy = draw(3, 8, 256), draw(3, 8, 256, seed=1)
    scale, bias = affine(layer)
    assert_close(layer(to_float32(x)), normalize(x, (1, 2), scale, bias, 1e-6))
    _, dx = gradients(layer, dy, x)
    assert_close(dx, normalize_backward(x, (1, 2), scale, 1e-6, dy)[0])


def test_features_along_another_axis():
    layer = make(reduction_axes=1, feature_axes=1)
    x = draw(3, 256, 8)
    scale, bias = (v[:, None] for v in affine(layer))
    assert_close(layer(to_float32(x)), normalize(x, (1,), scale, bias, 1e-6))


def test_features_along_several_axes():
    layer = make(features=(8, 256), reduction_axes=(1, 2), feature_axes=(2, 1))
    assert layer.scale.shape == (8, 256)
    x = draw(3, 256, 8)
    scale, bias = (v.T for v in affine(layer))
    assert_close(layer(to_float32(x)), normalize(x, (1, 2), scale, bias, 1e-6))


@variances
def test_mask_chooses_what_statistics_are_of(fast):
    layer = make(use_fast_variance=fast)
    x, dy = draw(5, 256), draw(5, 256, seed=1)
    mask = np.random.default_rng(0).integers(0, 2, size=(5, 256))
    scale, bias = affine(layer)
    ours = layer(to_float32(x), mask=mask)
    assert_close(ours, normalize(x, (-1,), scale, bias, 1e-6, mask))
    params, dx = gradients(layer, dy, x, mask=jnp.asarray(mask))
    expected, normal = normalize_backward(x, (-1,), scale, 1e-6, dy, mask)
    assert_close(dx, expected)
    assert_close(params["scale"][...], (dy * normal).sum(0))


def test_mask_of_rms_norm():
    layer = make(nnx.RMSNorm, use_scale=False)
    x = draw(2, 256)
    mask = np.arange(256) < 100
    root = np.sqrt((x[:, :100] ** 2).mean(-1, keepdims=True) + 1e-6)
    assert_close(layer(to_float32(x), mask), x / root)


@both
def test_values_that_are_masked_do_not_count(kind):
    layer = make(kind)
    x = to_float32(draw(256))
    mask = jnp.arange(256) < 200
    clean, dirty = layer(x, mask=mask), layer(x.at[200:].set(jnp.nan), mask=mask)
    assert jnp.array_equal(clean[:200], dirty[:200])


@both
def test_mask_that_keeps_nothing_gives_finite_values(kind):
    layer = make(kind)
    x = to_float32(draw(2, 256))
    graphdef, state = nnx.split(layer)
    loss = lambda x: nnx.merge(graphdef, state)(x, mask=jnp.zeros((2, 1), bool)).sum()
    assert jnp.isfinite(jax.value_and_grad(loss)(x)[1]).all()


@both
def test_statistics_over_a_mapped_axis(kind):
    # One example of 512 features, of which each of two lanes holds a half
    layer = make(kind, axis_name="halves")
    whole = make(kind, 512)
    tile = lambda v: to_float32(np.tile(value(v), 2))
    whole.scale.set_value(tile(layer.scale))
    if layer.bias is not None:
        whole.bias.set_value(tile(layer.bias))
    x = to_float32(draw(3, 512))
    halves = jax.vmap(layer, in_axes=1, out_axes=1, axis_name="halves")(x.reshape(3, 2, 256))
    assert_close(halves.reshape(3, 512), np.asarray(whole(x), np.float64), 1e-6)


def test_statistics_over_groups_of_lanes():
    layer = make(axis_name="parts", axis_index_groups=[[0, 1], [2, 3]])
    pairs = make(axis_name="parts")
    x = to_float32(draw(4, 256))
    run = lambda m, x: jax.pmap(m, axis_name="parts")(x)
    got = run(layer, x)
    for pair in (slice(0, 2), slice(2, 4)):
        assert_close(got[pair], np.asarray(run(pairs, x[pair]), np.float64), 1e-6)


@both
def test_warning_outside_of_the_mapped_axis(kind):
    layer, x = make(kind, axis_name="lanes"), to_float32(draw(3, 256))
    with pytest.warns(UnboundAxisWarning) as found:
        y = layer(x)
    assert str(found[0].message) == (
        f"{kind.__name__}: found no mapped axis named 'lanes', so the statistics are those of this "
        "call alone. Expected a call under nnx.vmap, nnx.pmap or nnx.shard_map with that axis name. "
        "Make the layer with axis_name=None where statistics are not shared."
    )
    assert found[0].filename == __file__
    assert jnp.array_equal(y, make(kind)(x))


@both
@pytest.mark.parametrize(
    ("inputs", "param", "dtype", "result"),
    [
        ("float32", "float32", None, "float32"),
        ("bfloat16", "float32", None, "float32"),
        ("bfloat16", "bfloat16", None, "bfloat16"),
        ("bfloat16", "float32", "bfloat16", "bfloat16"),
        ("float16", "float32", "float16", "float16"),
        ("int32", "float32", None, "float32"),
    ],
)
def test_dtype_of_the_result(kind, inputs, param, dtype, result):
    layer = make(kind, 4, param_dtype=param, dtype=dtype)
    assert layer.scale.dtype == param
    assert layer(jnp.ones((2, 4), inputs)).dtype == result


@both
def test_half_precision_statistics_are_computed_in_float32(kind):
    # Squares of these overflow float16, and their sum does not fit bfloat16.
    layer = make(kind, dtype=jnp.float16, use_scale=False)
    x = 300 * draw(4, 256)
    reference = make(kind, use_scale=False)
    assert_close(layer(to_float32(x)), np.asarray(reference(to_float32(x)), np.float64), 1e-3)


@both
def test_jit_gives_what_eager_gives(kind):
    layer, x = make(kind), to_float32(draw(4, 256))
    assert_close(nnx.jit(lambda m, x: m(x))(layer, x), np.asarray(layer(x), np.float64), 1e-6)


def test_promote_dtype_is_called_on_all_operands():
    seen = []

    def promote(args, **options):
        seen.append(len(args))
        return nnx.promote_dtype(args, **options)

    make(features=4, promote_dtype=promote)(jnp.ones(4))
    assert seen == [3]


def test_metadata_is_that_of_the_params():
    layer = make(features=4, scale_metadata={"tag": 1}, bias_metadata={"tag": 2})
    assert (layer.scale.tag, layer.bias.tag) == (1, 2)
    assert make(nnx.RMSNorm, 4, scale_metadata={"tag": 3}).scale.tag == 3


@both
def test_error_for_other_features(kind):
    with pytest.raises(LayerInputError) as error:
        make(kind, 4)(jnp.ones((2, 5)))
    assert str(error.value) == (
        f"{kind.__name__}: found x = an array of shape (2, 5). Expected its last axis to be "
        "num_features=4. Make the layer with num_features=5, or pass it 4 features."
    )


@both
def test_error_for_a_mask_that_does_not_fit(kind):
    with pytest.raises(LayerInputError) as error:
        make(kind, 4)(jnp.ones((2, 3, 4)), mask=jnp.ones((2, 3)))
    assert str(error.value) == (
        f"{kind.__name__}: found mask = an array of shape (2, 3). Expected one that broadcasts to "
        "the inputs' shape (2, 3, 4). Write `mask[..., None]` for a mask without the feature axis."
    )


@both
def test_error_for_a_negative_epsilon(kind):
    with pytest.raises(LayerOptionError) as error:
        make(kind, 4, epsilon=-1.0)
    assert str(error.value) == (f"{kind.__name__}: found epsilon = -1.0. Expected a number of at least 0.")


@both
def test_error_for_sizes_that_do_not_match_the_axes(kind):
    with pytest.raises(LayerOptionError) as error:
        make(kind, 4, feature_axes=(-2, -1))
    assert str(error.value) == (
        f"{kind.__name__}: found num_features = 4. Expected one size for each of feature_axes=(-2, -1)."
    )
