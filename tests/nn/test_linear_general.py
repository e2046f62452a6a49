"""LinearGeneral: several axes in, several axes out, batch axes."""

import string

import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import LayerInputError, LayerOptionError
from tests.nn.reference import QUICK, assert_close, draw, gradients, randomize, to_float32, value

CASES = {
    "one to one": (256, 320, -1, {}, (3, 256)),
    "to heads": (256, (8, 40), -1, {}, (2, 3, 256)),
    "from heads": ((8, 32), 256, (-2, -1), {}, (2, 3, 8, 32)),
    "axes in the middle": (256, 4, 1, {}, (2, 256, 3)),
    "axes in another order": ((16, 24), (4, 8), (2, 0), {}, (24, 3, 16)),
    "all axes": ((16, 16), 256, (0, 1), {}, (16, 16)),
    "a batch axis": (256, (4, 8), -1, {0: 5}, (5, 3, 256)),
    "two batch axes": (256, 16, 2, {0: 2, 1: 3}, (2, 3, 256, 4)),
}

cases = pytest.mark.parametrize(("din", "dout", "axis", "batch", "shape"), CASES.values(), ids=CASES.keys())


def make(din, dout, axis=-1, batch_axis=(), **options):
    batch_axis = dict(batch_axis)
    layer = nnx.LinearGeneral(
        din, dout, axis=axis, batch_axis=batch_axis, rngs=nnx.Rngs(0), **QUICK | options
    )
    return randomize(layer)


def subscripts(layer, shape):
    """The einsum letters of inputs, kernel and outputs, and of the bias."""
    letters = list(string.ascii_lowercase)
    inputs = [letters.pop(0) for _ in shape]
    mapped = [inputs[axis] for axis in layer.axis]
    batch = inputs[: len(layer.batch_axis)]
    free = [s for s in inputs if s not in mapped and s not in batch]
    outputs = [letters.pop(0) for _ in layer.out_features]
    return (
        "".join(inputs),
        "".join(batch + mapped + outputs),
        "".join(batch + free + outputs),
        "".join(batch + outputs),
    )


@cases
def test_forward_is_the_contraction(din, dout, axis, batch, shape):
    layer = make(din, dout, axis, batch)
    x = draw(*shape)
    inputs, kernel, outputs, bias = subscripts(layer, shape)
    expected = np.einsum(f"{inputs},{kernel}->{outputs}", x, value(layer.kernel))
    ones = np.ones_like(expected)
    expected = expected + np.einsum(f"{bias},{outputs}->{outputs}", value(layer.bias), ones)
    assert_close(layer(to_float32(x)), expected)


@cases
def test_gradients_are_those_of_the_contraction(din, dout, axis, batch, shape):
    layer = make(din, dout, axis, batch)
    x = draw(*shape)
    dy = draw(*layer(to_float32(x)).shape, seed=1)
    params, dx = gradients(layer, dy, x)
    inputs, kernel, outputs, bias = subscripts(layer, shape)
    weights = value(layer.kernel)
    assert_close(dx, np.einsum(f"{outputs},{kernel}->{inputs}", dy, weights))
    assert_close(params["kernel"][...], np.einsum(f"{inputs},{outputs}->{kernel}", x, dy))
    assert_close(params["bias"][...], np.einsum(f"{outputs}->{bias}", dy))


def test_kernel_is_drawn_with_the_fan_in_of_the_matrix():
    layer = nnx.LinearGeneral((8, 32), (4, 64), axis=(-2, -1), rngs=nnx.Rngs(0))
    assert layer.kernel.shape == (8, 32, 4, 64)
    assert float(layer.kernel[...].std() * 16) == pytest.approx(1, abs=0.02)


def test_each_batch_index_draws_its_own_kernel():
    layer = nnx.LinearGeneral(256, 64, batch_axis={0: 3}, rngs=nnx.Rngs(0))
    kernel = layer.kernel[...]
    assert kernel.shape == (3, 256, 64)
    assert not jnp.allclose(kernel[0], kernel[1])
    assert float(kernel.std() * 16) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("batch_axis", [{}, {0: 3}])
def test_initializer_with_metadata(batch_axis):
    init = nnx.with_metadata(nnx.initializers.lecun_normal(), names=("in", "heads", "depth"))
    layer = nnx.LinearGeneral(8, (2, 4), batch_axis=batch_axis, kernel_init=init, rngs=nnx.Rngs(0))
    assert layer.kernel.names == ("in", "heads", "depth")
    assert layer.kernel.shape == (*batch_axis.values(), 8, 2, 4)


def test_dot_general_cls_makes_the_hook():
    class Doubled:
        def __call__(self, *args, **options):
            return 2 * jnp.einsum("bi,io->bo", *args[:2])

    layer = make(4, 3, use_bias=False, dot_general_cls=Doubled)
    x = draw(2, 4)
    assert_close(layer(to_float32(x)), 2 * x @ value(layer.kernel))


def test_bfloat16():
    layer = make(8, (2, 4), dtype=jnp.bfloat16)
    assert layer(jnp.ones((3, 8))).dtype == jnp.bfloat16


def test_jit_gives_what_eager_gives():
    layer, x = make((8, 32), 256, (-2, -1)), to_float32(draw(4, 8, 32))
    assert_close(nnx.jit(lambda m, x: m(x))(layer, x), np.asarray(layer(x), np.float64), 1e-6)


def test_error_for_axes_that_do_not_match_the_features():
    with pytest.raises(LayerOptionError) as error:
        nnx.LinearGeneral((2, 3), 4, axis=-1, rngs=nnx.Rngs(0))
    assert str(error.value) == (
        "LinearGeneral: found axis = -1. Expected as many axes as in_features=(2, 3)."
    )


def test_error_for_batch_axes_that_do_not_lead():
    with pytest.raises(LayerOptionError) as error:
        nnx.LinearGeneral(3, 4, batch_axis={1: 2}, rngs=nnx.Rngs(0))
    assert str(error.value) == (
        "LinearGeneral: found batch_axis = {1: 2}. Expected the leading axes 0, 1, ... as keys."
    )


def test_error_for_inputs_of_other_sizes():
    with pytest.raises(LayerInputError) as error:
        make((2, 3), 4, (-2, -1))(jnp.ones((5, 3, 2)))
    assert str(error.value) == (
        "LinearGeneral: found inputs = an array of shape (5, 3, 2). Expected sizes by axis to be "
        "{1: 2, 2: 3} (in_features=(2, 3), axis=(-2, -1))."
    )


def test_error_for_inputs_without_the_axis():
    with pytest.raises(LayerInputError) as error:
        make(3, 4, 2)(jnp.ones((5, 3)))
    assert str(error.value) == (
        "LinearGeneral: found inputs = an array of 2 dimensions. "
        "Expected one that has each of the axes axis=(2,) once."
    )
