"""Comparing pytrees by structure and by type, never by the contents of arrays."""

from __future__ import annotations

from typing import Any

import jax

from ._repr import short
from ._typing import Path


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
