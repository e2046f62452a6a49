"""Wrong calls of an Optimizer are refused by name, with what to write, and change nothing."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest

import nnxgraph as nnx
from nnxgraph.errors import (
    GradientMismatchError,
    NoParametersError,
    OptimizerArgumentError,
    ParametersChangedError,
    TraceWriteError,
)
from tests.training.models import gradients, make

MODEL = make()
GRADS = gradients(MODEL)


def make_optimizer(model, tx=None):
    return nnx.Optimizer(model, tx or optax.adam(0.1), wrt=nnx.Param)


def without(state, *path):
    return nnx.from_flat_state([(p, x) for p, x in nnx.to_flat_state(state) if p != path])


def with_shape(state, shape, *path):
    flat = nnx.to_flat_state(state)
    return nnx.from_flat_state([(p, jnp.ones(shape) if p == path else x) for p, x in flat])


def other_kind_of_model():
    return nnx.state(nnx.Linear(4, 3, rngs=nnx.Rngs(0)))


CALLS = {
    "the old call": (
        lambda o, m: o.update(GRADS),
        OptimizerArgumentError,
        ["found one argument", "Write optimizer.update(model, grads)", "nnx.ModelAndOptimizer(model, tx)"],
    ),
    "no argument": (lambda o, m: o.update(), OptimizerArgumentError, ["found no argument"]),
    "by keyword": (
        lambda o, m: o.update(model=m, grads=GRADS),
        OptimizerArgumentError,
        ["found model=... and grads=...", "by position"],
    ),
    "swapped": (lambda o, m: o.update(GRADS, m), OptimizerArgumentError, ["found a State first"]),
    "a module for gradients": (
        lambda o, m: o.update(m, m),
        OptimizerArgumentError,
        ["found grads = a Net", "Write grads = nnx.grad(loss)(model)"],
    ),
    "an array for gradients": (
        lambda o, m: o.update(m, jnp.ones(3)),
        OptimizerArgumentError,
        ["found grads = float32[3]", "Expected a State of gradients"],
    ),
    "a missing gradient": (
        lambda o, m: o.update(m, without(GRADS, "head", "bias")),
        GradientMismatchError,
        ["grads does not fit", ".head.bias is missing", "Nothing was changed", "nnx.DiffState(0, wrt)"],
    ),
    "a gradient of another shape": (
        lambda o, m: o.update(m, with_shape(GRADS, (3, 5), "head", "kernel")),
        GradientMismatchError,
        [".head.kernel is float32[5,3], found float32[3,5]"],
    ),
    "gradients of another model": (
        lambda o, m: o.update(m, other_kind_of_model()),
        GradientMismatchError,
        [".body[0].kernel is missing", ".norm.scale is missing"],
    ),
    "a grad argument that does not fit": (
        lambda o, m: o.update(m, GRADS, grad=other_kind_of_model()),
        GradientMismatchError,
        ["grad does not fit", ".head.bias is missing"],
    ),
    "another model": (
        lambda o, m: o.update(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), GRADS),
        ParametersChangedError,
        ["this Linear", ".head.bias is gone", ".kernel is new", "Write nnx.Optimizer(model, tx, wrt=...)"],
    ),
}


@pytest.mark.parametrize(("call", "error", "texts"), CALLS.values(), ids=CALLS.keys())
def test_wrong_call_is_refused_and_changes_nothing(call, error, texts):
    model = make()
    optimizer = make_optimizer(model)
    optimizer.update(model, GRADS)
    before = nnx.state([model, optimizer])
    with pytest.raises(error) as caught:
        call(optimizer, model)
    for text in texts:
        assert text in str(caught.value)
    assert nnx.state([model, optimizer]) == before


@pytest.mark.parametrize(
    ("make_it", "error", "texts"),
    [
        (
            lambda: nnx.Optimizer(MODEL, optax.adam(0.1)),
            OptimizerArgumentError,
            ["found no wrt", "Write nnx.Optimizer(model, tx, wrt=nnx.Param)"],
        ),
        (
            lambda: nnx.Optimizer(MODEL, 0.1, wrt=nnx.Param),
            OptimizerArgumentError,
            ["found tx = 0.1", "Write tx=optax.adam(1e-3)"],
        ),
        (
            lambda: nnx.Optimizer(MODEL, optax.adam, wrt=nnx.Param),
            OptimizerArgumentError,
            ["found tx = the function adam", "functools.partial(optax.adam, 1e-3)"],
        ),
        (
            lambda: nnx.Optimizer(MODEL, lambda: 0.1, wrt=nnx.Param),
            OptimizerArgumentError,
            ["found tx = the function"],
        ),
        (
            lambda: nnx.Optimizer(MODEL, optax.adam(0.1), wrt=nnx.Cache),
            NoParametersError,
            ["wrt = Cache selects no Variable of Net", "BatchStat, Param", "Write wrt=nnx.Param"],
        ),
        (
            lambda: nnx.Optimizer(MODEL, optax.adam(0.1), wrt=nnx.PathContains("heads")),
            NoParametersError,
            ["PathContains(", "'heads'"],
        ),
    ],
)
def test_an_optimizer_that_could_not_train_is_not_made(make_it, error, texts):
    with pytest.raises(error) as caught:
        make_it()
    for text in texts:
        assert text in str(caught.value)


def test_missing_extra_arguments_are_named():
    model = make()
    optimizer = make_optimizer(model, optax.lbfgs())
    before = nnx.state([model, optimizer])
    expected = "Write optimizer.update(model, grads, value=..., grad=..., value_fn=...)"
    with pytest.raises(OptimizerArgumentError, match=re.escape(expected)):
        optimizer.update(model, GRADS)
    assert nnx.state([model, optimizer]) == before


def test_model_and_optimizer_refuses_a_second_argument():
    model = make()
    optimizer = nnx.ModelAndOptimizer(model, optax.adam(0.1))
    with pytest.raises(OptimizerArgumentError, match=r"Write optimizer.update\(grads\)"):
        optimizer.update(model, GRADS)
    with pytest.raises(OptimizerArgumentError, match="found grads = a Net"):
        optimizer.update(model)


def test_a_type_error_of_the_transformation_itself_passes():
    def update(updates, state, params=None):
        raise TypeError("my own")

    tx = optax.GradientTransformation(lambda params: (), update)
    model = make()
    with pytest.raises(TypeError, match="my own"):
        make_optimizer(model, tx).update(model, GRADS)


@pytest.mark.parametrize("outside", ["model", "optimizer"])
def test_a_write_that_could_not_leave_changes_nothing(outside):
    model = make()
    optimizer = make_optimizer(model)
    before = nnx.state([model, optimizer])

    def step(x):
        if outside == "model":
            make_optimizer(nnx.clone(model)).update(model, GRADS)
        else:
            optimizer.update(nnx.clone(model), GRADS)
        return x

    with pytest.raises(TraceWriteError):
        jax.jit(step)(1.0)
    assert nnx.state([model, optimizer]) == before


def test_an_error_under_jit_changes_nothing():
    model = make()
    optimizer = make_optimizer(model)
    before = nnx.state([model, optimizer])
    with pytest.raises(GradientMismatchError):
        nnx.jit(lambda m, o: o.update(m, without(GRADS, "head", "bias")))(model, optimizer)
    assert nnx.state([model, optimizer]) == before
