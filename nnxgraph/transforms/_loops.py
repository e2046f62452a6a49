"""What while_loop, fori_loop and scan share: a body traced once, and what it carries.

All leaves of the arguments enter the trace of the body. What the body changes is the state of the loop;
what it only reads is constant. So a loop equals the Python loop, for Variables that are written too, and a
frozen model costs a loop nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .._frame import thread
from .._variable import Variable
from ..errors import GraphChangeError
from ..graph._graphdef import count_leaves
from ._boundary import Boundary
from ._captures import Captured
from ._crossing import Call, Crossing, Lanes, leaf_text, spread
from ._lanes import PrefixRule
from ._replay import Match, Replay, edit_texts, retyped, type_text

_ADVICE = (
    "Expected every iteration to leave the graph that it found. Make objects and attributes before the "
    "loop, return what is new as an output, and return the carried objects themselves."
)


@dataclasses.dataclass
class Loop:
    """A loop body, traced, and the leaves that it runs over."""

    boundary: Boundary
    call: Call
    leaves: list[Any]  # initial values
    replay: Replay
    source: dict[int, int]  # input leaf: the output leaf that is its next value

    def __post_init__(self) -> None:
        self.crossing = self.call.crossing
        lane_of = self.crossing.layout.lane_of
        self.state = [
            k
            for k, p in sorted(self.source.items())
            if not self.is_mapped(lane_of[k]) and not self.replay.passes(p, k)
        ]
        self.mapped_out = [p for p, lane in enumerate(self.replay.change.lane_of) if self.is_mapped(lane)]

    def is_mapped(self, lane: int) -> bool:
        """Whether a lane holds one slice for each iteration."""
        return isinstance(self.boundary.lanes[lane], int)

    def initial(self) -> list[Any]:
        """The state before the first iteration."""
        return [self.leaves[k] for k in self.state]

    def inputs(self, state: list[Any], mapped: dict[int, Any] | None = None) -> Lanes:
        """All leaves of the arguments in an iteration, as lanes."""
        now = list(self.leaves)
        for k, value in zip(self.state, state, strict=True):
            now[k] = value
        for k, value in (mapped or {}).items():
            now[k] = value
        return spread(now, self.crossing.layout.lane_of, len(self.boundary.lanes))

    def step(self, lanes: Lanes, *extras: Any) -> tuple[list[Any], list[Any]]:
        """The state after an iteration, and the mapped outputs."""
        _, out = self.replay(self.crossing.layout, lanes, *extras)
        return [out[self.source[k]] for k in self.state], [out[p] for p in self.mapped_out]

    def finish(self, state: list[Any], mapped: list[Any] = []) -> Any:  # noqa: B006  # never changed
        """Apply what the loop did, and build the result."""
        change = self.replay.change
        final: list[Any] = [None] * len(change.lane_of)
        values = dict(zip(self.state, state, strict=True))
        for k, p in self.source.items():
            final[p] = values.get(k, self.leaves[k])
        for p, value in zip(self.mapped_out, mapped, strict=True):
            final[p] = value
        lanes = spread(final, change.lane_of, len(self.boundary.lanes))
        return self.boundary.merge((change, lanes), self.call)


def trace_loop(
    boundary: Boundary,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    carry: int | None,
    names: tuple[str, ...],
    bound: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    extras: tuple[Any, ...] = (),
    abstract: Callable[[Boundary, Crossing, list[Any]], list[Any]] = lambda boundary, crossing, leaves: (
        leaves
    ),
) -> Loop:
    """Trace a loop body until the types of its state are the same before and after.

    `carry` is the position of the carried argument, `extras` go between what is bound and the arguments,
    `abstract` makes slices of mapped leaves. Captured Variables that the body writes become arguments too.
    """
    given = _written_outside()
    if given:  # what is passed too is found among the arguments
        passed = set(map(id, boundary.split(args, kwargs or {}, bound, names=names).objects))
        given = tuple(v for v in given if id(v) not in passed)
    while True:
        crossing = boundary.split(args, kwargs or {}, bound, Captured(given), names)
        leaves = crossing.leaves
        while True:
            call = Call(crossing, replayed=True)
            lanes = spread(abstract(boundary, crossing, leaves), crossing.layout.lane_of, len(boundary.lanes))
            replay = Replay(_with_extras(boundary, body, call, len(bound)), crossing.layout, lanes, *extras)
            if call.written:
                given = (*given, *call.written)
                break
            loop = Loop(boundary, call, leaves, replay, _matched(boundary, crossing, replay, carry))
            leaves = _settled(loop)
            if all(a is b for a, b in zip(leaves, loop.leaves, strict=True)):
                return loop


def _written_outside() -> tuple[Variable[Any], ...]:
    """What the loops around this one were found to write of what they captured.

    A body inside is likely to be what writes it. Giving it to that body at once keeps nests linear: else each
    loop would trace its body twice.
    """
    found: list[Variable[Any]] = []
    frame = thread.frame
    while frame is not None and not frame.cached:
        found += [v for v in frame.now if id(v) in frame.kept]
        frame = frame.parent
    return tuple(dict.fromkeys(found))


def _with_extras(boundary: Boundary, body: Callable[..., Any], call: Call, bound: int) -> Callable[..., Any]:
    """The body as JAX sees it, with further arguments behind the first `bound` ones."""

    def pure(layout: Any, lanes: Lanes, *extras: Any) -> Any:
        def with_extras(*args: Any, **kwargs: Any) -> Any:
            return body(*args[:bound], *extras, *args[bound:], **kwargs)

        return boundary.purify(with_extras, call)(layout, lanes)

    return pure


def _matched(boundary: Boundary, crossing: Crossing, replay: Replay, carry: int | None) -> dict[int, int]:
    """The output leaf that is the next value of each input leaf; refuses other changes of the graph."""
    change = replay.change
    match = Match(crossing, change)
    if carry is not None:
        captured, bound, args, _ = crossing.layout.graphdef.root[2]
        before = args[2][carry]
        first = sum(map(count_leaves, (captured, bound, *args[2][:carry])))
        match.carried(before, change.root[2][0], first, crossing.names.text((0, carry)))
    differences = match.differences
    edits = [(i, r) for i, r in change.edits if not _may_change(boundary, crossing, i)]
    differences += edit_texts(crossing, edits)
    unmatched = set(range(len(change.lane_of))) - set(match.source.values())
    if not differences and any(not isinstance(boundary.lanes[change.lane_of[p]], int) for p in unmatched):
        differences += edit_texts(crossing, change.edits)
    if differences:
        raise GraphChangeError(
            boundary.name,
            "the body leaves another graph than it found",
            tuple(differences),
            _ADVICE,
        )
    return match.source


def _may_change(boundary: Boundary, crossing: Crossing, i: int) -> bool:
    """Whether an object is a new slice in each iteration, so that its attributes may change."""
    place = boundary.places(crossing).get(i)
    return place is not None and isinstance(place[0], (int, PrefixRule))


def _settled(loop: Loop) -> list[Any]:
    """The initial leaves, with weakly typed ones made what the body makes of them."""
    leaves = list(loop.leaves)
    wrong = []
    for k in loop.state:
        p = loop.source[k]
        new = retyped(leaves[k], loop.replay.leaves[p], loop.replay.weak[p])
        if new is None:
            before, after = type_text(leaves[k]), type_text(loop.replay.leaves[p])
            wrong.append(f"{leaf_text(loop.crossing, k)} comes in as {before} and goes out as {after}")
        else:
            leaves[k] = new
    if wrong:
        advice = (
            "Expected the same shape and dtype in every iteration. Cast the initial value, or the result."
        )
        problem = "the body changes the type of what it carries"
        raise GraphChangeError(loop.boundary.name, problem, tuple(wrong), advice)
    return leaves
