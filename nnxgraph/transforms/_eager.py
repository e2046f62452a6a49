"""Control flow that runs eagerly, and again: its functions are traced and compiled once.

The compiled program is kept by one of the functions, and dies with any of them.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax

from .._frame import is_home
from .._settings import Mode
from .._static import PROGRAMS
from ..errors import CaptureError
from ._boundary import Boundary
from ._cached import Cached, Form
from ._captures import Roots, Same
from ._functions import Lifted, unbind

Run = Callable[..., Any]  # of a list of functions, and the arguments


class _Programs(dict[Hashable, tuple[Cached, list[Any]]]):
    """The programs that a function keeps, with references to the others; a copy of it has none."""

    def keep(self, key: Hashable, cached: Cached, functions: Sequence[Any]) -> Cached:
        """Keep a program for as long as all its functions live."""
        own = weakref.ref(self)

        def drop(_: Any) -> None:
            programs = own()
            if programs is not None:
                programs.pop(key, None)

        self[key] = (cached, [weakref.ref(f, drop) for f in functions])
        return cached

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Programs, ())


def traced_once(
    name: str,
    run: Run,
    functions: Sequence[Any],
    args: tuple[Any, ...],
    names: tuple[str, ...],
    options: tuple[Hashable, ...],
    mode: Mode,
    kwargs: dict[str, Any] = {},  # noqa: B006  # never changed
) -> Any:
    """`run(functions, *args)`, compiled where the code runs eagerly; `options` are those that `run` has."""
    parts = [unbind(f) for f in functions]
    plain = [f for f, _ in parts]
    if not is_home(None) or any(type(f) is not types.FunctionType for f in plain):
        return run(functions, *args, **kwargs)
    counts = tuple(len(own) for _, own in parts)
    key = (name, tuple((Same(f), f.__code__) for f in plain), counts, options, mode)
    keeper = next((f for f in plain if f.__closure__), plain[-1])  # the one that is likely to die first
    programs = vars(keeper).setdefault(PROGRAMS, _Programs())
    known = programs.get(key)
    cached = known[0] if known else programs.keep(key, _program(name, run, plain, counts, names), plain)
    try:
        return cached(args, kwargs, tuple(x for _, own in parts for x in own))
    except CaptureError:  # what cannot be known beforehand is found when the functions run
        return run(functions, *args, **kwargs)


def _program(
    name: str, run: Run, plain: Sequence[Any], counts: tuple[int, ...], names: tuple[str, ...]
) -> Cached:
    """The compiled form of a run; what is bound to the functions comes first among its arguments."""
    roots = Roots(*plain, deep=True)

    def rebuilt(*functions: Any) -> Callable[..., Any]:
        def with_bound(*args: Any, **kwargs: Any) -> Any:
            feed = iter(args)
            pairs = zip(functions, counts, strict=True)
            return run([_with(f, count, feed) for f, count in pairs], *feed, **kwargs)

        return with_bound

    def f(*args: Any, **kwargs: Any) -> Any:
        return rebuilt(*roots.functions())(*args, **kwargs)

    def declare(form: Form) -> Boundary:
        return Boundary(name, (None,))  # the mode is that of the boundary inside

    return Cached(Lifted(f, (), names), declare, _compiled, (True, True), roots=roots, rebuild=rebuilt)


def _with(f: Any, count: int, feed: Iterator[Any]) -> Any:
    """A function with the next arguments bound to it."""
    return functools.partial(f, *[next(feed) for _ in range(count)]) if count else f


def _compiled(boundary: Boundary, pure: Callable[..., Any]) -> Callable[..., Any]:
    """The program over lanes, compiled by JAX."""
    return jax.jit(lambda layout, *lanes: pure(layout, lanes))
