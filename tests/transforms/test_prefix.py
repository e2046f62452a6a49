"""prefix, and States and objects as prefixes, here and in raw JAX."""

import collections

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import nnxgraph as nnx
from nnxgraph.errors import PrefixError, SharedVariableError, UnmatchedFilterError
from tests.transforms.subjects import Cell, Empty, Tied, cells

XS = jnp.arange(3.0)
AXES = {nnx.Param: 0, ...: None}


def mixed():
    """Raw arrays, Variables, objects and static values, in attributes and in their containers."""
    return Empty(
        items=[XS, 1, None, Cell(XS, 5.0)],
        table={"b": XS * 2.0, "a": "static"},
        raw=XS * 3.0,
        tree=nnx.Param({"k": XS, "l": (XS,)}),
        count=2,
    )


def shared():
    return nnx.vmap(lambda x: Tied(), out_axes=0)(XS)


def total(x):
    """A sum over all that a lane has."""
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(x))


@pytest.mark.parametrize("lane", [0, None, "word", P("data")], ids=repr)
@pytest.mark.parametrize("make", [mixed, shared, cells, lambda: nnx.state(cells())], ids=range(4))
def test_prefix_has_the_structure_of_the_node(make, lane):
    node = make()
    prefix = nnx.prefix(node, {...: lane})
    assert type(prefix) is type(node)
    flat, treedef = jax.tree.flatten(prefix, is_leaf=lambda x: x is None)
    assert flat == [lane] * len(jax.tree.leaves(node))
    assert jax.tree.structure(jax.tree.map(lambda _: 0, node)) == jax.tree.structure(node)
    if lane is not None:
        assert treedef == jax.tree.structure(node)


@pytest.mark.parametrize("make", [mixed, shared, cells], ids=["mixed", "shared", "cells"])
@pytest.mark.parametrize(
    "prefix_of", [lambda m: nnx.prefix(m, {...: 0}), lambda m: jax.tree.map(lambda _: 0, m)]
)
def test_prefix_is_one_for_raw_jax_and_for_us(make, prefix_of):
    node = jax.tree.map(lambda x: jnp.broadcast_to(x, (3, *x.shape[x.ndim :])) if not x.ndim else x, make())
    axes = prefix_of(node)
    ours = nnx.vmap(total, in_axes=(axes,))(node)
    assert jnp.array_equal(ours, jax.vmap(total, in_axes=(axes,))(node))
    assert jnp.array_equal(ours, jax.vmap(total)(node))


def test_first_filter_that_matches_gives_the_lane_of_each_leaf():
    axes = nnx.prefix(mixed(), {nnx.PathContains("tree"): 7, nnx.Param: 0, nnx.Variable: None, ...: 1})
    assert axes.items[:3] == [1, 1, None]
    assert axes.items[3].w.get_raw_value() == 0
    assert axes.items[3].n.get_raw_value() is None
    assert axes.table == {"b": 1, "a": "static"}
    assert axes.raw == 1
    assert axes.tree.get_raw_value() == {"k": 7, "l": (7,)}
    assert axes.count == 2


def as_prefix(node):
    return nnx.prefix(node, AXES)


def as_state_prefix(node):
    return nnx.prefix(nnx.state(node), AXES)


def as_pure_dict_state(node):
    return nnx.State({"w": 0, "n": None})


@pytest.mark.parametrize("prefix_of", [as_prefix, as_state_prefix, as_pure_dict_state])
@pytest.mark.parametrize("node_of", [lambda c: c, nnx.state], ids=["object", "state"])
def test_state_or_object_is_a_prefix_for_an_object_or_a_state(prefix_of, node_of):
    stack = cells()
    stack.n.set_value(jnp.float32(5.0))
    node = node_of(stack)

    def f(c, x):
        assert c["n"].shape == () if isinstance(c, nnx.State) else c.n.shape == ()
        return (c["w"] if isinstance(c, nnx.State) else c.w)[...] * x

    out = nnx.vmap(f, in_axes=(prefix_of(stack), 0))(node, XS)
    assert out.tolist() == [0.0, 1.0, 4.0]


def test_prefix_for_results():
    axes = nnx.State({"w": 0, "n": None})
    made, tree = nnx.vmap(lambda x: (Cell(x, 5.0), {"a": x}), out_axes=(axes, {"a": 0}))(XS)
    assert (made.w[...].tolist(), float(made.n[...])) == (XS.tolist(), 5.0)
    assert tree["a"].tolist() == XS.tolist()


def test_prefix_may_stop_above_the_leaves_and_stand_in_a_container():
    holder = Empty(one=cells(), two=cells())
    axes = nnx.State({"one": 0, "two": {"w": 0, "n": 0}})
    out = nnx.vmap(lambda pair: pair["h"].one.w[...] + pair["h"].two.w[...], in_axes=({"h": axes},))(
        {"h": holder}
    )
    assert out.tolist() == [0.0, 2.0, 4.0]


def test_filters_in_a_container_see_paths_from_where_they_stand():
    axes = nnx.StateAxes({lambda path, x: path == ("w",): 0, ...: None})
    stack = cells()
    stack.n.set_value(jnp.float32(5.0))
    out = nnx.vmap(lambda pair: pair[0].w[...] + pair[0].n[...], in_axes=((axes, None),))((stack, 1.0))
    assert out.tolist() == [5.0, 6.0, 7.0]


def test_variable_and_other_pytrees_are_prefixes():
    pair = collections.namedtuple("pair", "a b")
    v = nnx.Param(XS)
    out = nnx.vmap(lambda v, p: v[...] + p.a + p.b, in_axes=(nnx.Param(0), pair(0, None)))(v, pair(XS, 1.0))
    assert out.tolist() == [1.0, 3.0, 5.0]


def test_shared_variables_are_found_at_each_of_their_paths():
    tied = shared()
    axes = nnx.prefix(tied, {...: 0})
    assert axes.a is axes.b
    out = nnx.vmap(lambda t: t.a[...] + t.b[...], in_axes=(axes,))(tied)
    assert out.tolist() == [6.0] * 3


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_prefix_of_specs_for_shard_map(kind):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    cell = Cell(1.0, jnp.zeros(8))
    specs = nnx.prefix(cell, {nnx.Param: P(), ...: P("data")})

    def f(cell, x):
        cell.n[...] += cell.w[...] * x
        return jax.lax.psum(x, "data")

    nnx.shard_map(f, mesh=mesh, in_specs=(specs, P("data")), out_specs=P())(cell, jnp.arange(8.0))
    assert cell.n[...].tolist() == list(range(8))


def test_prefix_of_shardings_for_raw_jit():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    split = NamedSharding(mesh, P("data"))
    shardings = nnx.prefix(model, {...: split})
    out = jax.jit(lambda m: m, in_shardings=(shardings,), out_shardings=shardings)(model)
    assert out.kernel[...].sharding.is_equivalent_to(split, 2)


@pytest.mark.parametrize(
    "prefix_of",
    [lambda m, s: nnx.prefix(m, {...: s}), lambda m, s: jax.tree.map(lambda _: s, nnx.state(m))],
    ids=["object", "state"],
)
def test_prefix_of_shardings_for_jit(prefix_of):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    model, split = nnx.Linear(8, 8, rngs=nnx.Rngs(0)), NamedSharding(mesh, P("data"))

    def f(model):
        model.kernel[...] *= 2.0
        return nnx.state(model)

    shardings = prefix_of(model, split)
    out = nnx.jit(f, in_shardings=(shardings,), out_shardings=prefix_of(nnx.state(model), split))(model)
    assert model.kernel[...].sharding.is_equivalent_to(split, 2)
    assert out["bias"][...].sharding.is_equivalent_to(split, 1)
    with pytest.raises(PrefixError, match=r"in_shardings .* does not fit model\.bias: found"):
        nnx.jit(f, in_shardings=(nnx.State({"kernel": split}),))(model)


def test_attribute_of_a_prefix_that_is_set_again_is_static_as_ever():
    axes = jax.tree.map(lambda _: 0, Empty(raw=XS))
    axes.raw = 3
    assert jax.tree.leaves(axes) == []


def test_filter_that_is_missing_is_explained():
    with pytest.raises(UnmatchedFilterError) as caught:
        nnx.prefix(Cell(), {nnx.Param: 0})
    assert str(caught.value) == (
        "nnx.prefix: no filter matches Variable(float32[]) at n. Expected filters for every Variable. Write "
        "`...: None` as the last entry to take the rest."
    )


def test_shared_variables_are_refused_without_a_graph():
    with pytest.raises(SharedVariableError, match=r"nnx\.prefix: found one object at"):
        nnx.prefix(Tied(), {...: 0}, graph=False)


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        (
            nnx.State({"w": 0}),
            "nnx.vmap: in_axes does not fit cell.n: found a State with the paths w, expected an entry for "
            "this path.",
        ),
        (
            nnx.State({"w": 0, "n": {"deep": 0}}),
            "in_axes does not fit cell.n: found a State with the paths w, n.deep, expected an entry",
        ),
        (
            nnx.prefix(Empty(w=nnx.Param(0.0)), {...: 0}),
            "found an Empty with the paths w, expected an entry for this path.",
        ),
    ],
)
def test_path_that_a_prefix_lacks_is_explained(axes, text):
    with pytest.raises(PrefixError) as caught:
        nnx.vmap(lambda cell: cell.w[...], in_axes=(axes,))(cells())
    assert text in str(caught.value)
