"""cond, switch, while_loop, fori_loop: control flow over objects, with one trace of the user's code."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from .._repr import short
from .._settings import Mode, current_mode
from .._trees import shape_struct
from .._typing import Path
from .._variable import Variable
from ..errors import BranchError, PredicateError
from ._boundary import Boundary
from ._branches import Branch, Branches
from ._crossing import Call
from ._eager import traced_once
from ._functions import argument_names, unbind, unbind_all
from ._loops import trace_loop
from ._replay import Replay, is_weak

_LANE = "operands"


def _boundary(name: str, graph: bool | None, graph_updates: bool | None, **options: Any) -> Boundary:
    """The Boundary of control flow: all leaves in one lane."""
    mode = current_mode(graph, graph_updates)
    return Boundary(name, (_LANE,), _LANE, _LANE, _LANE, _LANE, fixed_form=True, mode=mode, **options)


def cond(
    pred: Any,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    *operands: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Call one of two functions; what it does to the operands happens to the caller's objects.

    Args:
        pred: A scalar, as a Python number, an array or a Variable.
        true_fun: Called with the operands if `pred` is true.
        false_fun: Called with the operands if it is not.
        *operands: Objects, arrays, and containers of them.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        What the function returned.

    Raises:
        GraphChangeError: If the functions leave different graphs or results.
        PredicateError: If `pred` is not a scalar.

    Example:
        >>> v = nnx.Variable(jnp.array(1))
        >>> nnx.cond(True, lambda v: v.set_value(v + 1), lambda v: None, v)
        >>> int(v)
        2
    """
    pred = _scalar("cond", "pred", pred)
    index = (pred if pred.dtype == bool else pred != 0).astype(jnp.int32)
    labels = ("false_fun", "true_fun")
    return _branch("cond", index, (false_fun, true_fun), labels, operands, current_mode(graph, graph_updates))


def switch(
    index: Any,
    branches: Sequence[Callable[..., Any]],
    *operands: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Call one of several functions; what it does to the operands happens to the caller's objects.

    Args:
        index: An integer scalar; clamped into the range of the branches.
        branches: The functions, each called with the operands.
        *operands: Objects, arrays, and containers of them.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        What the function returned.

    Raises:
        BranchError: If there is no branch.
        GraphChangeError: If the functions leave different graphs or results.
        PredicateError: If `index` is not an integer scalar.

    Example:
        >>> nnx.switch(1, [lambda x: x, lambda x: x * 2], jnp.array(3)).item()
        6
    """
    index = _scalar("switch", "index", index)
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise PredicateError("switch", "index", short(index), "an integer scalar")
    index, branches = index.astype(jnp.int32), tuple(branches)
    labels = tuple(f"branches[{i}]" for i in range(len(branches)))
    return _branch("switch", index, branches, labels, operands, current_mode(graph, graph_updates))


def _scalar(transform: str, parameter: str, x: Any) -> Any:
    """A scalar argument as an array."""
    x = x.get_value() if isinstance(x, Variable) else x
    if not (hasattr(x, "dtype") or isinstance(x, (bool, int, float))) or jnp.shape(x) != ():
        raise PredicateError(transform, parameter, short(x), "a scalar")
    return jnp.asarray(x)


def _branch(
    name: str,
    index: Any,
    branches: tuple[Callable[..., Any], ...],
    labels: tuple[str, ...],
    operands: tuple[Any, ...],
    mode: Mode,
) -> Any:
    """Trace each branch once, let all return what any of them writes, and pick one."""
    if not branches:
        raise BranchError(name)
    for label, f in zip(labels, branches, strict=True):
        if not callable(f):
            raise PredicateError(name, label, short(f), "a function of the operands")
    names = argument_names(branches[-1])

    def run(branches: Sequence[Callable[..., Any]], index: Any, *operands: Any) -> Any:
        functions, bound = unbind_all(branches)
        made = [Branch(label, f) for label, f in zip(labels, functions, strict=True)]
        traced = Branches(_boundary(name, *mode), lambda crossing: made, operands, bound, names)
        advice = "Expected all branches to leave the same graph and to return results of the same type."
        traced.check("the branches differ", advice)
        runs = [functools.partial(traced.run, replay) for replay in traced.replays]
        return traced.merge(*lax.switch(index, runs, traced.crossing.lanes)[1])

    return traced_once(name, run, branches, (index, *operands), ("index", *names), (labels,), mode)


def while_loop(
    cond_fun: Callable[..., Any],
    body_fun: Callable[..., Any],
    init_val: Any,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Call `body_fun` while `cond_fun` is true; objects in the value are updated in place.

    Only what the body changes is carried; all else is constant.

    Args:
        cond_fun: `value -> bool scalar`; may not write.
        body_fun: `value -> value`; must return the objects it was given.
        init_val: The first value: objects, arrays, and containers of them.
        graph, graph_updates: As for `nnx.cond`.

    Returns:
        The last value, with the caller's own objects.

    Raises:
        GraphChangeError: If the body changes the graph or the types of the value.
        PredicateError: If `cond_fun` does not return a bool scalar, or writes.

    Example:
        >>> nnx.while_loop(lambda x: x < 5, lambda x: x + 2, jnp.array(0)).item()
        6
    """
    mode = current_mode(graph, graph_updates)
    boundary = _boundary("while_loop", *mode, head=_one, results=_without_first, carries=True)
    names = argument_names(body_fun)

    def run(functions: Sequence[Callable[..., Any]], value: Any) -> Any:
        (body, condition), bound = unbind_all(functions)
        loop = trace_loop(boundary, body, (value,), 0, names, bound)
        test = dataclasses.replace(boundary, head=_predicate)
        call = Call(loop.crossing, replayed=True)
        replay = Replay(test.purify(condition, call), loop.crossing.layout, (loop.leaves,))
        if call.written or replay.change.written or replay.change.edits:
            raise PredicateError("while_loop", "cond_fun", "a function that writes", "one that only reads")
        state = lax.while_loop(
            lambda state: replay(loop.crossing.layout, loop.inputs(state))[0],
            lambda state: loop.step(loop.inputs(state))[0],
            loop.initial(),
        )
        return loop.finish(state)[0]

    return traced_once("while_loop", run, (body_fun, cond_fun), (init_val,), names, (), mode)


def _one(out: Any) -> tuple[Any, Any]:
    """The carried value alone, as the first part of the result."""
    return (), (out,)


def _without_first(path: Path) -> Path:
    """A path below the tuple that `_one` makes, without it."""
    return path[1:]


def _predicate(out: Any) -> tuple[Any, Any]:
    """The result of cond_fun as what JAX itself sees."""
    pred = _scalar("while_loop", "cond_fun", out)
    if pred.dtype != bool:
        raise PredicateError("while_loop", "the result of cond_fun", short(pred), "a bool scalar")
    return pred, None


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[..., Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Call `body_fun` for each index in a range; objects in the value are updated in place.

    Args:
        lower: The first index, an integer scalar.
        upper: The end of the range, an integer scalar.
        body_fun: `(index, value) -> value`; must return the objects it was given.
        init_val: The first value: objects, arrays, and containers of them.
        unroll: As for `jax.lax.fori_loop`.
        graph, graph_updates: As for `nnx.cond`.

    Returns:
        The last value, with the caller's own objects.

    Raises:
        GraphChangeError: If the body changes the graph or the types of the value.
        PredicateError: If a bound is not an integer scalar.

    Example:
        >>> nnx.fori_loop(0, 4, lambda i, x: x + i, jnp.array(0)).item()
        6
    """
    bounds = [_scalar("fori_loop", name, x) for name, x in (("lower", lower), ("upper", upper))]
    for name, x in zip(("lower", "upper"), bounds, strict=True):
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise PredicateError("fori_loop", name, short(x), "an integer scalar")
    mode = current_mode(graph, graph_updates)
    boundary = _boundary("fori_loop", *mode, head=_one, results=_without_first, carries=True)
    names = argument_names(body_fun, 1)
    dtype = jnp.promote_types(*(x.dtype for x in bounds))
    index = shape_struct((), dtype, weak_type=all(map(is_weak, bounds)))
    ends = [x.get_value() if isinstance(x, Variable) else x for x in (lower, upper)]
    known = tuple(x if isinstance(x, int) else None for x in ends)  # a part of the program

    def run(functions: Sequence[Callable[..., Any]], value: Any, *ends: Any) -> Any:
        body, bound = unbind(functions[0])
        loop = trace_loop(boundary, body, (value,), 0, names, bound, extras=(index,))

        def step(i: Any, state: list[Any]) -> list[Any]:
            return loop.step(loop.inputs(state), lax.convert_element_type(i, dtype))[0]

        first, end = (x if k is None else k for k, x in zip(known, ends, strict=True))
        return loop.finish(lax.fori_loop(first, end, step, loop.initial(), unroll=unroll))[0]

    options = (known, unroll, dtype, index.weak_type)
    return traced_once("fori_loop", run, (body_fun,), (init_val, *ends), names, options, mode)
