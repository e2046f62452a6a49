"""Dataclasses that are objects of the graph."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

from ._pytree import FieldMarks, data, static, unmarked
from ._repr import short
from ._trees import same_structure
from ._typing import MISSING
from ._values import is_array, is_key
from .errors import NnxError, SlotsError
from .graph._graphdef import GraphDef
from .graph._walk import Walk

T = TypeVar("T")


@dataclass_transform(field_specifiers=(data, static, dataclasses.field))
def dataclass(
    cls: Any = None,
    /,
    *,
    init: bool = True,
    eq: bool = True,
    order: bool = False,
    unsafe_hash: bool = False,
    frozen: bool = False,
    match_args: bool = True,
    kw_only: bool = False,
    slots: bool = False,
    weakref_slot: bool = False,
) -> Any:
    """`dataclasses.dataclass` for objects of the graph; fields may be `nnx.data()` or `nnx.static()`.

    Objects are printed as all objects of the graph are. `dataclasses.dataclass` itself works too; what it
    generates for `==` and `repr` does not know arrays.

    Args:
        cls: The class, a subclass of `nnx.Pytree`.
        init: Whether to generate `__init__`.
        eq: Whether objects are equal if they are of one class and their fields are: static values by
            structure, objects by what they hold, arrays by dtype, shape and contents. Comparing gives one
            bool and never raises; arrays whose contents are not known, as under `jit`, differ. As with
            other dataclasses, objects are then not hashable, unless `frozen` or `unsafe_hash` is given.
        order: Whether to generate `<`, `<=`, `>`, `>=`.
        unsafe_hash: Whether to generate `__hash__`, which reads the structure and no contents of arrays.
        frozen: Whether attributes cannot be assigned to.
        match_args: Whether to generate `__match_args__`.
        kw_only: Whether all fields are keyword-only.
        slots: Not supported: attributes live in the instance's `__dict__`.
        weakref_slot: Not supported either, as it needs `slots`.

    Returns:
        The class, or a decorator if there is none.

    Raises:
        SlotsError: If `slots` is true.

    Example:
        >>> @nnx.dataclass
        ... class Point(nnx.Pytree):
        ...     x: jax.Array
        ...     unit: str = nnx.static(default='m')
        >>> Point(jnp.ones(2)).unit
        'm'
        >>> Point(jnp.ones(2)) == Point(jnp.ones(2)), Point(jnp.ones(2)) == Point(jnp.zeros(2))
        (True, False)
    """
    options: dict[str, bool] = {
        "init": init, "eq": eq, "order": order, "unsafe_hash": unsafe_hash, "frozen": frozen,
        "match_args": match_args, "kw_only": kw_only, "weakref_slot": weakref_slot,
    }  # fmt: skip

    def decorate(cls: type[T]) -> Any:
        if slots:
            raise SlotsError(cls.__name__, tuple(vars(cls).get("__annotations__", ())))
        return _made(cls, options)

    return decorate if cls is None else decorate(cls)


def _made(cls: Any, options: dict[str, bool]) -> Any:
    """The class as a dataclass."""
    hash_before = vars(cls).get("__hash__")
    if options["eq"] and "__eq__" not in vars(cls):
        cls.__eq__ = _equal  # dataclasses leaves it alone
    made: Any = dataclasses.dataclass(repr=False, **options)(cls)
    hash_after = vars(made).get("__hash__")
    if hash_after is not None and hash_after is not hash_before:
        made.__hash__ = _hash
    made._nnx_class_marks = FieldMarks()
    if options["frozen"] and options["init"]:
        made.__init__ = _checking(made.__init__)
    return made


def _checking(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor of a frozen class, which assigns behind our back, with marks read and checked."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        for name, value in list(vars(self).items()):
            object.__setattr__(self, name, unmarked(self, name, value))

    return __init__


def _parts(x: Any) -> tuple[GraphDef, list[Any]]:
    """The structure and the leaves of the fields that count in a comparison."""
    walk = Walk()
    values = tuple(getattr(x, f.name, MISSING) for f in dataclasses.fields(x) if f.compare)
    root = walk.roots((), values, ())
    return GraphDef(root, tuple(walk.records)), walk.all_leaves()


def _equal(self: Any, other: object) -> Any:
    """Whether two objects of one class have equal fields."""
    if self is other:
        return True
    if type(self) is not type(other):
        return NotImplemented
    try:
        (structure, leaves), (others, other_leaves) = _parts(self), _parts(other)
    except NnxError:  # a list that contains itself, a Variable whose value is gone
        return False
    return structure is others and all(map(_same_value, leaves, other_leaves))


def _hash(self: Any) -> int:
    """The hash of the structure: equal objects have equal ones."""
    return hash((type(self), _parts(self)[0]))


def _same_value(a: Any, b: Any) -> bool:
    """Whether two leaves, or two values of Variables, are equal; False if that cannot be known."""
    if a is b:
        return True
    try:
        return same_structure(a, b) and all(map(_same_leaf, jax.tree.leaves(a), jax.tree.leaves(b)))
    except Exception:  # values of tracers and of deleted arrays cannot be read, and users write __eq__
        return False


def _same_leaf(a: Any, b: Any) -> bool:
    """Whether two arrays are equal, or two values of another kind."""
    if not (is_array(a) and is_array(b)):
        return bool(a == b)
    return short(a) == short(b) and np.array_equal(_contents(a), _contents(b))


def _contents(x: Any) -> Any:
    """The numbers of an array, wherever it lives."""
    return np.asarray(jax.random.key_data(x) if is_key(x) else x)
