"""jit: one lane for each sharding, with or without donation."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload

import jax

from .._repr import function_name
from .._settings import current_mode, set_graph_mode, set_graph_updates
from .._trees import shape_struct
from .._typing import MISSING
from ..errors import StageError
from ._boundary import Boundary
from ._cached import Cached, Form, Positions, Program
from ._crossing import Call, Crossing, gather, leaf_text
from ._evaluate import eval_shape
from ._functions import decorating, lifted, positions_and_names
from ._lanes import STATIC, collect_lanes, map_lanes
from ._prefix import read_prefix
from ._replay import type_text

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)


class Stage:
    """A function that is traced, lowered or compiled for some arguments; has all that JAX's own stage has.

    `lower` and `compile` give the next stage. One that is compiled may be called with arguments of the same
    structure; what it does to objects happens to the caller's objects. `nnx.jit(f).lower(...)` makes it.

    Args:
        stage: JAX's stage.
        cached: The declaration it comes from.
        program: The Boundary, and the function over lanes.
        call: The call it was made for.
        plain: Makes JAX's stage of the function over the user's own arguments, for `jax.export`.

    Example:
        >>> double = nnx.jit(lambda x: x * 2).lower(jnp.ones(3)).compile()
        >>> double(jnp.arange(3.0)).tolist()
        [0.0, 2.0, 4.0]
    """

    def __init__(self, stage: Any, cached: Cached, program: Program, call: Call, plain: Callable[[], Any]):
        self._stage = stage
        self._cached = cached
        self._program = program
        self._layout = call.crossing.layout
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._stage, name)

    def _next(self, stage: Any) -> Stage:
        """The stage after this one."""
        twin = object.__new__(Stage)
        vars(twin).update(vars(self), _stage=stage)
        return twin

    def lower(self, **options: Any) -> Any:
        """The lowered function; see `jax.stages.Traced.lower`."""
        if "_private_parameters" in options:  # of jax.export, whose program takes the user's own arguments
            self._stage = self._plain()
            return self._stage.lower(**options)
        return self._next(self._stage.lower(**options))

    def compile(self, *args: Any, **options: Any) -> Stage:
        """The compiled function; see `jax.stages.Lowered.compile`."""
        return self._next(self._stage.compile(*args, **options))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function.

        Raises:
            StageError: If it is not compiled, or the arguments have another structure, shape or dtype.
        """
        if not isinstance(self._stage, jax.stages.Compiled):
            raise StageError(type(self._stage).__name__)
        kwargs, recorded = dict(sorted(kwargs.items())), bool(self._layout.recorded)
        call = Call(self._cached.crossing(self._program, args, kwargs, recorded=recorded))
        if call.crossing.layout != self._layout:
            raise StageError(None)
        try:
            _, packed = self._stage(call.crossing.layout, *call.crossing.lanes)
        except TypeError:
            others = self._other_types(call.crossing)
            if others:
                raise StageError(None, others) from None
            raise
        return self._program.boundary.merge(packed, call)

    def _other_types(self, crossing: Crossing) -> tuple[str, ...]:
        """Which arguments have another shape or dtype than the function was compiled for."""
        lanes = self._stage.args_info[0][1:]
        lanes = jax.tree.map(lambda info: shape_struct(info.shape, info.dtype), lanes)
        compiled = gather(lanes, crossing.layout.lane_of)
        return tuple(
            f"{leaf_text(crossing, k)} is {type_text(x)}, compiled for {type_text(info)}"
            for k, (x, info) in enumerate(zip(crossing.leaves, compiled, strict=True))
            if type_text(x) != type_text(info)
        )

    def __repr__(self) -> str:
        return f"nnx.Stage({self._stage!r})"


class Jitted(Generic[P, R_co]):
    """A compiled function of objects, as `nnx.jit` makes it.

    Example:
        >>> double = nnx.jit(lambda x: x * 2)
        >>> double.eval_shape(jnp.ones(3))
        ShapeDtypeStruct(shape=(3,), dtype=float32)
    """

    def __init__(self, fun: Callable[P, R_co], cached: Cached):
        functools.update_wrapper(self, fun, updated=())
        self._cached = cached

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the compiled function."""
        result: R_co = self._cached(args, kwargs)
        return result

    @overload
    def __get__(self, obj: None, owner: Any) -> Jitted[P, R_co]: ...
    @overload
    def __get__(self: Jitted[Concatenate[S, Q], R_co], obj: S, owner: Any) -> Callable[Q, R_co]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        return self if obj is None else types.MethodType(self, obj)

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Stage:
        """The function traced for some arguments; see `jax.jit`."""
        return self._staged("trace", args, kwargs)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Stage:
        """The function lowered for some arguments; see `jax.jit`."""
        return self._staged("lower", args, kwargs)

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The shapes of the results, as `nnx.eval_shape` gives them; nothing is changed."""
        f: Callable[..., Any] = cast(Any, self).__wrapped__
        return eval_shape(functools.partial(f, *args, **kwargs))

    def clear_cache(self) -> None:
        """Forget all traces and compiled programs."""
        self._cached.clear()

    def _staged(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stage:
        """The stage of a name."""

        def plain() -> Any:
            return jax.jit(lambda *args, **kwargs: self(*args, **kwargs)).trace(*args, **kwargs)

        program, stage, call = self._cached.apply(
            args, kwargs, lambda run, *inputs: getattr(run, name)(*inputs)
        )
        return Stage(stage, self._cached, program, call, plain)

    def __repr__(self) -> str:
        return f"nnx.jit({function_name(cast(Any, self).__wrapped__)})"


class Compiling(Protocol[P]):
    """A transform that compiles a function; a decorator too, bare and called."""

    @overload
    def __call__(self, fun: Callable[Q, S], /, *args: P.args, **kwargs: P.kwargs) -> Jitted[Q, S]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Callable[[Callable[Q, S]], Jitted[Q, S]]: ...


def compiles(lift: Callable[Concatenate[Any, P], Any]) -> Compiling[P]:
    """Declare a transform that compiles the function it is given."""
    return cast(Compiling[P], decorating(lift))


class _JitLane(NamedTuple):
    """One lane of jit."""

    sharding: Any
    donated: bool

    def __repr__(self) -> str:
        if not self.donated:
            return repr(self.sharding)
        return "donated" if self.sharding is None else f"{self.sharding!r} and donated"


def _with_donation(prefix: Any, donated: bool) -> Any:
    """A prefix of shardings as a prefix of jit's lanes."""
    return map_lanes(prefix, lambda sharding: _JitLane(sharding, donated))


@compiles
def jit(
    fun: Any = MISSING,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | tuple[int, ...] | None = None,
    static_argnames: str | tuple[str, ...] | None = None,
    donate_argnums: int | tuple[int, ...] | None = None,
    donate_argnames: str | tuple[str, ...] | None = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: dict[str, Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Compile a function of objects; what it does to them happens to the caller's objects.

    Objects keep their identity and sharing, inside and outside. The function is traced once for each
    structure of its arguments. Only Variables that were written come back from the compiled program. What
    the function reaches by itself, through its closure, globals and helpers, is an argument too: it is read
    anew at each call, and written in place.

    Args:
        fun: The function, method or callable object; left out for a decorator.
        in_shardings: A prefix of shardings for the positional arguments; also `nnx.StateSharding`.
        out_shardings: A prefix of shardings for the results.
        static_argnums: Positions of arguments that are a part of the program; compared by structure.
        static_argnames: Names of such arguments.
        donate_argnums: Positions of arguments whose buffers may be reused; their Variables get new arrays,
            while arrays taken from them before, as by `nnx.state`, are gone.
        donate_argnames: Names of such arguments.
        keep_unused: As for `jax.jit`.
        device: As for `jax.jit`.
        backend: As for `jax.jit`.
        inline: As for `jax.jit`.
        compiler_options: As for `jax.jit`.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        The compiled function, with `lower`, `trace` and `eval_shape` as those of `jax.jit`; or a decorator.

    Raises:
        CaptureError: If the function reaches a Variable by a way that cannot be followed.
        ArgumentTypeError: If an argument is neither data nor static.
        DonationError: If one array is donated twice.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> @nnx.jit
        ... def halve(model):
        ...     model.kernel[...] = model.kernel / 2
        >>> before = model.kernel[...]
        >>> halve(model)
        >>> bool(jnp.allclose(model.kernel[...] * 2, before))
        True
    """
    given = {"device": device, "backend": backend, "compiler_options": compiler_options}
    options: dict[str, Any] = {"keep_unused": keep_unused, "inline": inline}
    options |= {name: value for name, value in given.items() if value is not None}
    user = lifted(fun)
    static = positions_and_names(user.f, static_argnums, static_argnames, len(user.bound))
    donated = positions_and_names(user.f, donate_argnums, donate_argnames, len(user.bound))
    shardings = read_prefix(in_shardings), read_prefix(out_shardings)
    declare = functools.partial(_boundary, *shardings, static, donated)
    compile = functools.partial(_compiled, user.f, options)
    return Jitted(fun, Cached(user, declare, compile, (graph, graph_updates), static))


def _boundary(
    in_shardings: Any, out_shardings: Any, static: Positions, donated: Positions, form: Form
) -> Boundary:
    """The Boundary of jit for calls of one form."""
    is_list = type(in_shardings) in (tuple, list)
    per_argument = list(in_shardings) if is_list else [in_shardings] * form.positional
    static_nums, donated_nums = form.chosen(static), form.chosen(donated)
    prefixes = [
        STATIC if i in static_nums else _with_donation(p, i in donated_nums)
        for i, p in enumerate(per_argument)
    ]
    by_name = {k: STATIC if k in static[1] else _JitLane(None, k in donated[1]) for k in form.names}
    outs = _with_donation(out_shardings, False)
    captured = _JitLane(None, False)
    lanes = collect_lanes(prefixes, by_name, outs, captured)
    return Boundary(
        "jit",
        tuple(lanes),
        tuple(prefixes),
        by_name,
        outs,
        captured,
        always=frozenset(i for i, lane in enumerate(lanes) if cast(_JitLane, lane).donated),
        mode=form.mode,
        parameter="in_shardings or donate_argnums",
        result_parameter="out_shardings",
    )


def _compiled(
    f: Callable[..., Any], options: dict[str, Any], boundary: Boundary, pure: Callable[..., Any]
) -> Callable[..., Any]:
    """The function over lanes, compiled by JAX."""
    lanes = cast("tuple[_JitLane, ...]", boundary.lanes)
    shardings = tuple(lane.sharding for lane in lanes)
    if any(s is not None for s in shardings):
        options = options | {
            "in_shardings": (None, *shardings),
            "out_shardings": (None, (None, shardings)),
        }
    donated = tuple(i + 1 for i, lane in enumerate(lanes) if lane.donated)

    def flat(layout: Any, *lanes: Any) -> Any:
        return pure(layout, lanes)

    named = functools.wraps(f, updated=())(flat)
    del named.__wrapped__
    return jax.jit(named, donate_argnums=donated, **options)


def jit_partial(
    fun: Callable[..., Any], *partial_args: Any, in_shardings: Any = None, out_shardings: Any = None,
    static_argnums: int | tuple[int, ...] | None = None, static_argnames: str | tuple[str, ...] | None = None,
    donate_argnums: int | tuple[int, ...] | None = None, donate_argnames: str | tuple[str, ...] | None = None,
    keep_unused: bool = False, device: Any = None, backend: str | None = None, inline: bool = False,
    compiler_options: dict[str, Any] | None = None,
    graph: bool | None = None, graph_updates: bool | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """`nnx.jit` of a function whose first arguments are given already.

    Args:
        fun: The function, method or callable object.
        *partial_args: Its first arguments; what the function does to them happens to these very objects.
        in_shardings: As for `nnx.jit`; the first arguments count too.
        out_shardings: As for `nnx.jit`.
        static_argnums: As for `nnx.jit`; the first arguments count too.
        static_argnames: As for `nnx.jit`.
        donate_argnums: As for `nnx.jit`; the first arguments count too.
        donate_argnames: As for `nnx.jit`.
        keep_unused, device, backend, inline, compiler_options: As for `jax.jit`.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        A function of the other arguments.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> forward = nnx.jit_partial(lambda model, x: model(x), model)
        >>> forward(jnp.ones((1, 2))).shape
        (1, 3)
    """
    jitted = jit(
        fun, in_shardings=in_shardings, out_shardings=out_shardings, static_argnums=static_argnums,
        static_argnames=static_argnames, donate_argnums=donate_argnums, donate_argnames=donate_argnames,
        keep_unused=keep_unused, device=device, backend=backend, inline=inline,
        compiler_options=compiler_options, graph=graph, graph_updates=graph_updates,
    )  # fmt: skip
    return cached_partial(jitted, *partial_args)


def cached_partial(
    f: Callable[..., Any],
    *cached_args: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """A function whose first arguments are given already.

    Args:
        f: The function, as `nnx.jit` makes it.
        *cached_args: Its first arguments; what the function does to them happens to these very objects.
        graph: False to refuse shared Variables, as the default for the time of a call.
        graph_updates: False to propagate values of Variables only, as the default for the time of a call.

    Returns:
        A function of the other arguments.

    Example:
        >>> counter = nnx.Variable(jnp.array(0))
        >>> count = nnx.cached_partial(nnx.jit(lambda v: v.set_value(v + 1)), counter)
        >>> count()
        >>> counter.item()
        1
    """

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        mode = current_mode(graph, graph_updates)
        with set_graph_mode(mode.sharing), set_graph_updates(mode.structure):
            return f(*cached_args, *args, **kwargs)

    vars(wrapper).pop("__wrapped__", None)  # its signature has more arguments
    return wrapper
