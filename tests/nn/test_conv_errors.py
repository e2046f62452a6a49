"""Conv: what it refuses, and what it says."""

import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import LayerInputError, LayerOptionError


def refusal(*args, **options):
    """The text of the error that the constructor raises."""
    with pytest.raises(LayerOptionError) as error:
        nnx.Conv(*args, rngs=nnx.Rngs(0), **options)
    return str(error.value)


@pytest.mark.parametrize("size", [0, (3, 0), 2.5, (), "33", None])
def test_kernel_size(size):
    assert refusal(4, 4, size) == (
        f"Conv: found kernel_size = {size!r}. Expected a whole number, 1 or more, or a sequence of them."
    )


@pytest.mark.parametrize("option", ["strides", "input_dilation", "kernel_dilation"])
@pytest.mark.parametrize("steps", [-1, (1, 2, 3), (1, 0), 1.5])
def test_numbers_for_each_axis(option, steps):
    assert refusal(4, 4, (3, 3), **{option: steps}) == (
        f"Conv: found {option} = {steps!r}. Expected a whole number, 1 or more, or a sequence of 2 of them."
    )


def test_name_of_a_padding():
    assert refusal(4, 4, 3, padding="FULL") == (
        "Conv: found padding = 'FULL'. Expected one of SAME, SAME_LOWER, VALID, CIRCULAR, REFLECT, "
        "CAUSAL, an int, or a pair of ints for each axis."
    )


def test_causal_padding_of_two_axes():
    assert refusal(4, 4, (3, 3), padding="CAUSAL") == (
        "Conv: found padding = 'CAUSAL'. Expected another one: 'CAUSAL' is for one spatial axis, "
        "kernel_size=(3, 3)."
    )


@pytest.mark.parametrize("padding", ["CIRCULAR", "REFLECT"])
def test_copying_padding_of_dilated_inputs(padding):
    assert refusal(4, 4, 3, padding=padding, input_dilation=2) == (
        f"Conv: found padding = '{padding}'. Expected another one: '{padding}' needs "
        "input_dilation=1, not (2,)."
    )


@pytest.mark.parametrize("padding", [(1,), (1, 1, 1), ((1, 2), (3,)), ((1, 2), 0.5), None, 1.5])
def test_explicit_padding(padding):
    assert refusal(4, 4, (3, 3), padding=padding) == (
        f"Conv: found padding = {padding!r}. Expected an int or a pair of ints for each of 2 spatial axes."
    )


@pytest.mark.parametrize(("din", "dout"), [(4, 6), (6, 4)])
def test_groups_divide_the_features(din, dout):
    assert refusal(din, dout, 3, feature_group_count=4) == (
        f"Conv: found feature_group_count = 4. "
        f"Expected a divisor of in_features={din} and of out_features={dout}."
    )


def test_mask_has_the_shape_of_the_kernel():
    assert refusal(4, 6, 3, mask=jnp.ones((3, 4))) == (
        "Conv: found mask = an array of shape (3, 4). Expected the kernel's shape (3, 4, 6)."
    )


def call(shape, size=(3, 3), **options):
    """The text of the error that a call raises."""
    layer = nnx.Conv(4, 6, size, rngs=nnx.Rngs(0), **options)
    with pytest.raises(LayerInputError) as error:
        layer(jnp.ones(shape))
    return str(error.value)


def test_inputs_with_too_few_axes():
    assert call((8, 4)) == (
        "Conv: found inputs = an array of shape (8, 4). Expected 2 spatial axes, for "
        "kernel_size=(3, 3), and one of features."
    )


def test_inputs_with_channels_first():
    assert call((1, 4, 8, 8)) == (
        "Conv: found inputs = an array of shape (1, 4, 8, 8). Expected its last axis to be "
        "in_features=4. Make the layer with in_features=8, or pass it 4 features."
    )


def test_inputs_that_the_kernel_does_not_fit_into():
    assert call((1, 2, 8, 4), padding="VALID") == (
        "Conv: found inputs = an array of shape (1, 2, 8, 4), of which outputs (0, 6) would be left. "
        "Expected spatial axes that a kernel of kernel_size=(3, 3), kernel_dilation=(1, 1) fits into."
    )
