"""The only code that takes a graph apart and puts it together.

`Walk` turns values into descriptions and leaves; `Build` turns descriptions and leaves into values. Both
know containers and objects alike; what an object is, the registry says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any

from .._repr import path_text
from .._spec import set_spec
from .._static import Static, is_mutable, static_key, static_of
from .._trees import Level, one_level
from .._typing import Path
from .._variable import new_variable
from ..errors import CycleError, MisplacedMarkError
from ._graphdef import (
    CALLABLES,
    LEAF,
    BoundMethod,
    Desc,
    GraphDef,
    Partial,
    Shape,
    count_leaves,
    is_fixed,
)
from ._registry import Kind, kind_of, node_type

_STATIC_NONE: Desc = ("static", Static(None))
_NO_MARKS: dict[Any, str] = {}
_UNKNOWN = (object(), LEAF)  # of an attribute whose description is not kept


def plain_level(x: Any) -> Level:
    """Children and keys of a list, tuple or dict."""
    if type(x) is dict:
        return list(x.values()), tuple(x), None
    return x, tuple(range(len(x))), None


def callable_level(x: Any) -> Level:
    """Children and keys of a bound method or a partial."""
    if isinstance(x, functools.partial):
        return [x.func, x.args, x.keywords], ("func", "args", "keywords"), Partial()
    return [x.__self__], ("__self__",), BoundMethod(x.__func__)


def level_below(x: Any) -> Level | None:
    """Children and keys of what is walked through without being an object; None if nothing is."""
    kind = kind_of(x)
    if kind is Kind.LIST or kind is Kind.DICT or kind is Kind.TUPLE:
        return plain_level(x)
    if kind is Kind.CALLABLE:
        return None if is_fixed(Walk().visit(x, [], True)) else callable_level(x)
    return one_level(x) if kind is Kind.OTHER else None


class Walk:
    """Takes values apart: descriptions of what is met, objects in order, leaves by owner.

    Objects in `known` (id to number) are described as known and not entered; `claim` may give a number to
    one that is met; `same` may give the object that one is the same as. An object is numbered where it is
    first met and described later, so that long chains of objects need no recursion.
    """

    def __init__(
        self,
        known: dict[int, int] | None = None,
        claim: Callable[[Any], int | None] = lambda x: None,
        same: Callable[[Any], Any] | None = None,
    ):
        self.known = known or {}
        self._claim = claim
        self._same = same
        self.index: dict[int, int] = {}
        self.objects: list[Any] = []
        self.records: list[Desc] = []
        self.leaves: list[list[Any]] = []  # by object
        self.root_leaves: list[Any] = []
        self.met_again = False  # whether an object was reached twice
        self._paths: list[Path] = []  # where each object was first met
        self._open: dict[int, Path] = {}  # mutable containers being visited

    def visit(self, x: Any, leaves: list[Any], inside: bool, path: Path = ()) -> Desc:
        """Describe a value; numbers are static inside a node, leaves elsewhere."""
        kind = kind_of(x)
        if kind is Kind.VARIABLE or kind is Kind.NODE:
            return self._object(x, path)
        if kind is Kind.ARRAY or (kind is Kind.NUMBER and not inside):
            leaves.append(x)
            return LEAF
        if kind is Kind.NONE:
            return _STATIC_NONE
        if kind is Kind.LIST or kind is Kind.DICT or kind is Kind.TUPLE:
            return self._container(x, plain_level(x), leaves, inside, path)
        if kind is Kind.MARKED:
            return ("static", x)
        if kind is Kind.OTHER:
            level = one_level(x)
            if level is not None:
                return self._container(x, level, leaves, inside, path)
        if kind is Kind.CALLABLE:
            desc = self._container(x, callable_level(x), leaves, True, path)
            return ("static", static_of(x)) if is_fixed(desc) else desc
        if kind is Kind.MISPLACED:
            raise MisplacedMarkError(path_text(path) or "the root", x.mark)
        return ("static", static_of(x))

    def _object(self, x: Any, path: Path) -> Desc:
        """Describe an object by its number."""
        known = self.known.get(id(x))
        if known is not None:
            return ("known", known)
        key = id(x) if self._same is None else id(self._same(x))
        i = self.index.get(key)
        if i is not None:
            self.met_again = True
            return ("node", i)
        claimed = self._claim(x)
        if claimed is not None:
            self.known[id(x)] = claimed
            return ("known", claimed)
        i = self.index[key] = len(self.objects)
        self.objects.append(x)
        self._paths.append(path)
        return ("node", i)

    def _describe_objects(self) -> None:
        """Make the records of all objects that were met, and of those that are met on the way."""
        while len(self.records) < len(self.objects):
            i = len(self.records)
            x = self.objects[i]
            own: list[Any] = []
            self.leaves.append(own)
            self.records.append(self.record(x, kind_of(x), own, self._paths[i]))

    def record(self, x: Any, kind: Kind, own: list[Any], path: Path = ()) -> Desc:
        """The record of an object, with its leaves appended to `own`."""
        if kind is Kind.VARIABLE:
            own.append(x.get_raw_value())
            return ("variable", x._spec)
        ways = node_type(type(x))
        attributes = ways.attributes(x)
        marks = ways.marks(x) or _NO_MARKS
        if not marks:
            return ("object", type(x), ways.names(attributes), self._children(x, attributes, own, path), ())
        children = tuple([self._marked(v, own, marks.get(k), (*path, k)) for k, v in attributes.items()])
        kept = tuple((k, m) for k, m in marks.items() if k in attributes and type(m) is str)
        return ("object", type(x), ways.names(attributes), children, kept)

    def _children(
        self, x: Any, attributes: Mapping[Any, Any], own: list[Any], path: Path
    ) -> tuple[Desc, ...]:
        """Describe the attributes of an object; static values that cannot change are described but once."""
        described = getattr(x, "_nnx_described", ())
        if len(described) == len(attributes):
            pairs = zip(attributes.items(), described, strict=True)
            return tuple(
                [
                    known[1] if known[0] is v else self.visit(v, own, True, (*path, k))
                    for (k, v), known in pairs
                ]
            )
        children = tuple([self.visit(v, own, True, (*path, k)) for k, v in attributes.items()])
        if hasattr(type(x), "_nnx_described"):
            values = zip(attributes.values(), children, strict=True)
            described = [(v, d) if d[0] == "static" and d[1].lasts() else _UNKNOWN for v, d in values]
            object.__setattr__(x, "_nnx_described", described)
        return children

    def _marked(self, x: Any, own: list[Any], mark: str | Desc | None, path: Path) -> Desc:
        """Describe the value of an attribute that may be marked, with a word or with a description."""
        if mark == "static":
            return ("static", static_of(x))
        if type(mark) is tuple:
            return self._along(mark, x, own, path)
        if mark is not None:
            desc = self.visit(x, own, False, path)
            if desc[0] != "static":
                return desc
            own.append(x)
            return LEAF
        return self.visit(x, own, True, path)

    def _along(self, desc: Desc, x: Any, own: list[Any], path: Path) -> Desc:
        """Describe a value in which leaves are where a description has them, whatever they are."""
        if desc == LEAF and kind_of(x) not in (Kind.VARIABLE, Kind.NODE):
            own.append(x)
            return LEAF
        level = level_below(x) if desc[0] == "container" else None
        if level is None or Shape(type(x), level[1], level[2]) != desc[1]:
            return self.visit(x, own, True, path)
        triples = zip(desc[2], level[0], level[1], strict=True)
        return ("container", desc[1], tuple([self._along(d, c, own, (*path, k)) for d, c, k in triples]))

    def _container(self, x: Any, level: Level, leaves: list[Any], inside: bool, path: Path) -> Desc:
        """Describe a container and what is in it."""
        if id(x) in self._open:
            raise CycleError(path_text(self._open[id(x)]), type(x).__name__)
        self._open[id(x)] = path
        children, keys, treedef = level
        pairs = zip(keys, children, strict=True)
        below = tuple([self.visit(c, leaves, inside, (*path, k)) for k, c in pairs])
        del self._open[id(x)]
        cls = type(treedef) if isinstance(treedef, CALLABLES) else type(x)
        return ("container", Shape(cls, keys, treedef), below)

    def root(self, x: Any) -> Desc:
        """Describe a value outside of any node, and all objects below it."""
        desc = self.visit(x, self.root_leaves, False)
        self._describe_objects()
        return desc

    def roots(self, first: Any, inside: Any, outside: tuple[Any, ...]) -> Desc:
        """Describe values as one tuple; in the first two, numbers are static as inside a node.

        All objects below the first one come before the others; `first_objects` is their number.
        """
        children = [self.visit(first, self.root_leaves, True)]
        self._describe_objects()
        self.first_objects = len(self.objects)
        children.append(self.visit(inside, self.root_leaves, True))
        children += [self.visit(x, self.root_leaves, False) for x in outside]
        self._describe_objects()
        return ("container", Shape(tuple, tuple(range(len(children)))), tuple(children))

    def all_leaves(self) -> list[Any]:
        """The leaves in the order of a GraphDef: of the root, then of each object."""
        return [*self.root_leaves, *(leaf for own in self.leaves for leaf in own)]


def flatten(x: Any) -> tuple[GraphDef, list[Any], list[Any]]:
    """A value's GraphDef, its leaves, and its objects in order."""
    walk = Walk()
    root = walk.root(x)
    return GraphDef(root, tuple(walk.records)), walk.all_leaves(), walk.objects


class Build:
    """Puts values together: makes the objects of a GraphDef and fills them from leaves in order."""

    def __init__(
        self,
        records: Sequence[Desc],
        known: Sequence[Any] = (),
        given: Sequence[Any] = (),
        kept: Mapping[int, Any] | None = None,
    ):
        self.known = known
        self.records = records
        self.given = given  # the first objects, if the caller has them
        self.kept = kept or {}  # objects to use, by number; such Variables keep their value
        self.objects: list[Any] = []

    def make_objects(self, leaves: Iterator[Any]) -> None:
        """Make all objects, then fill them; objects may refer to each other in any way."""
        first, kept = len(self.given), self.kept
        records = self.records[first:]
        fresh = [kept[i] if i in kept else _empty(r) for i, r in enumerate(records, first)]
        self.objects = [*self.given, *fresh]
        for i, (x, record) in enumerate(zip(fresh, records, strict=True), first):
            if record[0] != "variable":
                change = change_object if i in kept else _fill
                change(x, record, self.attributes(record, leaves))
                continue
            value = next(leaves)
            if i not in kept:
                x.set_raw_value(value, _unsafe_bypass_check=True)

    def attributes(self, record: Desc, leaves: Iterator[Any]) -> dict[Any, Any]:
        """The attributes that a record describes, by name."""
        pairs = zip(record[2], record[3], strict=True)
        return {name: self.value(desc, leaves) for name, desc in pairs}

    def value(self, desc: Desc, leaves: Iterator[Any]) -> Any:
        """The value of a description."""
        tag = desc[0]
        if tag == "node":
            return self.objects[desc[1]]
        if tag == "leaf":
            return next(leaves)
        if tag == "static":
            return desc[1].fresh()
        if tag == "known":
            return self.known[desc[1]]
        return desc[1].close([self.value(child, leaves) for child in desc[2]])


def _fill(x: Any, record: Desc, attributes: dict[Any, Any]) -> None:
    """Give a new object its attributes."""
    node_type(record[1]).replace(x, attributes, dict(record[4]))


def _empty(record: Desc) -> Any:
    """A new object of a record, not filled yet."""
    if record[0] == "variable":
        return new_variable(record[1], None)
    return node_type(record[1]).create(record[1])


def unflatten(
    graphdef: GraphDef,
    leaves: Sequence[Any],
    kept: Mapping[int, Any] | None = None,
    known: Sequence[Any] = (),
) -> tuple[Any, list[Any]]:
    """The value of a GraphDef with these leaves, and its objects in order: new ones, but for those kept."""
    build = Build(graphdef.records, known=known, kept=kept)
    start = count_leaves(graphdef.root)
    build.make_objects(iter(leaves[start:]))
    return build.value(graphdef.root, iter(leaves[:start])), build.objects


def change_object(x: Any, record: Desc, attributes: dict[Any, Any]) -> None:
    """Make an existing object what a record says, keeping the identity of its plain lists and dicts."""
    if record[0] == "variable":
        set_spec(x, record[1])
        return
    if type(x) is not record[1]:
        x.__class__ = record[1]
    ways = node_type(record[1])
    old = ways.attributes(x)
    kept = {name: in_place(old.get(name), new) for name, new in attributes.items()}
    ways.replace(x, kept, dict(record[4]))


def in_place(old: Any, new: Any) -> Any:
    """`new`, put into the old list or dict if there is one."""
    if old is new or type(old) is not type(new):
        return new
    if type(old) is list:
        merged = [in_place(o, n) for o, n in zip(old, new, strict=False)] + new[len(old) :]
        old[:] = merged
        return old
    if type(old) is dict:
        merged_dict = {k: in_place(old.get(k), v) for k, v in new.items()}
        old.clear()
        old.update(merged_dict)
        return old
    if is_mutable(new) and static_key(old) == static_key(new):
        return old
    return _fixed_in_place(old, new)


def _fixed_in_place(old: Any, new: Any) -> Any:
    """A tuple or registered pytree like `new` that holds what of the old one can be kept; else `new`."""
    if kind_of(new) not in (Kind.TUPLE, Kind.OTHER):
        return new
    before, after = level_below(old), level_below(new)
    if before is None or after is None:
        return new
    shape = Shape(type(new), after[1], after[2])
    if shape != Shape(type(old), before[1], before[2]):
        return new
    children = [in_place(o, n) for o, n in zip(before[0], after[0], strict=True)]
    return old if all(map(is_, children, before[0])) else shape.close(children)
