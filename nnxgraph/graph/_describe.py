"""How a GraphDef is shown: as the objects that it describes, with their classes and static attributes."""

from __future__ import annotations

from typing import Any

from .._printing import Opened, opened
from .._typing import MISSING, Key
from ._graphdef import Desc, GraphDef
from ._registry import object_opened


class Described:
    """A description in a GraphDef, as a value to be shown."""

    __slots__ = ("desc", "graphdef")

    def __init__(self, graphdef: GraphDef, desc: Desc):
        self.graphdef = graphdef
        self.desc = desc

    def part(self, key: Key, desc: Desc) -> tuple[Key, Any]:
        """A description below this one, with its key; what is static is shown as the value itself."""
        return key, desc[1].value if desc[0] == "static" else Described(self.graphdef, desc)

    def __repr__(self) -> str:
        return "leaf" if self.desc[0] == "leaf" else f"known object {self.desc[1]}"


def open_graphdef(graphdef: GraphDef) -> Opened:
    """How a GraphDef is shown."""
    objects, leaves = len(graphdef.records), graphdef.num_leaves
    comment = f"{objects:,} object{'s' * (objects != 1)}, {leaves:,} lea{'f' if leaves == 1 else 'ves'}"
    root = Described(graphdef, ("container", None, ())).part(MISSING, graphdef.root)
    return Opened("GraphDef(", ")", [root], id(graphdef), is_object=True, tall=True, comment=comment)


def _open_described(x: Described) -> Opened | None:
    """How what a description stands for is shown."""
    desc = x.desc
    if desc[0] == "container":
        return _open_container(x)
    if desc[0] != "node":
        return None
    record, identity = x.graphdef.records[desc[1]], ("object", id(x.graphdef), desc[1])
    if record[0] == "variable":
        spec = record[1]
        return Opened(f"{spec.kind.__name__}(", ")", spec.metadata.items(), identity, is_object=True)
    pairs = [x.part(key, child) for key, child in zip(record[2], record[3], strict=True)]
    return object_opened(record[1], pairs, identity, dict(record[4]))


_BRACKETS = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}")}


def _open_container(x: Described) -> Opened:
    """How the description of a container is shown."""
    _, shape, children = x.desc
    begin, end = _BRACKETS.get(shape.cls, (f"{shape.cls.__name__}(", ")"))
    pairs = [x.part(key, child) for key, child in zip(shape.keys, children, strict=True)]
    return Opened(begin, end, pairs, id(x), is_mapping=shape.cls is dict)


opened.register(Described, _open_described)
