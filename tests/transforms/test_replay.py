"""Replay: the trace of a function, run again on other leaves; which outputs are inputs passed through."""

import jax
import jax.numpy as jnp
import pytest

from nnxgraph.transforms._boundary import Boundary
from nnxgraph.transforms._crossing import Call
from nnxgraph.transforms._replay import Replay, is_weak, retyped, type_text
from tests.transforms.subjects import Cell, Empty, f32, traced


def trace(f, *args):
    boundary = Boundary("test", (None,))
    crossing = boundary.split(args, {})
    return Replay(boundary.purify(f, Call(crossing)), crossing.layout, crossing.lanes), crossing


def test_replay_does_not_run_the_function_again():
    f, runs = traced(lambda cell, x: cell.loss(x))
    replay, crossing = trace(f, Cell(), f32(3.0))
    for scale in (1.0, 2.0):
        leaves = [leaf * scale for leaf in crossing.leaves]
        _, (n, y) = replay(crossing.layout, (leaves,))
        assert (float(n), float(y)) == (1.0, 6.0 * scale**2)
    assert len(runs) == 1


def test_written_leaves_and_results_are_known_with_their_types():
    replay, crossing = trace(lambda cell, x: (cell.loss(x), 1, x), Cell(), f32(3.0))
    paths = crossing.layout.graphdef.leaf_paths
    assert [path for path, k in paths if k in replay.change.written] == [(2, 0, "n")]
    assert [leaf.dtype.name for leaf in replay.leaves] == ["float32", "float32", "int32", "float32"]
    assert replay.weak == [False, False, True, False]


def test_outputs_that_are_inputs_are_recognised():
    replay, crossing = trace(lambda x, y: (y, x, x + y), f32(1.0), f32(2.0))
    assert [[replay.passes(p, k) for k in range(2)] for p in range(3)] == [
        [False, True],
        [True, False],
        [False, False],
    ]
    assert len(crossing.leaves) == 2


@pytest.mark.parametrize(
    ("before", "after", "weak", "result"),
    [
        (f32(1.0), f32(2.0), False, "same"),
        (1.0, f32(2.0), False, "float32"),
        (1.0, f32(2.0), True, "same"),
        (1, f32(2.0), True, "float32"),
        (jnp.int32(1), f32(2.0), False, None),
        (f32(1.0), jnp.ones(2), False, None),
        (f32(1.0), (f32(1.0),), False, None),
    ],
)
def test_carried_leaf_takes_the_type_of_the_body_only_if_it_is_weak(before, after, weak, result):
    with jax.numpy_dtype_promotion("standard"):
        made = retyped(before, after, weak)
    if result == "same":
        assert made is before
    else:
        assert (None if made is None else made.dtype.name) == result


def test_types_in_words():
    assert type_text(f32(1.0)) == "float32[]"
    assert type_text(jax.random.key(0)) == "key<fry>[]"
    assert is_weak(1.0)
    assert not is_weak(f32(1.0))


def test_arrays_that_a_function_reaches_by_itself_are_kept():
    table = jnp.arange(3.0)
    holder = Empty(x=f32(2.0))
    replay, crossing = trace(lambda holder: table * holder.x, holder)
    assert replay(crossing.layout, crossing.lanes)[1][0].tolist() == [0.0, 2.0, 4.0]
