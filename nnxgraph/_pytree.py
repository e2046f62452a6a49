"""`Pytree`: the base of all objects of the graph, and their life as JAX pytrees.

What an attribute is, data or static, is decided when the graph is walked, leaf by leaf. `nnx.data(x)` and
`nnx.static(x)` overrule that; a mark belongs to the attribute and survives reassignment. Marks are kept in
a slot, so that `vars(obj)` holds the user's attributes and nothing else.

As a JAX pytree, an object whose subgraph is a tree flattens level by level: its data attributes are its
children. One with sharing or a cycle flattens its whole subgraph as one node, with each leaf once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from ._repr import path_text, short
from ._state import sortable
from ._static import packed
from ._typing import MISSING, Missing
from .errors import CycleError, MarkArgumentsError, StaticArrayError
from .graph._graphdef import CALLABLES, LEAF, Desc, GraphDef, Shape, is_fixed
from .graph._registry import (
    Kind,
    NodeType,
    is_array,
    kind_of,
    node_type,
    register_misplaced,
    register_node_type,
)
from .graph._walk import Build, Walk, callable_level, one_level, unflatten

HOLLOW = "leaf"  # the mark of an attribute at which JAX put something that is no data, such as an axis


class Mark:
    """A value on its way to an attribute, with what the attribute shall be."""

    __slots__ = ("mark", "value")

    def __init__(self, mark: str, value: Any):
        self.mark = mark
        self.value = value


register_misplaced(Mark)


def _marked(mark: str, value: Any, kwargs: dict[str, Any]) -> Any:
    """The marker of a value, or the dataclass field of a mark."""
    if isinstance(value, Missing):
        metadata = {**kwargs.pop("metadata", {}), "nnx_mark": mark}
        return dataclasses.field(metadata=metadata, **kwargs)
    if kwargs:
        raise MarkArgumentsError(mark, tuple(kwargs))
    return value.__class__(mark, value.value) if isinstance(value, Mark) else Mark(mark, value)


def data(value: Any = MISSING, /, **kwargs: Any) -> Any:
    """Mark an attribute as data: its values are leaves of the State.

    Args:
        value: The value of the attribute; left out in a field of an `nnx.dataclass`.
        **kwargs: Arguments of `dataclasses.field`, if there is no value.

    Returns:
        A marker that the attribute unwraps, or a dataclass field.

    Example:
        >>> class Net(nnx.Module):
        ...     def __init__(self):
        ...         self.step = nnx.data(0)
        >>> nnx.state(Net())['step']
        0
    """
    return _marked("data", value, kwargs)


def static(value: Any = MISSING, /, **kwargs: Any) -> Any:
    """Mark an attribute as static: its values are a part of the GraphDef.

    Args:
        value: The value of the attribute; left out in a field of an `nnx.dataclass`.
        **kwargs: Arguments of `dataclasses.field`, if there is no value.

    Returns:
        A marker that the attribute unwraps, or a dataclass field.

    Raises:
        StaticArrayError: When an array is assigned to the attribute.

    Example:
        >>> class Net(nnx.Module):
        ...     def __init__(self):
        ...         self.sizes = nnx.static([1, 2])
        >>> len(nnx.state(Net()))
        0
    """
    return _marked("static", value, kwargs)


def is_data(value: Any, /) -> bool:
    """Whether a value, assigned to an attribute without a mark, is data or holds data.

    Args:
        value: The value.

    Returns:
        True for arrays, Variables, objects, and containers of them.

    Example:
        >>> nnx.is_data(jnp.ones(2)), nnx.is_data([nnx.Param(1)]), nnx.is_data('relu')
        (True, True, False)
    """
    return has_data(value)


def has_data(value: Any, /) -> bool:
    """Whether there is data anywhere in a value; the same as `is_data`.

    Args:
        value: The value.

    Returns:
        True if an array, a Variable or an object is in it.

    Example:
        >>> nnx.has_data({'a': [jnp.ones(2)]})
        True
    """
    walk = Walk()
    leaves: list[Any] = []
    walk.visit(value.value if isinstance(value, Mark) else value, leaves, True)
    return bool(leaves or walk.objects)


class Pytree:
    """Base of objects with attributes, identity and shared references.

    Subclasses are JAX pytrees, unless they say `class Name(nnx.Pytree, pytree=False)`. Attributes may hold
    anything: arrays, Variables and other objects are data, lists, tuples, dicts and registered pytrees are
    structure, every other value is static.

    Example:
        >>> class Point(nnx.Pytree):
        ...     def __init__(self, x):
        ...         self.x = x
        >>> jax.tree.map(lambda a: a + 1, Point(1.0 * jnp.ones(()))).x.item()
        2.0
    """

    __slots__ = ("__dict__", "__weakref__", "_marks")
    _marks: dict[str, str]
    _class_marks: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, *, pytree: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if pytree:
            _register(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = object.__new__(cls)
        object.__setattr__(self, "_marks", {})
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if type(value) is Mark or self._marks or self._class_marks:
            value = unmarked(self, name, value)
        object.__setattr__(self, name, value)

    def __getstate__(self) -> Any:
        return (packed(vars(self)), self._marks)

    def __setstate__(self, state: Any) -> None:
        attributes, marks = state
        vars(self).update(attributes)
        self._marks.update(marks)

    def __copy__(self) -> Any:
        ways = node_type(type(self))
        twin = ways.create(type(self))
        ways.replace(twin, dict(ways.attributes(self)), dict(ways.marks(self)))
        return twin

    def __repr__(self) -> str:
        return _text(self, "", set())


def unmarked(owner: Pytree, name: Any, value: Any) -> Any:
    """The value to store in an attribute; its mark is noted, and an array refused where it is static."""
    if type(value) is Mark:
        mark, value = value.mark, value.value
        if mark == "static":
            _check_static(owner, name, value)
        owner._marks[name] = mark
        return value
    known = owner._marks.get(name, owner._class_marks.get(name))
    if known == "static":
        _check_static(owner, name, value)
    elif known == HOLLOW:
        del owner._marks[name]
    return value


def _text(x: Any, indent: str, seen: set[int]) -> str:
    """An object with its attributes, one a line, objects below indented; any other value in short."""
    if isinstance(x, Pytree):
        name = type(x).__name__
        if id(x) in seen:
            return f"{name}(...)"
        seen.add(id(x))
        attributes = node_type(type(x)).attributes(x).items()
        pairs = ((k if isinstance(k, str) else f"[{k!r}]", v) for k, v in attributes)
        return _lines(f"{name}(", [(f"{k}=", v) for k, v in pairs], ")", indent, seen)
    if type(x) in (list, tuple, dict) and _holds_objects(x):
        if type(x) is dict:
            return _lines("{", [(f"{k!r}: ", v) for k, v in x.items()], "}", indent, seen)
        begin, end = "[]" if type(x) is list else "()"
        return _lines(begin, [("", v) for v in x], end, indent, seen)
    return short(x) if is_array(x) or kind_of(x) is Kind.CALLABLE else repr(x)


def _holds_objects(x: Any) -> bool:
    """Whether a container has data somewhere; one that contains itself is left to Python to show."""
    try:
        return has_data(x)
    except CycleError:
        return False


def _lines(begin: str, items: list[tuple[str, Any]], end: str, indent: str, seen: set[int]) -> str:
    """Labelled values, one a line, between brackets."""
    inner = indent + "  "
    below = "".join(f"\n{inner}{label}{_text(v, inner, seen)}," for label, v in items)
    return f"{begin}{below}\n{indent}{end}" if below else begin + end


def _check_static(owner: Any, name: str, value: Any) -> None:
    """Refuse arrays in a static attribute."""
    walk = Walk()
    leaves: list[Any] = []
    walk.visit(value, leaves, True)
    if leaves or walk.objects:
        found = short(leaves[0]) if leaves else short(walk.objects[0])
        raise StaticArrayError(type(owner).__name__, name, found)


def marks_of(x: Pytree) -> Mapping[str, str]:
    """The marks of an object's attributes by name: its own, and those of the class."""
    return x._marks if not x._class_marks else {**x._class_marks, **x._marks}


def _replace(x: Pytree, attributes: dict[Any, Any], marks: Mapping[str, str]) -> None:
    """Give an object other attributes and marks."""
    own = vars(x)
    own.clear()
    own.update(attributes)
    set_marks(x, marks)


def set_marks(x: Pytree, marks: Mapping[str, str]) -> None:
    """Give an object the marks of a record, in which those of the class stand too."""
    object.__setattr__(x, "_marks", {k: m for k, m in marks.items() if x._class_marks.get(k) != m})


def _create(cls: type) -> Any:
    """An object of a class without attributes."""
    return Pytree.__new__(cls)


register_node_type(Pytree, NodeType(vars, marks_of, _create, _replace))


# Life as a JAX pytree.


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


def _flatten(x: Pytree) -> tuple[list[tuple[Any, Any]], Any]:
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
            fixed.append(("leaf",))
            children.append((name, _open_mixed(value, desc)))
    return children, _Level((cls, names, tuple(fixed), marks))


def _unflatten(aux: Any, children: Any) -> Any:
    """The object of its static part and its children."""
    if isinstance(aux, GraphDef):
        leaves: list[Any] = [None] * aux.num_leaves
        for (_, i), leaf in zip(aux.leaf_paths, children, strict=True):
            leaves[i] = leaf
        root, objects = unflatten(aux, leaves)
        if not all(map(is_array, leaves)):
            for x, record in zip(objects, aux.records, strict=True):
                if record[0] == "object":
                    _mark_hollow(x, record[2], record[3])
        return root
    cls, names, fixed, marks = aux.facts
    feed = iter(children)
    build = Build(())
    ways = node_type(cls)
    x = ways.create(cls)
    ways.replace(x, {n: build.value(d, feed) for n, d in zip(names, fixed, strict=True)}, dict(marks))
    if any(kind_of(child) in _NOT_DATA for child in children):
        _mark_hollow(x, names, fixed)
    return x


_NOT_DATA = (Kind.NUMBER, Kind.NONE, Kind.STATIC, Kind.OTHER)


def _mark_hollow(x: Pytree, names: Sequence[Any], descs: Sequence[Desc]) -> None:
    """Mark the attributes that are leaves by their description although their values do not look so."""
    attributes = node_type(type(x)).attributes(x)
    for name, desc in zip(names, descs, strict=True):
        value = attributes[name]
        if desc == LEAF and kind_of(value) in _NOT_DATA and one_level(value) is None:
            x._marks.setdefault(name, HOLLOW)


def _flatten_with_keys(x: Pytree) -> tuple[tuple[tuple[Any, Any], ...], Any]:
    """Children with their JAX keys, and what is static."""
    pairs, aux = _flatten(x)
    return tuple((_entry(name), child) for name, child in pairs), aux


def _entry(name: Any) -> Any:
    """An attribute name as JAX writes it in key paths."""
    if isinstance(name, str):
        return GetAttrKey(name)
    return SequenceKey(name) if type(name) is int else DictKey(name)


def _flatten_plain(x: Pytree) -> tuple[tuple[Any, ...], Any]:
    """Children without keys, and what is static."""
    pairs, aux = _flatten(x)
    return tuple(child for _, child in pairs), aux


def _register(cls: type[Pytree]) -> None:
    """Make a class a JAX pytree."""
    jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, _unflatten, _flatten_plain)


def check_pytree(pytree: Pytree) -> None:
    """Check that the marks of an object fit its attributes, below it too.

    Args:
        pytree: The object.

    Raises:
        StaticArrayError: If an attribute that is marked static holds an array.

    Example:
        >>> nnx.check_pytree(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    """
    walk = Walk()
    walk.root(pytree)
    for x in walk.objects:
        if kind_of(x) is Kind.NODE and isinstance(x, Pytree):
            for name, mark in marks_of(x).items():
                if mark == "static" and name in vars(x):
                    _check_static(x, name, vars(x)[name])


Object = Pytree
