"""The user's functions: what is bound to them, and what their arguments are called."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from ..graph._registry import is_graph_value


def unbind(f: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A plain function and what is bound to it: the object of a method or call, the arguments of a partial."""
    if isinstance(f, types.MethodType) and is_graph_value(f.__self__):
        return f.__func__, (f.__self__,)
    if is_graph_value(f):
        return type(f).__call__, (f,)
    if type(f) is functools.partial and not f.keywords:
        inner, bound = unbind(f.func)
        return inner, (*bound, *f.args)
    return f, ()


def argument_names(f: Callable[..., Any], count: int, skip: int) -> tuple[str, ...]:
    """The names of the first `count` positional arguments behind the bound ones; `args[i]` where unknown."""
    try:
        parameters = list(inspect.signature(f).parameters.values())[skip:]
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds]
    return tuple(names[i] if i < len(names) else f"args[{i}]" for i in range(count))


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
    try:
        parameters = list(inspect.signature(f).parameters.values())[skip:]
    except (TypeError, ValueError):
        return nums, names
    positional = [
        p.name
        for p in parameters
        if p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if argnums is not None and argnames is None:
        names = tuple(positional[i] for i in nums if -len(positional) <= i < len(positional))
    elif argnames is not None and argnums is None:
        nums = tuple(i for i, name in enumerate(positional) if name in names)
    return nums, names


def in_range(position: int, count: int) -> int:
    """A position counted from the front."""
    return position + count if position < 0 else position
