"""The life of objects as JAX pytrees.

An object whose subgraph is a tree flattens level by level: its data attributes are its children. One with
sharing or a cycle flattens its whole subgraph as one node, with each leaf once.

JAX may put something at leaves that is no data, such as an axis. Such an object is *hollow*: its attributes
are marked with the description of what they were, so that it flattens as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from ._repr import path_text
from ._state import sortable
from ._trees import one_level
from .graph._graphdef import CALLABLES, LEAF, Desc, GraphDef, Shape, is_fixed
from .graph._registry import Kind, is_array, kind_of, node_type
from .graph._walk import Build, Walk, callable_level, level_below, unflatten

_NOT_DATA = (Kind.NUMBER, Kind.NONE, Kind.STATIC, Kind.OTHER)
_NOT_ARRAYS = (*_NOT_DATA, Kind.LIST, Kind.DICT, Kind.TUPLE)


class _Mixed:
    """A plain container with static leaves, on its way through JAX: its data are its children."""

    __slots__ = ("children", "desc", "keys")

    def __init__(self, desc: Desc, children: list[Any], keys: list[Any]):
        self.desc = desc
        self.children = children
        self.keys = keys


def _open_mixed(value: Any, desc: Desc) -> Any:
    """A container as JAX should see it: as it is, or with its static leaves hidden."""
    if not _needs_hiding(desc):
        return value
    shape: Shape = desc[1]
    parts = _parts(value, shape)
    children, keys = [], []
    for key, part, below in zip(shape.keys, parts, desc[2], strict=True):
        if below[0] != "static":
            children.append(_open_mixed(part, below))
            keys.append(DictKey(key) if shape.cls is dict else _entry(key))
    return _Mixed(_hollow(desc), children, keys)


def _parts(value: Any, shape: Shape) -> list[Any]:
    """The values right below a container."""
    if shape.cls in CALLABLES:
        return list(callable_level(value)[0])
    if shape.treedef is not None:
        return jax.tree_util.tree_leaves(value, is_leaf=lambda y: y is not value)
    return list(value.values()) if shape.cls is dict else list(value)


def _needs_hiding(desc: Desc) -> bool:
    """Whether JAX would see static leaves as data, or sort the keys, or fail to."""
    if desc[0] != "container":
        return bool(desc[0] == "static")
    if desc[1].cls in CALLABLES or (desc[1].cls is dict and not _is_sorted(desc[1].keys)):
        return True
    return any(map(_needs_hiding, desc[2]))


def _is_sorted(keys: Sequence[Any]) -> bool:
    """Whether JAX gives a plain dict back with its keys in the same order."""
    return len(keys) < 2 or (sortable(keys) and sorted(keys) == list(keys))


def _hollow(desc: Desc) -> Desc:
    """A container's description with a hole for each child that JAX sees."""
    return (*desc[:2], tuple(d if d[0] == "static" else ("leaf",) for d in desc[2]))


def _close_mixed(desc: Desc, children: Any) -> Any:
    """The container of a description with holes."""
    return Build(()).value(desc, iter(children))


jax.tree_util.register_pytree_with_keys(
    _Mixed,
    lambda m: (tuple(zip(m.keys, m.children, strict=True)), m.desc),
    _close_mixed,
    lambda m: (m.children, m.desc),
)


class _Level:
    """What is static of one object of a tree: class, names, static attributes, marks."""

    __slots__ = ("_hash", "facts")

    def __init__(self, facts: tuple[Any, ...]):
        self.facts = facts
        self._hash = hash(facts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is _Level and self._hash == other._hash and bool(self.facts == other.facts)

    def __repr__(self) -> str:
        return f"{self.facts[0].__name__}{self.facts[1]}"


def _flatten(x: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """(name, child) pairs and what is static."""
    walk = Walk()
    root = walk.root(x)
    if walk.met_again:
        graphdef = GraphDef(root, tuple(walk.records))
        leaves = walk.all_leaves()
        order = graphdef.leaf_paths
        return [(path_text(path).removeprefix("."), leaves[i]) for path, i in order], graphdef
    _, cls, names, descs, marks = walk.records[0]
    children: list[tuple[Any, Any]] = []
    fixed: list[Desc] = []
    values = node_type(cls).attributes(x).values()
    for name, desc, value in zip(names, descs, values, strict=True):
        if is_fixed(desc):
            fixed.append(desc)
        else:
            fixed.append(_outline(desc))
            children.append((name, _open_mixed(value, desc)))
    return children, _Level((cls, names, tuple(fixed), marks))


def _outline(desc: Desc) -> Desc:
    """A description with objects as leaves."""
    if desc[0] == "container":
        return (*desc[:2], tuple(map(_outline, desc[2])))
    return desc if desc[0] == "static" else LEAF


def _unflatten(aux: Any, children: Any) -> Any:
    """The object of its static part and its children."""
    if isinstance(aux, GraphDef):
        leaves: list[Any] = [None] * aux.num_leaves
        for (_, i), leaf in zip(aux.leaf_paths, children, strict=True):
            leaves[i] = leaf
        return unflatten_hollow(aux, leaves)
    cls, names, fixed, marks = aux.facts
    feed = iter(children)
    build = Build(())
    ways = node_type(cls)
    x = ways.create(cls)
    attributes = {
        n: build.value(d, feed) if is_fixed(d) else next(feed) for n, d in zip(names, fixed, strict=True)
    }
    ways.replace(x, attributes, dict(marks))
    if any(kind_of(child) in _NOT_ARRAYS for child in children):
        _mark_hollow(x, names, fixed)
    return x


def unflatten_hollow(graphdef: GraphDef, leaves: Sequence[Any]) -> Any:
    """The value of a GraphDef with these leaves, which need be no data."""
    root, objects = unflatten(graphdef, leaves)
    if not all(map(is_array, leaves)):
        for x, record in zip(objects, graphdef.records, strict=True):
            if record[0] == "object":
                _mark_hollow(x, record[2], record[3])
    return root


def _mark_hollow(x: Any, names: Sequence[Any], descs: Sequence[Desc]) -> None:
    """Mark the attributes with leaves by their description although their values do not look so."""
    if not hasattr(x, "_nnx_marks"):
        return  # an object of a foreign class keeps no marks
    attributes = node_type(type(x)).attributes(x)
    for name, desc in zip(names, descs, strict=True):
        if _is_hollow(desc, attributes[name]):
            x._nnx_marks.setdefault(name, desc)


def _is_hollow(desc: Desc, value: Any) -> bool:
    """Whether a leaf of a description does not look like data."""
    if desc == LEAF:
        return kind_of(value) in _NOT_DATA and (value is None or one_level(value) is None)
    level = level_below(value) if desc[0] == "container" else None
    return level is not None and any(map(_is_hollow, desc[2], level[0]))


def _flatten_with_keys(x: Any) -> tuple[tuple[tuple[Any, Any], ...], Any]:
    """Children with their JAX keys, and what is static."""
    pairs, aux = _flatten(x)
    return tuple((_entry(name), child) for name, child in pairs), aux


def _entry(name: Any) -> Any:
    """An attribute name as JAX writes it in key paths."""
    if isinstance(name, str):
        return GetAttrKey(name)
    return SequenceKey(name) if type(name) is int else DictKey(name)


def _flatten_plain(x: Any) -> tuple[tuple[Any, ...], Any]:
    """Children without keys, and what is static."""
    pairs, aux = _flatten(x)
    return tuple(child for _, child in pairs), aux


def register_jax(cls: type) -> None:
    """Make a class a JAX pytree."""
    jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, _unflatten, _flatten_plain)
