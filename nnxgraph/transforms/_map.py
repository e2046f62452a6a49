"""vmap: one function over many lanes; and what a mapped axis means for metadata."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _jax
from .._repr import short
from .._settings import current_mode
from .._typing import MISSING
from ..errors import AxisSizeError, LaneWriteError
from ._axes import NamedAxis, named_axis
from ._boundary import Boundary
from ._crossing import Call, Crossing, leaf_text
from ._functions import keeps_type, lifted
from ._lanes import Lane, collect_lanes
from ._prefix import read_prefixes
from ._shared import Watch, receiver_text

SPLIT = (
    "Write nnx.split_rngs(rngs, splits=lanes) around the call, with in_axes=nnx.StateAxes({nnx.RngState: 0, "
    "...: None}); or say that the lanes shall agree, with nnx.StateAxes({nnx.RngState: None, ...: None})."
)


@keeps_type
def vmap(
    f: Any = MISSING,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    transform_metadata: Mapping[Any, Any] = {},
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Run a function over all lanes of its arguments at once.

    Lanes run in lockstep: a Variable that all lanes share may be written, once, with a value that is the
    same in all lanes.

    Args:
        f: The function, method or callable object; left out for a decorator.
        in_axes: A prefix of axes for the positional arguments: an int, None for "the same in all lanes", or
            `nnx.StateAxes` for an object. Keyword arguments are mapped over axis 0.
        out_axes: A prefix of axes for the results.
        axis_name: A name of the axis for collectives such as `jax.lax.pmean`.
        axis_size: The number of lanes, if no argument has a mapped axis.
        spmd_axis_name: As for `jax.vmap`.
        transform_metadata: `{nnx.PARTITION_NAME: name}` adds a named axis to sharding metadata.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        The mapped function, or a decorator.

    Raises:
        AliasError: If one Variable is reached with two axes.
        AxisSizeError: If the sizes of mapped axes differ, or none is known.
        LaneWriteError: If a value that differs by lane is written to a shared Variable.
        PrefixError: If `in_axes` or `out_axes` does not fit.

    Warns:
        SharedStreamWarning: If lanes draw from a random stream that they share.

    Example:
        >>> keys = jax.random.split(jax.random.key(0), 5)
        >>> models = nnx.vmap(lambda key: nnx.Linear(2, 3, rngs=nnx.Rngs(key)))(keys)
        >>> nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(models, jnp.ones(2)).shape
        (5, 3)
    """
    options: dict[str, Any] = {"axis_name": axis_name, "spmd_axis_name": spmd_axis_name}

    def apply(pure: Any, call: Call, boundary: Boundary) -> Any:
        size, lanes = lane_count(boundary, call.crossing, axis_size), boundary.lanes
        watch = Watch(boundary, call, pure, functools.partial(check_shared, boundary), is_shared)
        mapped = jax.vmap(
            watch, in_axes=(None, lanes), out_axes=(None, (None, lanes)), axis_size=size, **options
        )
        out = mapped(call.crossing.layout, call.crossing.lanes)
        watch.warn(SPLIT, stacklevel=4)
        return out

    axes = named_axis(transform_metadata)
    return _by_lane("vmap", f, (in_axes, out_axes), axes, (graph, graph_updates), apply)


@keeps_type
def transform_metadata(
    f: Any = MISSING,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    partition: str | None,
    graph: bool | None = None,
) -> Any:
    """Tell the Variables around a function that there is a mapped axis, as `vmap` does.

    For those who map by other means. The values stay as they are: Variables of the arguments lose the name
    of the axis from their sharding metadata while the function runs, and those that come out get it.

    Args:
        f: The function, method or callable object; left out for a decorator.
        in_axes: A prefix of axes for the positional arguments, as for `nnx.vmap`.
        out_axes: A prefix of axes for the results.
        partition: The name of the axis.
        graph: False to refuse shared Variables.

    Returns:
        The function, or a decorator.

    Raises:
        AliasError: If one Variable is reached with two axes.
        PrefixError: If `in_axes` or `out_axes` does not fit.

    Example:
        >>> stack = nnx.Param(jnp.ones((4, 2)), sharding_names=('layers', 'in'))
        >>> nnx.transform_metadata(lambda v: v.sharding_names[0] == 'in', partition='layers')(stack)
        True
        >>> stack.sharding_names
        ('layers', 'in')
    """

    def apply(pure: Any, call: Call, boundary: Boundary) -> Any:
        return pure(call.crossing.layout, call.crossing.lanes)

    axes = NamedAxis(partition)
    return _by_lane("transform_metadata", f, (in_axes, out_axes), axes, (graph, None), apply)


def _by_lane(
    name: str,
    f: Any,
    prefixes: tuple[Any, Any],
    axes: NamedAxis | None,
    modes: tuple[bool | None, bool | None],
    apply: Callable[..., Any],  # of the pure function, the call, and its boundary
) -> Any:
    """The function whose arguments and results go through `apply` in lanes, one for each axis."""
    user = lifted(f)
    in_axes, out_axes = read_prefixes(*prefixes)
    lanes = tuple(collect_lanes(None, 0, in_axes, out_axes))
    crossed = Boundary(name, lanes, in_axes, 0, out_axes, checks_results=True, axes=axes, fixed_form=True)

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        boundary = dataclasses.replace(crossed, mode=current_mode(*modes))
        return boundary.run(user, args, kwargs, functools.partial(apply, boundary=boundary))[1]

    return wrapper


def lane_count(boundary: Boundary, crossing: Crossing, wanted: int | None) -> int:
    """The size of the mapped axes, which all leaves must share."""
    sizes: dict[int, int] = {}  # size: the first leaf that has it
    for k, (leaf, lane) in enumerate(zip(crossing.leaves, crossing.layout.lane_of, strict=True)):
        axis = boundary.lanes[lane]
        if not isinstance(axis, int):
            continue
        for array in jax.tree.leaves(leaf):
            shape = np.shape(array)
            if not -len(shape) <= axis < len(shape):
                where = f"{leaf_text(crossing, k)} is {short(array)} and has no axis {axis}"
                raise AxisSizeError(boundary.name, "every mapped leaf needs the mapped axis", (where,))
            sizes.setdefault(shape[axis], k)
    if wanted is not None and set(sizes) - {wanted} or len(sizes) > 1:
        found = [f"{leaf_text(crossing, k)} has size {size}" for size, k in sizes.items()]
        found += [f"the size asked for is {wanted}"] if wanted is not None else []
        raise AxisSizeError(boundary.name, "mapped axes must have one size, found", tuple(found))
    if wanted is None and not sizes:
        raise AxisSizeError(
            boundary.name,
            "no argument has a mapped axis, so the number of lanes is unknown. "
            "Expected an axis in in_axes, or axis_size=... (length=... for scan)",
            (),
        )
    return wanted if wanted is not None else next(iter(sizes))


def is_shared(lane: Lane) -> bool:
    """Whether all lanes have one value there."""
    return lane is None


def check_shared(boundary: Boundary, value: Any, lane: Lane, receiver: Callable[[], str]) -> None:
    """Refuse a value that differs by lane where one for all must leave."""
    if lane is None and any(map(_jax.differs_by_lane, jax.tree.leaves(value))):
        raise LaneWriteError(boundary.name, receiver_text(boundary, receiver(), lane))


def to_front(leaves: Any, axis: Any) -> Any:
    """Leaves with their mapped axis first."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, axis, 0), leaves) if axis else leaves


def from_front(leaves: Any, axis: Any) -> Any:
    """Leaves with their mapped axis back in its place."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, axis), leaves) if axis else leaves
