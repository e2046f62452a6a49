"""remat, checkify, eval_shape, make_jaxpr: transforms that treat all leaves alike."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
from jax.experimental import checkify as jax_checkify

from .._settings import current_mode
from .._static import Static
from .._typing import MISSING
from .._variable import new_variable
from ..graph._graphdef import ROOT, GraphDef, Shape, count_leaves, descriptions, leaf_starts
from ..graph._walk import unflatten
from ._boundary import Boundary
from ._captures import Roots
from ._crossing import Call, Change, gather, spread
from ._functions import Lifted, as_tuple, keeps_type, lifted, positions_and_names, returns, with_static
from ._lanes import STATIC, collect_lanes


@keeps_type
def remat(
    f: Any = MISSING,
    *,
    prevent_cse: Any = True,
    static_argnums: int | tuple[int, ...] = (),
    static_argnames: str | Iterable[str] = (),
    policy: Callable[..., bool] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Recompute a function's intermediate values in the backward pass instead of storing them.

    Args:
        f: The function, method or callable object; left out for a decorator. A module alone, as in
            `nnx.remat(block)`, gives its calls, and leaves other instances as they are.
        prevent_cse: As for `jax.checkpoint`: a bool, or a prefix of them for the positional arguments; may
            be False inside `nnx.scan`.
        static_argnums: Positions of arguments that are a part of the program.
        static_argnames: Names of such arguments.
        policy: Which values to store after all; see `jax.checkpoint_policies`.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        The function, or a decorator. Values are the same as without it.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> loss = nnx.remat(lambda model, x: model(x).sum())
        >>> nnx.grad(loss)(model, jnp.ones((1, 2))).bias.tolist()
        [1.0, 1.0, 1.0]
    """
    user = lifted(f)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    static = positions_and_names(user.f, as_tuple(static_argnums) or None, names or None, len(user.bound))
    alike = prevent_cse if isinstance(prevent_cse, bool) else True

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, chosen = with_static(args, static[0])
        kwargs = {k: Static(v) if k in static[1] else v for k, v in kwargs.items()}
        each = (prevent_cse,) * len(args) if isinstance(prevent_cse, bool) else tuple(prevent_cse)
        prefix = tuple(STATIC if i in chosen else p for i, p in enumerate(each))
        by_name = {k: STATIC if k in static[1] else alike for k in kwargs}
        lanes = tuple(collect_lanes(alike, prefix))
        mode = current_mode(graph, graph_updates)
        boundary = Boundary("remat", lanes, prefix, by_name, alike, alike, mode=mode, parameter="prevent_cse")

        def apply(pure: Any, call: Call) -> Any:
            # one function a call: jax.checkpoint caches by function, and this one may capture outer values
            prevent = lanes[0] if len(lanes) == 1 else (True, lanes)
            recomputed = jax.checkpoint(pure, prevent_cse=prevent, policy=policy)  # type: ignore[arg-type]  # a prefix
            return recomputed(call.crossing.layout, call.crossing.lanes)

        return boundary.run(user, args, kwargs, apply)[1]

    return wrapper


checkpoint = remat


@returns(tuple[Any, Any])
def checkify(
    f: Any = MISSING,
    errors: frozenset[Any] = jax_checkify.user_checks,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Report failed checks as a value, which works under `nnx.jit`.

    Args:
        f: The function, method or callable object; left out for a decorator.
        errors: What to check, as for `jax.experimental.checkify.checkify`: `user_checks` are those made by
            `checkify.check`; there are also `nan_checks`, `index_checks`, `div_checks`, `float_checks`,
            `all_checks`.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        A function that returns `(error, result)`; `error.throw()` raises if a check failed. What the
        function writes is written, whether or not a check failed.

    Example:
        >>> from jax.experimental import checkify
        >>> def root(v):
        ...     checkify.check(v[...] >= 0, 'negative')
        ...     return jnp.sqrt(v[...])
        >>> error, y = nnx.checkify(root)(nnx.Param(jnp.array(-1.0)))
        >>> 'negative' in error.get()
        True
    """
    user = lifted(f)

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        boundary = Boundary("checkify", (None,), mode=current_mode(graph, graph_updates))

        def apply(pure: Any, call: Call) -> Any:
            checked = jax_checkify.checkify(pure, errors)
            error, (_, packed) = checked(call.crossing.layout, call.crossing.lanes)
            return error, packed

        return boundary.run(user, args, kwargs, apply)

    return wrapper


def eval_shape(
    f: Callable[..., Any],
    *args: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    **kwargs: Any,
) -> Any:
    """The shapes and dtypes of a function's results, without computing anything.

    Args:
        f: The function, method or callable object.
        *args: Its arguments, also with `jax.ShapeDtypeStruct` for arrays; they are not changed, and neither
            is what the function captures.
        graph: False to refuse shared Variables.
        graph_updates: Accepted like elsewhere; nothing is propagated.
        **kwargs: Its keyword arguments.

    Returns:
        The results with `jax.ShapeDtypeStruct` for arrays; objects are new.

    Example:
        >>> shapes = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> shapes.kernel
        Param( # 6 (24 B)
          value=float32[2,3] abstract
        )
    """
    boundary = Boundary("eval_shape", (None,), fresh=True, mode=current_mode(graph, None))
    pure, call = _without_effects(boundary, lifted(f), args, kwargs)
    _, packed = jax.eval_shape(pure, call.crossing.layout, call.crossing.lanes)
    return boundary.merge(packed, call)


def _without_effects(
    boundary: Boundary, user: Lifted, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], Call]:
    """A function as JAX sees it, that leaves all objects as they are, passed or captured."""
    captured = Roots(user.f, given=user.bound)()._replace(arrays=(), key=None)
    call = Call(boundary.split(args, kwargs, user.bound, captured, user.names), discards=True)
    return boundary.purify(user.f, call), call


@returns(Any)
def make_jaxpr(
    f: Any = MISSING,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    static_argnums: int | tuple[int, ...] = (),
    axis_env: Sequence[tuple[Hashable, int]] | None = None,
    return_shape: bool = False,
) -> Any:
    """A function that returns the jaxpr of `f`: the program that `nnx.jit` compiles.

    Its inputs are the arrays of the arguments in the order of `jax.tree.leaves`, each shared one once; its
    outputs are the values that the function writes, and then the results. Nothing is changed outside.

    Args:
        f: The function, method or callable object; left out for a decorator.
        graph: False to refuse shared Variables.
        graph_updates: False to leave changes other than those of values out of the outputs.
        static_argnums: Positions of arguments that are a part of the program.
        axis_env: Pairs of name and size of axes for collectives, as for `jax.make_jaxpr`.
        return_shape: Whether to return the shapes and dtypes of the results too.

    Returns:
        A function of the same arguments that returns the jaxpr, or `(jaxpr, shapes)`.

    Example:
        >>> counter = nnx.Variable(jnp.zeros(()))
        >>> def count(v, x):
        ...     v[...] += x
        >>> nnx.make_jaxpr(count)(counter, jnp.ones(()))
        { lambda ; a:f32[] b:f32[]. let c:f32[] = add a b in (c,) }
        >>> counter.item()
        0.0
    """
    user, static = lifted(f), as_tuple(static_argnums)

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, chosen = with_static(args, static)
        prefix = tuple(STATIC if i in chosen else None for i in range(len(args)))
        boundary = Boundary("make_jaxpr", (None,), prefix, mode=current_mode(graph, graph_updates))
        pure, call = _without_effects(boundary, user, args, kwargs)
        crossing = call.crossing
        order = _passed(crossing.layout.graphdef)
        changes: list[Change] = []

        def flat(*leaves: Any) -> list[Any]:
            given = dict(zip(order, leaves, strict=True))
            ordered = [given.get(k, leaf) for k, leaf in enumerate(crossing.leaves)]
            _, (change, lanes) = pure(crossing.layout, (ordered,))
            changes.append(change)
            return gather(lanes, change.lane_of)

        made = jax.make_jaxpr(flat, axis_env=axis_env, return_shape=True)
        jaxpr, shapes = made(*[crossing.leaves[k] for k in order])
        if not return_shape:
            return jaxpr
        (change,) = changes
        lanes = spread(shapes, change.lane_of, 1)
        return jaxpr, boundary.merge((change, lanes), _imitation(call))

    return wrapper


def _passed(graphdef: GraphDef) -> list[int]:
    """The numbers of the leaves of the arguments, and not of what is only captured, as one meets them."""
    captured, *passed = graphdef.root[2]
    following = {**dict(enumerate(leaf_starts(graphdef))), ROOT: count_leaves(captured)}
    found: dict[int, None] = {}
    below = ("container", Shape(tuple, tuple(range(len(passed)))), tuple(passed))
    for _, desc, owner in descriptions(graphdef, below):
        if desc[0] == "node" and graphdef.records[desc[1]][0] == "variable":
            found[following[desc[1]]] = None
        elif desc[0] == "leaf":
            found[following[owner]] = None
            following[owner] += 1
    return list(found)


def _imitation(call: Call) -> Call:
    """A call with shapes for arrays, in objects of its own, which a result may change."""
    crossing = call.crossing
    shapes = [jax.eval_shape(lambda x: x, leaf) for leaf in crossing.leaves]
    objects = unflatten(crossing.layout.graphdef, shapes)[1]
    written = [new_variable(v._spec, None) for v in call.written]
    crossing = dataclasses.replace(crossing, objects=objects, leaves=shapes)
    return dataclasses.replace(call, crossing=crossing, written=written)
