"""What a captured call records, beside the modules and not in them.

`nnx.capture` opens a `Recorder` for the time of one call. `Module.sow`, `Module.perturb` and the calls of
submodules ask the innermost recorder that knows their module. A recorder keeps what it gets in a Variable
of its own, so that a value which is recorded under a transform leaves it as any written value does, or is
refused as any write is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

import jax

from . import _jax
from ._frame import Frame, RawFrame, birthplace, thread
from ._repr import path_text
from ._state import Paths, State, from_flat_state, to_flat_state
from ._typing import Path
from ._variable import Intermediate, Variable
from .errors import CaptureTraceError, NameTakenError, StateMismatchError, TraceWriteError
from .graph._registry import is_graph_value
from .graph._traverse import iter_graph

Kind = type[Variable[Any]]
_OF_FIXED_FORM = ("jit", "vmap", "pmap", "shard_map", "scan", "cond", "switch", "while_loop", "fori_loop")
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
    """Records the values of one call: those of some kinds, sown by the modules below a root.

    `kinds` are the kinds of Variables to record, all if there are none; `outputs` is the kind for what the
    calls of modules return, if that is recorded too; `init` holds values to begin with, by path.
    """

    def __init__(self, root: Any, kinds: tuple[Kind, ...], outputs: Kind | None, init: Any):
        self.root = root
        self.kinds = kinds
        self.outputs = outputs
        self._store: Variable[Any] = Variable(Records((), ()))
        self._paths: dict[int, tuple[Any, Path]] = {}  # with the modules: they keep their ids
        self._find_modules()
        self._before = self._paths
        self._initial = self._initial_values(init)

    def _find_modules(self) -> None:
        """Learn the first path of each object below the root."""
        self._paths = {id(x): (x, path) for path, x in iter_graph(self.root) if is_graph_value(x)}

    def _initial_values(self, init: Any) -> dict[Path, Variable[Any]]:
        """The values to begin with, in Variables: a transform may see others at the next call."""
        flat = [] if init is None else list(to_flat_state(init))
        known = Paths(path for _, path in self._paths.values())
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

    @property
    def signature(self) -> tuple[Any, ...]:
        """What a traced function depends on."""
        return (self.kinds, self.outputs, tuple(self._initial))

    def path_of(self, module: Any) -> Path | None:
        """The path of a module below the root; one that came in during the call is found too."""
        if id(module) not in self._paths:
            self._find_modules()
        found = self._paths.get(id(module))
        return None if found is None else found[1]

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
        records = self._store.get_raw_value()
        found = records.find(slot.path)
        if found is not None and found[0] is not slot.kind:
            raise NameTakenError(where, str(slot.path[-1]), found[0].__name__, slot.kind.__name__)
        self._check_room(where)
        initial = self.initial(slot.path)
        old = found[1] if found else init_fn() if initial is None else initial.get_value()
        try:
            self._store.set_raw_value(records.having(slot, reduce(old)))
        except TraceWriteError as error:
            raise CaptureTraceError(where, _jax.transform_name(_jax.current_trace())) from error

    def _check_room(self, where: str) -> None:
        """Refuse to record under a transform that takes no new values of Variables that it only captures."""
        home, frame = self._store._nnx_born_in, thread.frame
        while frame is not None and frame is not home:
            if frame.name in _OF_FIXED_FORM:
                raise CaptureTraceError(where, frame.name)
            frame = frame.parent

    def check_place(self, where: str, copies_return: bool) -> None:
        """Refuse what happens to a copy that a transform made, unless what is left in the copy comes back."""
        here, home = birthplace(), self._store._nnx_born_in
        if here is None or here is home:
            return
        if isinstance(here, Frame):
            if not copies_return:
                raise CaptureTraceError(where, here.name)
        elif not (isinstance(home, RawFrame) and home.trace_ref() is here.trace_ref()):
            raise CaptureTraceError(where, _jax.transform_name(here.trace_ref()))

    def left_behind(self) -> list[tuple[Path, Variable[Any]]]:
        """The Variables of these kinds that came in during the call: copies sowed them and came back."""
        kinds = self.kinds or (Intermediate,)
        new = [(path, x) for path, x in iter_graph(self.root) if id(x) not in self._before]
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

    def __enter__(self) -> Recorder:
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


class _Thread(threading.local):
    """The recorders that are open in each thread, outermost first."""

    recorders: tuple[Recorder, ...] = ()


_thread = _Thread()

# Part of the key of JAX's caches: what was traced under other recorders, or none, is not used again.
_context: Any = jax.make_user_context(None)  # type: ignore[no-untyped-call]  # JAX leaves it untyped


def open_recorders() -> tuple[Recorder, ...]:
    """The recorders that are open here, innermost first."""
    return _thread.recorders[::-1]


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
