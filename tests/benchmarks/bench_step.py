"""What a compiled train step costs, against the same maths on a flat list of arrays in raw `jax.jit`."""

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import jax

from ._subjects import LIBRARIES, WIDTH, batch, model_and_optimizer, raw_state, raw_step, shape_of, train_step
from ._table import EQUINOX, OURS, RAW, Figure, Subject

FIGURES = (
    Figure("train step, async", "step", "step", {73: 1.6, 703: 1.35, 3000: 1.3}),
    Figure("train step, blocked", "step", "step", {73: 1.15, 703: 1.1, 3000: 1.1}, blocked=True),
    Figure("train step, donate_written, async", "donated", "donated", {73: 1.7, 703: 1.45, 3000: 1.3}),
)


def subjects(leaves: int, width: int = WIDTH) -> dict[Subject, Callable[[], jax.Array]]:
    """What is measured at this number of leaves; each call is one more step, and returns the loss."""
    data = batch(width)
    found = {(RAW, work): _raw(leaves, width, data, work == "donated") for work in ("step", "donated")}
    for name in LIBRARIES:
        found[name, "step"] = _in_place(name, leaves, width, data)
    if "donate_written" in inspect.signature(LIBRARIES[OURS].api.jit).parameters:
        found[OURS, "donated"] = _in_place(OURS, leaves, width, data, donate_written=True)
    if importlib.util.find_spec("equinox"):
        found[EQUINOX, "step"] = _equinox(leaves, width, data)
    return found


def _raw(leaves: int, width: int, data: Any, donated: bool) -> Callable[[], jax.Array]:
    """Steps of raw JAX."""
    held, treedef = raw_state(*model_and_optimizer(leaves, width))
    jitted = jax.jit(raw_step(shape_of(leaves), treedef), donate_argnums=0 if donated else ())

    def call() -> jax.Array:
        nonlocal held
        loss, held = jitted(held, *data)
        return loss

    return call


def _in_place(name: str, leaves: int, width: int, data: Any, **options: Any) -> Callable[[], jax.Array]:
    """Steps of a library whose objects change."""
    model, optimizer = model_and_optimizer(leaves, width, name)
    jitted = LIBRARIES[name].api.jit(train_step(name), **options)
    return lambda: jitted(model, optimizer, *data)


def _equinox(leaves: int, width: int, data: Any) -> Callable[[], jax.Array]:
    """Steps of Equinox."""
    import equinox

    from . import _equinox

    held = _equinox.model_and_states(leaves, width)
    jitted = equinox.filter_jit(_equinox.train_step())

    def call() -> jax.Array:
        nonlocal held
        loss, held = jitted(*held, *data)
        return loss

    return call
