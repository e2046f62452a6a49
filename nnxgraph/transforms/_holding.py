"""Functions that hold other arrays than the user's own, in their closures and globals."""

from __future__ import annotations

import functools
import types
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where a function itself holds an array: a cell of its closure, or a name in its globals."""

    function: int
    is_cell: bool
    name: str


class _Globals(dict[str, Any]):
    """The globals of a function, with other values for some names."""

    def __init__(self, real: dict[str, Any], values: dict[str, Any]):
        super().__init__(values)
        self["__builtins__"] = real["__builtins__"]
        self._real = real

    def __missing__(self, name: str) -> Any:
        return self._real[name]


def holding(f: Any, number: int, by_place: dict[Place, Any]) -> Any:
    """A function that holds other arrays."""
    if isinstance(f, functools.partial):
        return functools.partial(holding(f.func, number, by_place), *f.args, **f.keywords)
    own = {place: value for place, value in by_place.items() if place.function == number}
    if not own or not isinstance(f, types.FunctionType):
        return f
    cells = {place.name: types.CellType(value) for place, value in own.items() if place.is_cell}
    names = {place.name: value for place, value in own.items() if not place.is_cell}
    pairs = zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
    closure = tuple(cells.get(name, cell) for name, cell in pairs)
    namespace = _Globals(f.__globals__, names) if names else f.__globals__
    twin = types.FunctionType(f.__code__, namespace, f.__name__, f.__defaults__, closure)
    twin.__kwdefaults__ = f.__kwdefaults__
    return functools.update_wrapper(twin, f)
