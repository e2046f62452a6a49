"""No transform keeps a model or an optimizer alive."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import optax
import pytest

import nnxgraph as nnx
from tests.transforms.cases import CASES
from tests.transforms.subjects import Cell, Empty, f32

X = f32(1.5)


def step(model, optimizer, x):
    """One update, by a gradient that is known; the loss."""
    loss = model.loss(x)
    optimizer.update(model, nnx.State({"w": nnx.Param(x)}))
    return loss


def trained():
    """A model with its optimizer, and references to all that shall die."""
    model = Cell()
    optimizer = nnx.Optimizer(model, optax.sgd(f32(0.5), momentum=f32(0.9)), wrt=nnx.Param)
    held = [model, optimizer, *(v for _, v in nnx.to_flat_state(nnx.variables((model, optimizer))))]
    return model, optimizer, [weakref.ref(x) for x in held]


def check_dead(died, case=None):
    if case is not None and case.name == "pmap":  # jax.pmap itself keeps a function until then
        jax.clear_caches()
    gc.collect()
    assert [ref() for ref in died] == [None] * len(died)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_model_and_optimizer_that_were_passed_die(case):
    lifted = case.lift(step)
    model, optimizer, died = trained()
    for _ in range(2):
        lifted(model, optimizer, X)
    assert int(optimizer.step[...]) == 2
    del model, optimizer
    check_dead(died)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_model_and_optimizer_that_were_bound_die(case):
    model, optimizer, died = trained()
    trainer = Empty(model=model, optimizer=optimizer)
    lifted = case.lift(functools.partial(step, trainer.model, trainer.optimizer))
    for _ in range(2):
        lifted(X)
    assert int(optimizer.step[...]) == 2
    del model, optimizer, trainer, lifted
    check_dead(died, case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_model_and_optimizer_that_were_captured_die(case):
    def trainer(model, optimizer):
        return lambda x: step(model, optimizer, x)

    model, optimizer, died = trained()
    lifted = case.lift(trainer(model, optimizer))
    for _ in range(2):
        lifted(X)
    assert int(optimizer.step[...]) == 2
    del model, optimizer, lifted
    check_dead(died, case)


PARTIALS = {
    "jit_partial": nnx.jit_partial,
    "cached_partial": lambda f, *args: nnx.cached_partial(nnx.jit(f), *args),
}


@pytest.mark.parametrize("partial", PARTIALS.values(), ids=PARTIALS.keys())
def test_model_and_optimizer_of_a_partial_die_with_it(partial):
    model, optimizer, died = trained()
    compiled = partial(step, model, optimizer)
    for _ in range(2):
        compiled(X)
    assert int(optimizer.step[...]) == 2
    del model, optimizer, compiled
    check_dead(died)


READERS = {
    "eval_shape": lambda f, x: nnx.eval_shape(f, x),
    "make_jaxpr": lambda f, x: nnx.make_jaxpr(f)(x),
    "lower": lambda f, x: nnx.jit(f).lower(x).compile()(x),
    "associative_scan": lambda f, x: nnx.associative_scan(
        lambda a, b: a + b * f.args[0].w[...], x * jnp.ones(3)
    ),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_models_that_are_only_looked_at_die(read):
    model, optimizer, died = trained()
    read(functools.partial(step, model, optimizer), X)
    del model, optimizer
    check_dead(died)
