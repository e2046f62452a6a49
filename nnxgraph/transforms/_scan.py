"""scan: a loop over slices, with a carry."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from .._repr import short
from .._settings import current_mode
from .._static import Static
from .._trees import shape_struct
from .._typing import MISSING, Path
from ..errors import PredicateError, ScanAxesError
from ..graph._graphdef import GraphDef
from ._axes import named_axis
from ._boundary import Boundary
from ._crossing import Crossing
from ._eager import traced_once
from ._functions import Lifted, keeps_type, lifted
from ._lanes import Carry, Names, PrefixRule, collect_lanes, is_structured
from ._loops import Loop, trace_loop
from ._map import from_front, lane_count, to_front
from ._prefix import read_prefix
from ._replay import is_weak


@dataclasses.dataclass(frozen=True)
class _Axes:
    """Where the carry stands among arguments and results, and the axes of all else."""

    args: Any  # a prefix for the positional arguments
    carry_in: int | None
    outs: Any  # a prefix for the results without the carry
    carry_out: int | None
    only_carry: bool  # whether the result is the carry itself

    def split_result(self, out: Any) -> tuple[Any, Any]:
        """(carry, other results), as the Boundary sees it."""
        if self.only_carry:
            return (), (out, ())
        if self.carry_out is None:
            return (), ((), out)
        count = len(self.outs) + 1
        if not isinstance(out, tuple) or len(out) != count:
            raise ScanAxesError(
                f"the function returned {short(out)}, and out_axes has {count} entries",
                "a tuple with one value for each entry of out_axes",
            )
        rest = tuple(o for i, o in enumerate(out) if i != self.carry_out)
        return (), (out[self.carry_out], rest)

    def result_path(self, path: Path) -> Path:
        """A path below what `split_result` gives, as a path below the function's result."""
        if self.carry_out is None:
            return path[1:]
        if path[:1] == (0,):
            return (self.carry_out, *path[1:])
        others = (i for i in range(len(self.outs) + 1) if i != self.carry_out)
        positions: dict[Any, int] = dict(enumerate(others))
        return tuple(positions[i] for i in path[1:2]) + path[2:]

    def join_result(self, carry: Any, rest: Any) -> Any:
        """The result as the user's function returns it."""
        if self.only_carry:
            return carry
        if self.carry_out is None:
            return rest
        parts = list(rest)
        parts.insert(self.carry_out, carry)
        return tuple(parts)


def _places(prefix: Any, parameter: str) -> list[int]:
    """The positions of Carry in a tuple of axes."""
    found = [i for i, p in enumerate(prefix) if p is Carry] if isinstance(prefix, tuple) else []
    if len(found) > 1:
        raise ScanAxesError(f"{parameter} has {len(found)} entries nnx.Carry", "at most one")
    nested = [p for p in (prefix if isinstance(prefix, tuple) else (prefix,)) if is_structured(p)]
    if any(p is Carry for p in _parts(tuple(nested))):
        raise ScanAxesError(f"{parameter} has nnx.Carry inside a container", "it at the top level")
    return found


def _read_axes(in_axes: Any, out_axes: Any) -> _Axes:
    """What `in_axes` and `out_axes` mean together."""
    in_axes = read_prefix(tuple(in_axes) if isinstance(in_axes, list) else in_axes)
    out_axes = read_prefix(tuple(out_axes) if isinstance(out_axes, list) else out_axes)
    for parameter, prefix in (("in_axes", in_axes), ("out_axes", out_axes)):
        for axis in collect_lanes(prefix):
            if axis is not Carry and axis is not None and type(axis) is not int:
                raise ScanAxesError(f"{parameter} has {axis!r}", "an int, None or nnx.Carry")
    args = (Carry,) if in_axes is Carry else in_axes
    ins = _places(args, "in_axes")
    only_carry = out_axes is Carry
    outs = [] if only_carry else _places(out_axes, "out_axes")
    if bool(ins) != (only_carry or bool(outs)):
        where, other = ("in_axes", "out_axes") if ins else ("out_axes", "in_axes")
        raise ScanAxesError(f"{where} has nnx.Carry and {other} has not", "it in both or in none")
    rest = tuple(p for p in out_axes if p is not Carry) if outs else () if only_carry else out_axes
    if None in collect_lanes(rest) or any(
        isinstance(p, PrefixRule) and Carry in p.lane_values() for p in _parts(rest)
    ):
        raise ScanAxesError("out_axes has None or a carried result", "an axis for each result, or nnx.Carry")
    return _Axes(args, ins[0] if ins else None, rest, outs[0] if outs else None, only_carry)


def _parts(prefix: Any) -> Iterator[Any]:
    """The entries of a prefix, those of containers in it too."""
    if not is_structured(prefix):
        yield prefix
        return
    for p in prefix.values() if type(prefix) is dict else prefix:
        yield from _parts(p)


@keeps_type
def scan(
    f: Any = MISSING,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
    transform_metadata: Mapping[Any, Any] = {},
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Run a function over slices of its arguments, one after the other, with a carry.

    Equals the Python loop, for Variables too: one with an axis has a slice for each iteration, one in the
    carry or with `None` is handed on from iteration to iteration if the function writes it.

    ====================  =====================================================
    `jax.lax.scan`        here
    ====================  =====================================================
    `init`, `carry`       the argument at `nnx.Carry` in `in_axes`, `out_axes`
    `xs`                  the arguments with an axis in `in_axes`
    `ys`                  the results with an axis in `out_axes`
    a closed-over value   an argument with `None` in `in_axes`
    ====================  =====================================================

    Args:
        f: The function, method or callable object; left out for a decorator.
        length: The number of iterations, if no argument has an axis.
        reverse: Whether to run from the last slice to the first.
        unroll: As for `jax.lax.scan`.
        in_axes: A prefix for the positional arguments: an axis, None, `nnx.Carry`, or `nnx.StateAxes`.
            Other arguments, given by keyword, are the same in each iteration.
        out_axes: A prefix for the results: an axis or `nnx.Carry`.
        transform_metadata: `{nnx.PARTITION_NAME: name}` adds a named axis to sharding metadata.
        graph, graph_updates: As for `nnx.vmap`.

    Returns:
        The function over all slices, or a decorator.

    Raises:
        AliasError: If one Variable is reached with two axes.
        AxisSizeError: If the sizes of mapped axes differ, or none is known.
        GraphChangeError: If the function changes the graph or the types of what it carries.
        PredicateError: If `length` is no number of iterations.
        ScanAxesError: If `in_axes` and `out_axes` do not fit together.

    Example:
        >>> keys = jax.random.split(jax.random.key(0), 3)
        >>> layers = nnx.vmap(lambda key: nnx.Linear(2, 2, rngs=nnx.Rngs(key)))(keys)
        >>> forward = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        >>> forward(jnp.ones((1, 2)), layers).shape
        (1, 2)
    """
    axes = _read_axes(in_axes, out_axes)
    user = lifted(f)
    _check_length(length)
    lanes = tuple(dict.fromkeys([Carry, None, *collect_lanes(axes.args, axes.outs)]))
    declared = (Static((in_axes, out_axes, length, reverse, unroll, _split_transpose, transform_metadata)),)
    options = {"reverse": reverse, "unroll": unroll, "_split_transpose": _split_transpose}

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _by_position(args, kwargs, axes.args, user.names)
        mode = current_mode(graph, graph_updates)
        boundary = Boundary(
            "scan",
            lanes,
            axes.args,
            None,
            (Carry, axes.outs),
            head=axes.split_result,
            results=axes.result_path,
            checks_results=True,
            fixed_form=True,
            carries=axes.carry_in is not None,
            axes=named_axis(transform_metadata),
            mode=mode,
        )

        def run(functions: Sequence[Callable[..., Any]], *args: Any, **kwargs: Any) -> Any:
            return _run(boundary, lifted(functions[0]), axes, args, kwargs, length, options)

        return traced_once("scan", run, (f,), args, user.names, declared, mode, kwargs)

    return wrapper


def _by_position(
    args: tuple[Any, ...], kwargs: dict[str, Any], axes: Any, names: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with those that have an entry in `in_axes` by position, however they were given."""
    wanted = names[len(args) : len(axes)] if isinstance(axes, tuple) else ()
    if not all(name in kwargs for name in wanted):
        return args, kwargs
    moved = tuple(kwargs[name] for name in wanted)
    return (*args, *moved), {name: x for name, x in kwargs.items() if name not in wanted}


def _check_length(length: Any) -> None:
    """Refuse a number of iterations that is none."""
    if length is not None and (not isinstance(length, int | np.integer) or length < 0):
        raise PredicateError("scan", "length", repr(length), "an int, 0 or more")


def _run(
    boundary: Boundary,
    user: Lifted,
    axes: _Axes,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    length: int | None,
    options: dict[str, Any],
) -> Any:
    """Trace the body, run the loop, and apply what it did."""
    loop = trace_loop(
        boundary, user.f, args, axes.carry_in, user.names, user.bound, kwargs=kwargs, abstract=_slice_shapes
    )
    size = lane_count(boundary, loop.crossing, length)
    lane_of = loop.crossing.layout.lane_of
    mapped = {k: boundary.lanes[lane] for k, lane in enumerate(lane_of) if loop.is_mapped(lane)}
    xs = {k: to_front(loop.leaves[k], axis) for k, axis in mapped.items()}
    out_axes = [_out_axis(loop, p) for p in loop.mapped_out]

    def step(state: list[Any], slices: dict[int, Any]) -> tuple[list[Any], list[Any]]:
        return loop.step(loop.inputs(state, slices))

    state, ys = lax.scan(step, loop.initial(), xs, length=size, **options)
    stacked = [from_front(y, axis) for y, axis in zip(ys, out_axes, strict=True)]
    return axes.join_result(*loop.finish(state, stacked))


def _out_axis(loop: Loop, position: int) -> int:
    """The axis at which an output leaf of the body is stacked."""
    change, boundary = loop.replay.change, loop.boundary
    axis = boundary.lanes[change.lane_of[position]]
    assert isinstance(axis, int)
    for one in jax.tree.leaves(loop.replay.leaves[position]):
        count = len(one.shape) + 1
        if not -count <= axis < count:
            behind = position - len(change.written) - change.edit_leaves()
            paths = GraphDef(change.root, change.records).leaf_paths
            path = next((path for path, number in paths if number == behind), ())
            where = Names("scan", "out_axes", results=boundary.results).text(("result", *path))
            found = f"{where} is {short(one)} in one iteration, and out_axes {axis}"
            raise ScanAxesError(found, f"an axis that the stack of all {count} dimensions has")
    return axis


def _slice_shapes(boundary: Boundary, crossing: Crossing, leaves: list[Any]) -> list[Any]:
    """The leaves, with the shape of one slice where they are mapped."""
    if _any_mapped(boundary, crossing):
        lane_count(boundary, crossing, None)
    out = []
    for leaf, lane in zip(leaves, crossing.layout.lane_of, strict=True):
        axis = boundary.lanes[lane]
        out.append(_slice_shape(leaf, axis) if isinstance(axis, int) else leaf)
    return out


def _any_mapped(boundary: Boundary, crossing: Crossing) -> bool:
    """Whether some leaf has a slice for each iteration."""
    return any(isinstance(boundary.lanes[lane], int) for lane in crossing.layout.lane_of)


def _slice_shape(leaf: Any, axis: int) -> Any:
    """The shape of one slice of a leaf."""

    def one(x: Any) -> jax.ShapeDtypeStruct:
        at = axis % len(x.shape)
        return shape_struct((*x.shape[:at], *x.shape[at + 1 :]), x.dtype, is_weak(x))

    return jax.tree.map(one, leaf)
