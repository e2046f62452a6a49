"""vjp, jvp, linearize: derivatives of any function, along what the caller gives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from .._repr import short
from .._settings import current_mode
from .._typing import MISSING
from ..errors import TangentError
from ..graph._walk import unflatten
from ._boundary import Boundary
from ._crossing import Call
from ._differentiate import (
    by_default,
    check_reduce_axes,
    derivative_boundary,
    over_lanes,
    path_of,
    result_and_aux,
)
from ._functions import lifted
from ._signatures import typed_jvp, typed_linearize, typed_vjp
from ._tangents import Form, form_of_arguments, form_of_result

_partial: Any = jax.tree_util.Partial  # a pytree; JAX leaves it untyped
_Derive = Callable[[Any, Call, Form], Any]  # (pure, call, form of the primals' tangents) -> (head, packed)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _PullBack:
    """What vjp returns, but for JAX's own function, which comes first: from cotangent to cotangents."""

    result: Form
    primals: Form

    def __call__(self, pull: Any, cotangent: Any) -> tuple[Any, ...]:
        cotangent = unflatten(self.result.graphdef, self.result.read([cotangent]))[0]
        return tuple(self.primals.show(pull(cotangent)[0]))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _PushForward:
    """What linearize returns, but for JAX's own function, which comes first."""

    primals: Form

    def __call__(self, push: Any, *tangents: Any) -> Any:
        return push(self.primals.filled(_find_all(self.primals, tangents)))


def _find_all(form: Form, tangents: tuple[Any, ...]) -> list[Any]:
    """The leaves of tangents, one of which belongs to each primal; None for zero."""
    if len(tangents) != len(form.roots):
        problem = f"there are {len(tangents)} for {len(form.roots)} primals"
        raise TangentError(form.transform, form.what, (problem,))
    return form.find(tangents)


def _derived(
    name: str,
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    has_aux: bool,
    derive: _Derive,
    modes: tuple[bool | None, bool | None],
    skip: int = 0,
) -> tuple[Any, ...]:
    """One forward run, differentiated by the arguments behind the first `skip`: (out, derivative[, aux])."""
    rules: Any = {i: by_default(x) for i, x in enumerate(args) if i >= skip}
    head = functools.partial(result_and_aux, name, has_aux)
    boundary: Boundary = derivative_boundary(name, rules, args, kwargs, head, current_mode(*modes))

    def apply(pure: Any, call: Call) -> Any:
        form = form_of_arguments(call.crossing, "tangents", tuple(map(path_of, rules)))
        return derive(over_lanes(pure, call.crossing), call, form)

    (out, derivative), aux = boundary.run(lifted(f), args, kwargs, apply)
    return (out, derivative, aux) if has_aux else (out, derivative)


def _at_primals(
    name: str, f: Any, primals: tuple[Any, ...], has_aux: bool, derive: _Derive, modes: Any
) -> Any:
    """What `f` and its derivative are at the primals; without primals, the function of them."""

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return _derived(name, f, args, kwargs, has_aux, derive, modes)

    return wrapper(*primals) if primals else wrapper


def _pull_back(pure: Any, call: Call, form: Form) -> Any:
    """The result and the function from its cotangent to those of the primals."""
    diff, rest = call.crossing.lanes
    out, pull, packed = jax.vjp(lambda diff: pure(diff, rest), diff, has_aux=True)
    static = _PullBack(form_of_result("vjp", "cotangents", out), form)
    return (out, _partial(static, pull)), packed


def _linear(pure: Any, call: Call, form: Form) -> Any:
    """The result and the function from tangents of the primals to that of the result."""
    diff, rest = call.crossing.lanes
    out, push, packed = jax.linearize(lambda diff: pure(diff, rest), diff, has_aux=True)
    return (out, _partial(_PushForward(form), push)), packed


@typed_vjp
def vjp(
    f: Any = MISSING,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Any = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """The value of a function, and the function from its cotangent to those of the arguments.

    Without primals it is a decorator: the decorated function takes the primals, and keyword arguments, which
    are not differentiated by.

    Args:
        f: A function of arrays, objects and containers of them; what it returns counts as arrays.
        *primals: Its arguments. Of an object the Params are differentiated by.
        has_aux: Whether `f` returns `(out, aux)`; objects may come out in aux.
        reduce_axes: Accepted for compatibility; must be empty.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        `(out, vjp_fn)`, or `(out, vjp_fn, aux)`. `vjp_fn(cotangent)` is a tuple with the cotangent of each
        primal, that of an object as a State. What `f` writes happens once, at the forward run.

    Raises:
        ResultError: If `f` returns what is no array.
        TangentError: If a cotangent does not fit the result.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> y, vjp_fn = nnx.vjp(lambda model, x: model(x), model, jnp.ones((1, 2)))
        >>> by_model, by_x = vjp_fn(jnp.ones((1, 3)))
        >>> by_model['bias'].tolist(), by_x.shape
        ([1.0, 1.0, 1.0], (1, 2))
    """
    check_reduce_axes("vjp", reduce_axes)
    return _at_primals("vjp", f, primals, has_aux, _pull_back, (graph, graph_updates))


@typed_linearize
def linearize(
    f: Any = MISSING,
    *primals: Any,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """The value of a function, and its derivative there as a function of tangents.

    Without primals it is a decorator, as `vjp` is.

    Args:
        f: A function of arrays, objects and containers of them; what it returns counts as arrays.
        *primals: Its arguments. Of an object the Params are differentiated by.
        has_aux: Whether `f` returns `(out, aux)`; objects may come out in aux.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        `(out, f_jvp)`, or `(out, f_jvp, aux)`. `f_jvp(*tangents)` is the tangent of the result; the tangents
        are as for `jvp`.

    Raises:
        ResultError: If `f` returns what is no array.
        TangentError: If tangents do not fit the primals.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> y, f_jvp = nnx.linearize(lambda model, x: model(x), model, jnp.ones((1, 2)))
        >>> f_jvp({'bias': jnp.array([1.0, 2.0, 3.0])}, None).tolist()
        [[1.0, 2.0, 3.0]]
    """
    return _at_primals("linearize", f, primals, has_aux, _linear, (graph, graph_updates))


@typed_jvp
def jvp(
    f: Any = MISSING,
    primals: Any = MISSING,
    tangents: Any = MISSING,
    *,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """The value of a function, and its derivative along tangents of its arguments.

    Without primals it is a decorator: the decorated function takes primals and tangents, and keyword
    arguments, which are not differentiated by; a decorated method takes `self` before them.

    Args:
        f: A function of arrays, objects and containers of them; what it returns counts as arrays.
        primals: A tuple or list of its arguments. Of an object the Params are differentiated by.
        tangents: As many tangents. That of an object is a State, a nested dict, or such an object; a path
            that is missing, and None, stand for zero.
        has_aux: Whether `f` returns `(out, aux)`; objects may come out in aux.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        `(out, tangent_out)`, or `(out, tangent_out, aux)`.

    Raises:
        ResultError: If `f` returns what is no array.
        TangentError: If tangents do not fit the primals.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> tangents = {'bias': jnp.array([1.0, 2.0, 3.0])}, jnp.zeros((1, 2))
        >>> y, dy = nnx.jvp(lambda model, x: model(x), (model, jnp.ones((1, 2))), tangents)
        >>> dy.tolist()
        [[1.0, 2.0, 3.0]]
    """

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        *bound, primals, tangents = _pairs(args)

        def along(pure: Any, call: Call, form: Form) -> Any:
            diff, rest = call.crossing.lanes
            found = dict(enumerate(_find_all(form, tuple(tangents))))
            moving = {i: x for i, x in found.items() if x is not None}  # the others are constant

            def by_moving(primals: dict[int, Any]) -> Any:
                return pure([primals.get(i, x) for i, x in enumerate(diff)], rest)

            primals = {i: diff[i] for i in moving}
            out, by_tangents, packed = jax.jvp(by_moving, (primals,), (moving,), has_aux=True)
            return (out, by_tangents), packed

        modes = (graph, graph_updates)
        return _derived("jvp", f, (*bound, *primals), kwargs, has_aux, along, modes, len(bound))

    if primals is MISSING and tangents is MISSING:
        return wrapper
    return wrapper(*(x for x in (primals, tangents) if x is not MISSING))


def _pairs(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a jvp, checked: primals and tangents come last."""
    found = [short(x) for x in args[-2:] if not isinstance(x, (tuple, list))]
    if len(args) < 2 or found:
        problem = f"found {' and '.join(found) or 'no tangents'} where a tuple of primals and one of tangents"
        raise TangentError("jvp", "primals and tangents", (f"{problem} belong",))
    return args
