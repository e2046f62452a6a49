"""Control flow that runs eagerly, and again, traces its functions once and is as fresh as plain Python."""

import gc
import pickle
import weakref

import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import GraphChangeError
from tests.transforms.subjects import Cell, Empty, f32, traced, values


def _cond(f):
    return lambda cell, x: nnx.cond(True, f, f, cell, x)


def _switch(f):
    return lambda cell, x: nnx.switch(0, [f], cell, x)


def _while(f):
    def body(value):
        i, cell, x, _ = value
        return i + 1, cell, x, f(cell, x)

    def test(value):
        return value[0] < 1

    return lambda cell, x: nnx.while_loop(test, body, (0, cell, x, f32(0.0)))[3]


def _fori(f):
    def body(i, value):
        cell, x, _ = value
        return cell, x, f(cell, x)

    return lambda cell, x: nnx.fori_loop(0, 1, body, (cell, x, f32(0.0)))[2]


def _scan(f):
    lifted = nnx.scan(f, in_axes=(None, None), out_axes=0, length=1)
    return lambda cell, x: lifted(cell, x)[0]


KINDS = {"cond": _cond, "switch": _switch, "while_loop": _while, "fori_loop": _fori, "scan": _scan}
each = pytest.mark.parametrize("lift", KINDS.values(), ids=KINDS.keys())


@each
def test_functions_are_traced_once_over_calls_and_instances(lift):
    f, runs = traced(lambda cell, x: cell.loss(x))
    run = lift(f)
    cell = Cell()
    assert [float(run(cell, f32(x))) for x in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]
    first = len(runs)
    assert float(run(Cell(5.0), f32(1.0))) == 5.0
    assert float(cell.n[...]) == 3.0
    assert first == len(runs) == (2 if lift is _cond else 1)


@each
def test_bound_methods_are_traced_once_for_all_objects(lift):
    runs = []

    class Counted(Cell):
        def loss(self, x):
            runs.append(None)
            return super().loss(x)

    def use(cell, x):
        return lift_of(cell)(Empty(), x)

    def lift_of(cell):
        return (
            lift(lambda _, x: cell.loss(x))
            if lift is not _cond
            else (lambda _, x: nnx.cond(True, cell.loss, cell.loss, x))
        )

    cells = Counted(), Counted(3.0)
    assert [float(use(cell, f32(1.0))) for cell in cells] == [2.0, 3.0]
    assert [float(cell.n[...]) for cell in cells] == [1.0, 1.0]
    if lift is _cond:
        assert len(runs) == 2


@each
def test_captured_state_is_read_anew_and_written(lift):
    cell = Cell()
    f, runs = traced(lambda other, x: cell.loss(x))
    run = lift(f)
    outs = []
    for w in (2.0, 3.0, 4.0):
        cell.w[...] = f32(w)
        outs.append(float(run(Empty(), f32(1.0))))
    assert outs == [2.0, 3.0, 4.0]
    assert float(cell.n[...]) == 3.0
    assert len(runs) <= 4  # a captured Variable that a branch or body writes is traced once more


@each
def test_captured_numbers_and_attributes_are_seen(lift):
    cell, scale = Cell(), 1.0

    def f(other, x):
        return x * scale * (2.0 if cell.tag == "plain" else 3.0)

    run = lift(f)
    outs = [float(run(Empty(), f32(1.0)))]
    scale = 10.0
    outs.append(float(run(Empty(), f32(1.0))))
    cell.tag = "other"
    outs.append(float(run(Empty(), f32(1.0))))
    assert outs == [2.0, 20.0, 30.0]


@each
def test_what_cannot_be_known_beforehand_works_too(lift):
    cell = Cell()
    hidden = weakref.ref(cell)
    run = lift(lambda other, x: hidden().loss(x))
    assert [float(run(Empty(), f32(x))) for x in (1.0, 2.0)] == [2.0, 4.0]
    assert float(cell.n[...]) == 2.0


@each
def test_modes_have_programs_of_their_own(lift):
    def f(cell, x):
        cell.extra = 1
        return x

    run = lift(f)
    for _ in range(2):
        cell = Cell()
        with nnx.set_graph_updates(False):
            run(cell, f32(1.0))
        assert not hasattr(cell, "extra")
        if lift in (_cond, _switch):
            run(cell, f32(1.0))
            assert cell.extra == 1
        else:
            with pytest.raises(GraphChangeError):
                run(cell, f32(1.0))


@each
def test_functions_and_objects_die(lift):
    cell = Cell()

    def f(other, x):
        return cell.loss(x)

    run = lift(f)
    run(Empty(), f32(1.0))
    died = [weakref.ref(f), weakref.ref(cell), weakref.ref(cell.w)]
    cell = f = run = None
    gc.collect()
    assert [ref() for ref in died] == [None] * 3


def test_programs_do_not_show_in_static_functions_and_pickles():
    holder = Empty(f=_is_small)
    before = nnx.graphdef(holder)
    nnx.cond(True, _is_small, _is_small, f32(1.0))
    assert nnx.graphdef(holder) == before
    assert pickle.loads(pickle.dumps(holder)).f is _is_small


def _is_small(x):
    return x < 2.0


def test_number_of_iterations_is_not_traced_where_it_is_known():
    f, runs = traced(lambda i, x: x + i)
    assert [nnx.fori_loop(0, n, f, jnp.array(0)).item() for n in (2, 3, 2)] == [1, 3, 1]
    assert [nnx.fori_loop(0, jnp.array(n), f, jnp.array(0)).item() for n in (2, 3)] == [1, 3]
    assert len(runs) == 3


def test_exception_leaves_captured_objects_alone():
    cell = Cell()

    def f(x):
        cell.n[...] += 1.0
        raise KeyError("stop")

    for _ in range(2):
        with pytest.raises(KeyError):
            nnx.cond(True, f, f, f32(1.0))
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}
