"""Transforms that are built once: the user's function runs only when it is traced.

What the function reaches by itself is found at each call (`Roots`) and is a part of the arguments, so that a
value that changed is seen, and a structure that changed is traced anew.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from .._frame import describe
from .._recorder import recorders_for
from .._repr import function_name
from .._settings import Mode, current_mode
from .._static import Static
from ..errors import CaptureError, DonationError
from ._boundary import Boundary
from ._captures import Captured, Roots, functions_of
from ._crossing import Call, Crossing, Missed, leaf_text
from ._explain import Retraces
from ._functions import Lifted, in_range

Positions = tuple[tuple[int, ...], tuple[str, ...]]
_NO_POSITIONS: Positions = ((), ())


class Form(NamedTuple):
    """What the Boundary of a call depends on, besides the declaration."""

    positional: int  # number of positional arguments
    names: tuple[str, ...]  # of keyword arguments
    mode: Mode

    def chosen(self, positions: Positions) -> set[int]:
        """Positions counted from the front."""
        return {in_range(i, self.positional) for i in positions[0]}


class Program(NamedTuple):
    """The Boundary and the compiled function for calls of one form."""

    boundary: Boundary
    run: Callable[..., Any]  # (layout, *lanes) -> (head, (change, lanes))


class _Running(threading.local):
    """The calls that run in each thread, outermost first."""

    calls: tuple[Call, ...] = ()


class Cached:
    """One declaration of a cached transform.

    `declare` gives the Boundary for a form of call, `compile` the function over (layout, *lanes) as JAX runs
    it. `static` and `donated` are the positions and names of arguments, as JAX counts them.
    """

    def __init__(
        self,
        user: Lifted,
        declare: Callable[[Form], Boundary],
        compile: Callable[[Boundary, Callable[..., Any]], Callable[..., Any]],
        mode: tuple[bool | None, bool | None],
        static: Positions = _NO_POSITIONS,
        roots: Roots | None = None,
        rebuild: Callable[..., Callable[..., Any]] = lambda f: f,
    ):
        self.user = user
        self._declare = declare
        self._compile = compile
        self._mode = mode
        self._static = static
        self._roots = Roots(user.f, given=user.bound) if roots is None else roots
        self._rebuild = rebuild  # the user's function from the functions that the roots look through
        self._behind: dict[tuple[int, ...], Roots] = {}  # by the functions that they look through
        self._swaps = False  # whether the function replaces arrays in captured objects
        self._programs: dict[Form, Program] = {}
        self._running = _Running()
        self.retraces = Retraces(function_name(user.f))

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: tuple[Any, ...] | None = None
    ) -> Any:
        """Run the compiled function, and do to the caller's objects what it did."""
        program, packed, call = self.apply(args, kwargs, lambda run, *inputs: run(*inputs), bound)
        return program.boundary.merge(packed[1], call)

    def apply(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        use: Callable[..., Any],
        bound: tuple[Any, ...] | None = None,
    ) -> tuple[Program, Any, Call]:
        """What `use` makes of the compiled function and its inputs, with the call it was made for."""
        program = self._program(args, kwargs := dict(sorted(kwargs.items())))
        while True:
            call = Call(self.crossing(program, args, kwargs, bound), cached=True)
            try:
                with self._during(call):
                    made = use(program.run, call.crossing.layout, *call.crossing.lanes)
            except Missed as missed:
                self._look_deeper(missed, call.crossing)
                continue
            if call.traced:
                self._roots.traced(call.crossing.captured)
                for roots, found in call.crossing.behind:
                    roots.traced(found)
                self.retraces.note(program.boundary.mode, call.crossing)
            self._swaps = self._swaps or call.writes_arrays
            return program, made, call

    @property
    def running(self) -> Call:
        """The call that a trace of the function belongs to."""
        return self._running.calls[-1]

    def clear(self) -> None:
        """Forget all programs."""
        self._programs.clear()
        self.retraces.forget()

    def crossing(
        self,
        program: Program,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        bound: tuple[Any, ...] | None = None,
        recorded: bool = True,
    ) -> Crossing:
        """The arguments of a call, taken apart; `bound` if it is not what the function came with.

        Under a capture, what records for it is an argument too, if the program is one that is `recorded`.
        """
        nums, names = self._static
        if nums or names:
            chosen = {in_range(i, len(args)) for i in nums}
            args = tuple(Static(a) if i in chosen else a for i, a in enumerate(args))
            kwargs = {k: Static(v) if k in names else v for k, v in kwargs.items()}
        bound = self.user.bound if bound is None else bound
        boundary, names = program.boundary, self.user.names

        def split(captured: Captured) -> Crossing:
            return boundary.split(args, kwargs, bound, captured, names, self._swaps)

        crossing = self._with_functions(split, self._roots())
        while self._roots.misses(crossing.objects):
            crossing = self._with_functions(split, self._roots())
        if recorded and (recorders := recorders_for(crossing.objects)):
            variables = [v for recorder in recorders for v in recorder.variables()]
            captured = crossing.captured.having(variables, "what nnx.capture records")
            crossing = self._with_functions(split, captured).recorded_by(recorders)
        _check_donation(program.boundary, crossing)
        return crossing

    def _with_functions(self, split: Callable[[Captured], Crossing], captured: Captured) -> Crossing:
        """The arguments of a call, with what functions in attributes of objects, and hooks, reach."""
        added: set[int] = set()
        while True:
            crossing = split(captured)
            functions = functions_of(crossing.layout.graphdef)
            if not functions:
                return crossing
            numbers = tuple(map(id, functions))
            roots = self._behind.get(numbers) or self._behind.setdefault(numbers, Roots(given=functions))
            found = roots()
            added |= set(map(id, crossing.kept))
            new = [x for x in found.objects if id(x) not in added]
            if not new:
                return crossing.reaching(roots, found)
            added |= set(map(id, new))
            captured = captured.having(new, "what a function in an attribute reaches")

    def _program(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
        """The program for calls of this form."""
        form = Form(len(args), tuple(kwargs), current_mode(*self._mode))
        program = self._programs.get(form)
        if program is None:
            boundary = self._declare(form)
            pure = boundary.purify(self.user.f, lambda: self.running, self._holding)
            program = self._programs[form] = Program(boundary, self._compile(boundary, pure))
        return program

    def _holding(self, arrays: Any) -> Callable[..., Any]:
        """The user's function, which holds these arrays in the place of its own."""
        places = self.running.crossing.captured.places
        return self._rebuild(*self._roots.with_arrays(arrays, places))

    @contextlib.contextmanager
    def _during(self, call: Call) -> Iterator[None]:
        """The call is the one that a trace of the function belongs to."""
        before = self._running.calls
        self._running.calls = (*before, call)
        try:
            yield
        finally:
            self._running.calls = before

    def _look_deeper(self, missed: Missed, crossing: Crossing) -> None:
        """Look for what a trace met and was not found; refuse it if that was done."""
        if self._roots.deepen(frozenset(map(type, crossing.objects))):
            return
        shown = tuple(map(describe, (*missed.variables, *missed.objects)))
        name = function_name(self.user.f)
        raise CaptureError(crossing.names.transform, name, shown, missed.writes) from None


def _check_donation(boundary: Boundary, crossing: Crossing) -> None:
    """Refuse an array that is donated and stands in another place too, by name."""
    if not boundary.always:
        return
    lanes = list(enumerate(crossing.layout.lane_of))
    donated = {id(crossing.leaves[k]): k for k, lane in reversed(lanes) if lane in boundary.always}
    for k, _ in lanes:
        leaf = crossing.leaves[k]
        first = donated.get(id(leaf), k)
        if first != k and isinstance(leaf, jax.Array):
            raise DonationError(boundary.name, leaf_text(crossing, first), leaf_text(crossing, k))
