"""What a call of a compiled function costs that does nothing with a model and its optimizer.

R0, the base, is a no-op of raw `jax.jit` over the same arrays in one flat list.
"""

import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

import jax

from ._subjects import LIBRARIES, model_and_optimizer
from ._table import EQUINOX, OURS, RAW, Figure, Subject

MORE_THAN_READ = {73: 2.4, 703: 2.2, 3000: 2.0}
FIGURES = (
    Figure("jit no-op", "no-op", "no-op", {73: 2.2, 703: 2.0, 3000: 1.8}),
    Figure("jit no-op, two models in turn", "in turn", "no-op", MORE_THAN_READ),
    Figure("jit no-op, one Variable written", "written", "no-op", MORE_THAN_READ),
)


def no_op(*args: Any) -> None:
    """Nothing."""


def count(model: Any, optimizer: Any) -> None:
    """Write one Variable."""
    optimizer.step[...] += 1


def subjects(leaves: int) -> dict[Subject, Callable[[], Any]]:
    """What is measured at this number of leaves."""
    api = LIBRARIES[OURS].api
    one, other, third = (model_and_optimizer(leaves) for _ in range(3))
    arrays = jax.tree.leaves(api.state(one))
    pairs = itertools.cycle([one, other])
    raw = jax.jit(no_op, keep_unused=True)
    in_turn, written = api.jit(no_op, keep_unused=True), api.jit(count, keep_unused=True)
    found: dict[Subject, Callable[[], Any]] = {
        (RAW, "no-op"): lambda: raw(arrays),
        (OURS, "in turn"): lambda: in_turn(*next(pairs)),
        (OURS, "written"): lambda: written(*third),
    }
    for name, library in LIBRARIES.items():
        found[name, "no-op"] = _no_op_of(library.api.jit, *model_and_optimizer(leaves, library=name))
    if importlib.util.find_spec("equinox"):
        import equinox

        from ._equinox import model_and_states

        found[EQUINOX, "no-op"] = _no_op_of(equinox.filter_jit, *model_and_states(leaves))
    return found


def _no_op_of(jit: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """The no-op compiled by a library, over its objects."""
    jitted = jit(no_op, keep_unused=True)
    return lambda: jitted(*args)
