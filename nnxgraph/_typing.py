"""Type aliases shared by the whole package."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Annotated, Any, Final, TypeVar

import jax

Array = jax.Array
Key = Hashable
Path = tuple[Key, ...]
Initializer = Callable[..., Any]
Predicate = Callable[[Path, Any], bool]

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])

# For readers and type checkers: what an attribute is, its value decides (or `nnx.data`, `nnx.static`).
Data = Annotated[A, "data"]
Static = Annotated[A, "static"]


class Missing:
    """The type of MISSING, the default of parameters for which None is a value."""

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()
