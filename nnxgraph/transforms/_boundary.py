"""The Boundary: the one mechanism under every transform.

    outside   (1) split arguments into lanes            (4) merge: write back, change, build
                    |                                        ^
    -- JAX ---------v----------------------------------------|---------
    inside    (2) merge --> the user's function --> (3) split what changed

(1) takes the arguments apart: a `Layout`, which is static and hashable, and one list of leaves for each
lane. (2) builds the arguments anew inside the trace. (3) compares them with what was built: which leaves
were written, which objects changed their attributes, what is new. That is the `Change`, static too. (4)
applies it to the caller's own objects. Nothing is a side effect of tracing, so JAX may cache as it likes.

A Variable that the function reaches by itself is *captured*: it is read through the frame, and if it was
written its new value leaves as one more leaf, unless the transform is cached.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from .._frame import Frame, check_changes, check_write
from .._repr import function_name
from .._settings import GRAPH_MODE, Mode, check_tree
from .._typing import Path
from .._variable import Variable
from ..errors import CaptureError, InputReturnedError
from ..graph._edit import raw_owners, replace_raw_leaves
from ..graph._graphdef import Desc, GraphDef, count_leaves, leaf_starts, record_leaves
from ..graph._registry import kind_of, node_type
from ..graph._traverse import duplicate_paths
from ..graph._walk import Build, Walk, change_object
from ._axes import NamedAxis
from ._functions import Lifted
from ._lanes import Lane, Names, Resolver

Lanes = tuple[list[Any], ...]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Layout:
    """What is static of the arguments: their graph, and the lane of each leaf."""

    graphdef: GraphDef
    lane_of: tuple[int, ...]


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
    """What one call of a transform that is not cached knows of captured Variables."""

    crossing: Crossing
    given: tuple[Variable[Any], ...] = ()  # passed in, and kept in place
    written: list[Variable[Any]] = dataclasses.field(default_factory=list)  # written without being given
    met: list[Variable[Any]] = dataclasses.field(default_factory=list)  # read or written without being given
    where: dict[int, Path] = dataclasses.field(default_factory=dict)  # paths of leaves behind the written

    def twins(self, inside: Sequence[Any]) -> dict[Variable[Any], Variable[Any]]:
        """The Variables built inside, by the caller's Variables that they stand for."""
        pairs = zip(self.crossing.objects, inside, strict=True)
        return {x: twin for x, twin in pairs if isinstance(x, Variable) and x is not twin}


@dataclasses.dataclass
class Crossing:
    """The arguments of one call, taken apart."""

    layout: Layout
    lanes: Lanes
    leaves: list[Any]
    objects: list[Any]
    names: Names


@dataclasses.dataclass
class _Inside:
    """The arguments as they were built inside."""

    layout: Layout
    objects: list[Any]
    leaves: list[Any]
    flat: dict[int, tuple[list[Any], Any]]  # leaves that are pytrees, as they came in


Apply = Callable[[Callable[..., Any], Call], Any]


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


def _relative(desc: Desc) -> Desc:
    """A description in which objects are known ones."""
    if desc[0] == "node":
        return ("known", desc[1])
    if desc[0] == "container":
        return (desc[0], desc[1], tuple(map(_relative, desc[2])))
    return desc


def _relative_record(record: Desc) -> Desc:
    """A record in which objects are known ones."""
    if record[0] == "variable":
        return record
    return (*record[:3], tuple(map(_relative, record[3])), record[4])


def _without_change(x: Any, before: Desc, after: Desc, attributes: dict[Any, Any]) -> dict[Any, Any]:
    """The new attributes of an object, with those that hold no leaf and did not change as they stand there.

    So a list that stands under two attributes keeps what was appended to it through one of them.
    """
    old = _relative_record(before)
    known = dict(zip(old[2], old[3], strict=True)) if type(x) is after[1] else {}
    now = node_type(type(x)).attributes(x)
    same = [n for n, d in zip(after[2], after[3], strict=True) if known.get(n) == d and not count_leaves(d)]
    return attributes | {name: now[name] for name in same if name in now}


@dataclasses.dataclass(frozen=True)
class Boundary:
    """What crosses into one JAX transform, and how it comes back.

    `args`, `kwargs` and `outs` are prefixes; `captured` is the lane of what is bound or captured. `head`
    splits the function's result into what JAX itself must see and the rest. Leaves in the lanes `always`
    come back even if unchanged. With `fresh`, results are new objects and nothing is written back.
    """

    name: str
    lanes: tuple[Lane, ...]
    args: Any = None
    kwargs: Any = None
    outs: Any = None
    captured: Lane = None
    head: Callable[[Any], tuple[Any, Any]] = lambda out: ((), out)
    results: Callable[[Path], Path] = lambda path: path  # where a part of the rest stands in the result
    always: frozenset[int] = frozenset()
    fresh: bool = False
    checks_results: bool = False  # whether a returned input must stand in its own lane
    mode: Mode = GRAPH_MODE
    axes: NamedAxis | None = None  # the name of the mapped axis, for sharding metadata
    parameter: str = "in_axes"
    result_parameter: str = "out_axes"

    def split(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        bound: tuple[Any, ...] = (),
        given: tuple[Variable[Any], ...] = (),
        names: tuple[str, ...] = (),
    ) -> Crossing:
        """(1) Take the arguments apart."""
        walk = Walk()
        root = walk.roots((given, bound), (args, kwargs))
        graphdef = GraphDef(root, tuple(walk.records))
        named = Names(self.name, self.parameter, names)
        if not self.mode.sharing:
            check_tree(f"nnx.{self.name}", duplicate_paths(graphdef), named.argument)
        resolver = self._resolve(graphdef, walk.objects, named)
        leaves = walk.all_leaves()
        layout = Layout(graphdef, tuple(resolver.lane_of))
        return Crossing(layout, spread(leaves, layout.lane_of, len(self.lanes)), leaves, walk.objects, named)

    def _resolve(self, graphdef: GraphDef, objects: Sequence[Any], names: Names) -> Resolver:
        """The lanes of the arguments."""
        first = count_leaves(graphdef.root)
        resolver = Resolver(names, self.lanes, graphdef.records, objects, first)
        numbers = iter(range(first))
        given, bound, args, kwargs = graphdef.root[2]
        resolver.visit(given, self.captured, ("captured",), numbers, weak=True)
        resolver.visit(bound, self.captured, ("self",), numbers, weak=True)
        for part, desc, prefix in ((0, args, self.args), (1, kwargs, self.kwargs)):
            below = resolver.prefixes(desc, prefix, (part,))
            for key, child, p in zip(desc[1].keys, desc[2], below, strict=True):
                resolver.visit(child, p, (part, key), numbers)
        return resolver

    def places(self, crossing: Crossing) -> dict[int, tuple[Any, Path, Path]]:
        """The prefix, local path and path of each object of the arguments."""
        return self._resolve(crossing.layout.graphdef, crossing.objects, crossing.names).places

    def run(
        self, user: Lifted, args: tuple[Any, ...], kwargs: dict[str, Any], apply: Apply
    ) -> tuple[Any, Any]:
        """One call of a transform that keeps no cache: the head, and the rest of the result.

        `apply` gets the function as JAX sees it and calls its transform over (layout, lanes).
        """
        crossing = self.split(args, kwargs, user.bound, names=user.names)
        call = Call(crossing)
        head, packed = apply(self.purify(user.f, call), call)
        return head, self.merge(packed, crossing, call)

    def purify(self, f: Callable[..., Any], call: Call | None = None) -> Callable[..., Any]:
        """The function as JAX sees it: (layout, lanes) -> (head, (change, lanes)).

        Without a `call` the transform is cached, and captured Variables are refused.
        """

        def pure(layout: Layout, lanes: Lanes) -> Any:
            with Frame(self.name, cached=call is None) as frame:
                inside, (_, bound, args, kwargs) = self._enter(layout, lanes, frame, call)
                head, out = self.head(f(*bound, *args, **kwargs))
                packed = self._leave(inside, out, frame, call)
                if call is None and frame.late:
                    self._refuse_captured(f, frame)
                return head, packed

        return functools.wraps(f, updated=())(pure)

    def _refuse_captured(self, f: Callable[..., Any], frame: Frame) -> None:
        """Refuse Variables that a cached function reached by itself."""
        written = frame.late_written()
        shown = tuple(v._describe() for v in written or frame.late)
        raise CaptureError(self.name, function_name(f), shown, bool(written))

    def _enter(self, layout: Layout, lanes: Lanes, frame: Frame, call: Call | None) -> tuple[_Inside, Any]:
        """(2) Build the arguments anew, but for captured Variables, which get their value in the frame."""
        leaves = gather(lanes, layout.lane_of)
        given = call.given if call is not None else ()
        build = Build(layout.graphdef.records, given=given)
        start = count_leaves(layout.graphdef.root)
        for variable, value in zip(given, leaves[start:], strict=False):
            frame.bind(variable, value)
        build.make_objects(iter(leaves[start + len(given) :]))
        root = build.value(layout.graphdef.root, iter(leaves[:start]))
        frame.twins = call.twins(build.objects) if call is not None else {}
        self._name_axes(build.objects, leaf_starts(layout.graphdef), layout.lane_of, NamedAxis.enter)
        flat = {k: jax.tree.flatten(v) for k, v in enumerate(leaves) if not hasattr(v, "shape")}
        return _Inside(layout, build.objects, leaves, flat), root

    def _name_axes(
        self,
        objects: Sequence[Any],
        starts: Sequence[int],
        lane_of: Sequence[int],
        rename: Callable[[NamedAxis, Variable[Any], int], None],
    ) -> None:
        """Tell the Variables in mapped lanes that they lose or get the named axis."""
        if self.axes is None:
            return
        for x, start in zip(objects, starts, strict=True):
            axis = self.lanes[lane_of[start]] if isinstance(x, Variable) else None
            if isinstance(axis, int):
                rename(self.axes, x, axis)

    def _leave(self, inside: _Inside, out: Any, frame: Frame, call: Call | None) -> tuple[Change, Lanes]:
        """(3) Take apart what changed, and the result."""
        walk = Walk({} if self.fresh else {id(x): i for i, x in enumerate(inside.objects)})
        graphdef = inside.layout.graphdef
        self._name_axes(inside.objects, leaf_starts(graphdef), inside.layout.lane_of, NamedAxis.leave)
        written, values, edits, edit_leaves = ((), [], [], []) if self.fresh else self._changes(inside, walk)
        root = walk.root(out)
        late = [] if call is None or self.fresh else frame.late_written()
        if call is not None:
            call.written, call.met = late, list(frame.late)
        change_leaves = [*edit_leaves, *walk.all_leaves()]
        arguments = call.crossing.names.arguments if call is not None else ()
        resolver = self._lanes_of_change(inside, walk, edits, root, len(edit_leaves), arguments)
        if call is not None:
            call.where = resolver.where
        self._name_axes(walk.objects, resolver.starts, resolver.lane_of, NamedAxis.leave)
        if self.axes is not None:  # new Variables have got the axis since they were described
            walk.records = [walk.record(x, kind_of(x), []) for x in walk.objects]
        lanes = [inside.layout.lane_of[k] for k in written]
        lanes += [*resolver.lane_of, *[self.lanes.index(self.captured)] * len(late)]
        leaves = [*values, *change_leaves, *(v.get_raw_value() for v in late)]
        change = Change(tuple(written), tuple(edits), root, tuple(walk.records), len(late), tuple(lanes))
        return change, spread(leaves, lanes, len(self.lanes))

    def _changes(
        self, inside: _Inside, walk: Walk
    ) -> tuple[list[int], list[Any], list[tuple[int, Desc]], list[Any]]:
        """Which leaves were written and which objects changed."""
        graphdef, lane_of = inside.layout.graphdef, inside.layout.lane_of
        written: list[int] = []
        values: list[Any] = []
        edits: list[tuple[int, Desc]] = []
        edit_leaves: list[Any] = []
        for i, (x, start) in enumerate(zip(inside.objects, leaf_starts(graphdef), strict=True)):
            own: list[Any] = []
            record = walk.record(x, kind_of(x), own)
            same = record == _relative_record(graphdef.records[i])
            if same or record[0] == "variable":
                for k, now in enumerate(own, start):
                    if lane_of[k] in self.always or not _unchanged(inside, k, now):
                        written.append(k)
                        values.append(now)
            if not same and self.mode.structure:
                edits.append((i, record))
                edit_leaves += own if record[0] == "object" else []
        return written, values, edits, edit_leaves

    def _lanes_of_change(
        self,
        inside: _Inside,
        walk: Walk,
        edits: list[tuple[int, Desc]],
        root: Desc,
        edit_count: int,
        arguments: tuple[str, ...],
    ) -> Resolver:
        """The lanes of the leaves of edits, of the result, and of new objects."""
        first = edit_count + count_leaves(root)
        names = Names(self.name, self.result_parameter, arguments, self.results)
        resolver = Resolver(names, self.lanes, walk.records, walk.objects, first)
        numbers = iter(range(first))
        graphdef = inside.layout.graphdef
        if edits:
            args = self._resolve(graphdef, inside.objects, names)
            for i, record in edits:
                if record[0] == "object":
                    prefix, local, path = args.places[i]
                    for name, child in zip(record[2], record[3], strict=True):
                        resolver.visit(child, prefix, (*path, name), numbers, (*local, name), True)
        resolver.visit(root, self.outs, ("result",), numbers)
        known = list(_known_in(root, ("result",)))
        if known and not self.mode.structure:
            raise InputReturnedError(self.name, names.text(known[0][1]))
        if known and self.checks_results:
            self._check_returned(inside, known, arguments)
        return resolver

    def _check_returned(
        self, inside: _Inside, known: list[tuple[int, Path]], arguments: tuple[str, ...]
    ) -> None:
        """Refuse an input that is returned in another lane than it came in."""
        parameter = f"{self.parameter}/{self.result_parameter}"
        names = Names(self.name, parameter, arguments, self.results)
        resolver = self._resolve(inside.layout.graphdef, inside.objects, names)
        for i, path in known:
            prefix: Any = self.outs
            for key in path[1:]:
                prefix = prefix[key] if type(prefix) in (tuple, list, dict) else prefix
            resolver.visit(("node", i), prefix, path, iter(()))

    def merge(self, packed: tuple[Change, Lanes], crossing: Crossing, call: Call | None = None) -> Any:
        """(4) Apply the change to the caller's objects; nothing is written if something cannot be."""
        change, lanes = packed
        feed = iter(gather(lanes, change.lane_of))
        values = _take(feed, len(change.written))
        edit_leaves = iter(_take(feed, change.edit_leaves()))
        root_leaves = _take(feed, count_leaves(change.root))
        build = Build(change.records, crossing.objects)
        build.make_objects(iter(_take(feed, sum(map(record_leaves, change.records)))))
        edits = [
            (i, r, build.attributes(r, edit_leaves) if r[0] == "object" else {}) for i, r in change.edits
        ]
        out = build.value(change.root, iter(root_leaves))
        late = list(zip(call.written if call is not None else (), feed, strict=False))
        self._write(crossing, dict(zip(change.written, values, strict=True)), edits, late)
        return out

    def _write(
        self,
        crossing: Crossing,
        written: dict[int, Any],
        edits: list[tuple[int, Desc, dict[Any, Any]]],
        late: list[tuple[Variable[Any], Any]],
    ) -> None:
        """Change the caller's objects, after checking that all may be written."""
        graphdef = crossing.layout.graphdef
        holders = {
            start: x
            for x, start in zip(crossing.objects, leaf_starts(graphdef), strict=True)
            if isinstance(x, Variable)
        }
        for variable in (*(holders[k] for k in written if k in holders), *(v for v, _ in late)):
            check_write(variable)
        raw = {k: value for k, value in written.items() if k not in holders}
        owners = raw_owners(graphdef, raw)
        check_changes(
            [crossing.objects[i] for i in (*(i for i, _, _ in edits), *owners)],
            lambda: (*raw.values(), *jax.tree.leaves([a for _, _, a in edits])),
        )
        for k, value in written.items():
            if k in holders:
                holders[k].set_raw_value(value)
        for variable, value in late:
            variable.set_raw_value(value)
        for i, record, attributes in edits:
            x = crossing.objects[i]
            if record[0] == "object":
                attributes = _without_change(x, graphdef.records[i], record, attributes)
            change_object(x, record, attributes)
        if raw:
            replace_raw_leaves(graphdef, crossing.leaves, crossing.objects, raw, owners)


def _take(feed: Iterator[Any], count: int) -> list[Any]:
    """The next leaves."""
    return [next(feed) for _ in range(count)]


def _unchanged(inside: _Inside, k: int, now: Any) -> bool:
    """Whether an input leaf still has the value it came with."""
    if k not in inside.flat:
        return now is inside.leaves[k]
    leaves, treedef = jax.tree.flatten(now)
    before, old = inside.flat[k]
    return (
        treedef == old
        and len(leaves) == len(before)
        and all(a is b for a, b in zip(leaves, before, strict=True))
    )


def _known_in(desc: Desc, path: Path) -> Iterator[tuple[int, Path]]:
    """The known objects that stand in a description, with their paths."""
    if desc[0] == "known":
        yield desc[1], path
    elif desc[0] == "container":
        for key, child in zip(desc[1].keys, desc[2], strict=True):
            yield from _known_in(child, (*path, key))


def leaf_text(crossing: Crossing, k: int) -> str:
    """The k-th input leaf as the user would write it."""
    path = next(p for p, number in crossing.layout.graphdef.leaf_paths if number == k)
    return crossing.names.argument(path)


def variable_of(crossing: Crossing, k: int) -> Variable[Any] | None:
    """The Variable that holds the k-th input leaf, if one does."""
    starts = leaf_starts(crossing.layout.graphdef)
    holders = zip(crossing.objects, starts, strict=True)
    return next((x for x, start in holders if start == k and isinstance(x, Variable)), None)
