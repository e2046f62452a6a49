"""Prefixes: StateAxes, StateSharding, and which lane each leaf gets."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import nnxgraph as nnx
from nnxgraph.errors import ArgumentTypeError, UnmatchedFilterError
from nnxgraph.transforms._lanes import STATIC, collect_lanes, is_structured
from tests.transforms.subjects import Cell, Empty, cells, f32


def test_state_axes_show_their_filters_and_axes():
    axes = nnx.StateAxes({nnx.Param: 0, ...: None})
    assert axes.axes == (0, None)
    assert axes.filters == (nnx.Param, ...)
    assert axes[nnx.Param] == 0
    assert axes.items() == ((nnx.Param, 0), (..., None))
    assert repr(nnx.StateAxes({"tag": 1})) == "StateAxes({'tag': 1})"


def test_state_axes_are_values():
    one, same = nnx.StateAxes({nnx.Param: 0, ...: None}), nnx.StateAxes([(nnx.Param, 0), (..., None)])
    assert one == same
    assert hash(one) == hash(same)
    assert one != nnx.StateAxes({nnx.Param: 1, ...: None})
    assert one != nnx.StateSharding({nnx.Param: 0, ...: None})


def test_state_sharding_shows_its_shardings():
    assert nnx.StateSharding({nnx.Param: "a", ...: None}).shardings == ("a", None)


def test_first_filter_that_matches_decides():
    axes = nnx.StateAxes({nnx.PathContains("w"): 1, nnx.Param: 0, ...: None})
    cell = Cell()
    assert axes.map_prefix(("w",), cell.w) == 1
    assert axes.map_prefix(("other",), cell.w) == 0
    assert axes.map_prefix(("n",), cell.n) is None


def test_paths_of_filters_start_at_the_argument():
    holder = Empty(inner=cells(2))
    axes = nnx.StateAxes({lambda path, x: path == ("inner", "w"): 0, ...: None})
    out = nnx.vmap(lambda holder: holder.inner.n[...], in_axes=axes)(holder)
    assert out.shape == (2, 2)


def test_raw_arrays_take_the_lane_of_a_matching_filter():
    holder = Empty(a=jnp.arange(2.0), w=nnx.Param(f32(1.0)))
    axes = nnx.StateAxes({nnx.Param: None, ...: 0})
    assert nnx.vmap(lambda holder: holder.a * holder.w[...], in_axes=axes)(holder).tolist() == [0.0, 1.0]


def test_unmatched_variable_is_named():
    with pytest.raises(UnmatchedFilterError) as caught:
        nnx.vmap(lambda cell: None, in_axes=nnx.StateAxes({nnx.Param: 0}))(cells())
    assert str(caught.value) == (
        "StateAxes: no filter matches Variable(float32[3]) at n. Expected filters for every Variable. "
        "Write `...: None` as the last entry to take the rest."
    )


def test_lanes_are_collected_once_and_in_order():
    axes = nnx.StateAxes({nnx.Param: 2, ...: None})
    assert collect_lanes(None, 0, (1, [0, {"a": axes}]), STATIC) == [None, 0, 1, 2]


def test_containers_are_structure_and_all_else_is_a_lane():
    assert [is_structured(p) for p in ((), [], {}, None, 0, "a")] == [True] * 3 + [False] * 3


STATIC_ARGS = "static_argnums or static_argnames"
XS = jnp.ones(2)
NONDIFF_ARGS = "nondiff_argnums or nondiff_argnames"


def sharded(mode):
    """A function on the shards of a word."""
    mesh = jax.make_mesh((1,), "a")
    return nnx.shard_map(lambda mode: 1, mesh=mesh, in_specs=P(), out_specs=P())(mode)


def ruled(custom, define):
    """A function with a rule, called with a word."""
    f = custom(lambda x, mode: x)
    getattr(f, define)(*[lambda *_: None] * (2 if define == "defvjp" else 1))
    return f(f32(1.0), "word")


@pytest.mark.parametrize(
    ("call", "where", "parameters"),
    [
        (lambda: nnx.jit(lambda cell, mode: 1)(Cell(), "word"), "jit: mode", STATIC_ARGS),
        (lambda: nnx.jit(lambda *xs: 1)(1.0, "word"), "jit: args[1]", STATIC_ARGS),
        (lambda: nnx.jit_partial(lambda x, mode: 1, 1.0)("word"), "jit: mode", STATIC_ARGS),
        (lambda: nnx.remat(lambda tree: 1)({"a": [1, "word"]}), "remat: tree.a[1]", STATIC_ARGS),
        (lambda: nnx.make_jaxpr(lambda mode: 1)("word"), "make_jaxpr: mode", "static_argnums"),
        (
            lambda: nnx.pmap(lambda x, mode: x)(jnp.ones(1), "word"),
            "pmap: mode",
            "static_broadcasted_argnums",
        ),
        (lambda: ruled(nnx.custom_vjp, "defvjp"), "custom_vjp: mode", NONDIFF_ARGS),
        (lambda: ruled(nnx.custom_jvp, "defjvp"), "custom_jvp: mode", NONDIFF_ARGS),
        (lambda: nnx.grad(lambda x, *, f: x)(1.0, f="word"), "grad: f", None),
        (lambda: nnx.jacfwd(lambda x, mode: x)(1.0, "word"), "jacfwd: mode", None),
        (lambda: nnx.vjp(lambda x, mode: x, 1.0, "word"), "vjp: mode", None),
        (lambda: nnx.vmap(lambda x, mode: x, in_axes=(0, None))(XS, "word"), "vmap: mode", None),
        (lambda: nnx.scan(lambda c, x: (c, x))("word", jnp.ones(2)), "scan: c", None),
        (lambda: nnx.cond(True, lambda x: 1, lambda x: 1, "word"), "cond: x", None),
        (lambda: nnx.fori_loop(0, 2, lambda i, x: x, "word"), "fori_loop: x", None),
        (lambda: nnx.checkify(lambda mode: 1)("word"), "checkify: mode", None),
        (lambda: nnx.eval_shape(lambda mode: 1, "word"), "eval_shape: mode", None),
        (lambda: sharded("word"), "shard_map: mode", None),
    ],
)
def test_argument_that_is_neither_data_nor_static_is_named(call, where, parameters):
    advice = (
        f"Name it in {parameters}, or close over it."
        if parameters
        else "Close over it instead of passing it."
    )
    with pytest.raises(ArgumentTypeError) as caught:
        call()
    assert str(caught.value) == (
        f"nnx.{where} is 'word'. Expected an array, a number, an object of the graph, or a container of "
        f"these. {advice}"
    )


@pytest.mark.parametrize("lift", [nnx.jit, nnx.remat, nnx.vmap], ids=["jit", "remat", "vmap"])
def test_result_that_is_not_data_is_named(lift):
    with pytest.raises(ArgumentTypeError) as caught:
        lift(lambda x: {"y": (x, "word")})(jnp.ones(2))
    assert str(caught.value).endswith(
        ": result.y[1] is 'word'. Expected an array, a number, an object of the graph, or a container of "
        "these. Return arrays, numbers and objects only."
    )
