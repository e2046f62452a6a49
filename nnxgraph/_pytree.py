"""`Pytree`: the base of all objects of the graph.

What an attribute is, data or static, is decided when the graph is walked, leaf by leaf. `nnx.data(x)` and
`nnx.static(x)` overrule that; a mark belongs to the attribute and survives reassignment. Marks are kept in
a slot, so that `vars(obj)` holds the user's attributes and nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from ._frame import Birthplace, birth_of, born_here, check_change, is_home
from ._jax import is_tracer
from ._printing import tree_text
from ._pytree_jax import register_jax
from ._repr import short
from ._static import packed
from ._typing import MISSING, Missing
from .errors import MarkArgumentsError, StaticArrayError
from .graph._registry import (
    Kind,
    NodeType,
    kind_of,
    node_type,
    register_misplaced,
    register_node_type,
)
from .graph._walk import Walk


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


class FieldMarks:
    """Finds the marks that the fields of a dataclass give when first asked: its decorator comes last."""

    def __get__(self, instance: object, owner: Any) -> Mapping[str, str]:
        fields = getattr(owner, "__dataclass_fields__", {})
        marks = {name: f.metadata["nnx_mark"] for name, f in fields.items() if "nnx_mark" in f.metadata}
        owner._nnx_class_marks = marks
        return marks


def _without(attributes: Mapping[Any, Any], cached: frozenset[str]) -> dict[Any, Any]:
    """The attributes but for those that a `cached_property` made: a copy computes its own."""
    return {k: v for k, v in attributes.items() if k not in cached} if cached else dict(attributes)


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

    __slots__ = (
        "__dict__",
        "__orig_class__",
        "__weakref__",
        "_nnx_born_in",
        "_nnx_described",
        "_nnx_marks",
    )  # typing notes Name[int] of Name[int]()
    _nnx_born_in: Birthplace
    _nnx_marks: dict[str, Any]
    _nnx_class_marks: ClassVar[Mapping[str, str]] = {}
    _cached: ClassVar[frozenset[str]] = frozenset()  # attributes that a cached_property made: no state

    def __init_subclass__(cls, *, pytree: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._nnx_class_marks = FieldMarks()  # type: ignore[assignment]  # gives way to the marks
        if pytree:
            register_jax(cls)
        cached = frozenset(k for k, v in vars(cls).items() if isinstance(v, functools.cached_property))
        if cached:
            cls._cached = cls._cached | cached
            ways = node_type(cls)
            register_node_type(
                cls, dataclasses.replace(ways, attributes=lambda x: _without(ways.attributes(x), cached))
            )

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = object.__new__(cls)
        object.__setattr__(self, "_nnx_marks", {})
        object.__setattr__(self, "_nnx_born_in", born_here(self))
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        check_attribute(self, name, value)
        if type(value) is Mark or self._nnx_marks or self._nnx_class_marks:
            value = unmarked(self, name, value)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        check_attribute(self, name)
        object.__delattr__(self, name)

    def __getstate__(self) -> Any:
        return (packed(_without(vars(self), self._cached)), self._nnx_marks)

    def __setstate__(self, state: Any) -> None:
        attributes, marks = state
        vars(self).update(attributes)
        self._nnx_marks.update(marks)

    def __copy__(self) -> Any:
        ways = node_type(type(self))
        twin = ways.create(type(self))
        ways.replace(twin, dict(ways.attributes(self)), dict(ways.marks(self)))
        return twin

    __repr__ = tree_text


def check_attribute(owner: Pytree, name: Any, value: Any = None) -> None:
    """Refuse to set or delete an attribute, or an entry, where the change could not be handed back."""
    home = owner._nnx_born_in
    if not is_home(home):
        what = f"attribute {name!r}" if isinstance(name, str) else f"entry {short(name)}"
        check_change(owner, what, lambda: _ends_here(value, home))


def _ends_here(value: Any, home: Birthplace) -> bool:
    """Whether there is data in a value that ends with the function that runs, seen from outside of it."""
    walk = Walk()
    leaves: list[Any] = []
    walk.visit(value.value if isinstance(value, Mark) else value, leaves, True)
    born = map(birth_of, walk.objects)
    return any(map(is_tracer, leaves)) or any(b is not None and b is not home for b in born)


def unmarked(owner: Pytree, name: Any, value: Any) -> Any:
    """The value to store in an attribute; its mark is noted, and an array refused where it is static."""
    if type(value) is Mark:
        mark, value = value.mark, value.value
        if mark == "static":
            _check_static(owner, name, value)
        owner._nnx_marks[name] = mark
        return value
    known = owner._nnx_marks.get(name, owner._nnx_class_marks.get(name))
    if known == "static":
        _check_static(owner, name, value)
    elif type(known) is tuple:  # a new value for a hollow attribute
        del owner._nnx_marks[name]
    return value


def _check_static(owner: Any, name: str, value: Any) -> None:
    """Refuse arrays in a static attribute."""
    walk = Walk()
    leaves: list[Any] = []
    walk.visit(value, leaves, True)
    if leaves or walk.objects:
        found = short(leaves[0]) if leaves else short(walk.objects[0])
        raise StaticArrayError(type(owner).__name__, name, found)


def marks_of(x: Pytree) -> Mapping[str, Any]:
    """The marks of an object's attributes by name: its own, and those of the class."""
    return x._nnx_marks if not x._nnx_class_marks else {**x._nnx_class_marks, **x._nnx_marks}


def _replace(x: Pytree, attributes: dict[Any, Any], marks: Mapping[str, str]) -> None:
    """Give an object other attributes and marks."""
    own = vars(x)
    own.clear()
    own.update(attributes)
    set_marks(x, marks)


def set_marks(x: Pytree, marks: Mapping[str, str]) -> None:
    """Give an object the marks of a record, in which those of the class stand too."""
    object.__setattr__(x, "_nnx_marks", {k: m for k, m in marks.items() if x._nnx_class_marks.get(k) != m})


def _create(cls: type) -> Any:
    """An object of a class without attributes."""
    return Pytree.__new__(cls)


register_node_type(Pytree, NodeType(vars, marks_of, _create, _replace))


def check_pytree(pytree: Pytree) -> None:
    """Check that the marks of an object fit its attributes, below it too.

    Assignments are checked as they are made; this finds arrays that came into a static list or dict later.

    Args:
        pytree: The object.

    Raises:
        StaticArrayError: If an attribute that is marked static holds an array, a Variable or an object.
        MisplacedMarkError: If a mark stands inside a container.
        CycleError: If a plain container contains itself.

    Example:
        >>> nnx.check_pytree(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    """
    walk = Walk()
    walk.root(pytree)
    for x in walk.objects:
        if kind_of(x) is Kind.NODE and isinstance(x, Pytree):
            attributes = node_type(type(x)).attributes(x)
            for name, mark in marks_of(x).items():
                if mark == "static" and name in attributes:
                    _check_static(x, name, attributes[name])


Object = Pytree
