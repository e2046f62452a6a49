"""What a captured call records, beside the modules and not in them.

`nnx.capture` opens a recorder for the time of one call. `Module.sow`, `Module.perturb` and the calls of
submodules ask the innermost recorder that knows their module. A recorder keeps what it gets in a Variable
of its own, so that a value which is recorded under a transform leaves it as any written value does, or is
refused as any write is. A function that is cached gets recorders of its own among its arguments: it knows
its modules by their numbers there, and so serves any other recorder too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import jax

from . import _jax
from ._frame import RawFrame, birthplace, frames_up_to, home_of, original_of
from ._repr import path_text
from ._state import Paths, State, from_flat_state, to_flat_state
from ._typing import Path
from ._variable import Intermediate, Variable
from .errors import CaptureTraceError, NameTakenError, StateMismatchError
from .graph._registry import is_graph_value
from .graph._traverse import iter_graph

Kind = type[Variable[Any]]
_Obstacles = tuple[str | None, str | None]  # a transform that fixes the form of what it captures; a raw one
OUTPUT = "__call__"  # the name under which the outputs of modules are recorded


class Slot(NamedTuple):
    """Where a recorded value stands in the State, and the kind of its Variable."""

    path: Path
    kind: Kind


class Records:
    """The recorded values by slot, in order of the first record; an immutable pytree."""

    __slots__ = ("slots", "values")

    def __init__(self, slots: tuple[Slot, ...], values: tuple[Any, ...]):
        self.slots = slots
        self.values = values

    def find(self, path: Path) -> tuple[Kind, Any] | None:
        """The kind and value at a path, if there is one."""
        pairs = zip(self.slots, self.values, strict=True)
        return next(((slot.kind, value) for slot, value in pairs if slot.path == path), None)

    def having(self, slot: Slot, value: Any) -> Records:
        """These records with one value added or replaced."""
        entries = dict(zip(self.slots, self.values, strict=True)) | {slot: value}
        return Records(tuple(entries), tuple(entries.values()))


jax.tree_util.register_pytree_node(
    Records, lambda r: (r.values, r.slots), lambda slots, values: Records(slots, tuple(values))
)


class Recorder:
    """Records values that modules sow: those of some kinds, by the paths of the modules.

    `kinds` are the kinds of Variables to record, all if there are none; `outputs` is the kind for what the
    calls of modules return, if that is recorded too.
    """

    def __init__(self, kinds: tuple[Kind, ...], outputs: Kind | None):
        self.kinds = kinds
        self.outputs = outputs
        self._store: Variable[Any] = Variable(Records((), ()))
        self._home = home_of(self._store)
        self._paths: dict[int, tuple[Any, Path]] = {}  # with the objects: they keep their ids
        self._initial: dict[
            Path, Variable[Any]
        ] = {}  # Variables: a transform may see others at the next call
        self._obstacles_before: _Obstacles = (None, None)

    @property
    def signature(self) -> tuple[Any, ...]:
        """What a traced function depends on."""
        return (self.kinds, self.outputs, tuple(self._initial))

    def _known(self, x: Any) -> Path | None:
        """The path of an object that was there before, or of what a transform made of it."""
        found = self._paths.get(id(original_of(x, self._home)))
        return None if found is None else found[1]

    def path_of(self, module: Any) -> Path | None:
        """The path of a module; one that came in during the call is found too."""
        return self.paths_of([module])[0]

    def paths_of(self, objects: Sequence[Any]) -> list[Path | None]:
        """The paths of objects, as `path_of` gives them."""
        known = [self._known(x) for x in objects]
        if None not in known:
            return known
        found = self._paths_now()
        return [found.get(id(x)) if path is None else path for x, path in zip(objects, known, strict=True)]

    def _paths_now(self) -> dict[int, Path]:
        """The paths of all that stands below known objects now, and below what transforms made of them."""
        built = [copy for frame in frames_up_to(self._home) for copy, _ in frame.copies.values()]
        starts = [(self._known(x), x) for x in (*(x for x, _ in self._paths.values()), *built)]
        first = sorted(((path, x) for path, x in starts if path is not None), key=lambda pair: len(pair[0]))
        found: dict[int, Path] = {}
        for path, x in first:
            if id(x) not in found:
                found = {id(y): (*path, *below) for below, y in iter_graph(x, graph=True)} | found
        return found

    def wants(self, kind: Kind) -> bool:
        """Whether values of a kind are recorded."""
        return not self.kinds or issubclass(kind, self.kinds)

    @property
    def begins_with_values(self) -> bool:
        """Whether there are values to begin with."""
        return bool(self._initial)

    def initial(self, path: Path) -> Variable[Any] | None:
        """The value to begin with at a path, if it was given."""
        return self._initial.get(path)

    def record(
        self, where: str, slot: Slot, reduce: Callable[[Any], Any], init_fn: Callable[[], Any]
    ) -> None:
        """Replace the value of a slot by the reduced one; the first is made by `init_fn`."""
        self._check(where, *self._obstacles())
        records = self._store.get_raw_value()
        found = records.find(slot.path)
        if found is not None and found[0] is not slot.kind:
            raise NameTakenError(where, str(slot.path[-1]), found[0].__name__, slot.kind.__name__)
        initial = self.initial(slot.path)
        old = found[1] if found else init_fn() if initial is None else initial.get_value()
        self._store.set_raw_value(records.having(slot, reduce(old)))

    def check_place(self, where: str, copies_return: bool) -> None:
        """Refuse what happens to a copy that a transform made, unless what is left in the copy comes back."""
        fixed, raw = self._obstacles()
        self._check(where, None if copies_return else fixed, raw)

    def _check(self, where: str, *obstacles: str | None) -> None:
        """Refuse to record behind an obstacle."""
        for transform in obstacles:
            if transform is not None:
                raise CaptureTraceError(where, transform)

    def _obstacles(self) -> _Obstacles:
        """What stands between this recorder and the code that runs."""
        fixed = raw = None
        places = [birthplace()]
        for frame in frames_up_to(self._home):
            fixed = fixed or (frame.name if frame.fixed_form else None)
            places.append(frame.called_at)
        born = self._store._nnx_born_in
        home = born.trace_ref() if type(born) is RawFrame else None
        for trace in (place.trace_ref() for place in places if type(place) is RawFrame):
            raw = raw or (None if trace is home else _jax.transform_name(trace))
        return fixed or self._obstacles_before[0], raw or self._obstacles_before[1]


class CallRecorder(Recorder):
    """Records the values of one call, by the paths below a root; `init` holds values to begin with."""

    def __init__(self, root: Any, kinds: tuple[Kind, ...], outputs: Kind | None, init: Any):
        super().__init__(kinds, outputs)
        self.root = root
        found = [(path, x) for path, x in iter_graph(root, graph=True) if is_graph_value(x) or not path]
        self._paths = {id(x): (x, path) for path, x in found}
        self._initial = self._initial_values(init)

    def _initial_values(self, init: Any) -> dict[Path, Variable[Any]]:
        """The values to begin with, by the paths as the root spells them."""
        flat = [] if init is None else list(to_flat_state(init))
        known = Paths(path for x, path in self._paths.values() if is_graph_value(x))
        found = [known.find(path[:-1]) for path, _ in flat]
        problems = [
            f"{path_text(p)} is not in the object" for (p, _), f in zip(flat, found, strict=True) if f is None
        ]
        if problems:
            advice = "Expected paths of modules, each with one name more: what the module sows or perturbs."
            raise StateMismatchError("capture", tuple(problems), advice)
        return {
            (*(place or ()), path[-1]): leaf if isinstance(leaf, Variable) else Variable(leaf)
            for (path, leaf), place in zip(flat, found, strict=True)
        }

    def left_behind(self) -> list[tuple[Path, Variable[Any]]]:
        """The Variables of these kinds that came in during the call: copies sowed them and came back."""
        kinds = self.kinds or (Intermediate,)
        new = [(path, x) for path, x in iter_graph(self.root, graph=True) if id(x) not in self._paths]
        return [
            (path, x)
            for path, x in new
            if isinstance(x, kinds) or (path[-1:] == (OUTPUT,) and type(x) is self.outputs)
        ]

    def state(self, left: list[tuple[Path, Variable[Any]]]) -> State:
        """What was recorded by path, together with what was left behind."""
        records = self._store.get_raw_value()
        values = {s.path: (s.kind, v) for s, v in zip(records.slots, records.values, strict=True)}
        for path, variable in left:
            value = variable.get_value()
            if path in values:
                value = (*_tuple(values[path][1]), *_tuple(value))
            values[path] = (type(variable), value)
        return from_flat_state((path, kind(value)) for path, (kind, value) in values.items())

    def __enter__(self) -> CallRecorder:
        _thread.recorders = (*_thread.recorders, self)
        self._context = _context(tuple(r.signature for r in _thread.recorders))
        self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._context.__exit__(kind, error, traceback)
        _thread.recorders = _thread.recorders[:-1]


class ArgumentRecorder(Recorder):
    """Records for another recorder what a cached function sows, by the numbers of its arguments.

    The function depends neither on the paths of the modules nor on what was recorded of others. Its store,
    and the values to begin with, are arguments too.
    """

    def __init__(self, outer: Recorder, arguments: Sequence[Any]):
        super().__init__(outer.kinds, outer.outputs)
        self._outer = outer
        nodes = [i for i, x in enumerate(arguments) if not isinstance(x, Variable)]
        paths = outer.paths_of([arguments[i] for i in nodes])
        self._places = {i: path for i, path in zip(nodes, paths, strict=True) if path is not None}
        self._paths = {id(arguments[i]): (arguments[i], (i,)) for i in self._places}
        number = {path: i for i, path in self._places.items()}
        known = [(p, v) for p, v in outer._initial.items() if p[:-1] in number]
        self._initial = {(number[p[:-1]], p[-1]): v for p, v in known}
        records = outer._store.get_raw_value()
        for slot, value in zip(records.slots, records.values, strict=True):
            if slot.path[:-1] in number:
                inner = slot._replace(path=(number[slot.path[:-1]], slot.path[-1]))
                self._store.set_raw_value(self._store.get_raw_value().having(inner, value))
        self._begun = self._store.get_raw_value()
        self._obstacles_before = outer._obstacles()

    @property
    def signature(self) -> tuple[Any, ...]:
        return (*super().signature, tuple(self._places), self.begins_with_values, self._obstacles_before)

    @property
    def begins_with_values(self) -> bool:
        return self._outer.begins_with_values

    def variables(self) -> tuple[Variable[Any], ...]:
        """What the function reads and writes of this recorder."""
        return (self._store, *self._initial.values())

    def hand_back(self) -> None:
        """Give the other recorder what the function recorded."""
        records = self._store.get_raw_value()
        if records is self._begun:
            return
        outer = self._outer._store.get_raw_value()
        for slot, value in zip(records.slots, records.values, strict=True):
            first, *below = slot.path
            outer = outer.having(slot._replace(path=(*self._places[first], *below)), value)
        self._outer._store.set_raw_value(outer)


class _Thread(threading.local):
    """The recorders that are open in each thread, outermost first."""

    recorders: tuple[Recorder, ...] = ()


_thread = _Thread()

# Part of the key of JAX's caches: what was traced under other recorders, or none, is not used again.
_context: Any = jax.make_user_context(None)  # type: ignore[no-untyped-call]  # JAX leaves it untyped


def open_recorders() -> tuple[Recorder, ...]:
    """The recorders that are open here, innermost first."""
    return _thread.recorders[::-1]


@contextlib.contextmanager
def recording_with(recorders: tuple[Recorder, ...] | None) -> Iterator[None]:
    """These recorders are open in the place of the others, outermost first; None leaves those as they are."""
    before = _thread.recorders
    _thread.recorders = before if recorders is None else recorders
    try:
        yield
    finally:
        _thread.recorders = before


def recorders_for(arguments: Sequence[Any]) -> tuple[ArgumentRecorder, ...]:
    """The recorders of a cached function with these arguments, outermost first."""
    return tuple(ArgumentRecorder(recorder, arguments) for recorder in _thread.recorders)


def recorders_of(module: Any) -> list[tuple[Recorder, Path]]:
    """The recorders that know a module, innermost first, with its path in each."""
    found = [(recorder, recorder.path_of(module)) for recorder in open_recorders()]
    return [(recorder, path) for recorder, path in found if path is not None]


def unwrapped(value: Any) -> Any:
    """A value in which Variables are replaced by what they hold now."""
    return jax.tree.map(
        lambda x: x.get_value() if isinstance(x, Variable) else x,
        value,
        is_leaf=lambda x: isinstance(x, Variable),
    )


def _tuple(value: Any) -> tuple[Any, ...]:
    """A value that may have been appended to a tuple, as one."""
    return value if isinstance(value, tuple) else (value,)
