"""Functions over the same arguments of which one runs: the branches of cond, a function and its custom rule.

Each is traced once. Which one will run is not known then, so that all must leave the same graph, and each
hands back a value for all that any of them writes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._trees import same_types
from .._variable import Variable
from ..errors import GraphChangeError
from ._boundary import Boundary
from ._captures import Captured
from ._crossing import Call, Change, Crossing, Lanes, gather, spread
from ._replay import Replay, edit_texts, said, type_text


@dataclasses.dataclass(frozen=True)
class Branch:
    """One of the functions: what texts call it, and what JAX sees of its result."""

    label: str
    f: Callable[..., Any]  # takes the extras, what is bound to any of the functions, and the arguments
    head: Callable[[Any], tuple[Any, Any]] = lambda out: ((), out)
    extras: tuple[Any, ...] = ()


class Branches:
    """The functions, traced; captured Variables that one writes are arguments of all.

    With `closed` so are those that one only reads. `make` gives the functions for the arguments taken apart.
    """

    def __init__(
        self,
        boundary: Boundary,
        make: Callable[[Crossing], Sequence[Branch]],
        args: tuple[Any, ...],
        bound: tuple[Any, ...],
        names: tuple[str, ...],
        closed: bool = False,
    ):
        self.boundary = boundary
        given: tuple[Variable[Any], ...] = ()
        while True:
            self.crossing = boundary.split(args, {}, bound, Captured(given), names)
            branches = make(self.crossing)
            self.outer: list[Any] = []  # one for all, so that an object has one number
            traced = list(map(self.trace, branches))
            late = {id(v): v for _, call in traced for v in (call.met if closed else call.written)}
            if not late:
                break
            given = (*given, *late.values())
        self.call = traced[0][1]
        self.replays = [replay for replay, _ in traced]
        self.labels = [b.label for b in branches]
        self.written = sorted(set().union(*(r.change.written for r in self.replays)))

    def trace(self, branch: Branch) -> tuple[Replay, Call]:
        """The trace of one function over the leaves of the arguments."""
        call = Call(self.crossing, replayed=True, outer=self.outer)
        boundary = dataclasses.replace(self.boundary, head=branch.head)

        def pure(layout: Any, lanes: Lanes, *extras: Any) -> Any:
            return boundary.purify(functools.partial(branch.f, *extras), call)(layout, lanes)

        return Replay(pure, self.crossing.layout, self.crossing.lanes, *branch.extras), call

    def run(self, replay: Replay, lanes: Lanes, *extras: Any, consts: Sequence[Any] | None = None) -> Any:
        """The head of one function, the values of what any writes, and the rest of its result."""
        layout = self.crossing.layout
        head, out = replay(layout, lanes, *extras, consts=consts)
        count = len(replay.change.written)
        values = dict(zip(replay.change.written, out[:count], strict=True))
        leaves = gather(lanes, layout.lane_of)
        return head, ([values.get(k, leaves[k]) for k in self.written], out[count:])

    def merge(self, values: list[Any], rest: list[Any]) -> Any:
        """Apply what the function did that ran, and build the result."""
        first = self.replays[0].change
        lanes = [self.crossing.layout.lane_of[k] for k in self.written]
        lane_of = (*lanes, *first.lane_of[len(first.written) :])
        change = dataclasses.replace(first, written=tuple(self.written), lane_of=lane_of)
        packed = spread([*values, *rest], lane_of, len(self.boundary.lanes))
        return self.boundary.merge((change, packed), self.call)

    def check(self, problem: str, advice: str) -> None:
        """Refuse functions that leave different graphs, or results of different types."""
        for label, replay in zip(self.labels[1:], self.replays[1:], strict=True):
            self.check_alike(label, replay, problem, advice)
        self._check_written(problem)

    def check_alike(self, label: str, replay: Replay, problem: str, advice: str) -> None:
        """Refuse a function that leaves another graph than the first, or a result of another type."""
        texts = _differences(self.crossing, (self.labels[0], label), self.replays[0], replay)
        if texts:
            raise GraphChangeError(self.boundary.name, problem, tuple(texts), advice)

    def _check_written(self, problem: str) -> None:
        """Refuse a function that gives a Variable another type than it has elsewhere."""
        texts = []
        for label, replay in zip(self.labels, self.replays, strict=True):
            for k, new in zip(replay.change.written, replay.leaves, strict=False):
                old = self.crossing.leaves[k]
                everywhere = all(k in r.change.written for r in self.replays)
                old_types = jax.tree.map(jax.typeof, old)
                if not everywhere and not same_types(old_types, new):
                    texts.append(f"{label} makes {type_text(old)} a {type_text(new)}")
        if texts:
            advice = "Expected a Variable to have the same shape and dtype after each branch."
            raise GraphChangeError(self.boundary.name, problem, tuple(texts), advice)


def _differences(crossing: Crossing, labels: tuple[str, str], first: Replay, other: Replay) -> list[str]:
    """In what the graphs and results of two functions differ."""
    a, b = first.change, other.change
    texts = []
    if a.edits != b.edits:
        texts += [f"{labels[0]}: {t}" for t in edit_texts(crossing, a.edits)]
        texts += [f"{labels[1]}: {t}" for t in edit_texts(crossing, b.edits)]
    if a.root != b.root or (not texts and a.records != b.records):
        texts.append(f"{labels[0]} returns {said(a.root)}, {labels[1]} returns {_unlike(a, b)}")
    if texts:
        return texts
    pairs = zip(first.leaves[len(a.written) :], other.leaves[len(b.written) :], strict=True)
    return [
        f"{labels[0]} returns {type_text(x)} where {labels[1]} returns {type_text(y)}"
        for x, y in pairs
        if not same_types(x, y)
    ]


def _unlike(a: Change, b: Change) -> str:
    """What the second branch returns, in words that differ from the first if they can."""
    text = said(b.root)
    return f"another {text.removeprefix('a ').removeprefix('an ')}" if text == said(a.root) else text
