"""unpack and GraphState, map, pure, GraphDef.apply and set_metadata."""

import pickle

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings

import nnxgraph as nnx
from nnxgraph import errors
from tests.strategies import GRAPHS, reachable, same

LAW = settings(max_examples=15)


class Net(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2), tag="kept")
        self.twin = self.w
        self.n = nnx.BatchStat(jnp.zeros(3))
        self.table = jnp.arange(3.0)

    def __call__(self, x):
        self.n += 1
        return self.w * x

    def double(self, x):
        return 2 * x


@LAW
@given(graph=GRAPHS)
def test_merge_of_unpack_is_isomorphic(graph):
    assert same(graph, nnx.merge(nnx.unpack(graph)))


@LAW
@given(graph=GRAPHS)
def test_unpack_with_filters_merges_with_the_rest(graph):
    packed, stats, rest = nnx.unpack(graph, nnx.Param, nnx.BatchStat, ...)
    assert same(graph, nnx.merge(packed, rest, stats))


def test_unpack_refuses_filters_that_leave_something_out():
    with pytest.raises(errors.NonExhaustiveError, match=r"unpack: the filters leave out:\n  - \.n"):
        nnx.unpack(Net(), nnx.Param)


def test_a_graph_state_is_a_mapping_over_its_state():
    packed = nnx.unpack(Net())
    assert list(packed) == ["w", "n", "table"]
    assert len(packed) == 3
    packed["table"] = jnp.zeros(3)
    del packed["n"]
    assert packed.state.table.tolist() == [0.0, 0.0, 0.0]
    assert "n" not in packed


def test_a_graph_state_is_a_pytree_that_crosses_jit():
    packed = nnx.unpack(Net())
    out = jax.jit(lambda p: jax.tree.map(lambda x: x + 1, p))(packed)
    assert out.graphdef is packed.graphdef
    twin = nnx.merge(out)
    assert twin.w is twin.twin
    assert twin.w[...].tolist() == [2.0, 2.0]


def test_a_graph_state_compares_and_pickles():
    packed = nnx.unpack(Net())
    assert pickle.loads(pickle.dumps(packed)) == packed
    assert packed != nnx.unpack(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    assert packed != 3


@LAW
@given(graph=GRAPHS)
def test_map_with_the_identity_is_a_clone(graph):
    twin = nnx.map(lambda path, x: x, graph)
    assert same(graph, twin)
    assert not reachable(graph).keys() & reachable(twin).keys()


def test_map_is_called_once_a_variable_with_its_first_path():
    seen = []
    nnx.map(lambda path, x: (seen.append(path), x)[1], Net())
    assert seen == [("w",), ("n",), ("table",)]


def test_map_takes_variables_and_values():
    model = Net()

    def f(path, x):
        return x.replace(x[...] + 1) if path == ("w",) else jax.tree.map(lambda a: a * 2, x)

    twin = nnx.map(f, model)
    assert twin.w is twin.twin
    assert twin.w.tag == "kept"
    assert twin.w[...].tolist() == [2.0, 2.0]
    assert twin.table.tolist() == [0.0, 2.0, 4.0]
    assert model.w[...].tolist() == [1.0, 1.0]


def test_map_can_put_in_the_variables_that_the_function_returns():
    made = []
    twin = nnx.map(lambda path, x: (made.append(x), x)[1], Net(), recreate_variables=False)
    assert twin.w is made[0]


@pytest.mark.parametrize("pure", [nnx.pure, nnx.as_pure])
def test_pure_leaves_raw_values(pure):
    model = Net()
    state = pure(nnx.state(model))
    assert isinstance(state, nnx.State)
    assert state.w is model.w[...]
    bare = pure(model)
    assert type(bare) is Net
    assert bare.w is bare.twin
    assert bare.w is model.w[...]
    assert isinstance(model.w, nnx.Param)
    assert pure([nnx.Param(1), "a"]) == [1, "a"]


def test_apply_calls_a_graph_that_is_given_in_parts():
    graphdef, params, rest = nnx.split(Net(), nnx.Param, ...)
    y, (after, state) = graphdef.apply(params, rest)(jnp.ones(2))
    assert y.tolist() == [1.0, 1.0]
    assert after is graphdef
    assert state.n[...].tolist() == [1.0, 1.0, 1.0]
    assert graphdef.apply(params, rest).double(3)[0] == 6


def test_apply_can_refuse_shared_variables():
    graphdef, state = nnx.split(Net())
    with pytest.raises(errors.SharedVariableError):
        graphdef.apply(state, graph=False)(jnp.ones(2))


def test_set_metadata_reaches_the_variables_that_match():
    model = Net()
    nnx.set_metadata(model, decay=0.1)
    assert model.w.decay == 0.1
    assert model.n.decay == 0.1
    nnx.set_metadata(model, only=nnx.Param, decay=0.2, frozen=True)
    assert model.w.frozen
    assert model.n.decay == 0.1


def test_update_takes_any_path_of_a_shared_variable():
    model = Net()
    nnx.update(model, {"twin": jnp.zeros(2)})
    assert model.w[...].tolist() == [0.0, 0.0]


def test_update_takes_any_path_through_a_shared_object():
    shared = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    model = nnx.Dict(a=shared, b=[shared])
    nnx.update(model, {"b": {"0": {"bias": jnp.ones(3)}}})
    assert shared.bias[...].tolist() == [1.0, 1.0, 1.0]


def test_update_names_the_path_that_was_given():
    with pytest.raises(errors.StateMismatchError, match=r"\.twin is float32\[2\], found float32\[5\]"):
        nnx.update(Net(), {"twin": jnp.ones(5)})
