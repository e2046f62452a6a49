"""Kinds of Variables by name: `Param` is 'params', `BatchStat` is 'batch_stats', and so on."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, overload

from ._repr import short
from ._typing import MISSING, Missing
from ._variable import BatchStat, Cache, Intermediate, Param, Perturbation, Variable
from .errors import KindNameTakenError, NotAKindError, UnknownKindNameError, UnnamedKindError

Kind = type[Variable[Any]]
K = TypeVar("K", bound=Kind)

_kinds: dict[str, Kind] = {}
_names: dict[Kind, str] = {}
_registering = threading.RLock()


def variable_type_from_name(name: str, /, *, base: Kind = Variable, allow_register: bool = False) -> Kind:
    """The kind of Variable that a name stands for.

    Args:
        name: The name, as in `register_variable_name`.
        base: The class that a kind made for an unknown name derives from.
        allow_register: Whether an unknown name makes a new kind of that name, and registers it.

    Returns:
        The class.

    Raises:
        UnknownKindNameError: If no kind has the name and none may be made.

    Example:
        >>> nnx.variable_type_from_name('params')
        <class 'nnxgraph._variable.Param'>
    """
    with _registering:
        kind = _kinds.get(name)
        if kind is None:
            if not allow_register:
                raise UnknownKindNameError(name, tuple(_kinds))
            kind = register_variable_name(name, type(name, (base,), {"__slots__": ()}))
        return kind


def variable_name_from_type(typ: Kind, /, *, allow_register: bool = False) -> str:
    """The name that a kind of Variable is registered by.

    Args:
        typ: The class.
        allow_register: Whether a kind without a name is registered by the name of its class.

    Returns:
        The name.

    Raises:
        NotAKindError: If `typ` is no subclass of Variable.
        UnnamedKindError: If the kind has no name and may not get one.
        KindNameTakenError: If another kind is registered by the name of its class.

    Example:
        >>> nnx.variable_name_from_type(nnx.BatchStat)
        'batch_stats'
    """
    with _registering:
        name = _names.get(typ)
        if name is None:
            name = _checked("variable_name_from_type", typ).__name__
            if not allow_register:
                raise UnnamedKindError(name)
            register_variable_name(name, typ)
        return name


@overload
def register_variable_name(name: str, typ: K, *, overwrite: bool = False) -> K: ...
@overload
def register_variable_name(
    name: str, typ: Missing = MISSING, *, overwrite: bool = False
) -> Callable[[K], K]: ...
def register_variable_name(name: str, typ: Any = MISSING, *, overwrite: bool = False) -> Any:
    """Give a kind of Variable its name; each has one.

    Args:
        name: The name.
        typ: The class; left out, a decorator is returned.
        overwrite: Whether the name may have been another kind's, or the kind may have had another name.

    Returns:
        The class, or a decorator that takes and returns it.

    Raises:
        KindNameTakenError: If the name is another kind's, or the kind has another name.
        NotAKindError: If `typ` is no subclass of Variable.

    Example:
        >>> @nnx.register_variable_name('scales')
        ... class Scale(nnx.Param): ...
        >>> nnx.variable_name_from_type(Scale)
        'scales'
    """
    if isinstance(typ, Missing):
        return lambda kind: register_variable_name(name, kind, overwrite=overwrite)
    kind = _checked("register_variable_name", typ)
    with _registering:
        other, former = _kinds.get(name, kind), _names.get(kind, name)
        if not overwrite and (other is not kind or former != name):
            raise KindNameTakenError(name, kind.__name__, other.__name__, former)
        _names.pop(other, None)
        _kinds.pop(former, None)
        _kinds[name], _names[kind] = kind, name
    return kind


def _checked(where: str, kind: Any) -> Kind:
    """A subclass of Variable, or an error."""
    if not (isinstance(kind, type) and issubclass(kind, Variable)):
        raise NotAKindError(where, short(kind))
    return kind


@functools.cache
def deprecated_name(name: str) -> object:
    """An attribute that the package has no more: `VariableState`, which warns once."""
    if name != "VariableState":
        raise AttributeError(f"module 'nnxgraph' has no attribute {name!r}")
    message = "nnx.VariableState is now nnx.Variable: a State holds Variables. Write nnx.Variable."
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return Variable


for _name, _kind in {
    "params": Param,
    "batch_stats": BatchStat,
    "cache": Cache,
    "intermediates": Intermediate,
    "perturbations": Perturbation,
}.items():
    register_variable_name(_name, _kind)
