"""Dataclasses that are objects of the graph."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

from ._pytree import data, static

T = TypeVar("T")


@dataclass_transform(field_specifiers=(data, static, dataclasses.field))
def dataclass(cls: Any = None, /, **options: Any) -> Any:
    """`dataclasses.dataclass` for objects of the graph; fields may be `nnx.data()` or `nnx.static()`.

    Args:
        cls: The class, a subclass of `nnx.Pytree`.
        **options: As for `dataclasses.dataclass`.

    Returns:
        The class, or a decorator if there is none.

    Example:
        >>> @nnx.dataclass
        ... class Point(nnx.Pytree):
        ...     x: jax.Array
        ...     unit: str = nnx.static(default='m')
        >>> Point(jnp.ones(2)).unit
        'm'
    """

    def decorate(cls: type[T]) -> type[T]:
        options.setdefault("eq", False)  # identity: elementwise equality has no truth value
        made = dataclasses.dataclass(**options)(cls)
        marks = {
            f.name: f.metadata["nnx_mark"]
            for f in dataclasses.fields(made)  # type: ignore[arg-type]  # a dataclass since the line above
            if "nnx_mark" in f.metadata
        }
        inherited = getattr(made, "_class_marks", {})
        made._class_marks = {**inherited, **marks}  # type: ignore[attr-defined]  # a Pytree
        return made

    return decorate if cls is None else decorate(cls)
