"""pmap: one function on several devices, a lane on each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as _PartitionSpec

from .._jax import is_tracer
from .._trees import shape_struct
from .._typing import MISSING
from ..errors import AxisSizeError
from ._axes import named_axis
from ._boundary import Boundary
from ._cached import Cached, Form, Positions
from ._crossing import Lanes, spread
from ._functions import as_tuple, keeps_type, lifted, positions_and_names
from ._lanes import STATIC, Lane, collect_lanes, is_structured, map_lanes
from ._map import SPLIT, check_shared, from_front, is_shared, lane_count, to_front
from ._prefix import read_prefixes
from ._replay import Replay, is_weak
from ._shared import Watch, check_devices

PartitionSpec: Any = _PartitionSpec  # JAX leaves it untyped


class _Donated(int):
    """A mapped axis of arguments whose buffers may be reused."""

    def __eq__(self, other: object) -> bool:
        return type(other) is _Donated and int(self) == int(other)

    def __hash__(self) -> int:
        return hash((_Donated, int(self)))

    def __repr__(self) -> str:
        return f"{int(self)} and donated"


def _donated(axis: int | None) -> Lane:
    """A lane with donation; what all lanes share cannot be donated."""
    return axis if axis is None else _Donated(axis)


@keeps_type
def pmap(
    f: Any = MISSING,
    *,
    axis_name: Hashable | None = None,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | tuple[int, ...] = (),
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | tuple[int, ...] = (),
    transform_metadata: Mapping[Any, Any] = {},
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Compile a function and run it on several devices at once, a lane of the arguments on each.

    As `nnx.vmap`, with each lane on a device of its own, and as `nnx.jit`, since it is compiled once for
    each structure of the arguments.

    Args:
        f: The function, method or callable object; left out for a decorator.
        axis_name: A name of the axis for collectives such as `jax.lax.pmean`.
        in_axes: A prefix of axes for the positional arguments, as for `nnx.vmap`. Keyword arguments are
            mapped over axis 0.
        out_axes: A prefix of axes for the results.
        static_broadcasted_argnums: Positions of arguments that are a part of the program.
        devices: The devices, as for `jax.pmap`.
        backend: As for `jax.pmap`.
        donate_argnums: Positions of arguments whose mapped buffers may be reused.
        axis_size, transform_metadata, graph, graph_updates: As for `nnx.vmap`.

    Returns:
        The mapped function, or a decorator.

    Raises:
        AliasError, LaneWriteError, PrefixError: As `nnx.vmap` does.
        AxisSizeError: If the sizes of mapped axes differ, none is known, or there are too few devices.
        NestedMeshError: If it runs inside another map over devices.

    Warns:
        SharedStreamWarning: If lanes draw from a random stream that they share.

    Example:
        >>> keys = jax.random.split(jax.random.key(0), 1)
        >>> models = nnx.pmap(lambda key: nnx.Linear(2, 3, rngs=nnx.Rngs(key)))(keys)
        >>> models.kernel.shape
        (1, 2, 3)
    """
    user = lifted(f)
    static = positions_and_names(user.f, as_tuple(static_broadcasted_argnums) or None, None, len(user.bound))
    axes = read_prefixes(in_axes, out_axes)
    options = {"axis_name": axis_name, "devices": devices, "backend": backend, "axis_size": axis_size}
    declare = functools.partial(_boundary, axes, static, as_tuple(donate_argnums), transform_metadata)
    watches: list[Watch] = []

    def compile(boundary: Boundary, pure: Callable[..., Any]) -> Callable[..., Any]:
        return _Program(boundary, pure, cached, options, watches)

    cached = Cached(user, declare, compile, (graph, graph_updates), static)

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        out = cached(args, kwargs)
        while watches:
            watches.pop().warn(SPLIT, stacklevel=2)
        return out

    return wrapper


def _boundary(
    axes: tuple[Any, Any],
    static: Positions,
    donated: tuple[int, ...],
    metadata: Mapping[Any, Any],
    form: Form,
) -> Boundary:
    """The Boundary of pmap for calls of one form."""
    in_axes, out_axes = axes
    each = in_axes if is_structured(in_axes) else (in_axes,) * form.positional
    static_nums, donated_nums = form.chosen(static), form.chosen((donated, ()))
    prefixes = tuple(
        STATIC if i in static_nums else map_lanes(p, _donated) if i in donated_nums else p
        for i, p in enumerate(each)
    )
    by_name = {name: STATIC if name in static[1] else 0 for name in form.names}
    lanes = tuple(collect_lanes(None, 0, prefixes, out_axes))
    return Boundary(
        "pmap",
        lanes,
        prefixes,
        by_name,
        out_axes,
        always=frozenset(i for i, lane in enumerate(lanes) if type(lane) is _Donated),
        checks_results=True,
        fixed_form=True,
        axes=named_axis(metadata),
        mode=form.mode,
        parameter="in_axes",
    )


class _Program:
    """The function over (layout, *lanes), mapped by JAX, with the mapped axis first in each array."""

    def __init__(
        self,
        boundary: Boundary,
        pure: Callable[..., Any],
        cached: Cached,
        options: dict[str, Any],
        watches: list[Watch],
    ):
        self.boundary = boundary
        self.pure = pure
        self.cached = cached
        self.options = options
        self.watches = watches
        self.axes = tuple(int(lane) if isinstance(lane, int) else None for lane in boundary.lanes)
        self.first = tuple(None if axis is None else 0 for axis in self.axes)
        self.mapped: dict[Any, Callable[..., Any]] = {}  # by layout and treedef

    def __call__(self, layout: Any, *lanes: Any) -> Any:
        check_devices("pmap")
        size = self._size()
        place = functools.partial(_placed, self._mesh(size))
        moved = tuple(map(place, map(to_front, lanes, self.axes), self.axes))
        leaves, treedef = jax.tree.flatten(moved)
        mapped = self.mapped.get((layout, treedef))
        if mapped is None:
            mapped = self.mapped[layout, treedef] = self._map(layout, treedef, moved)
        change, out = mapped(np.arange(size), *leaves)  # JAX wants one array with a mapped axis
        return (), (change, tuple(map(from_front, out, self.axes)))

    def _map(self, layout: Any, treedef: Any, lanes: Lanes) -> Any:
        """The function over the number of a lane and leaves, for arguments of one structure."""

        def flat(index: Any, *leaves: Any) -> Any:
            return self._traced(layout, jax.tree.unflatten(treedef, leaves))

        lane_of = [i for i, own in enumerate(lanes) for _ in jax.tree.leaves(own)]
        donated = tuple(k for k, lane in enumerate(lane_of, 1) if lane in self.boundary.always)
        in_axes = (0, *(self.first[lane] for lane in lane_of))
        return jax.pmap(
            flat, in_axes=in_axes, out_axes=(None, self.first), donate_argnums=donated, **self.options
        )

    def _size(self) -> int:
        """The number of lanes of the running call."""
        return lane_count(self.boundary, self.cached.running.crossing, self.options["axis_size"])

    def _mesh(self, size: int) -> Mesh:
        """The devices of the lanes, as JAX will choose them."""
        devices = self.options["devices"] or jax.local_devices(backend=self.options["backend"])
        if size > len(devices):
            problem = f"found {size} lanes. Expected at most {len(devices)}, a device each"
            raise AxisSizeError("pmap", problem, ())
        return Mesh(np.array(devices[:size]), ("lanes",))

    def _traced(self, layout: Any, lanes: Lanes) -> Any:
        """What runs on each device; JAX runs it when it traces."""
        replay = Replay(self.pure, layout, lanes)
        change = replay.change

        def again(layout: Any, lanes: Lanes) -> Any:
            return (), (change, spread(replay(layout, lanes)[1], change.lane_of, len(lanes)))

        watch = Watch(
            self.boundary,
            self.cached.running,
            again,
            functools.partial(check_shared, self.boundary),
            is_shared,
        )
        # pmap takes the value of the first device where one for all must leave; vmap knows if they differ
        size = self._size()
        stacks = tuple(map(functools.partial(_stacked, size), lanes, self.axes))
        mapped = jax.vmap(
            lambda _, lanes: watch(layout, lanes)[0],
            in_axes=(0, self.first),
            axis_name=self.options["axis_name"],
            axis_size=size,
        )
        jax.eval_shape(mapped, jnp.arange(size), stacks)
        self.watches.append(watch)
        return again(layout, lanes)[1]


def _stacked(size: int, leaves: Any, axis: int | None) -> Any:
    """The shapes of leaves in all lanes, with the mapped axis first."""
    if axis is None:
        return leaves
    return jax.tree.map(lambda x: shape_struct((size, *x.shape), x.dtype, is_weak(x)), leaves)


def _placed(mesh: Mesh, leaves: Any, axis: int | None) -> Any:
    """Leaves as JAX wants them on the devices, if they lie on several already."""
    sharding = NamedSharding(mesh, PartitionSpec() if axis is None else PartitionSpec("lanes"))

    def place(x: Any) -> Any:
        lies = isinstance(x, jax.Array) and not is_tracer(x) and len(x.devices()) > 1
        return jax.device_put(x, sharding) if lies else x

    return jax.tree.map(place, leaves)
