"""Eight threads train a model each while all read one shared module: each gets what it gets alone."""

import concurrent.futures
import threading

import jax
import jax.numpy as jnp
import optax
import pytest

import nnxgraph as nnx
from nnxgraph import _frame
from tests.transforms.subjects import Empty, traced

THREADS, STEPS = 8, 12
ADAM = optax.adam(1e-2)
X = jax.random.normal(jax.random.key(0), (16, 4))


class Model(nnx.Module):
    """A layer with batch statistics and random masks."""

    def __init__(self, seed):
        rngs = nnx.Rngs(seed)
        self.layer = nnx.Linear(3, 2, rngs=rngs)
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(self.layer(x)))


def shared_module():
    """What all threads read: a layer, and an array that is a plain attribute."""
    return Empty(embed=nnx.Linear(4, 3, rngs=nnx.Rngs(99)), scale=jnp.linspace(0.5, 1.5, 3)[None])


def step(model, optimizer, shared, x):
    def loss_of(model):
        return (model(shared.embed(x) * shared.scale) ** 2).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def captures(shared):
    """A step that reaches the shared module by itself."""
    return lambda model, optimizer, x: step(model, optimizer, shared, x)


def captures_array(shared):
    """A step that reaches the shared array by itself, and is given the layer."""
    embed = shared.embed

    def own(model, optimizer, x):
        return step(model, optimizer, Empty(embed=embed, scale=shared.scale), x)

    return own


def passes(shared):
    """A step that is given the shared module."""
    compiled = nnx.jit(step)
    return lambda model, optimizer, x: compiled(model, optimizer, shared, x)


SHARED_BY_ALL = {
    "passed": passes,
    "captured": lambda shared: nnx.jit(captures(shared)),
    "a raw array of a captured object": lambda shared: nnx.jit(captures_array(shared)),
}


def train(seed, compiled, make=Model, tx=ADAM):
    """The losses and the final values of one model."""
    # Optax needs the standard rules, which are those of one thread.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        model = make(seed)
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        losses = [compiled(model, optimizer, X + seed).item() for _ in range(STEPS)]
    assert _frame.thread.frame is None
    values = nnx.to_flat_state(nnx.state((model, optimizer), nnx.Not(nnx.RngKey)))
    return losses, {path: v.get_value().tolist() for path, v in values}


def at_once(work):
    """What work gives for each number, in threads that start together."""
    barrier = threading.Barrier(THREADS)

    def waiting(i):
        barrier.wait()
        return work(i)

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(waiting, range(THREADS)))


@pytest.mark.parametrize("make", SHARED_BY_ALL.values(), ids=SHARED_BY_ALL.keys())
def test_threads_with_one_compiled_step_train_as_each_does_alone(make):
    shared = shared_module()
    before = [leaf.tolist() for leaf in jax.tree.leaves(shared)]
    compiled = make(shared)
    together = at_once(lambda seed: train(seed, compiled))
    assert together == [train(seed, compiled) for seed in range(THREADS)]
    assert len({tuple(losses) for losses, _ in together}) == THREADS
    assert [leaf.tolist() for leaf in jax.tree.leaves(shared)] == before


def test_threads_that_compile_their_own_steps_train_as_each_does_alone():
    shared = shared_module()

    def small(seed):
        return nnx.Linear(3, 2, rngs=nnx.Rngs(seed))

    together = at_once(lambda seed: train(seed, nnx.jit(captures(shared)), small, optax.sgd(0.1)))
    compiled = nnx.jit(captures(shared))
    assert together == [train(seed, compiled, small, optax.sgd(0.1)) for seed in range(THREADS)]


def test_a_change_of_the_shared_module_is_seen_by_all_threads_without_a_trace():
    shared = shared_module()
    counted, runs = traced(lambda x: shared.embed(x) * shared.scale)
    forward = nnx.jit(counted)
    before = forward(X).tolist()
    assert at_once(lambda _: forward(X).tolist()) == [before] * THREADS
    traces = len(runs)
    shared.embed.kernel[...] *= 2.0
    shared.embed.bias[...] *= 2.0
    twice = (2.0 * jnp.asarray(before)).tolist()
    assert at_once(lambda _: forward(X).tolist()) == [twice] * THREADS
    assert len(runs) == traces == 1
