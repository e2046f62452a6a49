"""Named axes: what a mapped axis means for the sharding metadata of Variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .._variable import Variable

PARTITION_NAME = "partition_name"


@dataclasses.dataclass(frozen=True)
class NamedAxis:
    """The name that a transform gives to the axis it maps over."""

    name: str | None

    def enter(self, variable: Variable[Any], axis: int) -> None:
        """The Variable loses the axis inside the transform."""
        variable.remove_axis(axis, self.name)

    def leave(self, variable: Variable[Any], axis: int) -> None:
        """The Variable gets the axis back, or gets it first, outside."""
        variable.add_axis(axis, self.name)


def named_axis(transform_metadata: Mapping[Any, Any]) -> NamedAxis | None:
    """The named axis that a transform's metadata asks for."""
    if PARTITION_NAME not in transform_metadata:
        return None
    return NamedAxis(transform_metadata[PARTITION_NAME])
