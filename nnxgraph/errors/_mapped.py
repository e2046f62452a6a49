"""Errors and warnings of transforms that map a function over lanes, shards or pairs."""

from __future__ import annotations

from ._base import NnxError, listed


class ShardSpecError(NnxError, ValueError):
    """A PartitionSpec of shard_map does not fit the mesh or the array."""

    def __init__(self, parameter: str, spec: str, where: str, found: str, expected: str):
        super().__init__(parameter, spec, where, found, expected)

    def text(self) -> str:
        parameter, spec, where, found, expected = self.args
        place = f" for {where}" if where else ""
        return (
            f"nnx.shard_map: {parameter} has {spec}{place}, {found}. Expected {expected}. "
            f"Write P(), with P = jax.sharding.PartitionSpec, for what every device gets whole."
        )


class NestedMeshError(NnxError, ValueError):
    """A map over devices runs inside another one, which has them already."""

    def __init__(self, transform: str, axes: tuple[str, ...]):
        super().__init__(transform, axes)

    def text(self) -> str:
        transform, axes = self.args
        return (
            f"nnx.{transform}: found a map over devices inside another one, whose axes are "
            f"{', '.join(map(repr, axes))}. Expected one map over devices. Write nnx.vmap inside; or give "
            f"the outer shard_map some axis_names, and the inner one the others and no mesh."
        )


class SideEffectError(NnxError, ValueError):
    """A function that runs on many pairs at once writes Variables that are not in the pair."""

    def __init__(self, transform: str, function: str, variables: tuple[str, ...]):
        super().__init__(transform, function, variables)

    def text(self) -> str:
        transform, function, variables = self.args
        return (
            f"nnx.{transform}: the function {function} writes Variables that are not in its arguments:"
            f"{listed(variables)}\nIt runs on many pairs at once, in no order. Expected a function without "
            f"side effects. Write the value into what it returns, or use nnx.scan."
        )


class SharedStreamWarning(NnxError, UserWarning):
    """A random stream that all lanes share is drawn from, so that all lanes draw the same keys."""

    def __init__(self, transform: str, streams: tuple[str, ...], advice: str):
        super().__init__(transform, streams, advice)

    def text(self) -> str:
        transform, streams, advice = self.args
        return (
            f"nnx.{transform}: all lanes draw the same keys from random streams that they share:"
            f"{listed(streams)}\nExpected a key for each lane. {advice}"
        )
