"""Flat and nested mappings: from one to the other, by path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ._typing import Path
from .errors import PathError


class _EmptyNode:
    """The type of `empty_node`."""

    def __repr__(self) -> str:
        return "empty_node"

    def __reduce__(self) -> str:
        return "empty_node"


empty_node = _EmptyNode()

IsLeaf = Callable[[Path, Mapping[Any, Any]], bool]


def flatten_mapping(
    xs: Mapping[Any, Any],
    /,
    *,
    keep_empty_nodes: bool = False,
    is_leaf: IsLeaf | None = None,
    sep: str | None = None,
) -> dict[Any, Any]:
    """Flatten nested mappings into one dict from paths to leaves.

    Args:
        xs: Nested mappings, such as a State.
        keep_empty_nodes: Whether an empty mapping is kept, as `traversals.empty_node`.
        is_leaf: `(path, mapping) -> bool`, whether a mapping is a leaf and is not entered.
        sep: If given, the paths are strings, joined by it; keys are written with `str`.

    Returns:
        A dict whose keys are tuples, or strings if there is a `sep`.

    Raises:
        PathError: If `xs` is no mapping.

    Example:
        >>> nnx.traversals.flatten_mapping({'a': {'b': 1}, 'c': 2}, sep='/')
        {'a/b': 1, 'c': 2}
    """
    if not isinstance(xs, Mapping):
        raise PathError("flatten_mapping", f"a {type(xs).__name__}", "nested mappings")
    pairs = _leaves(xs, (), keep_empty_nodes, is_leaf)
    return {path if sep is None else sep.join(map(str, path)): leaf for path, leaf in pairs}


def flatten_to_sequence(xs: Mapping[Any, Any], /, *, is_leaf: IsLeaf | None = None) -> list[tuple[Path, Any]]:
    """Flatten nested mappings into a list of (path, leaf) pairs; empty mappings are left out.

    Args:
        xs: Nested mappings, such as a State.
        is_leaf: `(path, mapping) -> bool`, whether a mapping is a leaf and is not entered.

    Returns:
        The pairs in order.

    Raises:
        PathError: If `xs` is no mapping.

    Example:
        >>> nnx.traversals.flatten_to_sequence({'a': {'b': 1}, 'c': 2})
        [(('a', 'b'), 1), (('c',), 2)]
    """
    if not isinstance(xs, Mapping):
        raise PathError("flatten_to_sequence", f"a {type(xs).__name__}", "nested mappings")
    return list(_leaves(xs, (), False, is_leaf))


def _leaves(x: Any, path: Path, keep_empty: bool, is_leaf: IsLeaf | None) -> Iterator[tuple[Path, Any]]:
    """The leaves below a mapping with their paths."""
    if not isinstance(x, Mapping) or (is_leaf is not None and is_leaf(path, x)):
        yield path, x
    elif not x:
        if keep_empty and path:
            yield path, empty_node
    else:
        for key, value in x.items():
            yield from _leaves(value, (*path, key), keep_empty, is_leaf)


def unflatten_mapping(xs: Any, /, *, sep: str | None = None) -> dict[Any, Any]:
    """Nest what `flatten_mapping` or `flatten_to_sequence` made flat.

    Args:
        xs: A mapping from paths to leaves, or (path, leaf) pairs.
        sep: If given, the paths are strings, joined by it.

    Returns:
        Nested dicts; `traversals.empty_node` becomes an empty dict.

    Raises:
        PathError: If a path is no tuple (no string, if there is a `sep`) or leads through a leaf.

    Example:
        >>> nnx.traversals.unflatten_mapping({('a', 'b'): 1, ('c',): 2})
        {'a': {'b': 1}, 'c': 2}
    """
    nested: dict[Any, Any] = {}
    made = {id(nested)}  # levels of ours, as opposed to leaves that are dicts
    for path, leaf in xs.items() if isinstance(xs, Mapping) else xs:
        *above, last = _keys(path, sep)
        level = nested
        for key in above:
            if key not in level:
                level[key] = {}
                made.add(id(level[key]))
            level = level[key]
            if id(level) not in made:
                raise PathError("unflatten_mapping", f"the path {path!r} through a leaf", "paths of leaves")
        if last in level:
            raise PathError("unflatten_mapping", f"{path!r} twice, or above a leaf", "paths of leaves")
        level[last] = {} if leaf is empty_node else leaf
    return nested


def _keys(path: Any, sep: str | None) -> tuple[Any, ...]:
    """The keys of a path, which is a tuple, or a string if there is a separator."""
    if sep is not None and isinstance(path, str):
        return tuple(path.split(sep))
    if sep is None and isinstance(path, tuple) and path:
        return path
    expected = "tuples of keys" if sep is None else f"strings joined by {sep!r}"
    raise PathError("unflatten_mapping", f"the path {path!r}", expected)
