"""grad and value_and_grad: the gradients of a scalar loss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._repr import short
from .._settings import current_mode
from .._typing import MISSING
from .._variable import Variable
from ..errors import LossError, ResultError
from ._crossing import Call
from ._differentiate import (
    Chosen,
    check_reduce_axes,
    check_reverse,
    derivative_boundary,
    over_lanes,
    path_of,
)
from ._functions import lifted
from ._signatures import typed_grad, typed_value_and_grad
from ._tangents import form_of_arguments


@typed_value_and_grad
def value_and_grad(
    f: Any = MISSING, *, argnums: Any = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False, reduce_axes: Any = (),
    graph: bool | None = None, graph_updates: bool | None = None,
) -> Any:  # fmt: skip
    """A function that returns the value of `f` and its gradients.

    Args:
        f: A function that returns a scalar, or `(scalar, aux)`; left out for a decorator.
        argnums: The positional arguments to differentiate by: an int, an `nnx.DiffState`, or a tuple.
            Of an object the Params are meant, unless a DiffState says otherwise.
        has_aux: Whether `f` returns `(scalar, aux)`.
        holomorphic: As for `jax.grad`.
        allow_int: As for `jax.grad`.
        reduce_axes: Accepted for compatibility; must be empty.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        A function that returns `(value, gradients)`, or `((value, aux), gradients)`. The gradients of an
        object are a State with the paths of what was differentiated by; those of other arguments have their
        shape; a tuple if `argnums` is one. A shared Param has one gradient, at its first path.

    Raises:
        LossError: If `f` does not return a scalar float.
        NotDifferentiableError: If a leaf to differentiate by is not floating point.
        AliasError: If a Variable is both differentiated by and not.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> loss, grads = nnx.value_and_grad(lambda model, x: model(x).sum())(model, jnp.ones((1, 2)))
        >>> grads['bias'].tolist()
        [1.0, 1.0, 1.0]
    """
    return _differentiated("value_and_grad", **locals())


@typed_grad
def grad(
    f: Any = MISSING, *, argnums: Any = 0, has_aux: bool = False,
    holomorphic: bool = False, allow_int: bool = False, reduce_axes: Any = (),
    graph: bool | None = None, graph_updates: bool | None = None,
) -> Any:  # fmt: skip
    """A function that returns the gradients of `f`, without its value.

    Args:
        f, argnums, has_aux, holomorphic, allow_int, reduce_axes, graph, graph_updates: As for
            `nnx.value_and_grad`.

    Returns:
        A function that returns the gradients, or `(gradients, aux)`.

    Raises:
        LossError: If `f` does not return a scalar float.
        NotDifferentiableError: If a leaf to differentiate by is not floating point.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nnx.grad(lambda model, x: model(x).sum())(model, jnp.ones((1, 2)))['bias'].tolist()
        [1.0, 1.0, 1.0]
    """
    both = _differentiated("grad", **locals())

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapper


def _differentiated(
    name: str,
    f: Any,
    argnums: Any,
    has_aux: bool,
    holomorphic: bool,
    allow_int: bool,
    reduce_axes: Any,
    graph: bool | None,
    graph_updates: bool | None,
) -> Callable[..., Any]:
    """value_and_grad under the name that the user wrote."""
    check_reduce_axes(name, reduce_axes)
    user = lifted(f)
    chosen = Chosen(name, user, argnums)
    head = functools.partial(_head, name, has_aux, holomorphic)
    options: dict[str, Any] = {"holomorphic": holomorphic, "allow_int": allow_int}

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        places = chosen.places(args, kwargs)
        rules = chosen.rules(args, kwargs)
        boundary = derivative_boundary(name, rules, args, kwargs, head, current_mode(graph, graph_updates))

        def apply(pure: Any, call: Call) -> Any:
            crossing = call.crossing
            check_reverse(crossing, **options)
            by_lane = jax.value_and_grad(over_lanes(pure, crossing), has_aux=True, **options)
            (loss, packed), leaves = by_lane(*crossing.lanes)
            form = form_of_arguments(crossing, "gradients", tuple(map(path_of, places)))
            return (loss, chosen.pick(form.show(leaves))), packed

        (loss, grads), aux = boundary.run(user, args, kwargs, apply)
        return ((loss, aux) if has_aux else loss), grads

    return wrapper


def _head(name: str, has_aux: bool, holomorphic: bool, out: Any) -> tuple[Any, Any]:
    """The loss, which JAX must see, and the rest."""
    aux = None
    if has_aux:
        if not isinstance(out, tuple) or len(out) != 2:
            raise LossError(name, short(out), "Write `return loss, aux`, or has_aux=False.")
        out, aux = out
    loss = out.get_value() if isinstance(out, Variable) else out
    if not hasattr(loss, "shape") and not isinstance(loss, (int, float, complex)):
        raise LossError(name, short(out), "Write has_aux=True to return `(loss, aux)`.")
    loss = jnp.asarray(loss)
    if loss.shape != ():
        raise LossError(name, short(loss), "Write `loss.mean()` or `loss.sum()`.")
    if not holomorphic and not jnp.issubdtype(loss.dtype, jnp.floating):
        raise LossError(name, short(loss), "Write `loss.astype(jnp.float32)`, or holomorphic=True.")
    if holomorphic and not jnp.issubdtype(loss.dtype, jnp.complexfloating):
        raise ResultError(
            name, "the function returned", short(loss), "a complex scalar with holomorphic=True"
        )
    return loss, aux
