"""Which trace are we in, and which Variables may be written here.

Every lifted call runs the user's function under a `Frame`: an overlay from Variable to the value it had on
entry and the value it has now. A Variable remembers the frame it was born in. Reading it in another frame
looks it up in the overlay and records it in every frame on the way: it is *captured*. A Variable that was
born under a raw JAX transform has a `RawFrame`, which knows that transform's trace.

Reads are always legal. A write is legal where the value can be handed back: in the trace of the frame that
is running, or in the trace where the Variable was born.

A Variable that is an argument and is captured too is one Variable for the function: inside, the one built
from the argument is its *twin*, and stands for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

from . import _jax
from ._origins import origin_of, place_of, remember_origin, tracking
from .errors import CapturedChangeError, LeakedVariableError, TraceChangeError, TraceWriteError

if TYPE_CHECKING:
    from ._variable import Variable


class Frame:
    """What one lifted function sees of the Variables born outside it."""

    __slots__ = (
        "__weakref__",
        "alive",
        "before",
        "cached",
        "called_at",
        "copies",
        "fixed_form",
        "kept",
        "late",
        "name",
        "now",
        "parent",
        "replayed",
        "trace",
        "twins",
    )

    def __init__(
        self,
        name: str,
        cached: bool = False,
        kept: Iterable[Any] = (),
        fixed_form: bool = False,
        called_at: Birthplace = None,
        replayed: bool = False,
    ):
        self.name = name
        self.fixed_form = fixed_form  # whether Variables that it only captures take nothing that is recorded
        self.called_at = called_at  # where the transform was called, noted under a capture
        self.cached = cached  # whether the function runs only while it is traced, and not at each call
        self.replayed = replayed  # whether the function is traced once, to run any number of times or never
        self.kept = frozenset(map(id, kept))  # objects from outside whose changes will be handed back
        self.parent: Frame | None = thread.frame
        self.trace = _jax.current_trace()
        self.now: dict[Variable[Any], Any] = {}
        self.before: dict[Variable[Any], Any] = {}
        self.late: list[Variable[Any]] = []  # captured while running, in order of first use
        self.twins: dict[Variable[Any], Variable[Any]] = {}  # of Variables that are arguments too
        self.copies: dict[int, tuple[Any, Any]] = {}  # objects built from arguments, and the caller's own
        self.alive = True

    def __enter__(self) -> Frame:
        thread.frame = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        thread.frame = self.parent
        self.alive = False
        self.twins = {}
        self.copies = {}

    def bind(self, variable: Variable[Any], value: Any) -> None:
        """Give a Variable born outside the value that it has inside."""
        self.now[variable] = self.before[variable] = value

    def late_written(self) -> list[Variable[Any]]:
        """Captured Variables that the function wrote."""
        return [v for v in self.late if self.now[v] is not self.before[v]]


@final
class RawFrame:
    """The birthplace of a Variable made under a JAX transform that is not ours."""

    __slots__ = ("parent", "trace_ref")

    def __init__(self, trace: object, parent: Frame | None):
        self.trace_ref = _jax.trace_reference(trace)
        self.parent = parent


Birthplace = Frame | RawFrame | None


class _Thread(threading.local):
    """The frame that runs in each thread."""

    frame: Frame | None = None
    constants = False  # whether what is read is a constant of the program, and so not captured


thread = _Thread()


@contextlib.contextmanager
def reading_constants(on: bool = True) -> Iterator[None]:
    """Variables read in here are a part of the program, as static values are, and are not captured.

    So are the Variables in a State that is itself in a static value, such as a mask in an optimizer.
    """
    before = thread.constants
    thread.constants = on
    try:
        yield
    finally:
        thread.constants = before


def born_here(x: object) -> Birthplace:
    """Where a Variable or object that is being made is born; notes the line if that is asked for."""
    if getattr(tracking, "value", False):
        remember_origin(x)
    return birthplace()


def birthplace() -> Birthplace:
    """Where what is made now is born: in the running frame, in a raw JAX trace, or in eager code (None)."""
    frame = thread.frame
    trace = _jax.current_trace()
    if trace is (_jax.EVAL_TRACE if frame is None else frame.trace):
        return frame
    return RawFrame(trace, frame)


def home_of(variable: Variable[Any]) -> Frame | None:
    """The frame that a Variable was born in, under whatever raw transform."""
    born = variable._nnx_born_in
    return born.parent if type(born) is RawFrame else born


def frames_up_to(home: Frame | None) -> Iterator[Frame]:
    """The frames that run inside of one, innermost first."""
    frame = thread.frame
    while frame is not None and frame is not home:
        yield frame
        frame = frame.parent


def original_of(x: Any, home: Frame | None) -> Any:
    """What a frame has for an object that transforms inside of it may have built from an argument."""
    for frame in frames_up_to(home):
        x = frame.copies.get(id(x), (x, x))[1]
    return x


def is_home(born: Birthplace) -> bool:
    """Whether the code that runs is where something was born; False where that takes a closer look."""
    frame = thread.frame
    return born is frame and _jax.current_trace() is (_jax.EVAL_TRACE if frame is None else frame.trace)


def check_change(owner: Any, what: str, holds_data: Callable[[], bool]) -> None:
    """Refuse a change of an object's attributes, or of metadata, that could not be handed back.

    Away from where the object was born a change is refused under a raw JAX transform, in a function that does
    not run once at each call, and if it puts data of an inner function on an object outside of it.
    """
    frame, trace, born = thread.frame, _jax.current_trace(), birth_of(owner)
    if is_home(born):
        return
    if type(born) is RawFrame:
        if born.trace_ref() is trace or born.trace_ref() is None:
            return
    elif born is not None and not born.alive:
        return  # left over from a function that ended: there is nothing to lose
    if trace is not (_jax.EVAL_TRACE if frame is None else frame.trace):
        inside = None if frame is None else frame.name
        raise TraceChangeError(what, *_facts(owner), _jax.transform_name(trace), inside)
    home = born.parent if type(born) is RawFrame else born
    while frame is not None and frame is not home and id(owner) not in frame.kept:
        if frame.cached or frame.replayed or holds_data():
            raise CapturedChangeError(what, *_facts(owner), frame.name, frame.cached, frame.replayed)
        frame = frame.parent


def is_left_over(x: Any) -> bool:
    """Whether a Variable or object was made in a function that ended, and not handed back."""
    born = birth_of(x)
    born = born.parent if type(born) is RawFrame else born
    return born is not None and not born.alive


def is_outside(x: Any, frame: Frame) -> bool:
    """Whether an object was there before the frame, and is not left over from a function that ended."""
    born = birth_of(x)
    born = born.parent if type(born) is RawFrame else born
    return born is not frame and not is_left_over(x)


def birth_of(x: Any) -> Birthplace:
    """Where a Variable or object was born; an object of a foreign class is at home everywhere."""
    is_ours = hasattr(type(x), "_nnx_born_in")
    return x._nnx_born_in if is_ours else birthplace()


def check_changes(objects: Iterable[Any], values: Callable[[], Iterable[Any]]) -> None:
    """Refuse to change the attributes of objects, if that could not be handed back, before any is changed."""
    for x in objects:
        check_change(x, "the attributes", lambda: any(map(_jax.is_tracer, values())))


def _facts(x: Any) -> tuple[str, str, str | None]:
    """What something is, where it stands, and where it was made, for the text of an error."""
    return describe(x), place_of(x), origin_of(x)


def describe(x: Any) -> str:
    """A Variable or object in a few words."""
    return str(x._describe()) if hasattr(type(x), "_describe") else type(x).__name__


def read(variable: Variable[Any]) -> Any:
    """The value of a Variable that was not born in the running frame."""
    frame = thread.frame
    return _read(_here(variable, frame), frame)


def has_twins() -> bool:
    """Whether some Variable has a twin here."""
    frame = thread.frame
    while frame is not None and not frame.twins:
        frame = frame.parent
    return frame is not None


def stand_in(variable: Variable[Any]) -> Variable[Any]:
    """The Variable that stands for this one here: its twin if it has one, or itself."""
    return _here(variable, thread.frame)


def _here(variable: Variable[Any], frame: Frame | None) -> Variable[Any]:
    """The Variable that stands for this one in a frame: its twin if it has one, or itself."""
    if frame is None or frame is home_of(variable):
        return variable
    outside = _here(variable, frame.parent)
    return frame.twins.get(outside, outside)


def _read(variable: Variable[Any], frame: Frame | None) -> Any:
    """The value of a Variable as a frame sees it."""
    home = home_of(variable)
    if frame is home:
        return variable._value
    if frame is None:
        if thread.constants:
            return variable._value
        assert home is not None
        raise LeakedVariableError(variable._describe(), home.name)
    if variable in frame.now:
        return frame.now[variable]
    value = _read(variable, frame.parent)
    if thread.constants:
        return value
    frame.late.append(variable)
    frame.bind(variable, value)
    return value


def check_write(variable: Variable[Any]) -> None:
    """Refuse a write whose value could not be handed back."""
    frame, trace, born = thread.frame, _jax.current_trace(), variable._nnx_born_in
    if type(born) is RawFrame:
        if born.trace_ref() is trace:
            return
    elif frame is None and born is not None:
        raise LeakedVariableError(variable._describe(), born.name)
    if trace is not (_jax.EVAL_TRACE if frame is None else frame.trace):
        inside = None if frame is None else frame.name
        raise TraceWriteError(*_facts(variable), _jax.transform_name(trace), inside)
    if type(born) is RawFrame and born.parent is frame:
        raise LeakedVariableError(variable._describe(), "a raw JAX transform")


def write(variable: Variable[Any], value: Any) -> None:
    """Give a Variable a new raw value, here and wherever it will be handed back."""
    frame, born = thread.frame, variable._nnx_born_in
    if is_home(born):
        variable._value = value
        return
    check_write(variable)
    variable = _here(variable, frame)
    if home_of(variable) is frame:
        variable._value = value
        return
    assert frame is not None
    _read(variable, frame)
    frame.now[variable] = value
