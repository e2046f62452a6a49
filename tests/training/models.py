"""A small model with data and a loss, and the transformations that the Optimizer is tried with."""

import functools

import jax
import jax.numpy as jnp
import optax

import nnxgraph as nnx

X = jnp.linspace(-1.0, 1.0, 24).reshape(6, 4)
Y = jnp.linspace(0.0, 1.0, 18).reshape(6, 3)


class Net(nnx.Module):
    """Layers in a list, normalisation with statistics, dropout with a stream."""

    def __init__(self, seed=0, width=5):
        rngs = nnx.Rngs(seed)
        self.body = [nnx.Linear(4, width, rngs=rngs)]
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        for layer in self.body:
            x = nnx.tanh(layer(x))
        return self.head(self.dropout(self.norm(x)))


def make(seed=0):
    """A model whose loss is a plain function of its parameters."""
    model = Net(seed)
    model.eval()
    return model


def loss(model):
    return ((model(X) - Y) ** 2).mean()


GRAPHDEF, PARAMS, REST = nnx.split(make(), nnx.Param, ...)


def pure_loss(params):
    """The same loss as a function of the State of the parameters."""
    return loss(nnx.merge(GRAPHDEF, params, REST))


# Compiled once for all tests, and the same numbers wherever two ways of training are compared.
value_and_grad = jax.jit(jax.value_and_grad(pure_loss))


def gradients(model):
    """The gradient of the loss of a model that `make` made."""
    return value_and_grad(nnx.state(model, nnx.Param))[1]


MASK = jax.tree.map(lambda p: p.ndim > 1, PARAMS)
LABELS = jax.tree_util.tree_map_with_path(lambda path, _: "head" if "head" in str(path) else "body", PARAMS)

WARMUP = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)

# name: a function that makes the transformation
PLAIN = {
    "sgd": functools.partial(optax.sgd, 0.1),
    "sgd with momentum": functools.partial(optax.sgd, 0.1, momentum=0.9, nesterov=True),
    "adam": functools.partial(optax.adam, 1e-2),
    "adamw with a mask": functools.partial(optax.adamw, 1e-2, mask=MASK),
    "adamw with a mask function": functools.partial(
        optax.adamw, 1e-2, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params)
    ),
    "chain with a schedule": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(WARMUP)),
    "masked": lambda: optax.masked(optax.adam(1e-2), MASK),
    "multi_transform": lambda: optax.multi_transform(
        {"head": optax.adam(1e-2), "body": optax.set_to_zero()}, LABELS
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(1e-2),
    "inject_hyperparams with a schedule": lambda: optax.inject_hyperparams(optax.sgd)(
        optax.linear_schedule(0.1, 0.01, 3)
    ),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2),
    "adafactor": functools.partial(optax.adafactor, 1e-2, min_dim_size_to_factor=4),
    "lion": functools.partial(optax.lion, 1e-3),
    "ema": lambda: optax.chain(optax.ema(0.9), optax.sgd(0.1)),
    "noise": lambda: optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1)),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(1e-2), 3),
    "schedule_free": functools.partial(optax.contrib.schedule_free_adamw, 1e-2),
    "muon": functools.partial(optax.contrib.muon, 1e-2),
    "moments in bfloat16": functools.partial(optax.adam, 1e-2, mu_dtype=jnp.bfloat16),
}

# name: a function that makes the transformation, and the extra arguments that it needs
WITH_ARGUMENTS = {
    "lbfgs": (optax.lbfgs, ("value", "grad", "value_fn")),
    "lbfgs with backtracking": (
        lambda: optax.lbfgs(memory_size=3, linesearch=optax.scale_by_backtracking_linesearch(5)),
        ("value", "grad", "value_fn"),
    ),
    "polyak_sgd": (optax.polyak_sgd, ("value",)),
    "reduce_on_plateau": (
        lambda: optax.chain(optax.adam(1e-2), optax.contrib.reduce_on_plateau(patience=1)),
        ("value",),
    ),
}
