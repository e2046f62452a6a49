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

import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import jax

from .._typing import Key, Path

Desc = tuple[Any, ...]
LEAF: Desc = ("leaf",)


class Shape:
    """How a container closes: its type, and its keys or treedef; compared by both."""

    __slots__ = ("_hash", "cls", "keys", "treedef")

    def __init__(self, cls: type, keys: tuple[Key, ...], treedef: Any = None):
        self.cls = cls
        self.keys = keys
        self.treedef = treedef
        self._hash = hash((cls, keys, treedef))

    def close(self, children: list[Any]) -> Any:
        """The container with these children."""
        if self.treedef is not None:
            return jax.tree_util.tree_unflatten(self.treedef, children)
        if self.cls is dict:
            return dict(zip(self.keys, children, strict=True))
        return self.cls(*children) if hasattr(self.cls, "_fields") else self.cls(children)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Shape
            and self._hash == other._hash
            and self.cls is other.cls
            and self.keys == other.keys
            and tuple(map(type, self.keys)) == tuple(map(type, other.keys))
            and self.treedef == other.treedef
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{self.cls.__name__}{list(self.keys)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Shape, (self.cls, self.keys, self.treedef))


class GraphDef:
    """The static, hashable description of a graph; `split` makes it, `merge` reads it.

    Example:
        >>> a, b = nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Linear(2, 3, rngs=nnx.Rngs(1))
        >>> nnx.graphdef(a) is nnx.graphdef(b)
        True
    """

    __slots__ = ("__weakref__", "_hash", "_leaf_paths", "_paths", "root", "records")
    _table: ClassVar[weakref.WeakValueDictionary[Any, GraphDef]] = weakref.WeakValueDictionary()

    root: Desc
    records: tuple[Desc, ...]
    _hash: int
    _paths: list[Path] | None
    _leaf_paths: list[tuple[Path, int]] | None

    def __new__(cls, root: Desc, records: tuple[Desc, ...]) -> GraphDef:
        key = (root, records)
        found = cls._table.get(key)
        if found is None:
            found = cls._table[key] = object.__new__(cls)
            found.root, found.records = key
            found._hash = hash(key)
            found._paths = found._leaf_paths = None
        return found

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"GraphDef({len(self.records)} objects, {self.num_leaves} leaves)"

    def __reduce__(self) -> tuple[Any, ...]:
        return (GraphDef, (self.root, self.records))

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

    def _find_paths(self) -> None:
        starts = leaf_starts(self)
        paths: list[Path] = [()] * len(self.records)
        leaves: list[tuple[Path, int]] = []
        seen: set[int] = set()

        def visit(desc: Desc, path: Path, counter: Iterator[int]) -> None:
            if desc[0] == "node":
                if desc[1] not in seen:
                    seen.add(desc[1])
                    paths[desc[1]] = path
                    visit_record(self.records[desc[1]], path, _count_from(starts[desc[1]]))
            elif desc[0] == "leaf":
                leaves.append((path, next(counter)))
            else:
                for key, child in desc_children(desc):
                    visit(child, (*path, key), counter)

        def visit_record(record: Desc, path: Path, counter: Iterator[int]) -> None:
            if record[0] == "variable":
                leaves.append((path, next(counter)))
            else:
                for name, child in zip(record[2], record[3], strict=True):
                    visit(child, (*path, name), counter)

        visit(self.root, (), _count_from(0))
        self._paths, self._leaf_paths = paths, leaves


def _count_from(start: int) -> Iterator[int]:
    while True:
        yield start
        start += 1


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


def leaf_starts(graphdef: GraphDef) -> list[int]:
    """The number of the first leaf of each object."""
    starts = []
    total = count_leaves(graphdef.root)
    for record in graphdef.records:
        starts.append(total)
        total += record_leaves(record)
    return starts


jax.tree_util.register_static(GraphDef)
