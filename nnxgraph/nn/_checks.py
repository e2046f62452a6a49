"""Checks of what users pass to layers: constructor options once, inputs at each call.

Every check names the layer, the argument, what was expected and what was found.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

from ..errors import LayerInputError, LayerOptionError
from ._types import Axes, Shape


def name_of(layer: object) -> str:
    """How errors name a layer: its class."""
    return type(layer).__name__


def as_int(value: Any) -> int | None:
    """The value as an int, or None if it is no whole number (bools are none)."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def positive_int(layer: object, argument: str, value: Any) -> int:
    """The option as an int of at least 1."""
    number = as_int(value)
    if number is None or number < 1:
        raise LayerOptionError(name_of(layer), argument, repr(value), "a whole number, 1 or more")
    return number


def positive_ints(layer: object, argument: str, value: Any, length: int | None = None) -> Shape:
    """The option as a tuple of ints of at least 1; one int stands for `length` equal ones."""
    single = as_int(value)
    each = (value,) * (length or 1) if single is not None else value
    numbers_given = tuple(map(as_int, each)) if isinstance(each, Sequence) else (None,)
    right_length = len(numbers_given) == length if length else numbers_given
    if not right_length or not all(n is not None and n >= 1 for n in numbers_given):
        many = "a sequence of them" if length is None else f"a sequence of {length} of them"
        expected = f"a whole number, 1 or more, or {many}"
        raise LayerOptionError(name_of(layer), argument, repr(value), expected)
    return tuple(n for n in numbers_given if n is not None)


def real_between(layer: object, argument: str, value: Any, low: float, high: float) -> Any:
    """The option, a real number within the closed interval (arrays pass unchecked)."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number and hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        return value
    if not is_number or not low <= value <= high:
        bound = f"a number of at least {low:g}" if high == math.inf else f"a number in [{low:g}, {high:g}]"
        raise LayerOptionError(name_of(layer), argument, repr(value), bound)
    return float(value)


def one_of(layer: object, argument: str, value: Any, choices: Sequence[str]) -> Any:
    """The option, one of a few names."""
    if value not in choices:
        expected = "one of " + ", ".join(map(repr, choices))
        raise LayerOptionError(name_of(layer), argument, repr(value), expected)
    return value


def canonical_axes(layer: object, argument: str, axes: Axes, ndim: int) -> Shape:
    """Axes counted from the front, for an input of `ndim` dimensions; each may stand once."""
    given = tuple(axes) if isinstance(axes, Sequence) else (axes,)
    canonical = tuple(axis + ndim if axis < 0 else axis for axis in given)
    if not all(0 <= axis < ndim for axis in canonical) or len(set(canonical)) < len(canonical):
        raise LayerInputError(
            name_of(layer),
            "inputs",
            f"an array of {ndim} dimensions",
            f"one that has each of the axes {argument}={axes!r} once",
        )
    return canonical


def check_features(
    layer: object, argument: str, shape: Shape, features: int, option: str, axis: int = -1
) -> None:
    """That an input has the number of features, along the axis, that the layer was made for."""
    exists = -len(shape) <= axis < len(shape)
    if not exists or shape[axis] != features:
        where = "its last axis" if axis == -1 else f"its axis {axis}"
        raise LayerInputError(
            name_of(layer),
            argument,
            f"an array of shape {shape}",
            f"{where} to be {option}={features}",
            f"Make the layer with {option}={shape[axis]}, or pass it {features} features."
            if exists
            else f"Pass an array of shape {(*shape, features)} or the like.",
        )
