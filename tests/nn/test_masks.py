"""Attention masks."""

import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import LayerInputError


def test_attention_mask_lets_tokens_look_at_tokens():
    queries, keys = np.array([[1, 1, 0], [1, 0, 0]]), np.array([[1, 0], [1, 1]])
    mask = nnx.make_attention_mask(queries, keys)
    assert mask.shape == (2, 1, 3, 2)
    assert mask.dtype == jnp.float32
    assert np.array_equal(mask[:, 0], queries[:, :, None] * keys[:, None, :])


@pytest.mark.parametrize("dtype", [bool, "int32", "bfloat16"])
def test_dtype_of_masks(dtype):
    x = jnp.ones((2, 3))
    assert nnx.make_attention_mask(x, x, dtype=dtype).dtype == dtype
    assert nnx.make_causal_mask(x, dtype=dtype).dtype == dtype
    assert nnx.combine_masks(x, x, dtype=dtype).dtype == dtype


def test_pairwise_function():
    segments = jnp.array([0, 0, 1])
    mask = nnx.make_attention_mask(segments, segments, jnp.equal)
    assert mask[0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_inputs_of_different_dtypes():
    mask = nnx.make_attention_mask(jnp.ones(2, bool), jnp.ones(3, jnp.int32))
    assert mask.shape == (1, 2, 3)


@pytest.mark.parametrize("extra", [0, 1, 2])
def test_extra_batch_dims_stand_in_front(extra):
    front = (1,) * extra
    mask = nnx.make_attention_mask(jnp.ones((2, 3)), jnp.ones((2, 4)), extra_batch_dims=extra)
    assert mask.shape == (*front, 2, 1, 3, 4)
    assert nnx.make_causal_mask(jnp.ones((2, 3)), extra).shape == (*front, 2, 1, 3, 3)


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_causal_mask(shape):
    mask = nnx.make_causal_mask(jnp.zeros(shape))
    assert mask.shape == (*shape[:-1], 1, 4, 4)
    assert np.array_equal(mask, np.broadcast_to(np.tri(4), mask.shape))


def test_combined_masks_let_through_what_all_do():
    padding = nnx.make_attention_mask(jnp.array([[1, 1, 0]]), jnp.array([[1, 1, 0]]))
    mask = nnx.combine_masks(padding, None, nnx.make_causal_mask(jnp.ones((1, 3))))
    assert mask[0, 0].tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]


def test_no_masks_combine_to_none():
    assert nnx.combine_masks() is None
    assert nnx.combine_masks(None, None) is None


def test_error_for_masks_of_different_ranks():
    with pytest.raises(LayerInputError) as error:
        nnx.combine_masks(jnp.ones((1, 3, 3)), jnp.ones((3, 3)))
    assert str(error.value) == (
        "combine_masks: found masks = arrays of shapes (1, 3, 3), (3, 3). Expected masks with as many "
        "axes as each other. Write `mask[:, None, None, :]` for a mask of keys."
    )
