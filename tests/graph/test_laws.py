"""Laws that hold for every graph: with sharing, with cycles, with containers of all sorts."""

import collections
import copy
import pickle

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnxgraph as nnx
from tests.strategies import (
    CONTENTS,
    GRAPHS,
    NUMBER,
    RECIPES,
    Config,
    Pair,
    Record,
    below,
    build,
    follow,
    is_object,
    neighbour,
    reachable,
    same,
)

LAW = settings(max_examples=15)


def fresh(path, x):
    """A leaf of its own for `recursive_map`."""
    if isinstance(x, nnx.Variable):
        return nnx.clone(x)
    return copy.deepcopy(x) if isinstance(x, Config) else x


COPIES = {
    "merge": lambda g: nnx.merge(*nnx.split(g)),
    "merge with arrays": lambda g: nnx.merge(*nnx.split(g), copy=True),
    "clone": nnx.clone,
    "clone with arrays": lambda g: nnx.clone(g, arrays=True),
    "deepcopy": copy.deepcopy,
    "recursive_map": lambda g: nnx.recursive_map(fresh, g),
    "pickle": lambda g: pickle.loads(pickle.dumps(g)),
    "cloudpickle": lambda g: cloudpickle.loads(cloudpickle.dumps(g)),
    "pickle of the parts": lambda g: nnx.merge(*pickle.loads(pickle.dumps(nnx.split(g)))),
    "deepcopy of the parts": lambda g: nnx.merge(*copy.deepcopy(nnx.split(g))),
    "tree.map": lambda g: jax.tree.map(lambda x: x, g),
    "tree.flatten": lambda g: jax.tree.unflatten(*jax.tree.flatten(g)[::-1]),
}


@pytest.mark.parametrize("way", COPIES)
@LAW
@given(graph=GRAPHS)
def test_copy_is_isomorphic_and_shares_nothing(way, graph):
    twin = COPIES[way](graph)
    assert same(graph, twin)
    assert not reachable(graph, values=True).keys() & reachable(twin, values=True).keys()
    assert nnx.graphdef(twin) is nnx.graphdef(graph)


@LAW
@given(recipe=RECIPES)
def test_graphs_built_alike_have_one_graphdef(recipe):
    assert nnx.graphdef(build(recipe)) is nnx.graphdef(build(recipe))


@LAW
@given(recipe=RECIPES, number=NUMBER, contents=CONTENTS)
def test_graphdefs_are_the_same_exactly_where_the_structures_are(recipe, number, contents):
    graph, other = build(recipe), build(neighbour(recipe, number, contents))
    alike = same(graph, other, values=False)
    assert (nnx.graphdef(graph) is nnx.graphdef(other)) == alike
    assert (nnx.graphdef(graph) == nnx.graphdef(other)) == alike


@LAW
@given(recipe=RECIPES)
def test_update_of_a_changed_clone_with_the_state_gives_the_graph_back(recipe):
    graph = build(recipe, concrete=True)
    twin = nnx.clone(graph)
    for variable in (x for x in reachable(twin).values() if isinstance(x, nnx.Variable)):
        variable.set_value(jax.tree.map(lambda a: a[::-1] if a.ndim else a, variable.get_value()))
    nnx.update(twin, nnx.state(graph))
    assert same(graph, twin)


@LAW
@given(graph=GRAPHS)
def test_update_keeps_objects_lists_and_dicts(graph):
    before = [i for i, x in reachable(graph).items() if not isinstance(x, Record | collections.OrderedDict)]
    nnx.update(graph, nnx.state(graph))
    assert all(i in reachable(graph) for i in before)


@LAW
@given(graph=GRAPHS)
def test_states_by_filter_merge_in_any_order(graph):
    graphdef, *states = nnx.split(graph, nnx.Param, (nnx.BatchStat, nnx.Intermediate), nnx.Variable, ...)
    assert same(graph, nnx.merge(graphdef, *states[::-1]))


FILTERS = st.recursive(
    st.sampled_from(
        [
            *(nnx.Param, nnx.BatchStat, nnx.Variable, jax.Array, "frozen", False, None),
            *(nnx.PathContains("a"), nnx.PathContains("a", exact=False), nnx.PathIn(("a",), ("b", 0))),
            lambda path, x: len(path) > 1,
        ]
    ),
    lambda below: st.one_of(
        st.lists(below, max_size=2).map(tuple),
        st.lists(below, max_size=2),
        below.map(nnx.Not),
        st.lists(below, max_size=2).map(lambda fs: nnx.All(*fs)),
        st.lists(below, max_size=2).map(lambda fs: nnx.Any(*fs)),
    ),
    max_leaves=3,
)


@LAW
@given(graph=GRAPHS, filters=st.lists(FILTERS, max_size=3), random=st.randoms(use_true_random=False))
def test_states_by_any_exhaustive_filters_merge_in_any_order(graph, filters, random):
    graphdef, *states = nnx.split(graph, *filters, ...)
    assert sum(len(nnx.to_flat_state(s)) for s in states) == len(nnx.to_flat_state(nnx.state(graph)))
    random.shuffle(states)
    assert same(graph, nnx.merge(graphdef, *states))


@LAW
@given(recipe=RECIPES)
def test_state_after_update_is_the_state_that_was_given(recipe):
    graph = build(recipe, concrete=True)
    given_state = jax.tree.map(lambda a: a[::-1] if getattr(a, "ndim", 0) else a, nnx.state(graph))
    nnx.update(graph, given_state)
    assert nnx.state(graph) == given_state


@LAW
@given(recipe=RECIPES, arrays=st.booleans())
def test_clone_shares_buffers_unless_arrays_are_asked_for(recipe, arrays):
    graph = build(recipe, concrete=True)
    twin = nnx.clone(graph, arrays=arrays)
    pairs = zip(buffers(graph), buffers(twin), strict=True)
    assert all((x is y) != arrays for x, y in pairs)


def buffers(graph):
    """The arrays of a graph."""
    return [x for x in jax.tree.leaves(nnx.state(graph)) if isinstance(x, jax.Array | np.ndarray)]


@LAW
@given(graph=GRAPHS)
def test_merge_from_pure_dicts_gives_the_graph_back(graph):
    graphdef, state = nnx.split(graph)
    assert same(graph, nnx.merge(graphdef, nnx.to_pure_dict(state)))


@LAW
@given(graph=GRAPHS)
def test_merge_can_keep_the_variables_of_the_state(graph):
    graphdef, state = nnx.split(graph)
    twin = nnx.merge(graphdef, state, recreate_variables=False)
    assert same(graph, twin)
    given = {id(leaf) for _, leaf in nnx.to_flat_state(state)}
    assert all(id(x) in given for x in reachable(twin).values() if isinstance(x, nnx.Variable))


@LAW
@given(graph=GRAPHS)
def test_clone_can_keep_the_variables(graph):
    twin = nnx.clone(graph, variables=False)
    assert same(graph, twin)
    shared = (reachable(graph).keys() & reachable(twin).keys()) - {id(graph)}
    assert shared == {id(x) for x in reachable(graph).values() if isinstance(x, nnx.Variable)}


@LAW
@given(graph=GRAPHS)
def test_variables_are_live_where_state_is_not(graph):
    live = nnx.to_flat_state(nnx.variables(graph))
    taken = nnx.to_flat_state(nnx.state(graph))
    assert live.paths == taken.paths
    for path, leaf in live:
        assert follow(graph, path) is leaf
    assert not any(a is b for a, b in zip(live.leaves, taken.leaves, strict=True) if is_object(a))


@LAW
@given(graph=GRAPHS)
def test_state_holds_each_variable_once(graph):
    held = [leaf for _, leaf in nnx.to_flat_state(nnx.variables(graph)) if is_object(leaf)]
    expected = [x for x in reachable(graph).values() if isinstance(x, nnx.Variable)]
    assert sorted(map(id, held)) == sorted(map(id, expected))


@LAW
@given(graph=GRAPHS)
def test_a_state_shares_no_container_with_the_graph(graph):
    taken = [leaf.get_raw_value() for _, leaf in nnx.to_flat_state(nnx.state(graph)) if is_object(leaf)]
    ours = reachable(taken).keys() - {id(taken)}
    assert not ours & reachable(graph, values=True).keys()


@LAW
@given(recipe=RECIPES)
def test_update_shares_no_container_with_the_state(recipe):
    graph = build(recipe, concrete=True)
    state = nnx.state(graph)
    nnx.update(graph, state)
    given_values = [leaf.get_raw_value() for _, leaf in nnx.to_flat_state(state) if is_object(leaf)]
    ours = reachable(given_values).keys() - {id(given_values)}
    assert not ours & reachable(graph, values=True).keys()


@LAW
@given(graph=GRAPHS)
def test_state_is_a_pytree_that_comes_back(graph):
    state = nnx.state(graph)
    mapped = jax.tree.map(lambda x: x, state)
    assert mapped == state
    assert nnx.graphdef(nnx.merge(nnx.graphdef(graph), mapped)) is nnx.graphdef(graph)


@LAW
@given(graph=GRAPHS)
def test_iter_graph_gives_each_object_once_after_its_children(graph):
    met = list(nnx.iter_graph(graph))
    objects = [id(x) for _, x in met if is_object(x)]
    expected = {i for i, x in reachable(graph).items() if is_object(x)}
    assert len(objects) == len(set(objects))
    assert set(objects) == expected
    places = [path for path, _ in met]
    assert places[-1] == ()
    assert all(places.index(p[:-1]) > i for i, p in enumerate(places) if p)
    assert all(follow(graph, path) is x for path, x in met)


def first_paths(x, path=(), found=None):
    """The path by which a walk in depth, in order of the attributes, first comes to each object."""
    found = {} if found is None else found
    if is_object(x):
        if id(x) in found:
            return found
        found[id(x)] = path
    if not isinstance(x, nnx.Variable | Config):
        for key, child in below(x):
            first_paths(child, (*path, key), found)
    return found


@LAW
@given(graph=GRAPHS)
def test_iter_graph_gives_the_first_path_of_each_object(graph):
    assert {id(x): path for path, x in nnx.iter_graph(graph) if is_object(x)} == first_paths(graph)


@LAW
@given(graph=GRAPHS)
def test_a_graphdef_knows_the_first_paths_too(graph):
    first = first_paths(graph)
    live = nnx.to_flat_state(nnx.variables(graph))
    assert all(first[id(x)] == path for path, x in live if is_object(x))


def paths_by_brute_force(graph):
    """All paths of each object: the first path of whatever holds it, and the way from there."""
    first = {id(x): path for path, x in nnx.iter_graph(graph) if is_object(x)}
    places = {id(graph): [()]}

    def enter(x, path):
        for key, child in below(x):
            here = (*path, key)
            if is_object(child):
                places.setdefault(id(child), []).append(here)
            elif not isinstance(child, Config):
                enter(child, here)

    for i, x in reachable(graph).items():
        if isinstance(x, nnx.Pytree):
            enter(x, first[i])
    return {frozenset(paths) for paths in places.values() if len(paths) > 1}


@LAW
@given(graph=GRAPHS)
def test_find_duplicates_agrees_with_brute_force(graph):
    assert {frozenset(paths) for paths in nnx.find_duplicates(graph)} == paths_by_brute_force(graph)


@LAW
@given(recipe=RECIPES)
def test_pop_takes_out_the_kind_and_nothing_else(recipe):
    graph = build(recipe)
    fixed = [c for c in everything(graph) if isinstance(c, Pair | Record | dict) and type(c) is not dict]
    if any(isinstance(child, nnx.Intermediate) for c in fixed for _, child in below(c)):
        return
    kept = {i for i, x in reachable(graph).items() if isinstance(x, nnx.Variable)}
    kept -= {i for i, x in reachable(graph).items() if isinstance(x, nnx.Intermediate)}
    expected = nnx.state(graph, nnx.Intermediate)
    assert nnx.pop(graph, nnx.Intermediate) == expected
    assert {i for i, x in reachable(graph).items() if isinstance(x, nnx.Variable)} == kept


def everything(graph):
    """Every value of a graph."""
    return [x for _, x in nnx.iter_graph(graph)]


@LAW
@given(recipe=RECIPES)
def test_raw_jit_gives_the_graph_back(recipe):
    graph = jax.tree.map(jnp.asarray, build(recipe, concrete=True))  # numbers marked as data become arrays
    assert same(graph, jax.jit(lambda g: g)(graph))
