"""What crosses a Boundary: the arguments of a call taken apart, and what the function did to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from .._frame import Birthplace, Frame, is_outside, stand_in
from .._recorder import ArgumentRecorder
from .._static import Static
from .._typing import Path
from .._variable import Variable
from ..graph._graphdef import Desc, GraphDef, leaf_starts, record_leaves
from ._captures import NOTHING_CAPTURED, Captured, Roots, Same
from ._lanes import Names

Lanes = tuple[list[Any], ...]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Layout:
    """What is static of the arguments: their graph, and the lane of each leaf."""

    graphdef: GraphDef
    lane_of: tuple[int, ...]
    kept: int = 0  # how many objects, the first ones, stay in place
    fixed: tuple[Same, ...] = ()  # arrays in kept objects that are constants of the program
    recorded: tuple[Any, ...] = ()  # what the recorders that are open ask for
    behind: Static | None = None  # what functions in attributes and hooks depend on


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Change:
    """What is static of the results, with the leaves in this order.

    `written`: numbers of input leaves that have a new value. `edits`: input objects with other attributes
    or another spec. `root` and `records`: the result, in terms of known and new objects. `late`: how many
    captured Variables were written.
    """

    written: tuple[int, ...]
    edits: tuple[tuple[int, Desc], ...]
    root: Desc
    records: tuple[Desc, ...]
    late: int
    lane_of: tuple[int, ...]

    def edit_leaves(self) -> int:
        """How many leaves the edits have."""
        return sum(record_leaves(r) for _, r in self.edits if r[0] == "object")


@dataclasses.dataclass
class Call:
    """What one call knows of captured objects; `cached` if the function runs only while it is traced."""

    crossing: Crossing
    cached: bool = False
    traced: bool = False  # whether the function ran
    replayed: bool = False  # whether the function runs any number of times, or never
    discards: bool = False  # whether nothing is done to the caller's objects
    outer: list[Any] = dataclasses.field(default_factory=list)  # captured objects in the result
    met: list[Variable[Any]] = dataclasses.field(default_factory=list)  # captured, and not kept
    written: list[Variable[Any]] = dataclasses.field(default_factory=list)  # those of them that were
    where: dict[int, Path] = dataclasses.field(default_factory=dict)  # paths of leaves behind the written
    writes_arrays: bool = False  # whether an array in a kept object was replaced

    def twins(self, inside: Sequence[Any]) -> dict[Variable[Any], Variable[Any]]:
        """The Variables built inside, by the caller's Variables that they stand for."""
        pairs = zip(self.crossing.objects, inside, strict=True)
        return {stand_in(x): twin for x, twin in pairs if isinstance(x, Variable) and x is not twin}

    def copies(self, inside: Sequence[Any]) -> dict[int, tuple[Any, Any]]:
        """The objects built inside, by their ids, with those of the caller that they stand for."""
        pairs = zip(inside, self.crossing.objects, strict=True)
        return {id(x): (x, own) for x, own in pairs if x is not own and not isinstance(x, Variable)}

    def claim(self, x: Any, frame: Frame) -> int | None:
        """The number of an object that the function reached by itself; None for one that it made."""
        if not is_outside(x, frame):
            return None
        if self.cached:
            raise Missed((), (x,))
        if all(y is not x for y in self.outer):
            self.outer.append(x)
        place = next(i for i, y in enumerate(self.outer) if y is x)
        return len(self.crossing.objects) + place


class Missed(Exception):
    """A cached function reached Variables or objects that were not found beforehand."""

    def __init__(self, variables: tuple[Variable[Any], ...], objects: tuple[Any, ...], writes: bool = False):
        super().__init__()
        self.variables = variables
        self.objects = objects
        self.writes = writes


@dataclasses.dataclass
class Crossing:
    """The arguments of one call, taken apart."""

    layout: Layout
    lanes: Lanes
    leaves: list[Any]
    objects: list[Any]
    names: Names
    captured: Captured = NOTHING_CAPTURED
    swaps: bool = False  # whether arrays in kept objects are arguments, and not constants
    called_at: Birthplace = None  # noted under a capture
    recorders: tuple[ArgumentRecorder, ...] = ()  # those of a cached function under a capture
    behind: tuple[tuple[Roots, Captured], ...] = ()  # what functions in attributes and hooks reach

    @property
    def kept(self) -> list[Any]:
        """The objects that stay in place."""
        return self.objects[: self.layout.kept]

    def reaching(self, roots: Roots, found: Captured) -> Crossing:
        """The same, of a function that depends on what other functions reach."""
        layout = dataclasses.replace(self.layout, behind=found.key)
        return dataclasses.replace(self, layout=layout, behind=((roots, found),))

    def recorded_by(self, recorders: tuple[ArgumentRecorder, ...]) -> Crossing:
        """The same, of a function that records."""
        asked = tuple(recorder.signature for recorder in recorders)
        layout = dataclasses.replace(self.layout, recorded=asked)
        return dataclasses.replace(self, layout=layout, recorders=recorders)


@dataclasses.dataclass
class Inside:
    """The arguments as they were built inside."""

    layout: Layout
    objects: list[Any]
    leaves: list[Any]
    flat: dict[int, tuple[list[Any], Any]]  # leaves that are pytrees, as they came in

    def numbers(self, call: Call) -> dict[int, int]:
        """The numbers of the arguments by identity, as they are inside and as the caller has them."""
        callers = {} if call.cached else {id(x): i for i, x in enumerate(call.crossing.objects)}
        return callers | {id(x): i for i, x in enumerate(self.objects)}

    def unchanged(self, k: int, now: Any) -> bool:
        """Whether an input leaf still has the value it came with."""
        if k not in self.flat:
            return now is self.leaves[k]
        leaves, treedef = jax.tree.flatten(now)
        before, old = self.flat[k]
        return (
            treedef == old
            and len(leaves) == len(before)
            and all(a is b for a, b in zip(leaves, before, strict=True))
        )

    def writes_arrays(self, written: Sequence[int], edits: Sequence[tuple[int, Desc]]) -> bool:
        """Whether a kept object has other arrays than before."""
        records = enumerate(self.layout.graphdef.records[: self.layout.kept])
        nodes = {i for i, record in records if record[0] == "object"}
        starts = [*leaf_starts(self.layout.graphdef), len(self.leaves)]
        owned = {k for i in nodes for k in range(starts[i], starts[i + 1])}
        return not owned.isdisjoint(written) or any(i in nodes and record_leaves(r) for i, r in edits)


def spread(leaves: Sequence[Any], lane_of: Sequence[int], count: int) -> Lanes:
    """Leaves in order as one list for each lane."""
    lanes: Lanes = tuple([] for _ in range(count))
    for leaf, lane in zip(leaves, lane_of, strict=True):
        lanes[lane].append(leaf)
    return lanes


def gather(lanes: Sequence[Sequence[Any]], lane_of: Sequence[int]) -> list[Any]:
    """The leaves in order from one list for each lane."""
    feeds = [iter(lane) for lane in lanes]
    return [next(feeds[lane]) for lane in lane_of]


def leaf_text(crossing: Crossing, k: int) -> str:
    """The k-th input leaf as the user would write it."""
    path = next(p for p, number in crossing.layout.graphdef.leaf_paths if number == k)
    return crossing.names.argument(path)


def variable_of(crossing: Crossing, k: int) -> Variable[Any] | None:
    """The Variable that holds the k-th input leaf, if one does."""
    starts = leaf_starts(crossing.layout.graphdef)
    holders = zip(crossing.objects, starts, strict=True)
    return next((x for x, start in holders if start == k and isinstance(x, Variable)), None)
