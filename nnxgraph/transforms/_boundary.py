"""The Boundary: the one mechanism under every transform.

    outside   (1) split arguments into lanes            (4) merge: write back, change, build
                    |                                        ^
    -- JAX ---------v----------------------------------------|---------
    inside    (2) merge --> the user's function --> (3) split what changed

(1) takes the arguments apart: a `Layout`, which is static and hashable, and one list of leaves for each
lane. (2) builds the arguments anew inside the trace. (3) compares them with what was built: which leaves
were written, which objects changed their attributes, what is new. That is the `Change`, static too. (4)
applies it to the caller's own objects. Nothing is a side effect of tracing, so JAX may cache as it likes.

What the function reaches by itself is *captured*: a Variable is read through the frame, and if it was written
its new value leaves as one more leaf. A transform that is cached must know such objects beforehand: they are
arguments too, but stay in place.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from .._frame import Frame, birthplace, check_changes, check_write, describe, has_twins, stand_in
from .._recorder import open_recorders, recording_with
from .._settings import GRAPH_MODE, Mode, check_tree
from .._typing import Path
from .._variable import Variable
from ..errors import AliasError, InputReturnedError
from ..graph._edit import raw_owners, replace_raw_leaves
from ..graph._graphdef import Desc, GraphDef, count_leaves, leaf_starts, record_leaves
from ..graph._registry import kind_of, node_type
from ..graph._traverse import duplicate_paths
from ..graph._walk import Build, Walk, change_object
from ._axes import NamedAxis
from ._captures import NOTHING_CAPTURED, Captured, Same
from ._crossing import Call, Change, Crossing, Inside, Lanes, Layout, Missed, gather, spread
from ._functions import Lifted
from ._kept import KeptInPlace
from ._lanes import Lane, Names, Resolver

Apply = Callable[[Callable[..., Any], Call], Any]


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
    fixed_form: bool = False  # whether what is captured takes nothing that is recorded under a capture
    carries: bool = False  # whether the first part of the result is what a loop carries
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
        captured: Captured = NOTHING_CAPTURED,
        names: tuple[str, ...] = (),
        swaps: bool = False,
    ) -> Crossing:
        """(1) Take the arguments apart; captured objects will stay in place."""
        walk = Walk(same=_stand_in if has_twins() else None)
        root = walk.roots((captured.objects, captured.arrays, captured.key), bound, (args, kwargs))
        graphdef = GraphDef(root, tuple(walk.records))
        named = Names(self.name, self.parameter, names, captured=captured.names)
        if not self.mode.sharing:
            check_tree(f"nnx.{self.name}", duplicate_paths(graphdef), named.argument)
        resolver = self._resolve(graphdef, walk.objects, named)
        kept = walk.first_objects
        owners = [] if swaps else [i for i in range(kept) if walk.records[i][0] == "object"]
        fixed = tuple(Same(leaf) for i in owners for leaf in walk.leaves[i])
        layout = Layout(graphdef, tuple(resolver.lane_of), kept, fixed)
        leaves = walk.all_leaves()
        lanes = spread(leaves, layout.lane_of, len(self.lanes))
        here = birthplace() if open_recorders() else None
        return Crossing(layout, lanes, leaves, walk.objects, named, captured, swaps, here)

    def _resolve(self, graphdef: GraphDef, objects: Sequence[Any], names: Names) -> Resolver:
        """The lanes of the arguments."""
        first = count_leaves(graphdef.root)
        resolver = Resolver(names, self.lanes, graphdef.records, objects, first)
        numbers = iter(range(first))
        captured, bound, args, kwargs = graphdef.root[2]
        resolver.visit(captured, self.captured, ("captured",), numbers, weak=True)
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
        return head, self.merge(packed, call)

    def purify(
        self,
        f: Callable[..., Any],
        call: Call | Callable[[], Call],
        holding: Callable[[Sequence[Any]], Callable[..., Any]] | None = None,
    ) -> Callable[..., Any]:
        """The function as JAX sees it: (layout, lanes) -> (head, (change, lanes)).

        A transform that is cached gives a way to ask for the call that is running; `holding` makes the
        function hold other arrays than its own.
        """

        def pure(layout: Layout, lanes: Lanes) -> Any:
            running = call if isinstance(call, Call) else call()
            running.traced = True
            kept, recorders = running.crossing.kept, running.crossing.recorders
            frame = self._frame(running)
            with recording_with(recorders if running.cached else None), KeptInPlace(kept), frame:
                inside, (captured, bound, args, kwargs) = self._enter(layout, lanes, frame, running)
                g = holding(captured[1]) if holding is not None and captured[1] else f
                head, out = self.head(g(*bound, *args, **kwargs))
                packed = self._leave(inside, out, frame, running)
                if running.cached and frame.late:
                    raise Missed(tuple(frame.late_written() or frame.late), (), bool(frame.late_written()))
                return head, packed

        return functools.wraps(f, updated=())(pure)

    def _frame(self, call: Call) -> Frame:
        """The frame of a call."""
        crossing = call.crossing
        discards = call.cached or call.discards
        return Frame(self.name, discards, crossing.kept, self.fixed_form, crossing.called_at, call.replayed)

    def _enter(self, layout: Layout, lanes: Lanes, frame: Frame, call: Call) -> tuple[Inside, Any]:
        """(2) Build the arguments anew, but for kept objects: Variables get their value in the frame."""
        leaves = gather(lanes, layout.lane_of)
        graphdef, crossing = layout.graphdef, call.crossing
        starts = [*leaf_starts(graphdef), len(leaves)]
        build = Build(graphdef.records, given=crossing.kept)
        nodes = []
        for i, x in enumerate(crossing.kept):
            own = slice(starts[i], starts[i + 1])
            if isinstance(x, Variable):
                frame.bind(stand_in(x), leaves[own.start])
            elif crossing.swaps and leaves[own]:
                nodes.append((x, graphdef.records[i], leaves[own]))
            else:
                leaves[own] = crossing.leaves[own]
        build.make_objects(iter(leaves[starts[layout.kept] :]))
        for x, record, own_leaves in nodes:
            change_object(x, record, build.attributes(record, iter(own_leaves)))
        root = build.value(graphdef.root, iter(leaves[: count_leaves(graphdef.root)]))
        frame.twins = {} if call.cached else call.twins(build.objects)
        if not self.fixed_form and open_recorders():
            frame.copies = call.copies(build.objects)
        self._name_axes(build.objects, leaf_starts(graphdef), layout.lane_of, NamedAxis.enter)
        flat = {k: jax.tree.flatten(v) for k, v in enumerate(leaves) if not hasattr(v, "shape")}
        return Inside(layout, build.objects, leaves, flat), root

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

    def _leave(self, inside: Inside, out: Any, frame: Frame, call: Call) -> tuple[Change, Lanes]:
        """(3) Take apart what changed, and the result."""
        walk = Walk() if self.fresh else Walk(inside.numbers(call), lambda x: call.claim(x, frame))
        graphdef = inside.layout.graphdef
        self._name_axes(inside.objects, leaf_starts(graphdef), inside.layout.lane_of, NamedAxis.leave)
        written, values, edits, edit_leaves = ((), [], [], []) if self.fresh else self._changes(inside, walk)
        root = walk.root(out)
        call.met = list(frame.late)
        late = call.written = [] if self.fresh or call.cached else frame.late_written()
        change_leaves = [*edit_leaves, *walk.all_leaves()]
        resolver = self._lanes_of_change(inside, walk, edits, root, len(edit_leaves), call)
        call.where = resolver.where
        self._name_axes(walk.objects, resolver.starts, resolver.lane_of, NamedAxis.leave)
        if self.axes is not None:  # new Variables have got the axis since they were described
            walk.records = [walk.record(x, kind_of(x), []) for x in walk.objects]
        lanes = [inside.layout.lane_of[k] for k in written]
        lanes += [*resolver.lane_of, *[self.lanes.index(self.captured)] * len(late)]
        leaves = [*values, *change_leaves, *(v.get_raw_value() for v in late)]
        call.writes_arrays = inside.writes_arrays(written, edits)
        change = Change(tuple(written), tuple(edits), root, tuple(walk.records), len(late), tuple(lanes))
        return change, spread(leaves, lanes, len(self.lanes))

    def _changes(
        self, inside: Inside, walk: Walk
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
                    if lane_of[k] in self.always or not inside.unchanged(k, now):
                        written.append(k)
                        values.append(now)
            if not same and self.mode.structure:
                edits.append((i, record))
                edit_leaves += own if record[0] == "object" else []
        return written, values, edits, edit_leaves

    def _lanes_of_change(
        self,
        inside: Inside,
        walk: Walk,
        edits: list[tuple[int, Desc]],
        root: Desc,
        edit_count: int,
        call: Call,
    ) -> Resolver:
        """The lanes of the leaves of edits, of the result, and of new objects."""
        first = edit_count + count_leaves(root)
        named = call.crossing.names
        names = Names(self.name, self.result_parameter, named.arguments, self.results, named.captured)
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
        returned = [path for _, path in known if not (self.carries and path[1] == 0)]
        if returned and not self.mode.structure:
            raise InputReturnedError(self.name, names.text(returned[0]))
        if known and self.checks_results:
            self._check_returned(inside, known, call)
        return resolver

    def _check_returned(self, inside: Inside, known: list[tuple[int, Path]], call: Call) -> None:
        """Refuse an input or captured object that is returned in another lane than it came in."""
        parameter = f"{self.parameter}/{self.result_parameter}"
        named = call.crossing.names
        names = Names(self.name, parameter, named.arguments, self.results, named.captured)
        resolver = self._resolve(inside.layout.graphdef, inside.objects, names)
        for i, path in known:
            prefix: Any = self.outs
            for key in path[1:]:
                prefix = prefix[key] if type(prefix) in (tuple, list, dict) else prefix
            if i < len(inside.objects):
                resolver.visit(("node", i), prefix, path, iter(()))
            elif prefix != self.captured:
                x = describe(call.outer[i - len(inside.objects)])
                lanes = ("the function itself", repr(self.captured)), (names.text(path), repr(prefix))
                raise AliasError(self.name, parameter, x, *lanes)

    def merge(self, packed: tuple[Change, Lanes], call: Call) -> Any:
        """(4) Apply the change to the caller's objects; nothing is written if something cannot be."""
        change, lanes = packed
        crossing = call.crossing
        feed = iter(gather(lanes, change.lane_of))
        values = _take(feed, len(change.written))
        edit_leaves = iter(_take(feed, change.edit_leaves()))
        root_leaves = _take(feed, count_leaves(change.root))
        build = Build(change.records, [*crossing.objects, *call.outer])
        build.make_objects(iter(_take(feed, sum(map(record_leaves, change.records)))))
        edits = [
            (i, r, build.attributes(r, edit_leaves) if r[0] == "object" else {}) for i, r in change.edits
        ]
        out = build.value(change.root, iter(root_leaves))
        late = list(zip(call.written, feed, strict=True))
        self._write(crossing, dict(zip(change.written, values, strict=True)), edits, late)
        for recorder in crossing.recorders:
            recorder.hand_back()
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


def _stand_in(x: Any) -> Any:
    """What stands for an object here, so that a Variable and its twin are one argument."""
    return stand_in(x) if isinstance(x, Variable) else x


def _take(feed: Iterator[Any], count: int) -> list[Any]:
    """The next leaves."""
    return [next(feed) for _ in range(count)]


def _known_in(desc: Desc, path: Path) -> Iterator[tuple[int, Path]]:
    """The known objects that stand in a description, with their paths."""
    if desc[0] == "known":
        yield desc[1], path
    elif desc[0] == "container":
        for key, child in zip(desc[1].keys, desc[2], strict=True):
            yield from _known_in(child, (*path, key))
