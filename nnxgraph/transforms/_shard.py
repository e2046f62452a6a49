"""shard_map: one function on the shards of its arguments, on all devices of a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as _PartitionSpec

from .. import _jax
from .._repr import short
from .._settings import current_mode
from .._typing import MISSING
from ..errors import LaneWriteError, ShardSpecError
from ._boundary import Boundary
from ._crossing import Call, leaf_text
from ._functions import keeps_type, lifted
from ._lanes import Lane, collect_lanes
from ._prefix import read_prefixes
from ._shared import Watch, check_devices, receiver_text

PartitionSpec: Any = _PartitionSpec  # JAX leaves it untyped
_WHOLE = PartitionSpec()
_FOLD = (
    "Write nnx.Rngs(jax.random.fold_in(key, jax.lax.axis_index(axis))) inside, where nnx.split_rngs has no "
    "place; or say that the devices shall agree, with nnx.StateSharding({nnx.RngState: P(), ...: P()})."
)


@keeps_type
def shard_map(
    f: Any = MISSING,
    *,
    mesh: Any = None,
    in_specs: Any,
    out_specs: Any,
    axis_names: AbstractSet[Hashable] = frozenset(),
    check_vma: bool = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Run a function on each device of a mesh, on its shards of the arguments.

    What a Variable gets is put together as its spec says; one that every device has whole may get one value
    for all. Captured objects are whole on each device. Along mesh axes of explicit type arguments are
    resharded first, where need be.

    Args:
        f: The function, method or callable object; left out for a decorator.
        mesh: The devices; that of `jax.set_mesh` if left out.
        in_specs: A prefix of `jax.sharding.PartitionSpec` for the positional arguments, also
            `nnx.StateSharding` for an object. Every device gets keyword arguments whole.
        out_specs: A prefix of specs for the results.
        axis_names: The axes of the mesh to map over; all of them if empty.
        check_vma: Whether to check that what is to be one value for all devices is one.
        graph: False to refuse shared Variables.
        graph_updates: False to propagate values of Variables only.

    Returns:
        The function of whole arguments, or a decorator.

    Raises:
        AliasError: If one Variable is reached with two specs.
        LaneWriteError: If a value that differs by device is written where there is one for all.
        NestedMeshError: If it runs inside another map over the same devices.
        PrefixError: If `in_specs` or `out_specs` does not fit.
        ShardSpecError: If a spec names an axis that the mesh has not, or does not divide an array.

    Warns:
        SharedStreamWarning: If devices draw from a random stream that they share.

    Example:
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.make_mesh((1,), ('data',))
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> forward = nnx.shard_map(nnx.Linear.__call__, mesh=mesh, in_specs=(P(), P('data')),
        ...                         out_specs=P('data'))
        >>> forward(model, jnp.ones((4, 2))).shape
        (4, 3)
    """
    user = lifted(f)
    in_specs, out_specs = read_prefixes(in_specs, out_specs)
    lanes = tuple(collect_lanes(_WHOLE, in_specs, out_specs))
    options: dict[str, Any] = {"mesh": mesh, "axis_names": axis_names, "check_vma": check_vma}

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        boundary = Boundary(
            "shard_map",
            lanes,
            in_specs,
            _WHOLE,
            out_specs,
            _WHOLE,
            mode=current_mode(graph, graph_updates),
            checks_results=True,
            fixed_form=True,
            parameter="in_specs",
            result_parameter="out_specs",
        )
        if mesh is not None:
            check_devices("shard_map", mesh)
        shards = _Shards(mesh, axis_names)

        def apply(pure: Any, call: Call) -> Any:
            crossing = call.crossing
            leaves = enumerate(zip(crossing.leaves, crossing.layout.lane_of, strict=True))
            for k, (leaf, lane) in leaves:
                shards.check_argument(lanes[lane], leaf, functools.partial(leaf_text, crossing, k))
            for parameter, specs in (("in_specs", in_specs), ("out_specs", out_specs)):
                for spec in collect_lanes(specs):
                    shards.check_spec(parameter, spec, "")
            watch = Watch(
                boundary, call, pure, functools.partial(shards.check_result, boundary), shards.is_whole
            )
            specs = {"in_specs": (_WHOLE, lanes), "out_specs": (_WHOLE, (_WHOLE, lanes))}
            mapped: Any = jax.shard_map(watch, **specs, **options)
            out = mapped(crossing.layout, tuple(map(shards.reshard, lanes, crossing.lanes)))
            watch.warn(_FOLD, stacklevel=4)
            return out

        return boundary.run(user, args, kwargs, apply)[1]

    return wrapper


class _Shards:
    """A mesh, and how arrays lie on it."""

    def __init__(self, mesh: Any, axis_names: AbstractSet[Hashable]):
        self.given = mesh
        self.mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh
        self.sizes: Mapping[Hashable, int] = self.mesh.shape
        self.mapped = frozenset(axis_names) or frozenset(self.sizes)
        types = zip(self.mesh.axis_names, self.mesh.axis_types, strict=True)
        self.explicit = {name for name, kind in types if kind is AxisType.Explicit}

    def is_whole(self, spec: Lane) -> bool:
        """Whether each device has all of what lies so."""
        return not self._axes(spec)

    def _axes(self, spec: Any) -> frozenset[Hashable]:
        """The axes of the mesh that a spec names."""
        return frozenset(name for entry in spec for name in _names(entry))

    def check_spec(self, parameter: str, spec: Any, where: str) -> None:
        """Refuse what is no spec, and one with an axis that is not mapped over."""
        if not isinstance(spec, PartitionSpec):
            raise ShardSpecError(parameter, repr(spec), where, "which is no spec", "a PartitionSpec")
        if not self._axes(spec) <= self.mapped:
            found = "of which the mesh does not map each axis"
            expected = f"axes among {', '.join(sorted(map(repr, self.mapped))) or '(none)'}"
            raise ShardSpecError(parameter, _shown(spec), where, found, expected)

    def check_argument(self, spec: Any, leaf: Any, where: Callable[[], str]) -> None:
        """Refuse an argument that cannot be cut as its spec says."""
        for array in jax.tree.leaves(leaf):
            shape = np.shape(array)
            self.check_spec("in_specs", spec, where())
            _check_rank("in_specs", spec, array, where)
            for at, (entry, size) in enumerate(zip(spec, shape, strict=False)):
                parts = int(np.prod([self.sizes[name] for name in _names(entry)], dtype=int))
                if size % parts:
                    found = f"which is {short(array)}"
                    expected = f"a multiple of {parts} for its dimension {at}, of size {size}"
                    raise ShardSpecError("in_specs", _shown(spec), where(), found, expected)

    def check_result(self, boundary: Boundary, value: Any, spec: Any, receiver: Callable[[], str]) -> None:
        """Refuse a value that differs by device along an axis that its spec does not name."""
        for array in jax.tree.leaves(value):
            _check_rank("out_specs", spec, array, receiver)
            differing = sorted(map(str, (_jax.varying_axes(array) & self.mapped) - self._axes(spec)))
            if differing:
                example = f"in_specs=nnx.StateSharding({{nnx.BatchStat: P({differing[0]!r}), ...: P()}})"
                raise LaneWriteError("shard_map", receiver_text(boundary, receiver(), spec), example)

    def reshard(self, spec: Any, leaves: Sequence[Any]) -> Any:
        """Leaves as their spec says, along the axes of explicit type."""
        if not self.explicit:
            return leaves
        entries = (tuple(name for name in _names(entry) if name in self.explicit) for entry in spec)
        wanted = PartitionSpec(*(names or None for names in entries))
        if self.given is not None:
            wanted = NamedSharding(self.mesh, wanted)
        reshard: Any = jax.reshard  # JAX leaves it untyped
        return jax.tree.map(lambda x: reshard(x, wanted), leaves)


def _names(entry: Any) -> tuple[Hashable, ...]:
    """The axes that one entry of a spec names."""
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple) else (entry,)


def _shown(spec: Any) -> str:
    """A spec, for texts: `P('data', None)`."""
    return f"P({', '.join(map(repr, spec))})"


def _check_rank(parameter: str, spec: Any, array: Any, where: Callable[[], str]) -> None:
    """Refuse a spec with more entries than an array has dimensions."""
    if len(spec) > np.ndim(array):
        expected = f"a spec with at most {np.ndim(array)} entries"
        raise ShardSpecError(parameter, _shown(spec), where(), f"which is {short(array)}", expected)
