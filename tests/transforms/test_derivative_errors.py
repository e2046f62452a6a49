"""The exact text of each error of the derivative transforms, provoked as a user would."""

import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import errors
from nnxgraph.errors import _derivatives
from tests.provoked import check_error
from tests.transforms.subjects import Cell, f32
from tests.transforms.test_custom import ruled, times

XS = jnp.arange(3.0)


def by_a_capture():
    def loss(cell, x):
        f = ruled(lambda x: times(cell, x), lambda x: (times(cell, x), None), lambda r, g: (g,))
        return f(x)

    nnx.grad(loss)(Cell(), f32(1.0))


def reads_in_bwd():
    def loss(cell, x):
        return ruled(lambda x: x, lambda x: (x, None), lambda r, g: (g * cell.w[...],))(x)

    nnx.grad(loss, argnums=1)(Cell(), f32(1.0))


def keyword_only(x, *, rate):
    return x * rate


TABLE = [
    (
        errors.ResultError,
        lambda: nnx.vjp(lambda cell: {"cells": [cell]}, Cell()),
        "nnx.vjp: result.cells[0] is a Cell. Expected arrays and Variables. Write has_aux=True to return "
        "`(out, aux)` with the rest in aux.",
    ),
    (
        errors.TangentError,
        lambda: nnx.jvp(times, (Cell(), 1.0), ({"weight": 1.0}, 1.0)),
        "nnx.jvp: tangents do not fit:\n"
        "  - cell.weight is not a path of the object\n"
        "Expected the structure, shapes and dtypes of what they belong to; for an object a State, a nested "
        "dict of paths, or such an object, in which paths may be missing. Write None for zero.",
    ),
    (
        errors.MissingRuleError,
        lambda: nnx.custom_vjp(times)(Cell(), 1.0),
        "nnx.custom_vjp: times is called and has no rule. Expected the rule before the first call. Write "
        "`times.defvjp(fwd, bwd)`.",
    ),
    (
        errors.KeywordOnlyError,
        lambda: ruled(keyword_only, None, None)(1.0, rate=2.0),
        "nnx.custom_vjp: keyword_only takes rate by keyword only. Expected arguments that have a position, "
        "which the rule gets them by. Leave out the `*` in the signature.",
    ),
    (
        errors.LostCaptureError,
        reads_in_bwd,
        "nnx.custom_vjp: bwd reads the captured Param(float32[]) when the function that made it has ended. "
        "Expected all that bwd reads among the residuals. Write `return out, (model, x)` in fwd.",
    ),
    (
        errors.HiddenGradientError,
        by_a_capture,
        "nnx.custom_vjp: a derivative is asked for by what by_a_capture.<locals>.loss.<locals>.<lambda> "
        "captures, is bound to, or gets in nondiff_argnums:\n"
        "  - the captured Param(float32[])\n"
        "The rule gives derivatives by the other arguments only, so that this one would be lost. Expected: "
        "what is differentiated by is an argument. Write `f(model, x)` with the object that holds it, or "
        "jax.lax.stop_gradient for its value.",
    ),
]


@pytest.mark.parametrize(("error", "provoke", "text"), TABLE)
def test_the_text_of_an_error_also_after_a_pickle(error, provoke, text):
    check_error(error, provoke, text)


def test_every_error_of_the_derivatives_is_in_the_table():
    defined = {
        x
        for x in vars(_derivatives).values()
        if isinstance(x, type) and x.__module__ == _derivatives.__name__
    }
    assert defined - {error for error, _, _ in TABLE} == set()
