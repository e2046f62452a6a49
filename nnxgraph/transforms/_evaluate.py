"""remat, eval_shape: transforms that treat all leaves alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from .._settings import current_mode
from .._typing import MISSING
from ._boundary import Boundary, Call
from ._functions import as_tuple, keeps_type, lifted, with_static
from ._lanes import STATIC


@keeps_type
def remat(
    f: Any = MISSING,
    *,
    prevent_cse: bool = True,
    static_argnums: int | tuple[int, ...] = (),
    policy: Callable[..., bool] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Recompute a function's intermediate values in the backward pass instead of storing them.

    Args:
        f: The function, method or callable object; left out for a decorator.
        prevent_cse: As for `jax.checkpoint`; may be False inside `nnx.scan`.
        static_argnums: Positions of arguments that are a part of the program.
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
    user, static = lifted(f), as_tuple(static_argnums)

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, chosen = with_static(args, static)
        prefix = tuple(STATIC if i in chosen else None for i in range(len(args)))
        boundary = Boundary("remat", (None,), prefix, mode=current_mode(graph, graph_updates))

        def apply(pure: Any, call: Call) -> Any:
            # one function a call: jax.checkpoint caches by function, and this one may capture outer values
            recomputed = jax.checkpoint(pure, prevent_cse=prevent_cse, policy=policy)
            return recomputed(call.crossing.layout, call.crossing.lanes)

        return boundary.run(user, args, kwargs, apply)[1]

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
        *args: Its arguments; they are not changed.
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

    def shapes(pure: Any, call: Call) -> Any:
        return jax.eval_shape(pure, call.crossing.layout, call.crossing.lanes)

    return boundary.run(lifted(f), args, kwargs, shapes)[1]
