"""jacfwd, jacrev, hessian: all derivatives of a function, as arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._repr import short
from .._settings import current_mode
from .._typing import MISSING
from ..errors import ResultError
from ._crossing import Call, Crossing
from ._differentiate import (
    Chosen,
    check_forward,
    check_reverse,
    derivative_boundary,
    over_lanes,
    path_of,
    result_and_aux,
)
from ._functions import lifted, returns
from ._tangents import Form, form_of_arguments

_Check = Callable[[Crossing], None]  # of the leaves to differentiate by


@returns(Any)
def jacfwd(
    f: Any = MISSING, argnums: Any = 0, has_aux: bool = False, holomorphic: bool = False,
    *, graph: bool | None = None, graph_updates: bool | None = None,
) -> Any:  # fmt: skip
    """The Jacobian of a function by forward mode, one column at a time: for few inputs and many outputs.

    Args:
        f: A function of arrays, objects and containers of them; what it returns counts as arrays. Left out
            for a decorator.
        argnums: The positional arguments to differentiate by: an int, an `nnx.DiffState`, or a tuple.
            Of an object the Params are meant, unless a DiffState says otherwise.
        has_aux: Whether `f` returns `(out, aux)`; objects may come out in aux.
        holomorphic: Whether `f` is a holomorphic function of complex numbers.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        A function that returns the Jacobian, or `(jacobian, aux)`: in the structure of the result, for each
        of its arrays the gradients as `nnx.grad` returns them, with the shape of the array in front. What
        `f` writes happens once.

    Raises:
        NotDifferentiableError: If a leaf to differentiate by is not real, or with holomorphic not complex.
        ResultError: If `f` returns what is no array.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> jacobian = nnx.jacfwd(lambda model, x: model(x))(model, jnp.ones(2))
        >>> jacobian['kernel'].shape, jacobian['bias'].tolist()
        ((3, 2, 3), [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    """
    check = functools.partial(check_forward, holomorphic=holomorphic)
    derive = functools.partial(jax.jacfwd, holomorphic=holomorphic)
    result = np.complexfloating if holomorphic else np.generic
    return _jacobian("jacfwd", derive, 1, f, argnums, has_aux, check, result, (graph, graph_updates))


@returns(Any)
def jacrev(
    f: Any = MISSING, argnums: Any = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False, *, graph: bool | None = None, graph_updates: bool | None = None,
) -> Any:  # fmt: skip
    """The Jacobian of a function by reverse mode, one row at a time: for many inputs and few outputs.

    Args:
        f, argnums, has_aux, holomorphic, graph, graph_updates: As for `nnx.jacfwd`.
        allow_int: As for `nnx.grad`.

    Returns:
        A function that returns the Jacobian, or `(jacobian, aux)`; see `jacfwd`.

    Raises:
        NotDifferentiableError: If a leaf to differentiate by is not floating point.
        ResultError: If `f` returns what is no real array.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> jacobian = nnx.jacrev(lambda model, x: model(x))(model, jnp.ones(2))
        >>> jacobian['kernel'].shape, jacobian['bias'].tolist()
        ((3, 2, 3), [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    """
    check = functools.partial(check_reverse, holomorphic=holomorphic, allow_int=allow_int)
    derive = functools.partial(jax.jacrev, holomorphic=holomorphic, allow_int=allow_int)
    result = np.complexfloating if holomorphic else np.floating
    return _jacobian("jacrev", derive, 1, f, argnums, has_aux, check, result, (graph, graph_updates))


@returns(Any)
def hessian(
    f: Any = MISSING, argnums: Any = 0, has_aux: bool = False, holomorphic: bool = False,
    *, graph: bool | None = None, graph_updates: bool | None = None,
) -> Any:  # fmt: skip
    """The second derivatives of a function.

    Args:
        f, argnums, has_aux, holomorphic, graph, graph_updates: As for `nnx.jacfwd`.

    Returns:
        A function that returns the second derivatives, or `(derivatives, aux)`: in the structure of the
        result, for each of its arrays by one leaf and then by another, as in
        `hessian['kernel']['bias']`. What `f` writes happens once.

    Raises:
        NotDifferentiableError: If a leaf to differentiate by is not real, or with holomorphic not complex.
        ResultError: If `f` returns what is no real array.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> second = nnx.hessian(lambda model, x: (model(x) ** 2).sum())(model, jnp.ones(2))
        >>> second['kernel']['bias'].shape
        (2, 3, 3)
        >>> second['bias']['bias'].tolist()
        [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]
    """
    check = functools.partial(check_forward, holomorphic=holomorphic)
    derive = functools.partial(jax.hessian, holomorphic=holomorphic)
    result = np.complexfloating if holomorphic else np.floating
    return _jacobian("hessian", derive, 2, f, argnums, has_aux, check, result, (graph, graph_updates))


def _jacobian(
    name: str,
    derive: Callable[..., Any],
    order: int,
    f: Any,
    argnums: Any,
    has_aux: bool,
    check: _Check,
    result: type,
    modes: tuple[bool | None, bool | None],
) -> Callable[..., Any]:
    """The derivatives of an order that a transform of JAX computes, in the user's structures."""
    user = lifted(f)
    chosen = Chosen(name, user, argnums)

    def head(out: Any) -> tuple[Any, Any]:
        out, aux = result_and_aux(name, has_aux, out)
        _check_result(name, out, result)
        return out, aux

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        roots = tuple(map(path_of, chosen.places(args, kwargs)))
        rules = chosen.rules(args, kwargs)
        boundary = derivative_boundary(name, rules, args, kwargs, head, current_mode(*modes))

        def apply(pure: Any, call: Call) -> Any:
            check(call.crossing)
            out, jacobian, packed = _by_lane(derive, over_lanes(pure, call.crossing), call.crossing.lanes)
            form = form_of_arguments(call.crossing, "gradients", roots)
            lane = jax.tree.structure(call.crossing.lanes[0])
            show = functools.partial(_shown, chosen, form, lane, order)
            structure: Any = jax.tree.structure(out)
            return structure.unflatten(map(show, structure.flatten_up_to(jacobian))), packed

        jacobian, aux = boundary.run(user, args, kwargs, apply)
        return (jacobian, aux) if has_aux else jacobian

    return wrapper


def _by_lane(derive: Callable[..., Any], pure: Any, lanes: Any) -> tuple[Any, Any, Any]:
    """The result, its derivatives by the leaves of the first lane, and the rest."""
    if not jax.tree.leaves(lanes[0]):  # JAX has no basis of nothing
        out, packed = pure(*lanes)
        return out, jax.tree.map(lambda _: lanes[0], out), packed

    def with_result(diff: Any, rest: Any) -> Any:
        out, packed = pure(diff, rest)
        return out, (out, packed)

    jacobian, (out, packed) = derive(with_result, has_aux=True)(*lanes)
    return out, jacobian, packed


def _shown(chosen: Chosen, form: Form, lane: Any, order: int, derivatives: Any) -> Any:
    """Derivatives by the leaves of a lane, in the structure of the arguments, once for each order."""
    if order == 1:
        return chosen.pick(form.show(derivatives))
    further = [_shown(chosen, form, lane, order - 1, d) for d in lane.flatten_up_to(derivatives)]
    return chosen.pick(form.show(lane.unflatten(further), lambda _, below: below))


def _check_result(name: str, out: Any, kind: type) -> None:
    """Refuse a result whose derivatives JAX cannot give in this mode."""
    expected = "complex" if kind is np.complexfloating else "real floating point"
    for x in jax.tree.leaves(out):
        if not jnp.issubdtype(jax.dtypes.result_type(x), kind):
            advice = f"{expected} arrays. Convert them, or see holomorphic"
            raise ResultError(name, "the function returned", short(x), advice)
