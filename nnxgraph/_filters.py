"""Filters: which leaves of a graph are meant.

A filter is anything that `to_predicate` accepts: a type (Variables of that kind), a string (Variables with
that `tag`), `...` or True (everything), None or False (nothing), a callable `(path, value) -> bool`, or a
list or tuple of filters (any of them).
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from types import EllipsisType
from typing import Any as AnyType
from typing import ClassVar

from ._typing import Key, Path, Predicate
from ._values import is_object
from .errors import FilterError, FilterOrderError

Filter = AnyType


class _Filter:
    """Equality, hash and repr by type and fields."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def _facts(self) -> tuple[AnyType, ...]:
        """The fields that make filters equal."""
        return tuple(getattr(self, name) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash((type(self), self._facts()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._facts()))})"


class OfType(_Filter):
    """Matches values of a type, and Variables of a kind.

    Args:
        type: The class, or a kind of Variable.

    Example:
        >>> nnx.OfType(nnx.Param)((), nnx.Param(jnp.ones(2)))
        True
    """

    _fields = ("type",)

    def __init__(self, type: type[AnyType]):
        self.type = type

    def __call__(self, path: Path, x: AnyType) -> bool:
        """Whether the value is of the type."""
        return isinstance(x, self.type)


class WithTag(_Filter):
    """Matches Variables whose `tag` metadata is the given string.

    Args:
        tag: The tag.

    Example:
        >>> nnx.WithTag('frozen')((), nnx.Param(jnp.ones(2), tag='frozen'))
        True
    """

    _fields = ("tag",)

    def __init__(self, tag: str):
        self.tag = tag

    def __call__(self, path: Path, x: AnyType) -> bool:
        """Whether the Variable has the tag."""
        metadata = getattr(x, "_metadata", None)
        found = metadata.get("tag") if metadata is not None else getattr(x, "tag", None)
        return isinstance(found, str) and found == self.tag


class PathContains(_Filter):
    """Matches leaves whose path has a key.

    Args:
        key: The key to look for.
        exact: If False, a string key also matches where it is a part of a longer string.

    Example:
        >>> nnx.PathContains('head')(('head', 'kernel'), None)
        True
    """

    _fields = ("key", "exact")

    def __init__(self, key: Key, exact: bool = True):
        self.key = key
        self.exact = exact

    def __call__(self, path: Path, x: AnyType) -> bool:
        """Whether the key is in the path."""
        if self.exact:
            return self.key in path
        return any(str(self.key) in str(part) for part in path)


class PathIn(_Filter):
    """Matches leaves at one of the given paths.

    Args:
        *paths: The paths, each a tuple of keys.

    Example:
        >>> nnx.PathIn(('head', 'bias'))(('head', 'bias'), None)
        True
    """

    _fields = ("paths",)

    def __init__(self, *paths: Path):
        self.paths = frozenset(tuple(p) for p in paths)

    def __call__(self, path: Path, x: AnyType) -> bool:
        """Whether the path is one of those given."""
        return path in self.paths


class Any(_Filter):
    """Matches what one of several filters matches.

    Args:
        *filters: The filters.

    Example:
        >>> nnx.Any(nnx.Param, nnx.BatchStat)((), nnx.BatchStat(jnp.ones(2)))
        True
    """

    _fields = ("predicates",)

    def __init__(self, *filters: Filter):
        self.predicates = tuple(to_predicate(f) for f in filters)

    def __call__(self, path: Path, x: AnyType) -> bool:
        """Whether one of the filters matches."""
        return any(p(path, x) for p in self.predicates)


class All(_Filter):
    """Matches what all of several filters match.

    Args:
        *filters: The filters.

    Example:
        >>> head = nnx.All(nnx.Param, nnx.PathContains('head'))
        >>> head(('head', 'bias'), nnx.Param(jnp.ones(2)))
        True
    """

    _fields = ("predicates",)

    def __init__(self, *filters: Filter):
        self.predicates = tuple(to_predicate(f) for f in filters)

    def __call__(self, path: Path, x: AnyType) -> bool:
        """Whether all filters match."""
        return all(p(path, x) for p in self.predicates)


class Not(_Filter):
    """Matches what a filter does not match.

    Args:
        collection_filter: The filter to negate.

    Example:
        >>> nnx.Not(nnx.Param)((), nnx.Param(jnp.ones(2)))
        False
    """

    _fields = ("predicate",)

    def __init__(self, collection_filter: Filter, /):
        self.predicate = to_predicate(collection_filter)

    def __call__(self, path: Path, x: AnyType) -> bool:
        """Whether the filter does not match."""
        return not self.predicate(path, x)


class Everything(_Filter):
    """Matches every leaf.

    Example:
        >>> nnx.Everything()((), None)
        True
    """

    def __call__(self, path: Path, x: AnyType) -> bool:
        """True."""
        return True


class Nothing(_Filter):
    """Matches no leaf.

    Example:
        >>> nnx.Nothing()((), None)
        False
    """

    def __call__(self, path: Path, x: AnyType) -> bool:
        """False."""
        return False


def to_predicate(filter: Filter) -> Predicate:
    """Turn a filter into a predicate over (path, value).

    Args:
        filter: A type, a tag, `...`, None, a bool, a callable, or a list or tuple of filters.

    Returns:
        A callable `(path, value) -> bool`.

    Raises:
        FilterError: If the value is not a filter.

    Example:
        >>> nnx.filterlib.to_predicate(nnx.Param)
        OfType(<class 'nnxgraph._variable.Param'>)
    """
    if isinstance(filter, builtins.type):
        return OfType(filter)
    if isinstance(filter, str):
        return WithTag(filter)
    if isinstance(filter, EllipsisType) or filter is True:
        return Everything()
    if filter is None or filter is False:
        return Nothing()
    if isinstance(filter, (list, tuple)):
        return Any(*filter)
    if callable(filter) and not (is_object(filter) or hasattr(builtins.type(filter), "get_raw_value")):
        return filter  # type: ignore[no-any-return]  # a predicate of the user's own
    raise FilterError(type(filter).__name__)


def filters_to_predicates(filters: Sequence[Filter]) -> tuple[Predicate, ...]:
    """Turn filters into predicates, and refuse `...` before the last one.

    Args:
        filters: The filters, narrow ones first.

    Returns:
        One predicate for each filter.

    Raises:
        FilterError: If a value is not a filter.
        FilterOrderError: If `...` or True stands before another filter than `...` or True.

    Example:
        >>> len(nnx.filterlib.filters_to_predicates([nnx.Param, ...]))
        2
    """
    for i, f in enumerate(filters):
        behind = filters[i + 1 :]
        if (f is ... or f is True) and any(not (b is ... or b is True) for b in behind):
            raise FilterOrderError(i + 1, len(filters))
    return tuple(to_predicate(f) for f in filters)
