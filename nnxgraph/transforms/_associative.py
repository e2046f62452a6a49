"""associative_scan: running results of a function of two elements, in parallel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from .._frame import describe, thread
from .._repr import function_name
from ..errors import GraphChangeError, SideEffectError
from ..graph._graphdef import GraphDef
from ..graph._walk import flatten, unflatten
from ._boundary import Boundary
from ._crossing import Call
from ._functions import argument_names
from ._replay import Match

_NAME = "associative_scan"
_ADVICE = "Expected a result like the two elements, with objects of the same classes and attributes."


def associative_scan(fn: Callable[..., Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """Running results of an associative function: `[a, fn(a, b), fn(fn(a, b), c), ...]`, in parallel.

    Args:
        fn: A function of two elements that returns one like them, without side effects. Like that of
            `jax.lax.associative_scan` it gets many pairs at once, along `axis`.
        elems: The elements, along `axis` of all arrays: an array, an object, a State, or a container.
        reverse: Whether to run from the last element to the first.
        axis: The axis of the elements.

    Returns:
        The running results, as new objects.

    Raises:
        GraphChangeError: If `fn` returns another structure than that of the elements.
        SideEffectError: If `fn` writes Variables that are not in its arguments.

    Example:
        >>> rates = nnx.Param(jnp.array([1.0, 2.0, 3.0]))
        >>> nnx.associative_scan(lambda a, b: nnx.Param(a * b), rates).tolist()
        [1.0, 2.0, 6.0]
    """
    graphdef, leaves, _ = flatten(elems)
    number = dict(graphdef.leaf_paths)
    boundary = Boundary(_NAME, (None,), fresh=True)
    call = Call(boundary.split((elems, unflatten(graphdef, leaves)[0]), {}, names=argument_names(fn)))
    pure = boundary.purify(_without_side_effects(fn), call)
    paths = sorted(call.crossing.layout.graphdef.leaf_paths, key=lambda pair: pair[1])
    places: list[tuple[Any, int]] = [(path[1], number[path[2:]]) for path, _ in paths]
    axis = axis % max((np.ndim(x) for x in jax.tree.leaves(leaves)), default=1) if axis < 0 else axis

    def combine(*pair: list[Any]) -> list[Any]:
        ordered = [pair[which][k] for which, k in places]
        _, (change, lanes) = pure(call.crossing.layout, (ordered,))
        if GraphDef(change.root, change.records) is not graphdef:
            match = Match(call.crossing, change)
            match.carried(graphdef.root, change.root, 0, "the result")
            problem = "the function returns another structure than that of the elements"
            raise GraphChangeError(_NAME, problem, tuple(match.differences), _ADVICE)
        return list(lanes[0])

    return unflatten(graphdef, lax.associative_scan(combine, leaves, reverse, axis))[0]


def _without_side_effects(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which may not write Variables that it reaches by itself."""

    @functools.wraps(fn, updated=())
    def checked(*args: Any) -> Any:
        out = fn(*args)
        assert thread.frame is not None
        written = thread.frame.late_written()
        if written:
            raise SideEffectError(_NAME, function_name(fn), tuple(map(describe, written)))
        return out

    return checked
