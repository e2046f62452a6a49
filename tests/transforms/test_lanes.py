"""Prefixes: StateAxes, StateSharding, and which lane each leaf gets."""

import jax.numpy as jnp
import pytest

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


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda: nnx.jit(lambda cell, mode: 1)(Cell(), "train"), "nnx.jit: mode is 'train'."),
        (lambda: nnx.jit(lambda *xs: 1)(1.0, "train"), "nnx.jit: args[1] is 'train'."),
        (lambda: nnx.grad(lambda x, *, f: x)(1.0, f=len), "nnx.grad: f is the function len."),
        (lambda: nnx.remat(lambda tree: 1)({"a": [1, "b"]}), "nnx.remat: tree.a[1] is 'b'."),
        (lambda: nnx.cond(True, lambda x: 1, lambda x: 1, "word"), "nnx.cond: x is 'word'."),
    ],
)
def test_argument_that_is_neither_data_nor_static_is_named(call, where):
    with pytest.raises(ArgumentTypeError) as caught:
        call()
    assert str(caught.value) == (
        f"{where} Expected an array, a number, an object of the graph, or a container of these. Name it in "
        f"static_argnums or static_argnames, or close over it."
    )


@pytest.mark.parametrize("lift", [nnx.jit, nnx.remat, nnx.vmap], ids=["jit", "remat", "vmap"])
def test_result_that_is_not_data_is_named(lift):
    with pytest.raises(ArgumentTypeError) as caught:
        lift(lambda x: {"y": (x, "word")})(jnp.ones(2))
    assert str(caught.value).endswith(
        ": result.y[1] is 'word'. Expected an array, a number, an object of the graph, or a container of "
        "these. Return arrays, numbers and objects only."
    )
