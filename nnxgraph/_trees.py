"""Pytrees: one level of them, and how they compare by structure and by type, never by contents of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from ._repr import short
from ._typing import Key, Path

Level = tuple[Sequence[Any], tuple[Key, ...], Any]  # children, keys, and the treedef if there is one


def one_level(x: Any) -> Level | None:
    """Children, keys and treedef of a registered pytree; None for a leaf."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    if len(pairs) == 1 and not pairs[0][0]:
        return None
    return [v for _, v in pairs], tuple(plain_key(path[0]) for path, _ in pairs), treedef


def own_containers(x: Any) -> Any:
    """A pytree in containers of its own, with the same leaves."""
    if hasattr(x, "shape"):
        return x
    if type(x) is dict:
        return {k: own_containers(v) for k, v in x.items()}
    if type(x) is list or type(x) is tuple:
        return type(x)(map(own_containers, x))
    level = one_level(x)
    return x if level is None else level[2].unflatten(list(map(own_containers, level[0])))


def plain_key(entry: Any) -> Key:
    """A JAX key as an entry of our paths."""
    if isinstance(entry, GetAttrKey):
        name: Key = entry.name
        return name
    if isinstance(entry, (DictKey, FlattenedIndexKey)):
        key: Key = entry.key
        return key
    return entry.idx if isinstance(entry, SequenceKey) else str(entry)


def same_structure(a: Any, b: Any) -> bool:
    """Whether two pytrees have the same treedef."""
    left: Any = jax.tree.structure(a)
    return bool(left == jax.tree.structure(b))


def same_leaves(a: Any, b: Any) -> bool:
    """Whether two pytrees have the same treedef and the very same leaves."""
    return same_structure(a, b) and all(
        x is y for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def same_types(a: Any, b: Any) -> bool:
    """Whether two pytrees have the same treedef, shapes and dtypes."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=False)
    return same_structure(a, b) and all(x.shape == y.shape and x.dtype == y.dtype for x, y in pairs)


def shape_struct(shape: tuple[int, ...], dtype: Any, weak_type: bool = False) -> jax.ShapeDtypeStruct:
    """An array's shape and dtype without the array."""
    make: Any = jax.ShapeDtypeStruct  # JAX leaves it untyped
    struct: jax.ShapeDtypeStruct = make(shape, dtype, weak_type=weak_type)
    return struct


def same_array(a: Any, b: Any) -> bool:
    """Whether two arrays are equal, in type too."""
    if a is b:
        return True
    if short(a) != short(b):
        return False
    same = a == b
    return bool(same.all() if hasattr(same, "all") else same)


def path_order(path: Path) -> tuple[tuple[str, Any], ...]:
    """What orders paths whose keys have several types."""
    return tuple((type(k).__name__, k) for k in path)
