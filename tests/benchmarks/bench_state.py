"""What split, state, update, merge and clone cost of a model and its optimizer.

R1, the base, is a raw `jax.jit` that takes and returns the same arrays in one flat list.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax

from ._subjects import LIBRARIES, model_and_optimizer
from ._table import OURS, RAW, Figure, Subject

TARGETS = {
    "split": 0.4,
    "state": 0.4,
    "update": 0.3,
    "merge": 0.4,
    "clone": 0.8,
    "split after a structure change": 1.0,
    "jax.jit over a State": 1.6,
}
FIGURES = tuple(
    Figure(name, name, "R1", dict.fromkeys((73, 703, 3000), target)) for name, target in TARGETS.items()
)


def subjects(leaves: int) -> dict[Subject, Callable[[], Any]]:
    """What is measured at this number of leaves."""
    api = LIBRARIES[OURS].api
    node, changing = (model_and_optimizer(leaves) for _ in range(2))
    graphdef, state = api.split(node)
    arrays, numbers = jax.tree.leaves(state), itertools.count()
    raw = jax.jit(lambda arrays: arrays, keep_unused=True)
    over_state = jax.jit(lambda graphdef, state: (graphdef, state), keep_unused=True)

    def split_after_change() -> Any:
        changing[0].number = next(numbers)  # a static attribute
        return api.split(changing)

    found: dict[Subject, Callable[[], Any]] = {
        (RAW, "R1"): lambda: raw(arrays),
        (OURS, "state"): lambda: api.state(node),
        (OURS, "update"): lambda: api.update(node, state),
        (OURS, "clone"): lambda: api.clone(node),
        (OURS, "split after a structure change"): split_after_change,
        (OURS, "jax.jit over a State"): lambda: over_state(graphdef, state),
    }
    for name in LIBRARIES:
        found |= _split_and_merge(name, leaves)
    return found


def _split_and_merge(name: str, leaves: int) -> dict[Subject, Callable[[], Any]]:
    """`split` and `merge` of a library."""
    api, node = LIBRARIES[name].api, model_and_optimizer(leaves, library=name)
    graphdef, state = api.split(node)
    return {
        (name, "split"): lambda: api.split(node),
        (name, "merge"): lambda: api.merge(graphdef, state),
    }
