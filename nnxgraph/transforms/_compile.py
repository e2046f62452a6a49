"""jit: one lane for each sharding, with or without donation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax

from .._settings import current_mode
from .._static import Static
from .._typing import MISSING
from ..errors import DonationError
from ._boundary import Boundary, Crossing, leaf_text
from ._functions import (
    argument_names,
    in_range,
    keeps_type,
    positions_and_names,
    unbind,
)
from ._lanes import STATIC, Lane, PrefixRule, collect_lanes, is_structured

F = TypeVar("F", bound=Callable[..., Any])


class _JitLane(NamedTuple):
    """One lane of jit."""

    sharding: Any
    donated: bool

    def __repr__(self) -> str:
        if not self.donated:
            return repr(self.sharding)
        return "donated" if self.sharding is None else f"{self.sharding!r} and donated"


class _Donating(PrefixRule):
    """A rule for shardings, with donation added."""

    def __init__(self, rule: PrefixRule, donated: bool):
        self.rule = rule
        self.donated = donated

    def lane_at(self, path: Any, x: Any, in_node: bool) -> Lane:
        return _JitLane(self.rule.lane_at(path, x, in_node), self.donated)

    def lane_values(self) -> list[Lane]:
        return [_JitLane(sharding, self.donated) for sharding in self.rule.lane_values()]


def _with_donation(prefix: Any, donated: bool) -> Any:
    """A prefix of shardings as a prefix of jit's lanes."""
    if isinstance(prefix, PrefixRule):
        return _Donating(prefix, donated)
    if type(prefix) is dict:
        return {k: _with_donation(p, donated) for k, p in prefix.items()}
    if is_structured(prefix):
        return type(prefix)(_with_donation(p, donated) for p in prefix)
    return _JitLane(prefix, donated)


@keeps_type
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
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Compile a function of objects; what it does to them happens to the caller's objects.

    Objects keep their identity and sharing, inside and outside. The function is traced once for each
    structure of its arguments. Only Variables that were written come back from the compiled program.

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
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        The compiled function, or a decorator.

    Raises:
        CaptureError: If the function reaches a Variable that is no argument.
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
    options: dict[str, Any] = {"keep_unused": keep_unused, "inline": inline}
    options |= {k: v for k, v in (("device", device), ("backend", backend)) if v is not None}
    f, bound = unbind(fun)
    compiled = _Compiled(f, bound, in_shardings, out_shardings, options, (graph, graph_updates))
    compiled.static = positions_and_names(f, static_argnums, static_argnames, len(bound))
    compiled.donated = positions_and_names(f, donate_argnums, donate_argnames, len(bound))

    @functools.wraps(fun, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return compiled(args, kwargs)

    return wrapper


class _Compiled:
    """One declaration of jit; a Boundary and a compiled function for each number of arguments."""

    def __init__(
        self,
        f: Callable[..., Any],
        bound: tuple[Any, ...],
        in_shardings: Any,
        out_shardings: Any,
        options: dict[str, Any],
        mode: tuple[bool | None, bool | None],
    ):
        self.f = f
        self.bound = bound
        self.in_shardings = in_shardings
        self.out_shardings = out_shardings
        self.options = options
        self.mode = mode
        self.static: tuple[tuple[int, ...], tuple[str, ...]] = ((), ())
        self.donated: tuple[tuple[int, ...], tuple[str, ...]] = ((), ())
        self.names = argument_names(f, len(bound))
        self.variants: dict[Any, tuple[Boundary, Callable[..., Any]]] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mode = current_mode(*self.mode)
        kwargs = dict(sorted(kwargs.items()))
        shape = (len(args), tuple(kwargs), mode)
        variant = self.variants.get(shape)
        if variant is None:
            variant = self.variants[shape] = self._variant(len(args), tuple(kwargs), mode)
        boundary, compiled = variant
        static_nums = {in_range(i, len(args)) for i in self.static[0]}
        if static_nums or self.static[1]:
            args = tuple(Static(a) if i in static_nums else a for i, a in enumerate(args))
            kwargs = {k: Static(v) if k in self.static[1] else v for k, v in kwargs.items()}
        crossing = boundary.split(args, kwargs, self.bound, names=self.names)
        _check_donation(boundary, crossing)
        _, packed = compiled(crossing.layout, *crossing.lanes)
        return boundary.merge(packed, crossing)

    def _variant(self, count: int, names: tuple[str, ...], mode: Any) -> tuple[Boundary, Callable[..., Any]]:
        """The Boundary and the compiled function for calls of one shape."""
        static_nums = {in_range(i, count) for i in self.static[0]}
        donated_nums = {in_range(i, count) for i in self.donated[0]}
        shardings = self.in_shardings
        per_argument = list(shardings) if type(shardings) in (tuple, list) else [shardings] * count
        prefixes = [
            STATIC if i in static_nums else _with_donation(p, i in donated_nums)
            for i, p in enumerate(per_argument)
        ]
        by_name = {k: STATIC if k in self.static[1] else _JitLane(None, k in self.donated[1]) for k in names}
        outs = _with_donation(self.out_shardings, False)
        captured = _JitLane(None, False)
        lanes = collect_lanes(prefixes, by_name, outs, captured)
        boundary = Boundary(
            "jit",
            tuple(lanes),
            tuple(prefixes),
            by_name,
            outs,
            captured,
            always=frozenset(i for i, lane in enumerate(lanes) if cast(_JitLane, lane).donated),
            mode=mode,
            parameter="in_shardings or donate_argnums",
            result_parameter="out_shardings",
        )
        return boundary, self._compile(boundary)

    def _compile(self, boundary: Boundary) -> Callable[..., Any]:
        """The function over lanes, compiled by JAX."""
        pure = boundary.purify(self.f)
        options = dict(self.options)
        lanes = cast("tuple[_JitLane, ...]", boundary.lanes)
        shardings = tuple(lane.sharding for lane in lanes)
        if any(s is not None for s in shardings):
            options["in_shardings"] = (None, *shardings)
            options["out_shardings"] = (None, (None, shardings))
        donated = tuple(i + 1 for i, lane in enumerate(lanes) if lane.donated)

        def flat(layout: Any, *lanes: Any) -> Any:
            return pure(layout, lanes)

        named = functools.wraps(self.f, updated=())(flat)
        del named.__wrapped__
        return jax.jit(named, donate_argnums=donated, **options)


def _check_donation(boundary: Boundary, crossing: Crossing) -> None:
    """Refuse an array that is donated and stands in another place too, by name."""
    if not boundary.always:
        return
    lanes = list(enumerate(crossing.layout.lane_of))
    donated = {id(crossing.leaves[k]): k for k, lane in reversed(lanes) if lane in boundary.always}
    for k, _ in lanes:
        leaf = crossing.leaves[k]
        first = donated.get(id(leaf), k)
        if first != k and isinstance(leaf, jax.Array):
            raise DonationError(boundary.name, leaf_text(crossing, first), leaf_text(crossing, k))
