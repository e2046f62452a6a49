"""split, merge, update, clone, pop and their kin, case by case."""

import copy
import dataclasses
import pickle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import (
    FixedContainerError,
    MissingFilterError,
    NonExhaustiveError,
    NotANodeError,
    StateMismatchError,
)


class Pair(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    x: Any


class Box(nnx.Module):
    """Holds what it is given."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


class Kind(nnx.Variable):
    """A kind without slots, as users declare them."""


def f32(*shape):
    return jnp.ones(shape, jnp.float32)


def net():
    """A module with all sorts of leaves, in all sorts of places."""
    w = nnx.Param(f32(2, 3))
    return Box(
        layers=[Box(w=w, n=nnx.BatchStat(f32(3))), Box(w=nnx.Param(f32(3)), act=nnx.relu)],
        tied=(w,),
        table=np.arange(3),
        tables={"a": [jnp.arange(2), "text"], 1: Record(f32(1)), "p": Pair(f32(1), None)},
        key=jax.random.key(0),
        memory=nnx.Cache({"k": f32(1), "v": [f32(2)]}),
    )


PATHS = (
    ("layers", 0, "w"), ("layers", 0, "n"), ("layers", 1, "w"), ("table",), ("tables", "a", 0),
    ("tables", 1, "x"), ("tables", "p", "x"), ("key",), ("memory",),
)  # fmt: skip


# What may be taken apart.


def test_each_leaf_stands_at_its_first_path():
    assert nnx.to_flat_state(nnx.state(net())).paths == PATHS


@pytest.mark.parametrize(
    ("root", "paths"),
    [
        ([nnx.Param(1)], [(0,)]),
        ({"a": (nnx.Param(1),), 2: None}, [("a", 0)]),
        (Pair(nnx.Param(1), Box(w=nnx.Param(2))), [("x",), ("y", "w")]),
        ([1, 2.0, True, np.float32(3)], [(0,), (1,), (2,), (3,)]),
        ([], []),
        (nnx.State({"a": {"b": nnx.Param(1)}}), [("a", "b")]),
        (nnx.List([nnx.Param(1)]), [(0,)]),
    ],
    ids=str,
)
def test_containers_of_objects_are_taken_apart(root, paths):
    graphdef, state = nnx.split(root)
    assert list(nnx.to_flat_state(state).paths) == paths
    twin = nnx.merge(graphdef, state)
    assert type(twin) is type(root)
    assert nnx.graphdef(twin) is graphdef


@pytest.mark.parametrize("act", [nnx.split, nnx.state, nnx.variables, nnx.graphdef, nnx.clone])
@pytest.mark.parametrize("root", [None, "text", nnx.relu, object()])
def test_what_holds_nothing_is_refused(act, root):
    with pytest.raises(NotANodeError, match="Expected a Module"):
        act(root)


def test_single_variable_is_split_into_itself():
    v = nnx.Param(f32(2), tag="a")
    graphdef, leaf = nnx.split(v)
    assert type(leaf) is nnx.Param
    assert leaf is not v
    assert nnx.variables(v) is v
    twin = nnx.merge(graphdef, leaf)
    assert (twin.tag, twin is v, twin is leaf) == ("a", False, False)
    assert nnx.merge(graphdef, f32(3)).shape == (3,)


def test_filters_apply_to_a_single_variable():
    v = nnx.Param(f32(2))
    graphdef, stats, params = nnx.split(v, nnx.BatchStat, nnx.Param)
    assert not len(stats)
    assert nnx.merge(graphdef, stats, params)[...] is v[...]
    assert nnx.state(v, nnx.BatchStat) == nnx.State({})
    with pytest.raises(NonExhaustiveError):
        nnx.split(v, nnx.BatchStat)


def test_deep_graphs_need_no_recursion():
    node = None
    for i in range(1000):
        node = Box(next=node, w=nnx.Param(i))
    graphdef = nnx.graphdef(node)
    twin = nnx.clone(node)
    assert nnx.graphdef(twin) is graphdef
    assert sum(1 for _, x in nnx.iter_graph(twin) if isinstance(x, nnx.Param)) == 1000
    assert nnx.find_duplicates(node) == []
    assert nnx.recursive_map(lambda path, x: x, node).w[...] == 999


def test_deep_states_come_back():
    node = None
    for i in range(500):
        node = Box(next=node, w=nnx.Param(i))
    graphdef, state = nnx.split(node)
    twin = nnx.merge(graphdef, jax.tree.map(lambda x: x + 1, state))
    assert (twin.w[...], twin.next.next.w[...]) == (500, 498)
    nnx.update(node, state)


def test_deep_modules_cross_raw_jax():
    node = None
    for _ in range(100):
        node = Box(next=node, w=nnx.Param(f32()))
    assert len(jax.tree.leaves(jax.jit(lambda m: m)(node))) == 100


# merge.


def test_later_states_win():
    graphdef, state = nnx.split(net())
    twin = nnx.merge(graphdef, state, {"layers": {0: {"n": f32(3) * 7}}})
    assert twin.layers[0].n[0] == 7.0
    assert type(twin.layers[0].n) is nnx.BatchStat


def test_string_and_integer_spellings_of_an_index_are_one():
    graphdef, state = nnx.split(net())
    pure = nnx.to_pure_dict(state)
    pure["layers"] = {str(k): v for k, v in pure["layers"].items()}
    assert nnx.graphdef(nnx.merge(graphdef, pure)) is graphdef


def test_missing_and_unknown_paths_are_all_reported():
    graphdef, state = nnx.split(net())
    del state["key"], state.layers[1]["w"]
    state["extra"] = {"a": 1}
    with pytest.raises(StateMismatchError) as error:
        nnx.merge(graphdef, state)
    text = str(error.value)
    assert all(
        part in text
        for part in (".key is missing", ".layers[1].w is missing", ".extra.a is not in the graph")
    )


def test_kind_and_metadata_of_the_state_win():
    graphdef, state = nnx.split(net())
    state.layers[0]["w"] = Kind(f32(5), tag="new")
    twin = nnx.merge(graphdef, state)
    assert type(twin.layers[0].w) is Kind
    assert twin.tied[0] is twin.layers[0].w
    assert twin.layers[0].w.tag == "new"
    assert nnx.graphdef(twin) is not graphdef
    assert type(nnx.merge(graphdef, nnx.state(net())).layers[0].w) is nnx.Param


def test_merge_shares_arrays_unless_they_are_copied():
    graphdef, state = nnx.split(net())
    assert nnx.merge(graphdef, state).layers[1].w[...] is state.layers[1].w[...]
    copied = nnx.merge(graphdef, state, copy=True)
    assert copied.layers[1].w[...] is not state.layers[1].w[...]
    assert copied.table is not state.table


def test_merge_around_the_variables_of_the_state():
    graphdef, state = nnx.split(net())
    twin = nnx.merge(graphdef, state, recreate_variables=False)
    assert twin.layers[0].w is twin.tied[0] is state.layers[0].w
    assert twin.table is state.table
    assert nnx.graphdef(twin) is graphdef


def test_graphdef_and_state_may_be_traced():
    @jax.jit
    def double(graphdef, state):
        model = nnx.merge(graphdef, state)
        model.layers[0].w *= 2
        return nnx.split(model)

    twin = nnx.merge(*double(*nnx.split(net())))
    assert twin.tied[0][0, 0] == 2.0


# update.


def test_update_writes_into_the_variables_there_are():
    model = net()
    w = model.layers[0].w
    nnx.update(model, {"layers": {0: {"w": f32(2, 3) * 3}}})
    assert model.tied[0] is w
    assert w[0, 0] == 3.0


def test_update_replaces_plain_arrays_where_they_stand():
    model = net()
    tables, row = model.tables, model.tables["a"]
    nnx.update(
        model, {"table": np.arange(3) * 2, "tables": {"a": {0: jnp.arange(2) * 5}, 1: {"x": f32(1) * 4}}}
    )
    assert model.table.tolist() == [0, 2, 4]
    assert (row[0].tolist(), row[1]) == ([0, 5], "text")
    assert model.tables is tables
    assert float(model.tables[1].x[0]) == 4.0


def test_update_of_arrays_in_plain_lists_and_dicts():
    root = [f32(1), {"a": (f32(1), "x")}]
    inner = root[1]
    nnx.update(root, {0: f32(1) * 2, 1: {"a": {0: f32(1) * 3}}})
    assert (float(root[0][0]), float(inner["a"][0][0])) == (2.0, 3.0)
    with pytest.raises(StateMismatchError, match=r"\[0\] is a plain array outside of any object"):
        nnx.update((f32(1),), {0: f32(1)})


def test_update_takes_dicts_as_the_values_of_variables_that_hold_dicts():
    model = net()
    nnx.update(model, {"memory": {"k": f32(1) * 9, "v": [f32(2)]}})
    assert model.memory["k"][0] == 9.0
    nnx.update(model, nnx.to_pure_dict(nnx.state(net())))
    assert model.memory["k"][0] == 1.0


def test_update_reports_every_mismatch_and_changes_nothing():
    model = net()
    before = nnx.state(model)
    bad = {
        "layers": {0: {"w": f32(2, 3) * 5, "n": nnx.Param(f32(3))}, 1: {"w": f32(4)}},
        "table": None,
        "key": f32(),
        "missing": {"x": 1},
        "tables": {"a": {0: [1, 2]}},
    }
    with pytest.raises(StateMismatchError) as error:
        nnx.update(model, bad)
    assert str(error.value).splitlines()[1:-1] == [
        "  - .layers[0].n is a BatchStat, found a Param",
        "  - .layers[1].w is float32[3], found float32[4]",
        "  - .table is int64[3], found None",
        "  - .key is key<fry>[], found float32[]",
        "  - .missing.x is not in the object",
        "  - .tables.a[0] is int32[2], found a list with 2 entries",
    ]
    assert nnx.state(model) == before


def test_update_that_is_not_strict_takes_other_shapes_and_skips_unknown_paths():
    model = net()
    nnx.update(model, {"layers": {1: {"w": f32(4)}}, "missing": 1}, strict=False)
    assert model.layers[1].w.shape == (4,)
    assert not hasattr(model, "missing")


def test_update_takes_metadata_over():
    model = net()
    nnx.update(model, {"layers": {1: {"w": nnx.Param(f32(3), tag="frozen")}}})
    assert model.layers[1].w.tag == "frozen"


def test_update_with_several_states_takes_the_later():
    model = net()
    nnx.update(model, nnx.State({"table": np.zeros(3)}), nnx.State({"table": np.ones(3)}))
    assert model.table.tolist() == [1.0, 1.0, 1.0]


# clone.


def test_clone_shares_nothing_but_the_arrays():
    model = net()
    twin = nnx.clone(model)
    assert twin.layers[0].w is twin.tied[0] is not model.tied[0]
    assert twin.layers[0].w[...] is model.layers[0].w[...]
    assert nnx.clone(model, arrays=True).layers[0].w[...] is not model.layers[0].w[...]


def test_clone_around_the_same_variables():
    model = net()
    twin = nnx.clone(model, variables=False)
    assert twin is not model
    assert twin.layers[0].w is model.layers[0].w
    assert (twin.table is model.table, twin.memory is model.memory) == (True, True)
    assert nnx.graphdef(twin) is nnx.graphdef(model)


# pop.


def test_pop_takes_out_of_attributes_lists_dicts_and_tuples():
    seen = nnx.Intermediate(f32(1))
    model = Box(
        a=seen,
        items=[seen, 1, nnx.Param(1), [seen]],
        table={"x": seen, "y": ({"z": nnx.Intermediate(2)}, seen, 3)},
        inner=Box(a=nnx.Intermediate(3)),
        more=nnx.List([nnx.Intermediate(4), nnx.Param(5)]),
        keyed=nnx.Dict({1: nnx.Intermediate(6), "b": 7}),
    )
    items, table = model.items, model.table
    state = nnx.pop(model, nnx.Intermediate)
    assert nnx.to_flat_state(state).paths == (
        ("a",), ("table", "y", 0, "z"), ("inner", "a"), ("more", 0), ("keyed", 1),
    )  # fmt: skip
    assert not hasattr(model, "a")
    assert [type(x) for x in items] == [int, nnx.Param, list]
    assert (items[2], table) == ([], {"y": ({}, 3)})
    assert not vars(model.inner)
    assert (model.more[0][...], dict(model.keyed)) == (5, {"b": 7})
    assert not nnx.state(model, nnx.Intermediate)


def test_pop_gives_a_state_for_each_filter():
    model = net()
    params, rest = nnx.pop(model, nnx.Param, nnx.Variable)
    assert nnx.to_flat_state(params).paths == (("layers", 0, "w"), ("layers", 1, "w"))
    assert nnx.to_flat_state(rest).paths == (("layers", 0, "n"), ("memory",))
    assert model.tied == ()


def test_pop_from_plain_containers_at_the_root():
    root = {"a": nnx.Intermediate(1), "b": [nnx.Intermediate(2), 3]}
    assert nnx.to_flat_state(nnx.pop(root, nnx.Intermediate)).paths == (("a",), ("b", 0))
    assert root == {"b": [3]}


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda v: Box(p=Pair(v, 1)), r"\.p\.x: it stands in a Pair"),
        (lambda v: Box(p=[Record(v)]), r"\.p\[0\]\.x: it stands in a Record"),
        (lambda v: (v, 1), r"\[0\]: it stands in a tuple"),
    ],
)
def test_pop_out_of_a_fixed_container_is_refused_and_changes_nothing(wrap, path):
    v = nnx.Intermediate(1)
    root = wrap(v)
    other = Box(v=v, root=root)
    with pytest.raises(FixedContainerError, match=path):
        nnx.pop([other, root] if isinstance(root, Box) else root, nnx.Intermediate)
    assert other.v is v


def test_pop_without_a_filter_is_refused():
    with pytest.raises(MissingFilterError, match="pop: found no filter"):
        nnx.pop(net())


# call.


def test_call_gives_the_result_and_the_new_state():
    class Counter(nnx.Module):
        def __init__(self):
            self.inner = {"n": [nnx.Variable(0)]}

        def __call__(self, x):
            self.inner["n"][0] += x
            return x

        def twice(self, x, *, by=2):
            return self(x * by)

    pair = nnx.split(Counter())
    y, pair = nnx.call(pair)(3)
    y2, pair = nnx.call(pair).twice(1, by=4)
    value, (graphdef, state) = nnx.call(pair).inner["n"][0].get_value()
    assert (y, y2, value) == (3, 4, 7)
    assert nnx.merge(graphdef, state).inner["n"][0][...] == 7


# GraphDef.


def test_graphdefs_are_interned_also_over_pickles():
    graphdef = nnx.graphdef(net())
    assert nnx.graphdef(net()) is graphdef
    assert pickle.loads(pickle.dumps(graphdef)) is graphdef
    assert copy.deepcopy(graphdef) is graphdef
    assert len({graphdef, nnx.graphdef(net())}) == 1


STRUCTURES = {
    "kind": lambda: Box(w=nnx.BatchStat(f32(1))),
    "metadata": lambda: Box(w=nnx.Param(f32(1), tag="a")),
    "name": lambda: Box(v=nnx.Param(f32(1))),
    "class": lambda: nnx.Dict(w=nnx.Param(f32(1))),
    "array": lambda: Box(w=f32(1)),
    "more": lambda: Box(w=nnx.Param(f32(1)), n=1),
    "static": lambda: Box(w=nnx.Param(f32(1)), n=True),
    "order": lambda: Box(n=1, w=nnx.Param(f32(1))),
    "mark": lambda: Box(w=nnx.Param(f32(1)), n=nnx.static(1)),
    "list": lambda: Box(w=[nnx.Param(f32(1))]),
    "tuple": lambda: Box(w=(nnx.Param(f32(1)),)),
    "dict": lambda: Box(w={0: nnx.Param(f32(1))}),
    "bool key": lambda: Box(w={False: nnx.Param(f32(1))}),
    "two": lambda: Box(w=nnx.Param(f32(1)), v=nnx.Param(f32(1))),
    "tied": lambda: (lambda w: Box(w=w, v=w))(nnx.Param(f32(1))),
    "base": lambda: Box(w=nnx.Param(f32(1))),
}


def test_structures_that_differ_have_other_graphdefs():
    graphs = {name: nnx.graphdef(make()) for name, make in STRUCTURES.items()}
    assert len(set(graphs.values())) == len(STRUCTURES)


def test_values_shapes_and_dtypes_are_no_part_of_a_graphdef():
    assert nnx.graphdef(Box(w=nnx.Param(f32(1)))) is nnx.graphdef(Box(w=nnx.Param(np.zeros((3, 3)))))


def test_attributes_added_late_do_not_renumber_what_came_before():
    model = net()
    before = nnx.to_flat_state(nnx.state(model)).paths
    model.extra = nnx.Param(f32(1))
    model.layers.append(Box(w=nnx.Param(f32(1))))
    after = nnx.to_flat_state(nnx.state(model)).paths
    assert [p for p in after if p in before] == list(before)
    assert list(nnx.state(model))[-1] == "extra"
