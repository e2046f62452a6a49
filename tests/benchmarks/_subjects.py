"""What the benchmarks measure on: one network with adam, in raw JAX and in each library that is installed."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import nnxgraph as nnx

from ._table import FLAX, OURS

LEARNING_RATE = 1e-3
WIDTH, BATCH = 64, 32  # of the train step


class Shape(NamedTuple):
    """How many layers a network has."""

    norms: int
    layers: int
    head: int  # without a bias


def shape_of(leaves: int) -> Shape:
    """The layers that make up, with adam, a number of leaves: 1 modulo 3, or 0 from 24 on."""
    norms = 2 if leaves % 3 == 0 else 1
    params = (leaves - 2 - 2 * norms) // 3  # adam keeps two more of each, and two counts
    return Shape(norms, *divmod(params - 2 * norms, 2))


class GraphLibrary(NamedTuple):
    """A library whose modules are objects that a step changes in place."""

    api: Any
    listed: Callable[[list[Any]], Any]  # how its modules hold a list


def graph_libraries() -> dict[str, GraphLibrary]:
    """The installed ones, by name; they share the names of what is used here."""
    found = {OURS: GraphLibrary(nnx, list)}
    if importlib.util.find_spec("flax"):
        api = importlib.import_module("flax.nnx")
        found[FLAX] = GraphLibrary(api, api.List)
    return found


def network(library: GraphLibrary) -> type:
    """The class of the network in a library."""
    api, listed = library

    class Net(api.Module):
        """Batch normalisations, then residual layers."""

        def __init__(self, shape: Shape, width: int, *, rngs: Any):
            self.norms = listed([api.BatchNorm(width, rngs=rngs) for _ in range(shape.norms)])
            self.layers = listed([api.Linear(width, width, rngs=rngs) for _ in range(shape.layers)])
            self.head = api.Linear(width, width, use_bias=False, rngs=rngs) if shape.head else None

        def __call__(self, x: jax.Array) -> jax.Array:
            for norm in self.norms:
                x = norm(x)
            for layer in self.layers:
                x = x + jnp.tanh(layer(x))
            return x if self.head is None else self.head(x)

    return Net


LIBRARIES = graph_libraries()
NETS = {name: network(library) for name, library in LIBRARIES.items()}


def model_and_optimizer(leaves: int, width: int = 2, library: str = OURS) -> tuple[Any, Any]:
    """A model and its optimizer with this many leaves in all."""
    api = LIBRARIES[library].api
    model = NETS[library](shape_of(leaves), width, rngs=api.Rngs(0))
    optimizer = api.Optimizer(model, optax.adam(LEARNING_RATE), wrt=api.Param)
    found = len(jax.tree.leaves(api.state((model, optimizer))))
    if found != leaves:
        raise ValueError(f"the network has {found} leaves in {library}, not {leaves}")
    return model, optimizer


def train_step(library: str = OURS) -> Callable[..., jax.Array]:
    """A new function that trains a model in place."""
    api = LIBRARIES[library].api

    def step(model: Any, optimizer: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def loss_fn(model: Any) -> jax.Array:
            return ((model(x) - y) ** 2).mean()

        loss, grads = api.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    return step


def batch(width: int = WIDTH) -> tuple[jax.Array, jax.Array]:
    """Inputs and targets."""
    x = jax.random.normal(jax.random.key(1), (BATCH, width))
    return x, x[:, ::-1]


class RawState(NamedTuple):
    """What a train step in raw JAX takes and gives: one flat list of arrays."""

    arrays: list[jax.Array]
    treedef: Any


def raw_state(model: Any, optimizer: Any) -> RawState:
    """The arrays of a model before its first step, copied."""
    variables = [v for norm in model.norms for v in (norm.scale, norm.bias)]
    variables += [v for layer in model.layers for v in (layer.kernel, layer.bias)]
    variables += [model.head.kernel] if model.head else []
    params = [variable[...] for variable in variables]
    stats = [v[...] for norm in model.norms for v in (norm.mean, norm.var)]
    opt_state = optax.adam(LEARNING_RATE).init(params)
    state = jax.tree.map(jnp.copy, (params, stats, opt_state, optimizer.step[...]))
    return RawState(*jax.tree.flatten(state))


def raw_step(shape: Shape, treedef: Any) -> Callable[..., tuple[jax.Array, list[jax.Array]]]:
    """A new function that does what `train_step` does, on a flat list of arrays."""
    tx = optax.adam(LEARNING_RATE)

    def step(arrays: list[jax.Array], x: jax.Array, y: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        params, stats, opt_state, count = jax.tree.unflatten(treedef, arrays)

        def loss_fn(params: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
            outputs, new_stats = raw_forward(shape, params, stats, x)
            return ((outputs - y) ** 2).mean(), new_stats

        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return loss, jax.tree.leaves((optax.apply_updates(params, updates), stats, opt_state, count + 1))

    return step


def raw_forward(
    shape: Shape, params: list[jax.Array], stats: list[jax.Array], x: jax.Array
) -> tuple[jax.Array, list[jax.Array]]:
    """The network on lists of arrays: its outputs and new statistics."""
    params, new_stats = iter(params), []
    for old_mean, old_var in zip(stats[::2], stats[1::2], strict=True):
        scale, bias = next(params), next(params)
        mean = x.mean(0, keepdims=True)
        var = jnp.maximum((x * x).mean(0, keepdims=True) - mean * mean, 0)
        x = (x - mean) * (jax.lax.rsqrt(var + 1e-5) * scale[None]) + bias[None]
        new_stats += [0.99 * old_mean + 0.01 * mean[0], 0.99 * old_var + 0.01 * var[0]]
    for _ in range(shape.layers):
        kernel, bias = next(params), next(params)
        x = x + jnp.tanh(x @ kernel + bias[None])
    return (x @ next(params) if shape.head else x), new_stats
