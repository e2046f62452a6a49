"""One step of training and one of evaluation.

Both take the model, and what goes with it, by reference: after the call the objects hold the new
values. Letters of the shapes: B windows in a batch, T characters that a window asks for, V tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import nnxgraph as nnx

from ._data import Tokens
from ._model import Transformer
from ._settings import Settings


def loss_and_logits(model: Transformer, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean loss of predicting each character of (B, T + 1) from those before it, in nats."""
    logits = model(tokens[:, :-1])  # (B, T, V)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])  # (B, T)
    return losses.mean(), logits  # (), (B, T, V)


@nnx.jit
def train_step(
    model: Transformer,
    optimizer: nnx.Optimizer[Transformer],
    metrics: nnx.MultiMetric,
    tokens: jax.Array,
) -> None:
    """Changes model, optimizer and metrics by one batch of windows, (B, T + 1)."""
    grad = nnx.value_and_grad(loss_and_logits, has_aux=True)
    (loss, logits), gradients = grad(model, tokens)
    optimizer.update(model, gradients)
    metrics.update(loss=loss, logits=logits, labels=tokens[:, 1:])


@nnx.jit
def evaluation_step(model: Transformer, metrics: nnx.MultiMetric, tokens: jax.Array) -> None:
    """Adds one batch of windows, (B, T + 1), to the metrics."""
    loss, logits = loss_and_logits(model, tokens)
    metrics.update(loss=loss, logits=logits, labels=tokens[:, 1:])


def make_metrics() -> nnx.MultiMetric:
    """What is measured: the loss in nats a character, and how often the best guess is right."""
    return nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())


def learning_rate(settings: Settings) -> optax.Schedule:
    """A short warmup, then half a cosine down to nearly zero."""
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0 if settings.warmup else settings.learning_rate,
        peak_value=settings.learning_rate,
        warmup_steps=settings.warmup,
        decay_steps=settings.steps,
        end_value=settings.learning_rate / 50,
    )


class Trainer:
    """All that changes while a model trains; `objects` are what a checkpoint has to keep."""

    def __init__(self, settings: Settings, vocabulary: int) -> None:
        self.settings = settings
        self.model = Transformer(settings, vocabulary, rngs=nnx.Rngs(settings.seed))
        adamw = optax.adamw(learning_rate(settings), b2=0.99, weight_decay=settings.weight_decay)
        clipped = optax.chain(optax.clip_by_global_norm(settings.clip), adamw)
        self.optimizer = nnx.Optimizer(self.model, clipped, wrt=nnx.Param)
        self.metrics = make_metrics()

    @property
    def objects(self) -> dict[str, Any]:
        """The objects whose Variables are the state of the run."""
        return {"model": self.model, "optimizer": self.optimizer, "metrics": self.metrics}

    @property
    def step(self) -> int:
        """How many steps were made."""
        return int(self.optimizer.step[...])

    def train(self, tokens: Tokens) -> None:
        """Makes one step."""
        train_step(self.model, self.optimizer, self.metrics, jnp.asarray(tokens))

    def take_metrics(self) -> dict[str, float]:
        """What was measured since the last time."""
        measured = {name: float(value) for name, value in self.metrics.compute().items()}
        self.metrics.reset()
        return measured

    def validation_loss(self, windows: Tokens) -> float:
        """The loss on windows (N, T + 1), without dropout; the state of the run stays as it is."""
        metrics = make_metrics()
        batch = min(self.settings.evaluation_batch, len(windows))
        self.model.eval()
        for start in range(0, len(windows), batch):
            tokens = jnp.asarray(windows[start : start + batch])  # (B, T + 1)
            evaluation_step(self.model, metrics, tokens)
        self.model.train()
        return float(metrics.compute()["loss"])
