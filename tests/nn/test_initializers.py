"""The namespace of initializers."""

import jax
import jax.numpy as jnp
import pytest

from nnxgraph.nn import initializers

MADE = {
    "constant": (2.0,),
    "normal": (),
    "truncated_normal": (),
    "uniform": (),
    "lecun_normal": (),
    "orthogonal": (),
    "variance_scaling": (1.0, "fan_avg", "uniform"),
    "zeros_init": (),
    "ones_init": (),
}


@pytest.mark.parametrize("name", MADE)
def test_called_to_make_an_initializer(name):
    init = getattr(initializers, name)(*MADE[name])
    values = init(jax.random.key(0), (4, 4), jnp.float32)
    assert values.shape == (4, 4)
    assert values.dtype == jnp.float32


def test_zeros_and_ones_are_initializers():
    key = jax.random.key(0)
    assert initializers.zeros(key, (2,), jnp.bfloat16).tolist() == [0, 0]
    assert initializers.ones(key, (2,), jnp.bfloat16).tolist() == [1, 1]
    assert initializers.zeros_init() is initializers.zeros
    assert initializers.ones_init() is initializers.ones


def test_all_names_are_there():
    assert all(callable(getattr(initializers, name)) for name in initializers.__all__)
