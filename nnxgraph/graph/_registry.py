"""How objects of each type open and close.

The walker asks here what a value is; types register themselves, so that the walker knows none of them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import numpy as np

from .._printing import Opened, has_own_repr, opened
from .._static import Static
from .._variable import Variable
from ..errors import SlotsError


class Kind(enum.Enum):
    """What the walker does with a value."""

    VARIABLE = enum.auto()
    NODE = enum.auto()
    LIST = enum.auto()
    TUPLE = enum.auto()
    DICT = enum.auto()
    ARRAY = enum.auto()
    NUMBER = enum.auto()
    MARKED = enum.auto()  # a Static, made by the caller of the walker
    NONE = enum.auto()
    STATIC = enum.auto()
    CALLABLE = enum.auto()  # a bound method or partial, which may hold data
    MISPLACED = enum.auto()  # a mark of an attribute, where no attribute is
    OTHER = enum.auto()  # a registered pytree, or static


@dataclasses.dataclass(frozen=True)
class NodeType:
    """How objects of one class of nodes open and close.

    `attributes` gives the live values by name, in order; `marks` which names are marked 'data' or 'static';
    `create` an empty object of the class; `replace` gives an object a new set of attributes and marks.
    `names` turns the keys of `attributes` into a tuple that equals only keys of the same types.
    `brackets` stand around the attributes when an object is printed.
    """

    attributes: Callable[[Any], Mapping[Any, Any]]
    marks: Callable[[Any], Mapping[Any, str]]
    create: Callable[[type], Any]
    replace: Callable[[Any, dict[Any, Any], Mapping[Any, str]], None]
    names: Callable[[Mapping[Any, Any]], tuple[Any, ...]] = tuple
    brackets: tuple[str, str] = ("(", ")")


_node_types: dict[type, NodeType] = {}
_kinds: dict[type, Kind] = {
    list: Kind.LIST,
    tuple: Kind.TUPLE,
    dict: Kind.DICT,
    bool: Kind.NUMBER,
    int: Kind.NUMBER,
    float: Kind.NUMBER,
    complex: Kind.NUMBER,
    type(None): Kind.NONE,
    str: Kind.STATIC,
    bytes: Kind.STATIC,
    type: Kind.STATIC,
    types.FunctionType: Kind.STATIC,
    types.MethodType: Kind.CALLABLE,
    functools.partial: Kind.CALLABLE,
    Static: Kind.MARKED,
}
_DATA_TYPES: list[type] = [jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct]
if hasattr(jax, "Ref"):
    _DATA_TYPES.append(jax.Ref)


def register_node_type(cls: type, node_type: NodeType) -> None:
    """Make a class and its subclasses nodes of the graph."""
    _node_types[cls] = node_type
    _kinds[cls] = Kind.NODE
    opened.register(cls, _open_node)


def _open_node(x: Any) -> Opened:
    """How an object is shown: its attributes, with their marks beside them."""
    ways = node_type(type(x))
    marks = {k: mark for k, mark in ways.marks(x).items() if mark in ("data", "static")}
    fields = getattr(type(x), "__dataclass_fields__", {})
    pairs = [(k, v) for k, v in ways.attributes(x).items() if k not in fields or fields[k].repr]
    shown = object_opened(type(x), pairs, id(x), marks)
    shown.text = has_own_repr(type(x))
    return shown


def object_opened(
    cls: type, pairs: list[tuple[Any, Any]], identity: Hashable, marks: Mapping[Any, str]
) -> Opened:
    """How an object of a class with these attributes and marks is shown."""
    begin, end = node_type(cls).brackets
    is_mapping = begin.endswith("{")
    return Opened(cls.__name__ + begin, end, pairs, identity, is_mapping, True, True, notes=marks)


def is_registered(cls: type) -> bool:
    """Whether objects of a class are something of the graph already: nodes, Variables, lists, arrays ..."""
    known = any(base in _node_types or base is Variable for base in cls.__mro__)
    return known or cls in _kinds or issubclass(cls, tuple(_DATA_TYPES))


def register_misplaced(cls: type) -> None:
    """Make the walk refuse values of a class, which mark attributes and belong nowhere else."""
    _kinds[cls] = Kind.MISPLACED


def register_data_type(type_: type, /) -> None:
    """Declare that values of a type are data, as arrays are: leaves of the State.

    Args:
        type_: The class.

    Example:
        >>> class Handle:
        ...     pass
        >>> nnx.register_data_type(Handle)
        >>> nnx.is_data(Handle())
        True
    """
    _DATA_TYPES.append(type_)
    _kinds[type_] = Kind.ARRAY


def node_type(cls: type) -> NodeType:
    """How objects of a class open and close."""
    found = _node_types.get(cls)
    if found is None:
        base = next(base for base in cls.__mro__ if base in _node_types)
        for below in cls.__mro__[: cls.__mro__.index(base)]:
            slots = below.__dict__.get("__slots__", ())
            if slots and below is not base:
                raise SlotsError(below.__name__, (slots,) if isinstance(slots, str) else tuple(slots))
        found = _node_types[cls] = _node_types[base]
    return found


def kind_of(x: Any) -> Kind:
    """What the walker does with a value; cached by type, except where a type may still be registered."""
    kind = _kinds.get(type(x))
    return kind if kind is not None else _classify(x)


def _classify(x: Any) -> Kind:
    """The kind of a value of a type not met before."""
    cls = type(x)
    kind = Kind.OTHER
    if issubclass(cls, Variable):
        kind = Kind.VARIABLE
    elif any(base in _node_types for base in cls.__mro__):
        kind = Kind.NODE
    elif isinstance(x, tuple(_DATA_TYPES)):
        kind = Kind.ARRAY
    elif issubclass(cls, type):
        kind = Kind.STATIC
    if kind is not Kind.OTHER:
        _kinds[cls] = kind
    return kind


def is_node(x: Any) -> bool:
    """Whether a value is an object of the graph with identity."""
    return kind_of(x) is Kind.NODE


def is_graph_value(x: Any) -> bool:
    """Whether a value is a node or a Variable."""
    kind = kind_of(x)
    return kind is Kind.NODE or kind is Kind.VARIABLE


def is_array(x: Any) -> bool:
    """Whether a value is a leaf of data wherever it stands."""
    return kind_of(x) is Kind.ARRAY
