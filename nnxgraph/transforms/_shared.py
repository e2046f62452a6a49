"""What all lanes of a mapped transform share.

No value that differs by lane goes there, and drawing from a random stream that stands there warns.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType

from .._rngs import RngCount, RngState, RngStream
from ..errors import NestedMeshError, SharedStreamWarning
from ..graph._graphdef import leaf_starts
from ._boundary import Boundary
from ._crossing import Call, Change, Crossing, gather, leaf_text, variable_of
from ._lanes import Lane, PrefixRule

CheckLeaf = Callable[[Any, Lane, Callable[[], str]], None]  # of a value, its lane, and what would get it


class Watch:
    """A function as JAX sees it, with each value that leaves it checked, and the shared streams noted."""

    def __init__(
        self,
        boundary: Boundary,
        call: Call,
        pure: Callable[..., Any],
        check: CheckLeaf,
        is_shared: Callable[[Lane], bool],
    ):
        self.boundary = boundary
        self.call = call
        self.pure = pure
        self.check = check
        self.is_shared = is_shared
        self.streams: list[str] = []  # those that all lanes share and that were drawn from

    def __call__(self, layout: Any, lanes: Any) -> Any:
        head, (change, out) = self.pure(layout, lanes)
        for number, value in enumerate(gather(out, change.lane_of)):
            lane = self.boundary.lanes[change.lane_of[number]]
            self.check(value, lane, functools.partial(_receiver, self.call, change, number))
        self.streams = self._shared_streams(change)
        return head, (change, out)

    def _shared_streams(self, change: Change) -> list[str]:
        """The streams that counted on in a lane that all share, as the user would write them."""
        crossing = self.call.crossing
        starts = leaf_starts(crossing.layout.graphdef)
        number = {id(x): start for x, start in zip(crossing.objects, starts, strict=True)}
        written = set(change.written)
        found = []
        for i, x in enumerate(crossing.objects):
            if not isinstance(x, RngStream):
                continue
            key, count = (number.get(id(v), -1) for v in (x.key, x.count))
            drawn = count in written and key not in written
            if drawn and self._shares(crossing, key) and not self._is_asked_for(i):
                path = crossing.layout.graphdef.paths[i]
                found.append(f"{crossing.names.argument(path)}, with the tag {x.tag!r}")
        late = [v for v in self.call.written if isinstance(v, RngCount)]
        return found + [f"a captured one, with the tag {v.get_metadata('tag', None)!r}" for v in late]

    def _shares(self, crossing: Crossing, k: int) -> bool:
        """Whether all lanes have one value of a leaf."""
        return self.is_shared(self.boundary.lanes[crossing.layout.lane_of[k]])

    def _is_asked_for(self, i: int) -> bool:
        """Whether the user's rule for an object speaks of random streams."""
        place = self.boundary.places(self.call.crossing).get(i)
        rule = place[0] if place is not None else None
        filters = getattr(rule, "filters", ()) if isinstance(rule, PrefixRule) else ()
        return any(isinstance(f, str) or (isinstance(f, type) and issubclass(f, RngState)) for f in filters)

    def warn(self, advice: str, stacklevel: int) -> None:
        """Warn once a call of streams from which all lanes drew the same keys."""
        if self.streams:
            warning = SharedStreamWarning(self.boundary.name, tuple(self.streams), advice)
            warnings.warn(warning, stacklevel=stacklevel + 1)


def _receiver(call: Call, change: Change, number: int) -> str:
    """What would get a leaf of a change, in words."""
    crossing = call.crossing
    behind = number - len(change.written)
    if behind < 0:
        k = change.written[number]
        variable = variable_of(crossing, k)
        return f"{leaf_text(crossing, k)}: {'an array' if variable is None else variable._describe()}"
    if behind >= len(call.where):
        return f"the captured {call.written[behind - len(call.where)]._describe()}"
    return crossing.names.text(call.where[behind])


def receiver_text(boundary: Boundary, receiver: str, lane: Lane) -> str:
    """What would get a leaf, and the lane that the user gave it, if it is a result."""
    return f"{receiver} with {boundary.result_parameter}={lane!r}" if receiver[:6] == "result" else receiver


def check_devices(transform: str, mesh: Any = None) -> None:
    """Refuse a map over the devices of a mesh where another one has them already."""
    context: Any = jax.sharding.get_abstract_mesh()
    taken = [
        n for n, kind in zip(context.axis_names, context.axis_types, strict=True) if kind is AxisType.Manual
    ]
    if taken and getattr(mesh, "abstract_mesh", mesh) != context:
        raise NestedMeshError(transform, tuple(map(str, taken)))
