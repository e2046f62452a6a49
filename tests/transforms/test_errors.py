"""The exact text of each error of the transforms, provoked as a user would."""

import weakref

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import errors
from nnxgraph.errors import _transforms
from tests.provoked import check_error
from tests.transforms.subjects import Cell, cells, f32

XS = jnp.arange(3.0)
SHARED = Cell()


def reads_a_capture():
    cell = Cell()
    hidden = weakref.ref(cell)

    @nnx.jit
    def step(x):
        return hidden().w[...] * x

    step(1.0)


def donates_twice():
    one, two = Cell(), Cell()
    two.w.set_value(one.w[...])
    nnx.jit(lambda one, two: None, donate_argnums=(0, 1))(one, two)


def writes_a_lane():
    nnx.vmap(lambda cell, x: cell.n.set_value(x), in_axes=(None, 0))(Cell(), XS)


def writes_under_raw_jax():
    cell = Cell()
    nnx.jit(lambda cell: jax.grad(lambda x: (cell.n.set_value(x), x)[1])(1.0))(cell)


def draws_from_a_split_stream():
    rngs = nnx.Rngs(0)
    with nnx.split_rngs(rngs, splits=3):
        rngs.params()


# Where an error is raised by many transforms, one stands for all; the tests of each transform hold the rest.
TABLE = [
    (
        errors.CaptureError,
        reads_a_capture,
        "nnx.jit: the function reads_a_capture.<locals>.step reaches what it was not given, by a way that "
        "cannot be followed:\n"
        "  - Param(float32[])\n"
        "The compiled function would keep what it is today for ever. Expected: an argument, or an object "
        "behind the function's closure, globals, defaults or helpers. Write `nnx.jit(lambda model, x: ...)"
        "(model, x)`.",
    ),
    (
        errors.TransformCallError,
        lambda: nnx.scan(lambda c, x: (c, x), f32(0.0), XS),
        "nnx.scan: found 3 positional arguments. Expected the function alone, options by keyword. It makes a "
        "function, to be called with the arguments: write `nnx.scan(f, ...)(x)`.",
    ),
    (
        errors.StageError,
        lambda: nnx.jit(lambda x: x).lower(f32(1.0))(f32(1.0)),
        "nnx.jit: found a call of a stage of the kind Lowered. Expected a compiled one. Write `.compile()` "
        "before the call.",
    ),
    (
        errors.StageError,
        lambda: nnx.jit(lambda x: x).lower(f32(1.0)).compile()([f32(1.0)]),
        "nnx.jit: found arguments of another structure than the function was compiled for. Expected the same "
        "objects, containers, static values and number of arguments. Write `.lower(...)` again with these "
        "arguments, or call the function that nnx.jit returned.",
    ),
    (
        errors.StageError,
        lambda: nnx.jit(lambda cell, x: x).lower(Cell(), XS).compile()(Cell(), f32(1.0)),
        "nnx.jit: found arguments of other types than the function was compiled for: x is float32[], "
        "compiled for float32[3]. Expected the same shapes and dtypes. Write `.lower(...)` again with these "
        "arguments, or call the function that nnx.jit returned.",
    ),
    (
        errors.AliasError,
        lambda: nnx.vmap(lambda a, b: None, in_axes=(0, None))(both := cells(), both),
        "nnx.vmap: inconsistent aliasing: Param(float32[3]) is one Variable, found at a.w with in_axes 0 and "
        "at b.w with None. Expected the same in_axes wherever it is reached. Give both places the same "
        "in_axes, or pass a copy: nnx.clone(...).",
    ),
    (
        errors.ArgumentTypeError,
        lambda: nnx.jit(lambda cell, mode: None)(Cell(), "train"),
        "nnx.jit: mode is 'train'. Expected an array, a number, an object of the graph, or a container of "
        "these. Name it in static_argnums or static_argnames, or close over it.",
    ),
    (
        errors.ArgumentTypeError,
        lambda: nnx.grad(lambda x: (x, {"log": "word"}), has_aux=True)(1.0),
        "nnx.grad: result[1].log is 'word'. Expected an array, a number, an object of the graph, or a "
        "container of these. Return arrays, numbers and objects only.",
    ),
    (
        errors.PrefixError,
        lambda: nnx.jit(lambda x: x, out_shardings=(None,))(XS),
        "nnx.jit: out_shardings does not fit result: found (None,), expected one lane for a leaf. Write "
        "out_shardings as one value for everything, or as a container shaped like the arguments.",
    ),
    (
        errors.UnmatchedFilterError,
        lambda: nnx.vmap(lambda cell: None, in_axes=nnx.StateAxes({nnx.Param: 0}))(cells()),
        "StateAxes: no filter matches Variable(float32[3]) at n. Expected filters for every Variable. Write "
        "`...: None` as the last entry to take the rest.",
    ),
    (
        errors.GraphChangeError,
        lambda: nnx.cond(True, lambda c: setattr(c, "new", 1), lambda c: None, Cell()),
        "nnx.cond: the branches differ:\n"
        "  - true_fun: c has a new attribute 'new'\n"
        "Expected all branches to leave the same graph and to return results of the same type.",
    ),
    (
        errors.AxisSizeError,
        lambda: nnx.vmap(lambda x, y: x)(XS, jnp.ones(4)),
        "nnx.vmap: mapped axes must have one size, found:\n  - x has size 3\n  - y has size 4",
    ),
    (
        errors.LaneWriteError,
        writes_a_lane,
        "nnx.vmap: a value that differs from lane to lane goes to what all lanes share: cell.n: "
        "Variable(float32[]). Expected one value for all. Give it an axis, as in "
        "in_axes=nnx.StateAxes({nnx.BatchStat: 0, ...: None}), or reduce it over the lanes first.",
    ),
    (
        errors.ArgnumsError,
        lambda: nnx.grad(lambda x: x, argnums=nnx.DiffState(2, ...))(1.0),
        "nnx.grad: found argnums=2 in a call with 1 positional arguments. Expected the position of an "
        "argument of the call, or of a parameter that is given by name. Write argnums=0 for the first.",
    ),
    (
        errors.ReduceAxesError,
        lambda: nnx.grad(lambda x: x, reduce_axes="batch"),
        "nnx.grad: found reduce_axes='batch'. Expected (), since JAX has no such option any more. Write "
        "jax.lax.psum(grads, axis_name) behind it.",
    ),
    (
        errors.LossError,
        lambda: nnx.value_and_grad(lambda x: x)(XS),
        "nnx.value_and_grad: the function returned float32[3]. Expected a real scalar loss. Write "
        "`loss.mean()` or `loss.sum()`.",
    ),
    (
        errors.NotDifferentiableError,
        lambda: nnx.grad(lambda tree: 1.0)({"n": jnp.arange(3)}),
        "nnx.grad: cannot differentiate by leaves that are not floating point:\n"
        "  - tree.n: int32[3]\n"
        "Expected floats. Choose with argnums=nnx.DiffState(0, filter), or set allow_int=True.",
    ),
    (
        errors.DonationError,
        donates_twice,
        "nnx.jit: one.w is donated, and two.w holds the very same array. Expected an array for each. Write "
        "nnx.clone(model, arrays=True) for one of them, or do not donate it.",
    ),
    (
        errors.InputReturnedError,
        lambda: nnx.jit(lambda cell: {"same": cell}, graph_updates=False)(Cell()),
        "nnx.jit: result.same is also an input. With graph_updates=False expected outputs that are no input "
        "objects. Write graph_updates=True, or return a clone.",
    ),
    (
        errors.SharedVariableError,
        lambda: nnx.remat(lambda *pair: None, graph=False)(SHARED, [SHARED]),
        "nnx.remat: found one object at args[0] and at args[1][0]; this is a duplicate in tree mode "
        "(graph=False). Expected no shared objects. Write graph=True to share them.",
    ),
    (
        errors.BranchError,
        lambda: nnx.switch(0, []),
        "nnx.switch: branches is empty. Expected at least one function of the operands.",
    ),
    (
        errors.PredicateError,
        lambda: nnx.while_loop(lambda x: x, lambda x: x, f32(1.0)),
        "nnx.while_loop: the result of cond_fun is float32[]. Expected a bool scalar.",
    ),
    (
        errors.ScanAxesError,
        lambda: nnx.scan(lambda x: x, in_axes=0),
        "nnx.scan: out_axes has nnx.Carry and in_axes has not. Expected it in both or in none. Of "
        "jax.lax.scan, the carry is what has nnx.Carry in in_axes and out_axes, xs what has an axis in "
        "in_axes, ys what has one in out_axes; None in in_axes is for constants. Write for example "
        "in_axes=(nnx.Carry, 0, None), out_axes=(nnx.Carry, 0) for `f(carry, x, constant) -> (carry, y)`.",
    ),
    (
        errors.ContextError,
        lambda: nnx.current_update_context("crossing"),
        "current_update_context: no update_context('crossing') is open. Expected the splits and merges of "
        "one crossing inside of one update_context, with its tag. Write `with "
        "nnx.update_context('crossing'): ...`.",
    ),
    (
        errors.NodeStatesError,
        lambda: nnx.NodeStates.from_states({}).graphdef,
        "NodeStates.graphdef: found states alone. Expected what NodeStates.from_split made.",
    ),
]


@pytest.mark.parametrize(("error", "provoke", "text"), TABLE)
def test_the_text_of_an_error_also_after_a_pickle(error, provoke, text):
    check_error(error, provoke, text)


def test_every_error_of_the_transforms_is_in_the_table():
    defined = {
        x for x in vars(_transforms).values() if isinstance(x, type) and x.__module__ == _transforms.__name__
    }
    assert defined - {error for error, _, _ in TABLE} == set()


def test_write_under_a_raw_transform_names_the_lifted_one_around_it():
    with pytest.raises(errors.TraceWriteError, match=r"inside nnx\.jit"):
        writes_under_raw_jax()


def test_stream_that_is_split_names_itself():
    with pytest.raises(errors.SplitStreamError, match="'default' holds"):
        draws_from_a_split_stream()
