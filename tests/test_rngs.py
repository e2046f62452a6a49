"""Random streams hand out each key once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import LaneShapeError


def data(key):
    return tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())


def test_a_stream_counts_and_never_repeats_a_key():
    stream = nnx.RngStream(0, tag="noise")
    keys = {data(stream()) for _ in range(20)}
    assert len(keys) == 20
    assert int(stream.count[...]) == 20


def test_a_stream_folds_its_count_into_its_key():
    stream = nnx.RngStream(7, tag="noise")
    stream()
    assert data(stream()) == data(jax.random.fold_in(jax.random.key(7), 1))


def test_a_name_without_a_stream_draws_from_the_default():
    rngs = nnx.Rngs(0, dropout=1)
    assert data(rngs.params()) == data(jax.random.fold_in(jax.random.key(0), 0))
    assert data(rngs.dropout()) == data(jax.random.fold_in(jax.random.key(1), 0))
    assert int(rngs.default.count[...]) == 1


@pytest.mark.parametrize(
    "seed", [3, jnp.uint32(3), jax.random.key(3), jax.random.PRNGKey(3)], ids=["int", "array", "typed", "raw"]
)
def test_seeds_and_keys_of_all_forms_are_the_same(seed):
    assert data(nnx.Rngs(seed)()) == data(nnx.Rngs(3)())


def test_samplers_of_jax_random_are_methods():
    rngs = nnx.Rngs(0)
    expected = jax.random.normal(jax.random.fold_in(jax.random.key(0), 0), (2, 3))
    assert jnp.array_equal(rngs.normal((2, 3)), expected)
    missing = [
        name
        for name in ("uniform", "bernoulli", "categorical", "permutation", "gamma", "multinomial", "bits")
        if not hasattr(nnx.RngStream, name)
    ]
    assert missing == []


def test_random_initializers_are_methods():
    draw = nnx.Rngs(0).lecun_normal()
    assert draw((4, 5), jnp.float32).shape == (4, 5)
    assert not jnp.array_equal(draw((4, 5)), draw((4, 5)))


def test_a_fork_is_independent_and_the_parent_goes_on():
    parent = nnx.Rngs(0)
    a, b = parent.fork(), parent.fork()
    assert len({data(a()), data(b()), data(parent())}) == 3


def test_rn2_splitting_twice_gives_distinct_keys():
    rngs = nnx.Rngs(0)
    a, b = rngs.split(3), rngs.split(3)
    keys = [data(k) for s in (a, b) for k in s.default.key[...]]
    assert len(set(keys)) == 6


def test_a_broadcast_stream_draws_the_same_in_each_lane():
    lanes = nnx.Rngs(0).broadcast(3)
    drawn = nnx.vmap(lambda rngs: rngs.normal(()))(lanes)
    assert drawn.shape == (3,)
    assert (drawn == drawn[0]).all()


def test_fork_splits_by_filter():
    rngs = nnx.Rngs(0, params=1).fork(split={"params": 4})
    assert rngs.params.key.shape == (4,)
    assert rngs.default.key.shape == ()


def test_broadcast_by_filter_forks_the_other_streams():
    rngs = nnx.Rngs(0, params=1).broadcast({"params": (2, 3)})
    assert rngs.params.key.shape == (2, 3)
    assert rngs.default.key.shape == ()


@pytest.mark.parametrize("method", ["fork", "split", "broadcast"])
def test_lanes_that_are_no_shape_are_refused(method):
    arguments = {"split": "two"} if method == "fork" else {"k": "two"}
    with pytest.raises(LaneShapeError, match="found 'two' for the lanes of a random stream"):
        getattr(nnx.Rngs(0), method)(**arguments)


def test_layers_own_their_streams():
    rngs = nnx.Rngs(0)
    a, b = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
    x = jnp.ones(64)
    assert not jnp.array_equal(a(x), b(x))
    assert int(rngs.default.count[...]) == 2


def test_a_stream_counts_on_through_jit():
    rngs = nnx.Rngs(0)
    draw = nnx.jit(lambda rngs: rngs.normal(()))
    assert len({float(draw(rngs)) for _ in range(4)}) == 4
    assert int(rngs.default.count[...]) == 4


def test_streams_are_named_and_listed():
    rngs = nnx.Rngs(0, params=1)
    assert list(rngs) == ["default", "params"]
    assert "params" in rngs
    assert "dropout" not in rngs
    assert [name for name, _ in rngs.items()] == list(rngs.keys())
    assert rngs["dropout"] is rngs.default
    assert nnx.Rngs({"a": 1}).a.tag == "a"
