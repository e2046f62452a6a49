"""States: nested mappings of values, which belong to nobody else."""

import copy
import enum
import pickle

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import EntryNotFoundError, NonExhaustiveError, StateMismatchError


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Net(nnx.Module):
    def __init__(self):
        self.layers = [
            nnx.Dict(w=nnx.Param(jnp.ones((2, 2))), n=nnx.BatchStat(jnp.zeros(2))) for _ in range(2)
        ]
        self.table = jnp.arange(3)
        self.memory = nnx.Cache({"a": jnp.ones(1), "b": [jnp.ones(2)]})
        self.mode = "train"


def param(x=1.0):
    return nnx.Param(jnp.asarray(x, jnp.float32))


PATHS = (
    ("layers", 0, "w"),
    ("layers", 0, "n"),
    ("layers", 1, "w"),
    ("layers", 1, "n"),
    ("table",),
    ("memory",),
)


def test_state_has_a_leaf_for_each_variable_and_array_in_order():
    assert nnx.to_flat_state(nnx.state(Net())).paths == PATHS


def test_state_is_a_value():
    net = Net()
    best = nnx.state(net)
    net.layers[0].w[...] = 5.0
    net.table = net.table + 1
    assert float(best.layers[0].w[0, 0]) == 1.0
    assert best.table.tolist() == [0, 1, 2]


def test_change_of_a_state_does_not_reach_the_object():
    net = Net()
    state = nnx.state(net)
    state.layers[0].w[...] = 5.0
    state.layers[1] = {}
    assert float(net.layers[0].w[0, 0]) == 1.0


# Reading and writing entries.


def test_entries_are_keys_and_attributes():
    state = nnx.state(Net())
    assert state["layers"][0]["w"] is state.layers[0].w
    assert list(state) == ["layers", "table", "memory"]
    assert len(state) == 3
    assert "layers" in state
    assert "mode" not in state


@pytest.mark.parametrize(
    "write",
    [
        lambda s: setattr(s.a.b, "c", 2),
        lambda s: s["a"]["b"].__setitem__("c", 2),
        lambda s: s.a.__setitem__("b", {"c": 2, "d": 9}),
        lambda s: setattr(s, "a", nnx.State({"b": nnx.State({"c": 2, "d": 9})})),
        lambda s: s.a.b.update(c=2),
        lambda s: s.a.setdefault("b", {}).update({"c": 2}),
    ],
)
def test_nested_writes_reach_the_state(write):
    state = nnx.State({"a": {"b": {"c": 1, "d": 9}}})
    write(state)
    assert state.to_pure_dict() == {"a": {"b": {"c": 2, "d": 9}}}


def test_entries_are_deleted_and_popped():
    state = nnx.State({"a": {"b": 1, "c": 2}, "d": 3})
    del state.a.b
    assert state["a"].pop("c") == 2
    del state["d"]
    assert "b" not in state.a
    assert "d" not in state


def test_levels_that_are_put_in_are_copied_and_leaves_are_not():
    level, leaf = {"x": {"y": 1}}, param()
    state = nnx.State({"a": level, "v": leaf})
    level["x"]["y"] = 2
    assert state.a.x.y == 1
    assert state.v is leaf


@pytest.mark.parametrize("name", ["missing", "laers", "_private", "__wrapped__"])
def test_missing_entry_is_an_attribute_error(name):
    state = nnx.state(Net())
    assert not hasattr(state, name)
    with pytest.raises(EntryNotFoundError, match=f"State has no entry '{name}'"):
        getattr(state, name)


@pytest.mark.parametrize(
    "keys", [(1, "a"), (Colour.RED, Colour.BLUE), (("a", 1), (1, "a")), (None, 1.5, "x"), (True, "b")]
)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_keys_that_do_not_sort(keys, depth):
    level = {key: param(i) for i, key in enumerate(keys)}
    for _ in range(depth):
        level = {"z": level, "y": {}}
    state = nnx.State(level)
    mapped = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s))(state)
    for _ in range(depth):
        mapped = mapped.z
    assert list(mapped) == list(keys)
    assert [float(v[...]) for v in mapped.values()] == [float(i + 1) for i in range(len(keys))]


def test_paths_that_clash_are_refused():
    with pytest.raises(StateMismatchError, match=r"\.a\.b is both a leaf and a level"):
        nnx.from_flat_state([(("a",), 1), (("a", "b"), 2)])
    with pytest.raises(StateMismatchError, match=r"\.a is both a leaf and a level"):
        nnx.from_flat_state([(("a", "b"), 2), (("a",), 1)])
    with pytest.raises(StateMismatchError, match="empty path"):
        nnx.from_flat_state([((), 1)])


# As a pytree.


def test_key_paths_read_like_the_model():
    paths = [
        jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(nnx.state(Net(), nnx.Param))
    ]
    assert paths == ["['layers'][0]['w'].value", "['layers'][1]['w'].value"]


def test_state_crosses_jit_and_grad():
    state = nnx.state(Net(), nnx.Param)
    grads = jax.jit(jax.grad(lambda s: (s.layers[0].w[...] ** 2).sum()))(state)
    assert type(grads) is nnx.State
    assert grads.layers[0].w[...].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert type(grads.layers[1].w) is nnx.Param


def test_state_is_a_prefix():
    axes = nnx.State({"a": 0, "b": None})
    out = jax.vmap(lambda s: s.a + s.b, in_axes=(axes,))(nnx.State({"a": jnp.arange(3.0), "b": 1.0}))
    assert out.tolist() == [1.0, 2.0, 3.0]


# Equality.


def test_states_are_equal_by_contents():
    assert nnx.state(Net()) == nnx.state(Net())
    assert nnx.state(Net()) == jax.tree.map(np.asarray, nnx.state(Net()))
    assert nnx.State({"a": 1, "b": {"c": 2}}) == nnx.State({"b": {"c": 2}, "a": 1})
    assert nnx.State({"k": jax.random.key(0)}) == nnx.State({"k": jax.random.key(0)})
    assert nnx.State({"s": jax.ShapeDtypeStruct((2,), jnp.int32)}) == nnx.State(
        {"s": jax.ShapeDtypeStruct((2,), jnp.int32)}
    )


@pytest.mark.parametrize(
    "other",
    [
        {"a": param(2)},
        {"a": nnx.BatchStat(jnp.asarray(1.0))},
        {"a": nnx.Param(jnp.asarray(1.0), tag="x")},
        {"a": nnx.Param(jnp.ones(2))},
        {"a": nnx.Param(jnp.asarray(1, jnp.int32))},
        {"a": nnx.Param({"x": jnp.asarray(1.0)})},
        {"a": jnp.asarray(1.0)},
        {"a": 1.0},
        {"b": param()},
        {"a": param(), "b": 1},
        {},
    ],
    ids=str,
)
def test_states_differ_by_value_kind_metadata_shape_dtype_and_path(other):
    state = nnx.State({"a": param()})
    assert state != nnx.State(other)
    assert state != other


def test_states_are_not_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        hash(nnx.State({}))


# Copies and texts.


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda s: pickle.loads(pickle.dumps(s)),
        lambda s: cloudpickle.loads(cloudpickle.dumps(s)),
        nnx.State,
        lambda s: jax.tree.map(lambda x: x, s),
    ],
    ids=["copy", "deepcopy", "pickle", "cloudpickle", "State", "tree.map"],
)
def test_copy_is_equal_and_its_entries_are_its_own(copied):
    state = nnx.state(Net())
    twin = copied(state)
    assert type(twin) is nnx.State
    assert twin == state
    twin["table"] = 3
    assert state.table.shape == (3,)


# Splitting, merging, mapping.


def test_several_filters_give_as_many_states():
    params, stats = nnx.state(Net(), nnx.Param, nnx.BatchStat)
    assert nnx.to_flat_state(params).paths == PATHS[0:3:2]
    assert nnx.to_flat_state(stats).paths == PATHS[1:4:2]


def test_split_must_take_everything_and_names_only_paths_and_kinds():
    with pytest.raises(NonExhaustiveError) as error:
        nnx.State({"a": param(), "t": jnp.arange(1000)}).split(nnx.Param)
    assert str(error.value).splitlines()[1] == "  - .t: int32[1000]"
    assert [list(s) for s in nnx.State({"a": param(), "t": 1}).split(nnx.Param, ...)] == [["a"], ["t"]]
    assert list(nnx.State({"a": param(), "t": 1}).filter(nnx.Param)) == ["a"]


def test_merge_takes_the_later_leaf():
    merged = nnx.merge_state(nnx.State({"a": 1, "b": {"c": 2}}), nnx.State({"b": {"c": 3, "d": 4}}), {"e": 5})
    assert merged.to_pure_dict() == {"a": 1, "b": {"c": 3, "d": 4}, "e": 5}
    assert (nnx.State({"a": 1}) | nnx.State({"a": 2})).a == 2


def test_difference_removes_paths():
    state = nnx.state(Net())
    assert nnx.to_flat_state(state - nnx.state(Net(), nnx.Variable)).paths == (("table",),)


def test_map_gives_path_and_leaf():
    state = nnx.State({"a": {0: 1}, "b": 2})
    assert nnx.map_state(lambda path, x: (path, x), state).to_pure_dict() == {
        "a": {0: (("a", 0), 1)},
        "b": (("b",), 2),
    }


def test_states_of_a_class_of_ones_own():
    class Mine(nnx.State):
        pass

    assert type(nnx.from_flat_state([(("a",), 1)], cls=Mine)) is Mine
    assert type(nnx.merge_state({"a": 1}, cls=Mine)) is Mine


# Flat states.


def test_flat_state_is_a_sequence_of_pairs():
    flat = nnx.to_flat_state(nnx.State({"b": {1: 10}, "a": 20}))
    assert list(flat) == [(("b", 1), 10), (("a",), 20)]
    assert flat[0] == (("b", 1), 10)
    assert list(flat[1:]) == [(("a",), 20)]
    assert len(flat) == 2
    assert nnx.from_flat_state(flat).to_pure_dict() == {"b": {1: 10}, "a": 20}
    assert nnx.from_flat_state(dict(flat)) == flat.to_nested_state()


def test_flat_state_sorts_mixed_keys_if_asked():
    flat = nnx.FlatState([(("b",), 1), ((2,), 2), (("a",), 3), ((1,), 4)], sort=True)
    assert flat.paths == ((1,), (2,), ("a",), ("b",))


def test_flat_state_splits_filters_merges_and_is_a_pytree():
    flat = nnx.to_flat_state(nnx.state(Net()))
    params, rest = flat.split(nnx.Param, ...)
    assert params.paths == flat.filter(nnx.Param).paths == PATHS[0:3:2]
    assert set(nnx.FlatState.merge(params, rest).paths) == set(PATHS)
    doubled = jax.tree.map(lambda x: x * 2, params)
    assert doubled.paths == params.paths
    assert float(doubled.leaves[0][0, 0]) == 2.0


# Pure dicts.


def test_pure_dict_round_trip_with_values_that_are_dicts():
    state = nnx.state(Net())
    pure = nnx.to_pure_dict(state)
    assert type(pure["layers"][0]) is dict
    assert type(pure["memory"]["b"]) is list
    other = jax.tree.map(lambda x: x * 0, state)
    nnx.replace_by_pure_dict(other, pure)
    assert other == state


def test_pure_dict_holds_what_the_extractor_gives():
    assert nnx.to_pure_dict(nnx.State({"a": param(3), "b": 1}), lambda x: type(x).__name__) == {
        "a": "Param",
        "b": "int",
    }


def test_pure_dict_of_strings_addresses_integers():
    state = nnx.state(Net())
    nnx.replace_by_pure_dict(state, {"layers": {"1": {"w": 7}}})
    assert state.layers[1].w[...] == 7
    assert type(state.layers[1].w) is nnx.Param
    assert state.layers[0].w.shape == (2, 2)


def test_pure_dict_with_unknown_paths_changes_nothing():
    state = nnx.state(Net())
    with pytest.raises(StateMismatchError, match=r"\.layers\[2\]\.w is not in the state"):
        nnx.replace_by_pure_dict(state, {"table": 0, "layers": {2: {"w": 1}}})
    assert state == nnx.state(Net())


def test_functions_take_plain_dicts_and_change_them_in_place():
    plain = {"a": param(), "b": {"c": 1}}
    nnx.replace_by_pure_dict(plain, {"b": {"c": 2}}, lambda old, new: old + new)
    assert plain["b"]["c"] == 3
    assert [list(s) for s in nnx.split_state(plain, nnx.Param, ...)] == [["a"], ["b"]]


def test_int_paths_are_restored_where_the_text_is_a_number():
    pure = {"layers": {"0": 1, "10": 2, "-1": 3, "²": 4, "1a": 5, 7: 6}}
    assert nnx.restore_int_paths(pure) == {"layers": {0: 1, 10: 2, "-1": 3, "²": 4, "1a": 5, 7: 6}}


class Link(nnx.Module):
    def __init__(self, below):
        self.below, self.weight = below, nnx.Param(jnp.ones(()))


def test_a_chain_deeper_than_the_recursion_limit_is_a_graph_like_others():
    chain = None
    for _ in range(1500):
        chain = Link(chain)
    graphdef, state = nnx.split(chain)
    assert len(nnx.to_flat_state(state)) == 1500
    assert nnx.graphdef(nnx.merge(graphdef, nnx.State(state))) is graphdef
    nnx.update(chain, nnx.to_pure_dict(state))
    assert nnx.state(chain) == state
