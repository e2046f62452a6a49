"""What custom_vjp and custom_jvp share: a function and its rule, traced, and what they hand back.

The function and its rule are traced first, as the branches of a `cond` are: which of them will run is not
known then, and each must hand back whatever either writes. What they capture becomes an argument, so that
JAX says whether a derivative by it is asked for, which the rule could not give.

What is written to a Variable carries no derivative, unless the Variable is in the result.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero

from .._repr import function_name, short
from .._settings import Mode
from ..errors import ArgnumsError, GraphChangeError, HiddenGradientError, ResultError
from ..graph._graphdef import GraphDef, descriptions, leaf_starts
from ..graph._walk import flatten
from ._boundary import Boundary
from ._branches import Branch, Branches
from ._crossing import Crossing, leaf_text, variable_of
from ._differentiate import DIFF, REST
from ._functions import in_range, with_static
from ._lanes import STATIC, short_variable
from ._replay import Replay
from ._tangents import Form, LeafType, form_of_arguments, tangent_type

Rule = Callable[..., Any]
Make = Callable[[Crossing], tuple[Branch, Branch]]  # the function and its rule
_DIFFER = "the function and its rule differ"
_ADVICE = "Expected both to leave the same graph and to return results of the same type."


class _Busy(threading.local):
    """The functions whose rules are being traced in this thread."""

    def __init__(self) -> None:
        self.functions: list[object] = []


_busy = _Busy()


@contextlib.contextmanager
def _tracing(function: object) -> Iterator[bool]:
    """Trace the rule of a function; whether it is being traced already."""
    is_inner = any(f is function for f in _busy.functions)
    _busy.functions.append(function)
    try:
        yield is_inner
    finally:
        _busy.functions.pop()


class CustomCall:
    """The arguments of one call: which are differentiated by, which are not, which are static."""

    def __init__(self, transform: str, fun: Rule, nondiff: Sequence[int], args: tuple[Any, ...]):
        self.transform = transform
        self.name = function_name(fun)
        for i in nondiff:
            if not -len(args) <= i < len(args):
                raise ArgnumsError(transform, i, len(args), "nondiff_argnums")
        self.nondiff = sorted({in_range(i, len(args)) for i in nondiff})
        self.data = [i for i in self.nondiff if _is_data(args[i])]
        self.diff = [i for i in range(len(args)) if i not in self.nondiff]
        self.values = args
        self.args, static = with_static(args, [i for i in self.nondiff if i not in self.data])
        lanes: dict[int, Any] = dict.fromkeys(static, STATIC) | dict.fromkeys(self.data, REST)
        self.prefix = tuple(lanes.get(i, DIFF) for i in range(len(args)))

    def boundary(self, mode: Mode) -> Boundary:
        """The Boundary of the call."""
        name = self.transform
        return Boundary(
            name, (DIFF, REST), self.prefix, {}, REST, REST, mode=mode, parameter="nondiff_argnums"
        )

    def nondiff_values(self, data: Sequence[Any]) -> list[Any]:
        """The arguments that are not differentiated by, with those that hold data as they are here."""
        by_place = dict(zip(self.data, data, strict=True))
        return [by_place.get(i, self.values[i]) for i in self.nondiff]

    def form(self, crossing: Crossing, what: str) -> Form:
        """The form of the tangents of what is differentiated by."""
        return form_of_arguments(crossing, what, tuple((2, i) for i in self.diff))


def _is_data(x: Any) -> bool:
    """Whether a value holds objects or traced arrays, which the program cannot be made for."""
    _, leaves, objects = flatten(x)
    return bool(objects) or any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves(leaves))


class Ruled:
    """A function and its rule, traced: what runs, and what comes back.

    JAX sees functions of the lanes of the arguments and of the arrays that the functions close over. While
    the rule is traced, calls of the function inside of it find its rule only if JAX asks for it.
    """

    def __init__(
        self, call: CustomCall, boundary: Boundary, make: Make, function: Any, bound: tuple[Any, ...]
    ):
        self._call = call
        self._function = function
        self._make = make
        with _tracing(function) as is_inner:
            made = (lambda crossing: make(crossing)[:1]) if is_inner else make
            self.traced = Branches(boundary, made, call.args, bound, function.names, closed=True)
        self.traced.check(_DIFFER, _ADVICE)
        self.crossing = self.traced.crossing
        self.inputs = (self.crossing.lanes, [replay.consts for replay in self.traced.replays])
        self.result = Result(self.traced)

    def function(self, lanes: Any, consts: Any) -> Any:
        """What the function hands back: written values, and the rest."""
        return self.traced.run(self.traced.replays[0], lanes, consts=consts[0])[1]

    def rule(self, lanes: Any, consts: Any, *extras: Any) -> Any:
        """The head of the rule, and what it hands back."""
        if len(self.traced.replays) == 2:
            return self.traced.run(self.traced.replays[1], lanes, *extras, consts=consts[1])
        return self.traced.run(self._traced_now(), lanes, *extras)

    def _traced_now(self) -> Replay:
        """The rule, traced where JAX asks for it: it must write what the function writes, and no more."""
        with _tracing(self._function):
            branch = self._make(self.crossing)[1]
            replay, call = self.traced.trace(branch)
        more = set(replay.change.written) - set(self.traced.written)
        if more or call.written:
            shown = [leaf_text(self.crossing, k) for k in more] or [v._describe() for v in call.written]
            texts = tuple(f"{branch.label} writes {text}" for text in shown)
            raise GraphChangeError(self._call.transform, _DIFFER, texts, _ADVICE)
        self.traced.check_alike(branch.label, replay, _DIFFER, _ADVICE)
        return replay

    def check_hidden(self, lanes: Any, consts: Any) -> None:
        """Refuse derivatives by what the rule has no place for; flags say where they are asked for."""
        crossing = self.crossing
        numbers = [k for k, lane in enumerate(crossing.layout.lane_of) if lane == 1]
        flags = zip(numbers, lanes[1], strict=True)
        found = [_hidden_text(crossing, k) for k, flag in flags if any(jax.tree.leaves(flag))]
        closed = zip(jax.tree.leaves(self.inputs[1]), jax.tree.leaves(consts), strict=True)
        found += [f"{short(x)}, which it closes over" for x, flag in closed if flag]
        if found:
            raise HiddenGradientError(self._call.transform, self._call.name, tuple(dict.fromkeys(found)))


def _hidden_text(crossing: Crossing, k: int) -> str:
    """A leaf that is no argument to differentiate by, in words."""
    variable = variable_of(crossing, k)
    shown = short_variable(crossing.leaves[k] if variable is None else variable)
    path = next(path for path, number in crossing.layout.graphdef.leaf_paths if number == k)
    return f"the captured {shown}" if path[0] == 0 else f"{leaf_text(crossing, k)}: {shown}"


def pair(transform: str, rule: str, out: Any, expected: str) -> tuple[Any, Any]:
    """The two parts that a rule returns."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise ResultError(transform, f"{rule} returned", short(out), f"a pair `({expected})`")
    return out[0], out[1]


def instantiated(x: Any) -> Any:
    """A tangent as an array."""
    if not isinstance(x, SymbolicZero):
        return x
    return LeafType(jax.tree.structure(0), ((x.shape, x.dtype),)).zero()


class Result:
    """What a traced function and its rule hand back: written values, leaves of edits, the result.

    `form` is that of the result's tangents; written leaves have one if their object is in the result.
    """

    def __init__(self, traced: Branches):
        self._traced = traced
        first, crossing = traced.replays[0], traced.crossing
        self._edits = first.change.edit_leaves()
        after = dict(enumerate(crossing.leaves))
        for replay in traced.replays:
            after |= dict(zip(replay.change.written, replay.leaves, strict=False))
        new = GraphDef(first.change.root, first.change.records)
        self._returned = _returned(crossing.layout.graphdef, new) & set(traced.written)
        types = [tangent_type(x) if k in self._returned else None for k, x in after.items()]
        name, names = crossing.names.transform, crossing.names.arguments
        inputs = Form(name, "", crossing.layout.graphdef, (), tuple(types), names)
        leaves = first.leaves[len(first.change.written) + self._edits :]
        what = "the tangents that the rule returned"
        self.form = Form(name, what, new, ((),), tuple(map(tangent_type, leaves)), None, inputs)

    def tangents(self, values: Sequence[Any], rest: Sequence[Any]) -> list[Any]:
        """The tangents of the result, as its form wants them, among those of all that is handed back."""
        pairs = zip(self._traced.written, values, strict=True)
        return [*rest[self._edits :], *(x for k, x in pairs if k in self._returned)]

    def all_tangents(self, tangents: Sequence[Any], values: Any, rest: Any) -> tuple[list[Any], list[Any]]:
        """The tangents of all that is handed back, from those of the result."""
        count = len(rest) - self._edits
        kept = iter(tangents[count:])
        pairs = zip(self._traced.written, values, strict=True)
        written = [next(kept) if k in self._returned else tangent_type(x).zero() for k, x in pairs]
        return written, [*(tangent_type(x).zero() for x in rest[: self._edits]), *tangents[:count]]

    def merge(self, values: list[Any], rest: list[Any]) -> Any:
        """Apply what was done; what the rule has no derivative of is constant from here on."""
        pairs = zip(self._traced.written, values, strict=True)
        values = [x if k in self._returned else lax.stop_gradient(x) for k, x in pairs]
        edits = map(lax.stop_gradient, rest[: self._edits])
        return self._traced.merge(values, [*edits, *rest[self._edits :]])


def _returned(graphdef: GraphDef, new: GraphDef) -> set[int]:
    """The leaves of Variables below the arguments' objects that are in a result."""
    found: set[int] = set()
    starts, entered = leaf_starts(graphdef), set[int]()
    known = [desc[1] for _, desc, _ in descriptions(new) if desc[0] == "known"]
    for i in known:
        if i < len(starts):
            below = [d[1] for _, d, _ in descriptions(graphdef, ("node", i), entered) if d[0] == "node"]
            found |= {starts[j] for j in below if graphdef.records[j][0] == "variable"}
    return found
