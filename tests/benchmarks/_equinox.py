"""The network in Equinox, where a step returns what it changed. Importing this needs Equinox."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ._subjects import LEARNING_RATE, Shape, shape_of


class Net(eqx.Module):
    """Batch normalisations, then residual layers."""

    norms: list[eqx.nn.BatchNorm]
    layers: list[eqx.nn.Linear]
    head: eqx.nn.Linear | None

    def __init__(self, shape: Shape, width: int, key: jax.Array):
        *keys, last = jax.random.split(key, shape.layers + 1)
        self.norms = [eqx.nn.BatchNorm(width, "batch", mode="batch") for _ in range(shape.norms)]
        self.layers = [eqx.nn.Linear(width, width, key=k) for k in keys]
        self.head = eqx.nn.Linear(width, width, use_bias=False, key=last) if shape.head else None

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        for norm in self.norms:
            x, state = norm(x, state)
        for layer in self.layers:
            x = x + jnp.tanh(layer(x))
        return (x if self.head is None else self.head(x)), state


def model_and_states(leaves: int, width: int = 2) -> tuple[Net, eqx.nn.State, Any]:
    """The network with the layers of those with this many leaves, its state and that of adam."""
    model, state = eqx.nn.make_with_state(Net)(shape_of(leaves), width, jax.random.key(0))
    return model, state, optax.adam(LEARNING_RATE).init(eqx.filter(model, eqx.is_inexact_array))


def train_step() -> Callable[..., tuple[jax.Array, tuple[Net, eqx.nn.State, Any]]]:
    """A new function from a model, its state and that of adam to the loss and the three after the step."""
    tx = optax.adam(LEARNING_RATE)

    def loss_fn(model: Net, state: eqx.nn.State, x: jax.Array, y: jax.Array) -> Any:
        outputs, state = jax.vmap(model, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(x, state)
        return ((outputs - y) ** 2).mean(), state

    def step(model: Net, state: eqx.nn.State, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        (loss, state), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model, state, x, y)
        updates, opt_state = tx.update(grads, opt_state, model)
        return loss, (eqx.apply_updates(model, updates), state, opt_state)

    return step
