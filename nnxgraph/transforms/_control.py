"""cond, switch, while_loop, fori_loop: control flow over objects, with one trace of the user's code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._repr import short
from .._settings import current_mode
from .._trees import same_types, shape_struct
from .._typing import Path
from .._variable import Variable
from ..errors import BranchError, GraphChangeError, PredicateError
from ._boundary import Boundary, Call, Change, Crossing, spread
from ._functions import argument_names, unbind, unbind_all
from ._loops import trace_loop
from ._replay import Replay, edit_texts, is_weak, said, type_text

_LANE = "operands"


def _boundary(name: str, graph: bool | None, graph_updates: bool | None, **options: Any) -> Boundary:
    """The Boundary of control flow: all leaves in one lane."""
    mode = current_mode(graph, graph_updates)
    return Boundary(name, (_LANE,), _LANE, _LANE, _LANE, _LANE, mode=mode, **options)


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
    boundary = _boundary("cond", graph, graph_updates)
    labels = ("false_fun", "true_fun")
    return _branch(boundary, index, (false_fun, true_fun), labels, operands)


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
    boundary = _boundary("switch", graph, graph_updates)
    labels = tuple(f"branches[{i}]" for i in range(len(branches)))
    return _branch(boundary, index.astype(jnp.int32), tuple(branches), labels, operands)


def _scalar(transform: str, parameter: str, x: Any) -> Any:
    """A scalar argument as an array."""
    x = x.get_value() if isinstance(x, Variable) else x
    if not (hasattr(x, "dtype") or isinstance(x, (bool, int, float))) or jnp.shape(x) != ():
        raise PredicateError(transform, parameter, short(x), "a scalar")
    return jnp.asarray(x)


def _branch(
    boundary: Boundary,
    index: Any,
    branches: tuple[Callable[..., Any], ...],
    labels: tuple[str, ...],
    operands: tuple[Any, ...],
) -> Any:
    """Trace each branch once, let all return what any of them writes, and pick one."""
    if not branches:
        raise BranchError(boundary.name)
    for label, f in zip(labels, branches, strict=True):
        if not callable(f):
            raise PredicateError(boundary.name, label, short(f), "a function of the operands")
    names = argument_names(branches[-1])
    crossing, replays = _trace_branches(boundary, branches, operands, names)
    _check_branches(boundary, crossing, labels, replays)
    written = sorted(set().union(*(r.change.written for r in replays)))
    layout, leaves = crossing.layout, crossing.leaves

    def chosen(replay: Replay) -> Callable[[list[Any]], Any]:
        def run(leaves: list[Any]) -> Any:
            _, out = replay(layout, (leaves,))
            count = len(replay.change.written)
            values = dict(zip(replay.change.written, out[:count], strict=True))
            return [values.get(k, leaves[k]) for k in written], out[count:]

        return run

    values, rest = lax.switch(index, [chosen(r) for r in replays], leaves)
    first = replays[0].change
    change = dataclasses.replace(first, written=tuple(written), lane_of=(0,) * (len(written) + len(rest)))
    return boundary.merge((change, spread([*values, *rest], change.lane_of, 1)), crossing)


def _trace_branches(
    boundary: Boundary,
    branches: tuple[Callable[..., Any], ...],
    operands: tuple[Any, ...],
    names: tuple[str, ...],
) -> tuple[Crossing, list[Replay]]:
    """Replays of all branches over the same leaves; captured Variables that one writes become arguments."""
    given: tuple[Variable[Any], ...] = ()
    functions, bound = unbind_all(branches)
    while True:
        crossing = boundary.split(operands, {}, bound, given, names)
        replays = []
        late: dict[int, Variable[Any]] = {}
        for f in functions:
            call = Call(crossing, given)
            replays.append(Replay(boundary.purify(f, call), crossing.layout, (crossing.leaves,)))
            late |= {id(v): v for v in call.written}
        if not late:
            return crossing, replays
        given = (*given, *late.values())


def _check_branches(
    boundary: Boundary, crossing: Crossing, labels: tuple[str, ...], replays: list[Replay]
) -> None:
    """Refuse branches that leave different graphs, or results of different types."""
    first = replays[0]
    for label, other in zip(labels[1:], replays[1:], strict=True):
        a, b = first.change, other.change
        texts = []
        if a.edits != b.edits:
            texts += [f"{labels[0]}: {t}" for t in edit_texts(crossing, a.edits)]
            texts += [f"{label}: {t}" for t in edit_texts(crossing, b.edits)]
        if a.root != b.root or (not texts and a.records != b.records):
            texts.append(f"{labels[0]} returns {said(a.root)}, {label} returns {_unlike(a, b)}")
        if not texts:
            pairs = zip(first.leaves[len(a.written) :], other.leaves[len(b.written) :], strict=True)
            texts = [
                f"{labels[0]} returns {type_text(x)} where {label} returns {type_text(y)}"
                for x, y in pairs
                if not same_types(x, y)
            ]
        if texts:
            advice = "Expected all branches to leave the same graph and to return results of the same type."
            raise GraphChangeError(boundary.name, "the branches differ", tuple(texts), advice)
    _check_written(boundary, crossing, labels, replays)


def _unlike(a: Change, b: Change) -> str:
    """What the second branch returns, in words that differ from the first if they can."""
    text = said(b.root)
    return f"another {text.removeprefix('a ').removeprefix('an ')}" if text == said(a.root) else text


def _check_written(
    boundary: Boundary, crossing: Crossing, labels: tuple[str, ...], replays: list[Replay]
) -> None:
    """Refuse a branch that gives a Variable another type than it has elsewhere."""
    texts = []
    for label, replay in zip(labels, replays, strict=True):
        for k, new in zip(replay.change.written, replay.leaves, strict=False):
            old = crossing.leaves[k]
            everywhere = all(k in r.change.written for r in replays)
            old_types = jax.tree.map(jax.typeof, old)
            if not everywhere and not same_types(old_types, new):
                texts.append(f"{label} makes {type_text(old)} a {type_text(new)}")
    if texts:
        advice = "Expected a Variable to have the same shape and dtype after each branch."
        raise GraphChangeError(boundary.name, "the branches differ", tuple(texts), advice)


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
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        The last value, with the caller's own objects.

    Raises:
        GraphChangeError: If the body changes the graph or the types of the value.
        PredicateError: If `cond_fun` does not return a bool scalar, or writes.

    Example:
        >>> nnx.while_loop(lambda x: x < 5, lambda x: x + 2, jnp.array(0)).item()
        6
    """
    boundary = _boundary("while_loop", graph, graph_updates, head=_one, results=_without_first)
    names = argument_names(body_fun)
    (body, condition), bound = unbind_all((body_fun, cond_fun))
    loop = trace_loop(boundary, body, (init_val,), 0, names, bound)
    test = dataclasses.replace(boundary, head=_predicate)
    given = tuple(v for v in loop.crossing.objects[: len(loop.crossing.layout.graphdef.root[2][0][2])])
    call = Call(loop.crossing, given)
    replay = Replay(test.purify(condition, call), loop.crossing.layout, (loop.leaves,))
    if call.written or replay.change.written or replay.change.edits:
        raise PredicateError("while_loop", "cond_fun", "a function that writes", "one that only reads")
    state = lax.while_loop(
        lambda state: replay(loop.crossing.layout, loop.inputs(state))[0],
        lambda state: loop.step(loop.inputs(state))[0],
        loop.initial(),
    )
    return loop.finish(state)[0]


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
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

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
    boundary = _boundary("fori_loop", graph, graph_updates, head=_one, results=_without_first)
    names = argument_names(body_fun, 1)
    dtype = jnp.promote_types(*(x.dtype for x in bounds))
    index = shape_struct((), dtype, weak_type=all(map(is_weak, bounds)))
    body, bound = unbind(body_fun)
    loop = trace_loop(boundary, body, (init_val,), 0, names, bound, extras=(index,))

    def step(i: Any, state: list[Any]) -> list[Any]:
        return loop.step(loop.inputs(state), lax.convert_element_type(i, dtype))[0]

    first, end = (x.get_value() if isinstance(x, Variable) else x for x in (lower, upper))
    return loop.finish(lax.fori_loop(first, end, step, loop.initial(), unroll=unroll))[0]
