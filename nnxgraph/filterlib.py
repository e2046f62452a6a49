"""Filters and what makes predicates of them."""

from ._filters import All as All
from ._filters import Any as Any
from ._filters import Everything as Everything
from ._filters import Not as Not
from ._filters import Nothing as Nothing
from ._filters import OfType as OfType
from ._filters import PathContains as PathContains
from ._filters import PathIn as PathIn
from ._filters import WithTag as WithTag
from ._filters import filters_to_predicates as filters_to_predicates
from ._filters import to_predicate as to_predicate
from ._typing import Key as Key

HasTag = WithTag

__all__ = [
    "All",
    "Any",
    "Everything",
    "HasTag",
    "Key",
    "Not",
    "Nothing",
    "OfType",
    "PathContains",
    "PathIn",
    "WithTag",
    "filters_to_predicates",
    "to_predicate",
]
