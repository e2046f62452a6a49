"""flatten and unflatten with indices: an object inside finds the one outside that it stands for."""

import jax.numpy as jnp
import pytest
from hypothesis import given, settings

import nnxgraph as nnx
from nnxgraph import errors
from tests.strategies import GRAPHS, is_object, reachable, same

LAW = settings(max_examples=15)


class Net(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2))
        self.twin = self.w
        self.parts = [nnx.Linear(2, 3, rngs=nnx.Rngs(0))]
        self.table = jnp.arange(3.0)


@LAW
@given(graph=GRAPHS)
def test_unflatten_of_flatten_is_isomorphic(graph):
    assert same(graph, nnx.unflatten(*nnx.flatten(graph)))


@LAW
@given(graph=GRAPHS)
def test_leaves_without_paths_serve_as_well(graph):
    graphdef, leaves = nnx.flatten(graph, with_paths=False)
    assert isinstance(leaves, list)
    assert same(graph, nnx.unflatten(graphdef, leaves))


@LAW
@given(graph=GRAPHS)
def test_flatten_agrees_with_split(graph):
    graphdef, flat = nnx.flatten(graph)
    other, state = nnx.split(graph)
    assert graphdef is other
    assert flat.to_nested_state() == state


@LAW
@given(graph=GRAPHS)
def test_indices_number_every_object_and_lead_back(graph):
    ref_index, index_ref = {}, {}
    graphdef, flat = nnx.flatten(graph, ref_index=ref_index)
    twin = nnx.unflatten(graphdef, flat, index_ref=index_ref)
    assert {id(x) for x in ref_index} == {i for i, x in reachable(graph).items() if is_object(x)}
    assert sorted(ref_index.values()) == list(range(len(ref_index)))
    assert {id(x) for x in index_ref.values()} == {i for i, x in reachable(twin).items() if is_object(x)}
    assert all(type(index_ref[i]) is type(x) for x, i in ref_index.items())


@LAW
@given(graph=GRAPHS)
def test_unflatten_changes_the_objects_outside_in_place(graph):
    ref_index = {}
    nnx.flatten(graph, ref_index=ref_index)
    inside = nnx.clone(graph)
    index_inside = {}
    nnx.flatten(inside, ref_index=index_inside)
    graphdef, flat = nnx.flatten(inside, ref_outer_index=index_inside)
    outside = {i: x for x, i in ref_index.items()}
    assert nnx.unflatten(graphdef, flat, outer_index_outer_ref=outside) is graph
    assert same(graph, inside)


def test_a_second_graph_refers_to_objects_of_the_first():
    a = Net()
    b = {"again": a.parts[0], "new": nnx.Param(jnp.zeros(1))}
    ref_index, index_ref = {}, {}
    first = nnx.flatten(a, ref_index=ref_index)
    second = nnx.flatten(b, ref_index=ref_index)
    assert second[1].paths == (("new",),)
    a2 = nnx.unflatten(*first, index_ref=index_ref)
    b2 = nnx.unflatten(*second, index_ref=index_ref)
    assert b2["again"] is a2.parts[0]
    assert index_ref[ref_index[b["new"]]] is b2["new"]


def test_new_structure_reaches_the_object_outside():
    outer = Net()
    index = {}
    nnx.flatten(outer, ref_index=index)
    graphdef, flat = nnx.flatten(outer)
    index_ref = {}
    inner = nnx.unflatten(graphdef, flat, index_ref=index_ref)
    inner.w[...] = jnp.zeros(2)
    inner.w.set_metadata(tag="seen")
    inner.parts.append(nnx.Param(jnp.ones(1)))
    inner.mode = "new"
    del inner.table
    graphdef, flat = nnx.flatten(inner, ref_outer_index={x: i for i, x in index_ref.items()})
    w, parts = outer.w, outer.parts
    nnx.unflatten(graphdef, flat, outer_index_outer_ref={i: x for x, i in index.items()})
    assert outer.w is w
    assert outer.twin is w
    assert w[...].tolist() == [0.0, 0.0]
    assert w.tag == "seen"
    assert outer.parts is parts
    assert len(parts) == 2
    assert outer.mode == "new"
    assert not hasattr(outer, "table")


def test_outer_indices_of_a_graphdef():
    model = Net()
    graphdef, _ = nnx.flatten(model, ref_outer_index={model: 7})
    plain = nnx.graphdef(model)
    assert graphdef is not plain
    assert graphdef.outer is not None
    assert graphdef.outer[0] == 7
    assert graphdef.with_no_outer_index() is plain
    assert plain.with_same_outer_index().outer == tuple(range(len(plain.records)))
    assert plain.with_matching_outer_index(graphdef) is graphdef


def test_an_unknown_number_is_refused():
    a, index = Net(), {}
    nnx.flatten(a, ref_index=index)
    graphdef, flat = nnx.flatten([a.w], ref_index=index)
    with pytest.raises(errors.UnknownIndexError) as caught:
        nnx.unflatten(graphdef, flat)
    assert str(caught.value) == (
        "unflatten: the GraphDef refers to object 1 of another graph, and index_ref has 0 objects. Expected "
        "the objects of the graphs that were flattened before with the same ref_index. Write `index = {}`, "
        "then `nnx.unflatten(first, state, index_ref=index)` for each in order."
    )


def test_unflatten_can_take_over_the_variables_or_copy_the_arrays():
    graphdef, flat = nnx.flatten(Net())
    taken = nnx.unflatten(graphdef, flat, recreate_variables=False)
    assert taken.w is flat.leaves[0]
    copied = nnx.unflatten(graphdef, flat, copy_variables=True)
    assert copied.w[...].unsafe_buffer_pointer() != taken.w[...].unsafe_buffer_pointer()


def test_flatten_refuses_sharing_in_tree_mode():
    with pytest.raises(errors.SharedVariableError, match=r"flatten: found one object at \.w and at \.twin"):
        nnx.flatten(Net(), graph=False)


def test_unflatten_names_what_is_missing():
    graphdef, flat = nnx.flatten(Net())
    with pytest.raises(errors.StateMismatchError, match=r"unflatten: .*\n  - \.table is missing"):
        nnx.unflatten(graphdef, flat[:-1])
    with pytest.raises(errors.NotAGraphDefError, match="unflatten: the first argument is a FlatState"):
        nnx.unflatten(flat, graphdef)
