"""GraphDef: the static description of a graph.

A description (`Desc`) is a tuple whose first entry says what stands there:

    ("node", i)                      the i-th object (node or Variable) of the graph, met here
    ("known", i)                     the i-th object of another graph, which the reader has
    ("leaf",)                        an array (or other leaf), the next of its owner
    ("static", Static)               a value that is part of the program
    ("container", Shape, children)   a list, tuple, dict or registered pytree

and each object has a record of its own:

    ("variable", spec)                             with one leaf, its value
    ("object", class, names, children, marks)      with the leaves among its children

Leaves are numbered owner by owner: first those of the root, then those of object 0, 1, ... in order of the
first visit. A shared object is two descriptions with the same number; a cycle needs nothing more.

GraphDefs are interned: two equal ones are the same object, so JAX's cache compares pointers.
"""

from __future__ import annotations

import functools
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax

from .._printing import tree_text
from .._state import Paths
from .._static import static_key
from .._typing import Key, Path

Desc = tuple[Any, ...]
LEAF: Desc = ("leaf",)
_interning = threading.Lock()


class TypedKeys(tuple[Key, ...]):
    """Keys that equal only keys of the same types: `1`, `True` and `1.0` differ."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple) or not tuple.__eq__(self, other):
            return False
        return list(map(type, self)) == list(map(type, other))

    __hash__ = tuple.__hash__


class BoundMethod:
    """How a method that is bound to an object closes, in the place of a treedef: the object is its child."""

    __slots__ = ("function",)

    def __init__(self, function: Any):
        self.function = function

    def node_data(self) -> tuple[type, Any]:
        """The class and what is static."""
        return BoundMethod, self.function

    def unflatten(self, children: Any) -> Any:
        """The method, bound to the object."""
        return types.MethodType(self.function, *children)


class Partial:
    """How a `functools.partial` with data closes: function, arguments and keywords are its children."""

    __slots__ = ()

    def node_data(self) -> tuple[type, Any]:
        """The class and what is static."""
        return Partial, None

    def unflatten(self, children: Any) -> Any:
        """The partial function of these children."""
        function, args, keywords = children
        return functools.partial(function, *args, **keywords)


CALLABLES = (BoundMethod, Partial)


class Shape:
    """How a container closes: its type, and its keys or treedef.

    What a registered pytree declares static is compared as other static values are, so `==` of arrays is
    never asked.
    """

    __slots__ = ("_hash", "_key", "cls", "keys", "treedef")

    def __init__(self, cls: type, keys: tuple[Key, ...], treedef: Any = None):
        self.cls = cls
        self.keys = TypedKeys(keys)
        self.treedef = treedef
        self._key = None if treedef is None else static_key(treedef.node_data()[1])
        self._hash = hash((cls, keys, self._key))

    def close(self, children: list[Any]) -> Any:
        """The container with these children."""
        if self.treedef is not None:
            return self.treedef.unflatten(children)
        if self.cls is dict:
            return dict(zip(self.keys, children, strict=True))
        return self.cls(*children) if hasattr(self.cls, "_fields") else self.cls(children)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Shape
            and self._hash == other._hash
            and self.cls is other.cls
            and self.keys == other.keys
            and self._key == other._key
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{self.cls.__name__}{list(self.keys)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Shape, (self.cls, tuple(self.keys), self.treedef))


class GraphDef:
    """The static, hashable description of a graph; `split` makes it, `merge` reads it.

    Args:
        root: The description of the value at the top.
        records: The records of all objects.
        outer: For each object its index outside, if `flatten` was given such indices.

    Example:
        >>> a, b = nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Linear(2, 3, rngs=nnx.Rngs(1))
        >>> nnx.graphdef(a) is nnx.graphdef(b)
        True
    """

    __slots__ = (
        *("__weakref__", "_addresses", "_hash", "_leaf_paths", "_paths", "_starts"),
        *("outer", "root", "records"),
    )
    _table: ClassVar[weakref.WeakValueDictionary[Any, GraphDef]] = weakref.WeakValueDictionary()

    root: Desc
    records: tuple[Desc, ...]
    outer: tuple[int | None, ...] | None
    apply: ClassVar[Callable[..., Any]]  # set by `_call`, which knows how to merge
    _hash: int
    _paths: list[Path] | None
    _leaf_paths: list[tuple[Path, int]] | None
    _starts: tuple[int, ...] | None
    _addresses: Paths | None

    def __new__(
        cls, root: Desc, records: tuple[Desc, ...], outer: tuple[int | None, ...] | None = None
    ) -> GraphDef:
        key = (root, records, outer)
        found = cls._table.get(key)
        if found is None:
            found = object.__new__(cls)
            found.root, found.records, found.outer = key
            found._hash = hash(key)
            found._paths = found._leaf_paths = found._starts = found._addresses = None
            with _interning:
                found = cls._table.setdefault(key, found)
        return found

    def __hash__(self) -> int:
        return self._hash

    __repr__ = tree_text

    def __reduce__(self) -> tuple[Any, ...]:
        return (GraphDef, (self.root, self.records, self.outer))

    def __deepcopy__(self, memo: Any) -> GraphDef:
        return self

    @property
    def num_leaves(self) -> int:
        """How many leaves the graph has."""
        return count_leaves(self.root) + sum(map(record_leaves, self.records))

    @property
    def paths(self) -> list[Path]:
        """The first path of each object."""
        if self._paths is None:
            self._find_paths()
        assert self._paths is not None
        return self._paths

    @property
    def leaf_paths(self) -> list[tuple[Path, int]]:
        """(path, number) of each leaf, in the order in which one meets them."""
        if self._leaf_paths is None:
            self._find_paths()
        assert self._leaf_paths is not None
        return self._leaf_paths

    @property
    def addresses(self) -> Paths:
        """The paths of the leaves, for looking up those that a State has."""
        if self._addresses is None:
            self._addresses = Paths(path for path, _ in self.leaf_paths)
        return self._addresses

    def find(self, path: Path) -> int | None:
        """The number of the leaf at any path of the graph, be it the first to an object or another."""
        desc, owner = self.root, ROOT
        before = 0  # leaves of the owner that stand before the description
        for key in path:
            if desc[0] == "node":
                owner, before, record = desc[1], 0, self.records[desc[1]]
                keys, children = ((), ()) if record[0] == "variable" else record[2:4]
            else:
                keys, children = (desc[1].keys, desc[2]) if desc[0] == "container" else ((), ())
            at = _position(keys, key)
            if at is None:
                return None
            before += sum(map(count_leaves, children[:at]))
            desc = children[at]
        starts = [*leaf_starts(self), 0]  # the root is number -1
        if desc[0] == "leaf":
            return starts[owner] + before
        is_variable = desc[0] == "node" and self.records[desc[1]][0] == "variable"
        return starts[desc[1]] if is_variable else None

    def with_no_outer_index(self) -> GraphDef:
        """The same description without indices of objects outside."""
        return GraphDef(self.root, self.records)

    def with_same_outer_index(self) -> GraphDef:
        """The same description in which each object's index outside is its number here."""
        return GraphDef(self.root, self.records, tuple(range(len(self.records))))

    def with_matching_outer_index(self, other: GraphDef) -> GraphDef:
        """The same description with the indices that another has for the objects of the same numbers."""
        outer = (*(other.outer or ()), *(None for _ in self.records))[: len(self.records)]
        return GraphDef(self.root, self.records, outer)

    def _find_paths(self) -> None:
        """Find the paths of objects and leaves, once."""
        following = dict(enumerate(leaf_starts(self))) | {ROOT: 0}
        paths: dict[int, Path] = {}
        leaves: list[tuple[Path, int]] = []
        for path, desc, owner in descriptions(self):
            if desc[0] == "node":
                i = desc[1]
                if i not in paths and self.records[i][0] == "variable":
                    leaves.append((path, following[i]))
                paths.setdefault(i, path)
            elif desc[0] == "leaf":
                leaves.append((path, following[owner]))
                following[owner] += 1
        self._paths, self._leaf_paths = [paths[i] for i in range(len(self.records))], leaves


def _position(keys: Sequence[Key], key: Key) -> int | None:
    """Where a key stands among others; digits in a string also mean an integer, and the other way round."""
    for at, found in enumerate(keys):
        if found == key and type(found) is type(key):
            return at
    return next((at for at, found in enumerate(keys) if str(found) == str(key)), None)


ROOT = -1  # stands for the number of an object: what owns the leaves outside of all objects


def descriptions(
    graphdef: GraphDef, below: Desc | None = None, entered: set[int] | None = None
) -> Iterator[tuple[Path, Desc, int]]:
    """(path, description, number of the owner) of all there is, depth first; each object is entered once.

    With `below`, of what stands below that description; objects in `entered` are not entered again.
    """
    entered = set() if entered is None else entered
    top = graphdef.root if below is None else below
    open_levels: list[Iterator[tuple[Path, Desc, int]]] = [iter([((), top, ROOT)])]
    while open_levels:
        found = next(open_levels[-1], None)
        if found is None:
            open_levels.pop()
            continue
        yield found
        path, desc, owner = found
        if desc[0] == "container":
            open_levels.append(_below(path, desc[1].keys, desc[2], owner))
        elif desc[0] == "node" and desc[1] not in entered:
            entered.add(desc[1])
            record = graphdef.records[desc[1]]
            if record[0] == "object":
                open_levels.append(_below(path, record[2], record[3], desc[1]))


def _below(
    path: Path, keys: Sequence[Key], children: Sequence[Desc], owner: int
) -> Iterator[tuple[Path, Desc, int]]:
    """The descriptions below one, with their paths and their owner."""
    return (((*path, k), child, owner) for k, child in zip(keys, children, strict=True))


def is_fixed(desc: Desc) -> bool:
    """Whether there is no data in a description."""
    return bool(desc[0] == "static") or (desc[0] == "container" and all(map(is_fixed, desc[2])))


def desc_children(desc: Desc) -> Iterator[tuple[Key, Desc]]:
    """The keys and descriptions right below a container; nothing for other descriptions."""
    if desc[0] == "container":
        yield from zip(desc[1].keys, desc[2], strict=True)


def count_leaves(desc: Desc) -> int:
    """How many leaves stand in a description, not counting those of objects."""
    if desc[0] == "leaf":
        return 1
    return sum(map(count_leaves, desc[2])) if desc[0] == "container" else 0


def record_leaves(record: Desc) -> int:
    """How many leaves an object has itself."""
    return 1 if record[0] == "variable" else sum(map(count_leaves, record[3]))


def leaf_starts(graphdef: GraphDef) -> tuple[int, ...]:
    """The number of the first leaf of each object."""
    if graphdef._starts is None:
        counts = map(record_leaves, graphdef.records[:-1])
        starts = itertools.accumulate(counts, initial=count_leaves(graphdef.root))
        graphdef._starts = tuple(starts) if graphdef.records else ()
    return graphdef._starts


jax.tree_util.register_static(GraphDef)
