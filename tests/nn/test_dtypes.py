"""promote_dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import DtypeNotInexactError


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["float32"], "float32"),
        (["bfloat16", "float32"], "float32"),
        (["bfloat16", "float16"], "float32"),
        (["int32", "bfloat16"], "bfloat16"),
        (["int32"], "float32"),
        (["bool"], "float32"),
        (["float32", "complex64"], "complex64"),
        (["float8_e4m3fn", "bfloat16"], "bfloat16"),
        (["float8_e4m3fn", "int32"], "float8_e4m3fn"),
        (["float8_e4m3fn", "float8_e5m2"], "float32"),
        (["float8_e4m3fn"], "float8_e4m3fn"),
    ],
    ids=str,
)
def test_common_dtype(dtypes, expected):
    arrays = nnx.promote_dtype([jnp.ones(2, dtype) for dtype in dtypes])
    assert [array.dtype for array in arrays] == [expected] * len(dtypes)


def test_integers_may_stay():
    x, y = nnx.promote_dtype((jnp.ones(2, jnp.int8), jnp.ones(2, jnp.int16)), inexact=False)
    assert x.dtype == y.dtype == jnp.int16


def test_numbers_take_the_dtype_of_the_arrays():
    x, y = nnx.promote_dtype((2.5, jnp.ones(2, jnp.bfloat16)))
    assert x.dtype == y.dtype == jnp.bfloat16


def test_numpy_arrays_count_as_jax_holds_them():
    x, _ = nnx.promote_dtype((np.ones(2), jnp.ones(2)))
    assert x.dtype == jnp.float32


def test_variables_are_unwrapped():
    (x,) = nnx.promote_dtype((nnx.Param(jnp.ones(2)),), dtype=jnp.float16)
    assert isinstance(x, jax.Array)
    assert x.dtype == jnp.float16


def test_none_stays_none():
    x, none = nnx.promote_dtype((jnp.ones(2), None))
    assert none is None
    assert x.shape == (2,)


@pytest.mark.parametrize("dtype", ["bfloat16", jnp.float16, np.dtype("complex64")])
def test_given_dtype(dtype):
    assert nnx.promote_dtype((jnp.ones(2), jnp.ones(2, int)), dtype=dtype)[1].dtype == dtype


def test_doubles_need_x64():
    assert nnx.promote_dtype((jnp.ones(2),), dtype=float)[0].dtype == jnp.float32
    with jax.enable_x64(True):
        assert nnx.promote_dtype((jnp.ones(2, "float32"), jnp.ones(2, "float64")))[0].dtype == "float64"


def test_works_under_the_standard_rules_too():
    with jax.numpy_dtype_promotion("standard"):
        assert nnx.promote_dtype((jnp.ones(2, "bfloat16"), jnp.ones(2)))[0].dtype == jnp.float32


def test_error_for_an_integer_dtype():
    with pytest.raises(DtypeNotInexactError) as error:
        nnx.promote_dtype((jnp.ones(2),), dtype=int)
    assert str(error.value) == (
        "promote_dtype: found dtype=int32. Expected a floating or complex dtype. "
        "Write dtype=jnp.float32, or inexact=False to cast to integers."
    )
    assert nnx.promote_dtype((jnp.ones(2),), dtype=int, inexact=False)[0].dtype == jnp.int32
