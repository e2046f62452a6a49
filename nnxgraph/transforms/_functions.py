"""The user's functions: how a transform decorates them, what is bound to them, their arguments' names."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload

from .._static import Static
from ..errors import TransformCallError
from ..graph._registry import is_graph_value

P = ParamSpec("P")
Q = ParamSpec("Q")
F = TypeVar("F", bound=Callable[..., Any])
R_co = TypeVar("R_co", covariant=True)


class Keeping(Protocol[P]):
    """A transform whose result has the type of the function; a decorator too, bare and called."""

    @overload
    def __call__(self, f: F, /, *args: P.args, **kwargs: P.kwargs) -> F: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Callable[[F], F]: ...


class Returning(Protocol[P, R_co]):
    """A transform whose result takes the function's arguments and returns something else."""

    @overload
    def __call__(self, f: Callable[Q, Any], /, *args: P.args, **kwargs: P.kwargs) -> Callable[Q, R_co]: ...
    @overload
    def __call__(
        self, *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[Callable[Q, Any]], Callable[Q, R_co]]: ...


def decorating(lift: Callable[..., Any]) -> Any:
    """A transform that is also a decorator, bare and called."""
    parameters = inspect.signature(lift).parameters.values()
    first = next(iter(parameters)).name
    variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    most = sys.maxsize if variadic else len(argument_names(lift))

    @functools.wraps(lift)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if first in kwargs:
            args = (kwargs.pop(first), *args)
        if len(args) > most:
            raise TransformCallError(lift.__name__, len(args), most)
        return lift(*args, **kwargs) if args else functools.partial(lift, **kwargs)

    return wrapper


def keeps_type(lift: Callable[Concatenate[Any, P], Any]) -> Keeping[P]:
    """Declare a transform whose result has the type of the function it is given."""
    return cast(Keeping[P], decorating(lift))


def returns(result: type[R_co]) -> Callable[[Callable[Concatenate[Any, P], Any]], Returning[P, R_co]]:
    """Declare a transform whose result returns `result` for the function's arguments."""

    def declare(lift: Callable[Concatenate[Any, P], Any]) -> Returning[P, R_co]:
        return cast(Returning[P, R_co], decorating(lift))

    return declare


def unbind(f: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A plain function and what is bound to it: the object of a method, the arguments of a partial."""
    if isinstance(f, types.MethodType) and is_graph_value(f.__self__):
        return f.__func__, (f.__self__,)
    if is_graph_value(f):
        return type(f).__call__, (f,)
    if type(f) is functools.partial:
        inner, bound = unbind(f.func)
        inner = functools.partial(inner, **f.keywords) if f.keywords else inner
        return inner, (*bound, *f.args)
    return f, ()


class Lifted(NamedTuple):
    """A user's callable as a plain function, what is bound to it, and the names of its other arguments."""

    f: Callable[..., Any]
    bound: tuple[Any, ...]
    names: tuple[str, ...]


def lifted(f: Callable[..., Any]) -> Lifted:
    """A user's callable, taken apart."""
    inner, bound = unbind(f)
    return Lifted(inner, bound, argument_names(inner, len(bound)))


def unbind_all(functions: Sequence[Callable[..., Any]]) -> tuple[list[Callable[..., Any]], tuple[Any, ...]]:
    """Plain functions, each of which takes first what is bound to any of them; and what that is."""
    parts = [unbind(f) for f in functions]
    bound = tuple(x for _, own in parts for x in own)
    ends = itertools.accumulate(len(own) for _, own in parts)
    return [
        _taking(f, slice(end - len(own), end), len(bound)) for (f, own), end in zip(parts, ends, strict=True)
    ], bound


def _taking(f: Callable[..., Any], own: slice, count: int) -> Callable[..., Any]:
    """The function with `count` bound arguments before its own, of which it wants some."""

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f(*args[own], *args[count:], **kwargs)

    return wrapper


def argument_names(f: Callable[..., Any], skip: int = 0) -> tuple[str, ...]:
    """The names of the positional parameters behind the first `skip`; none if there is no signature."""
    try:
        parameters = list(inspect.signature(f).parameters.values())[skip:]
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in kinds)


def parameter_names(f: Callable[..., Any], skip: int = 0) -> tuple[str, ...]:
    """The names of the parameters behind the first `skip`, keyword-only ones too."""
    try:
        return tuple(inspect.signature(f).parameters)[skip:]
    except (TypeError, ValueError):
        return ()


def as_tuple(x: Any) -> tuple[Any, ...]:
    """None, one value, or several, as a tuple."""
    if x is None:
        return ()
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def positions_and_names(
    f: Callable[..., Any], argnums: Any, argnames: Any, skip: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Arguments given by position or name, completed with each other through the signature, as JAX does."""
    nums, names = as_tuple(argnums), as_tuple(argnames)
    positional = argument_names(f, skip)
    if argnums is not None and argnames is None:
        names = tuple(positional[i] for i in nums if -len(positional) <= i < len(positional))
    elif argnames is not None and argnums is None:
        nums = tuple(i for i, name in enumerate(positional) if name in names)
    return nums, names


def in_range(position: int, count: int) -> int:
    """A position counted from the front."""
    return position + count if position < 0 else position


def with_static(args: tuple[Any, ...], positions: Sequence[int]) -> tuple[tuple[Any, ...], set[int]]:
    """The arguments with those at the positions made a part of the program, and the positions in range."""
    chosen = {in_range(i, len(args)) for i in positions}
    return tuple(Static(a) if i in chosen else a for i, a in enumerate(args)), chosen
