"""What tracing and lowering the train step of a deep network costs, against the same maths in pure JAX."""

from collections.abc import Callable
from typing import Any

import jax

from ._subjects import LIBRARIES, WIDTH, batch, model_and_optimizer, raw_state, raw_step, shape_of, train_step
from ._table import RAW, Figure, Subject

DEPTH_50 = 310  # leaves of a network with fifty layers, and adam
FIGURES = (Figure("trace + lower of the train step, depth 50", "lower", "lower", {DEPTH_50: 1.2}),)


def subjects(leaves: int, width: int = WIDTH) -> dict[Subject, Callable[[], Any]]:
    """What is measured at this number of leaves; each call makes a new function, traced and lowered."""
    data, shape = batch(width), shape_of(leaves)
    arrays, treedef = raw_state(*model_and_optimizer(leaves, width))
    found: dict[Subject, Callable[[], Any]] = {
        (RAW, "lower"): lambda: jax.jit(raw_step(shape, treedef)).lower(arrays, *data)
    }
    return found | {(name, "lower"): _lower_of(name, leaves, width, data) for name in LIBRARIES}


def _lower_of(name: str, leaves: int, width: int, data: Any) -> Callable[[], Any]:
    """The step of a library, lowered."""
    api, node = LIBRARIES[name].api, model_and_optimizer(leaves, width, name)
    return lambda: api.jit(train_step(name)).lower(*node, *data)
