"""Objects that stay in place while a function is traced; what the function does to them is taken back.

It leaves the trace as a `Change` and is done to them again when the transform has run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from .._spec import set_spec
from .._variable import Variable
from ..graph._registry import node_type
from ..graph._walk import level_below


class KeptInPlace:
    """Puts objects back into the state that they have now, when it is left.

    Values of Variables are in the frame and need no care; metadata, attributes, classes, and the contents
    of lists and dicts in attributes are put back.
    """

    def __init__(self, objects: Sequence[Any]):
        self._specs = [(x, x._spec) for x in objects if isinstance(x, Variable)]
        self._nodes = []
        self._containers: list[tuple[Any, Any]] = []
        for x in objects:
            if not isinstance(x, Variable):
                ways = node_type(type(x))
                attributes = dict(ways.attributes(x))
                self._nodes.append((x, type(x), attributes, dict(ways.marks(x))))
                self._containers += [(c, c.copy()) for c in _containers(list(attributes.values()))]

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for x, spec in self._specs:
            if x._spec is not spec:
                set_spec(x, spec)
        for container, contents in self._containers:
            if not _same(container, contents):
                container.clear()
                (container.extend if type(container) is list else container.update)(contents)
        for x, cls, attributes, marks in self._nodes:
            if type(x) is not cls:
                x.__class__ = cls
            ways = node_type(cls)
            if not _same(dict(ways.attributes(x)), attributes) or dict(ways.marks(x)) != marks:
                ways.replace(x, attributes, marks)


def _same(now: Any, before: Any) -> bool:
    """Whether a list or dict holds the very same things in the same order."""
    if len(now) != len(before):
        return False
    if type(now) is list:
        return all(a is b for a, b in zip(now, before, strict=True))
    pairs = zip(now.items(), before.items(), strict=True)
    return all(a is b and x is y for (a, x), (b, y) in pairs)


def _containers(values: list[Any]) -> Iterator[Any]:
    """The plain lists and dicts among values, and in the containers among them."""
    while values:
        x = values.pop()
        if type(x) in (list, dict):
            yield x
        below = level_below(x) if type(x) not in (int, float, str, bool, type(None)) else None
        if below is not None:
            values.extend(below[0])
