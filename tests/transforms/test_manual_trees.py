"""Objects as plain pytrees and back: to_tree, from_tree, NodeStates; and what misuse of them says."""

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import (
    AliasError,
    ContextError,
    NodeStatesError,
    NotAGraphDefError,
    PrefixError,
    StateMismatchError,
    UnknownIndexError,
)
from tests.transforms.subjects import Cell, Empty, cells, f32, values

by_axis = nnx.StateAxes({nnx.Param: 0, ...: None})


def test_objects_become_pytrees_and_objects_again():
    cell = Cell()
    tree = {"a": cell, "b": (cell.w, [cell]), "x": jnp.ones(2), "none": None}
    pure = nnx.to_tree(tree)
    assert type(pure["a"]) is type(pure["b"][0]) is nnx.NodeStates
    assert len(jax.tree.leaves(pure)) == 3
    twin = nnx.from_tree(jax.tree.map(lambda x: x + 1.0, pure))
    assert twin["a"] is twin["b"][1][0]
    assert twin["b"][0] is twin["a"].w is not cell.w
    assert (float(twin["a"].w[...]), twin["x"].tolist(), twin["none"]) == (3.0, [2.0, 2.0], None)


def test_prefix_reaches_split_fn_and_merge_fn():
    seen = []

    def split(ctx, path, prefix, node):
        seen.append((path, prefix))
        return nnx.NodeStates.from_split(*ctx.split(node, *prefix.filters), metadata=prefix)

    def merge(ctx, path, prefix, leaf):
        seen.append((path, prefix, leaf.metadata))
        return ctx.merge(leaf.graphdef, *leaf.states)

    stack = cells(3)
    tree = nnx.to_tree(({"c": stack}, 1.0), prefix=({"c": by_axis}, None), split_fn=split)
    in_axes = ({"c": nnx.NodeStates.from_prefixes(by_axis.axes, metadata=by_axis)}, None)

    def lane(tree):
        return nnx.from_tree(tree, prefix=(7, None), merge_fn=merge)[0]["c"].w[...]

    assert jax.vmap(lane, in_axes=(in_axes,))(tree).tolist() == [0.0, 1.0, 2.0]
    assert seen == [((0, "c"), by_axis), ((0, "c"), 7, by_axis)]


def test_prefix_may_be_a_tree_like_the_object():
    stack = cells(3)
    axes = nnx.prefix(stack, {nnx.Param: 0, ...: None})
    kept = []

    def split(ctx, path, prefix, node):
        kept.append(prefix)
        return nnx.NodeStates.from_split(*ctx.split(node))

    nnx.to_tree((stack, 1.0), prefix=(axes, None), split_fn=split)
    assert kept == [axes]
    with pytest.raises(AliasError, match=r"tree\[0\]\.n with prefix None and at tree\[1\]\.n with 0"):
        nnx.to_tree((stack, stack), prefix=(axes, 0))


def test_plain_leaves_are_mapped_if_asked_for():
    def split(ctx, path, prefix, x):
        return -x if isinstance(x, jax.Array) else nnx.NodeStates.from_split(*ctx.split(x))

    tree = nnx.to_tree([Cell(), f32(2.0)], split_fn=split, map_non_graph_nodes=True)
    assert float(tree[1]) == -2.0

    def merge(ctx, path, prefix, x):
        return -x if isinstance(x, jax.Array) else ctx.merge(x.graphdef, x.state)

    assert float(nnx.from_tree(tree, merge_fn=merge, map_non_graph_nodes=True)[1]) == 2.0
    assert nnx.to_tree([f32(2.0)], map_non_graph_nodes=True) == [f32(2.0)]


def test_aliasing_may_be_left_unchecked():
    stack = cells(2)
    pair = (stack, Empty(w=stack.w))
    with pytest.raises(
        AliasError, match=r"found at tree\[0\]\.w with prefix 0 and at tree\[1\]\.w with None"
    ):
        nnx.to_tree(pair, prefix=(by_axis, None))
    assert len(jax.tree.leaves(nnx.to_tree(pair, prefix=(by_axis, None), check_aliasing=False))) == 2


def test_node_states_are_values():
    graphdef, params, rest = nnx.split(Cell(), nnx.Param, ...)
    node = nnx.NodeStates.from_split(graphdef, params, rest, metadata="m")
    assert node.graphdef is graphdef
    assert node.replace(states=(rest,)).state is rest
    zeros = jax.tree.map(jnp.zeros_like, node)
    assert (zeros.metadata, zeros.graphdef) == ("m", graphdef)
    keys = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(node)]
    assert keys[0].startswith(".states[0]['w']")
    assert nnx.NodeStates.from_states(params).state is params


def own_grad(loss):
    """A gradient transform as a user may write one: by a filter, state goes back to the caller."""

    def split(ctx, path, diff, node):
        return nnx.NodeStates.from_split(*ctx.split(node, diff.filter, ...), metadata=diff)

    @nnx.update_context("own_grad")
    def wrapper(model, *args):
        diff = nnx.DiffState(0, nnx.Param)
        tree = nnx.to_tree(model, prefix=diff, split_fn=split, ctxtag="own_grad")

        def pure(params):
            inside = tree.replace(states=(params, *tree.states[1:]))
            twin = nnx.from_tree(inside, ctxtag="own_grad", is_inner=True)
            value = loss(twin, *args)
            return value, nnx.to_tree(twin, ctxtag="own_grad")

        grads, after = jax.grad(pure, has_aux=True)(tree.states[0])
        nnx.from_tree(after, ctxtag="own_grad", is_inner=False)
        return grads

    return wrapper


@pytest.mark.parametrize("lift", [lambda f: f, nnx.jit], ids=["plain", "jit"])
def test_own_gradient_transform_equals_ours(lift):
    def loss(model, x):
        return (model(x) ** 3).sum()

    def net():
        return nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0)))

    ours, plain, x = net(), net(), jnp.arange(6.0).reshape(3, 2)
    grads, expected = lift(own_grad(loss))(ours, x), nnx.grad(loss)(plain, x)
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-4), grads, expected))
    assert values(ours)["layers", 1, "mean"] == pytest.approx(values(plain)["layers", 1, "mean"])
    assert values(ours)["layers", 1, "mean"] != [0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: nnx.to_tree((1.0, 2.0), prefix=(0, 0, 0)),
            PrefixError,
            "nnx.to_tree: prefix does not fit the tree: found (0, 0, 0), expected a prefix of "
            "PyTreeDef((*, *)).",
        ),
        (
            lambda: nnx.split_context("nowhere").__enter__(),
            ContextError,
            "current_update_context: no update_context('nowhere') is open.",
        ),
        (
            lambda: nnx.merge_inputs(lambda x: x)(1.0),
            ContextError,
            "current_update_context: no update_context('split_merge_inputs') is open.",
        ),
        (
            lambda: nnx.update_context("tag")(lambda: nnx.from_tree(1.0, ctxtag="tag"))(),
            ContextError,
            "merge_context: ctxtag='tag' with inner=None. ",
        ),
        (
            lambda: nnx.merge_context(inner=True).__enter__(),
            ContextError,
            "merge_context: ctxtag=None with inner=True. ",
        ),
        (
            lambda: nnx.NodeStates.from_states(1, 2).state,
            NodeStatesError,
            "NodeStates.state: found 2 states. Expected one. Write `.states` for the tuple of all of them.",
        ),
        (
            lambda: nnx.MergeContext(None, {}, None).merge(1, {}),
            NotAGraphDefError,
            "MergeContext.merge",
        ),
        (
            lambda: nnx.MergeContext(None, {}, None).merge(nnx.graphdef(Cell()), {}),
            StateMismatchError,
            "MergeContext.merge: the state does not fit:\n  - .w is missing",
        ),
        (
            lambda: nnx.from_tree(nnx.to_tree([c := Cell(), [c]])[1:]),
            UnknownIndexError,
            "unflatten",
        ),
    ],
)
def test_misuse_is_explained(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
