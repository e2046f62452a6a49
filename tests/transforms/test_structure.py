"""Random edits of a graph under a transform leave what they leave in plain Python."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnxgraph as nnx
from tests.transforms.subjects import Empty, f32

NODES = 3
NAMES = ("a", "b", "items")

nodes = st.integers(0, NODES - 1)
names = st.sampled_from(NAMES[:2])
numbers = st.integers(-3, 3).map(float)

# An edit is a name and what it works with; `apply` says what it does.
edits = st.one_of(
    st.tuples(st.just("link"), nodes, names, nodes),
    st.tuples(st.just("alias"), nodes, names, nodes),
    st.tuples(st.just("fresh"), nodes, names, numbers),
    st.tuples(st.just("array"), nodes, names, numbers),
    st.tuples(st.just("node"), nodes, names, numbers),
    st.tuples(st.just("static"), nodes, names, st.sampled_from(["x", "y", None, 1, 2.5, True])),
    st.tuples(st.just("delete"), nodes, names, st.none()),
    st.tuples(st.just("swap"), nodes, st.just("v"), nodes),
    st.tuples(st.just("write"), nodes, st.just("v"), numbers),
    st.tuples(st.just("note"), nodes, st.just("v"), st.sampled_from(["p", "q"])),
    st.tuples(st.just("append"), nodes, st.just("items"), nodes),
    st.tuples(st.just("append new"), nodes, st.just("items"), numbers),
    st.tuples(st.just("pop"), nodes, st.just("items"), st.none()),
    st.tuples(st.just("relist"), nodes, st.just("items"), nodes),
)


def make():
    """Nodes with a Variable and a list each; the first holds the second, which holds the first."""
    made = [Empty(v=nnx.Variable(f32(i)), items=[], tag="plain") for i in range(NODES)]
    made[0].a, made[1].a = made[1], made[0]
    return made


def apply(edit, made, x):
    kind, i, name, value = edit
    node = made[i]
    if kind in ("link", "append", "alias", "swap", "relist"):
        other = made[value]
        if kind == "link":
            setattr(node, name, other)
        elif kind == "alias":
            setattr(node, name, other.v)
        elif kind == "append":
            node.items.append(other)
        elif kind == "swap":
            node.v, other.v = other.v, node.v
        else:
            node.items = [other.v, {"k": other}]
    elif kind == "delete":
        vars(node).pop(name, None)
    elif kind == "pop":
        node.items[-1:] = []
    elif kind == "write":
        node.v[...] = node.v[...] * 0.5 + x * value
    elif kind == "note":
        node.v.set_metadata(note=value)
    elif kind == "append new":
        node.items.append(nnx.Param(x * value))
    else:
        new = {"fresh": lambda: nnx.Param(x * value), "array": lambda: x * value}
        new["node"] = lambda: Empty(v=nnx.Variable(x * value), up=node)
        setattr(node, name, new[kind]() if kind in new else value)


def edit_all(program):
    def f(x, *made):
        for edit in program:
            apply(edit, made, x)
        return made[0].v, [made[-1]]

    return f


LIFTS = {
    "jit": nnx.jit,
    "remat": nnx.remat,
    "cond": lambda f: lambda *args: nnx.cond(True, f, f, *args),
    "grad": lambda f: lambda *a: nnx.grad(lambda x, *a: (x, f(x, *a)), has_aux=True)(*a)[1],
    "vmap": lambda f: nnx.vmap(f, in_axes=None, out_axes=None, axis_size=2),
    "jit of grad": lambda f: nnx.jit(LIFTS["grad"](f)),
    "remat of cond": lambda f: nnx.remat(LIFTS["cond"](f)),
}


@settings(max_examples=40)
@given(
    program=st.lists(edits, min_size=1, max_size=6),
    name=st.sampled_from(sorted(LIFTS)),
    times=st.integers(1, 2),
)
def test_edits_leave_what_they_leave_in_python(program, name, times):
    f = edit_all(program)
    lifted = LIFTS[name](f)
    ours, plain = make(), make()
    held = [(node, node.v, node.items) for node in ours]
    for _ in range(times):
        x = f32(0.5)
        got, expected = lifted(x, *ours), f(x, *plain)
        assert got[0] is ours[0].v
        assert got[1][0] is ours[-1]
    graphdef, state = nnx.split((ours, got))
    plain_graphdef, plain_state = nnx.split((plain, expected))
    assert graphdef == plain_graphdef
    assert all(jax.tree.leaves(jax.tree.map(jnp.allclose, state, plain_state)))
    assert all(now is then for now, (then, _, _) in zip(ours, held, strict=True))
    assert {id(n.v) for n in ours} == {id(v) for _, v, _ in held}


@pytest.mark.parametrize(
    "lift", [nnx.jit, nnx.remat, lambda f: nnx.vmap(f, in_axes=(None, None), axis_size=2, out_axes=None)]
)
def test_a_list_under_two_attributes_keeps_what_is_appended_through_one(lift):
    first = nnx.Param(f32(1.0))
    shared = [first]
    model = Empty(a=shared, b=shared, table={"list": shared}, calls=0)

    def grow(m, x):
        m.a.append(nnx.Param(x))
        m.calls = 1

    lift(grow)(model, f32(2.0))
    assert model.a is model.b is model.table["list"] is shared
    assert len(shared) == 2
    assert shared[0] is first
    assert model.calls == 1
