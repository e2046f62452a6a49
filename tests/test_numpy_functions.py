"""Variables where the functions of jax.numpy, NumPy and their kin expect arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx

# In NumPy those that jax.numpy has too: no function that writes files or runs tests.
SPACES = {
    "jax.numpy": (jnp, jnp, 200),
    "numpy": (np, jnp, 200),
    "jax.numpy.linalg": (jnp.linalg, jnp.linalg, 20),
    "jax.numpy.fft": (jnp.fft, jnp.fft, 12),
    "jax.nn": (jax.nn, jax.nn, 20),
}
ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float)
# Buffers, files, changes in place, and arrays that nothing has filled.
LEFT_OUT = {"frombuffer", "fromfile", "load", "save", "savez", "fill_diagonal", "empty_like"}


def result(f, *args):
    """What a function returns, or None if it does not take these arguments or returns no arrays."""
    try:
        out = f(*args)
    except Exception:
        return None
    return out if all(isinstance(leaf, ARRAYS) for leaf in jax.tree.leaves(out)) else None


def calls(space, names):
    """The functions of a namespace, each with the arrays that it takes."""
    x = jnp.asarray([[2.0, 1.0], [1.0, 3.0]], jnp.float32)
    for name in sorted(set(dir(names)) - LEFT_OUT):
        f = getattr(space, name, None)
        if name.startswith("_") or not callable(f) or isinstance(f, type):
            continue
        for args in ((x,), (x, x)):
            if (expected := result(f, *args)) is not None:
                yield f, args, expected


@pytest.mark.parametrize("name", SPACES)
def test_va1_functions_take_variables_as_they_take_arrays(name):
    space, names, least = SPACES[name]
    count = 0
    for f, args, expected in calls(space, names):
        found = f(*map(nnx.Param, args))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert not isinstance(a, nnx.Variable), f
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=str(f))
        count += 1
    assert count >= least
