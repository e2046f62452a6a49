"""Defaults that a thread may change, each also usable as a context manager."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, NamedTuple

from ._repr import path_text
from ._typing import Path
from .errors import SharedVariableError


class Mode(NamedTuple):
    """How much of a graph crosses a boundary."""

    sharing: bool = True  # may one object be reached by two paths?
    structure: bool = True  # do changes of attributes reach the caller's objects?


GRAPH_MODE = Mode()


class Setting:
    """A thread-local default; calling the class sets it, `with` sets it for a while."""

    _default: ClassVar[bool] = True
    _local: ClassVar[threading.local]

    def __init_subclass__(cls) -> None:
        cls._local = threading.local()

    def __init__(self, value: bool):
        self._previous = self.get_default()
        type(self)._local.value = value

    @classmethod
    def get_default(cls) -> bool:
        """The present default of this thread."""
        return bool(getattr(cls._local, "value", cls._default))

    @classmethod
    def get_stack(cls) -> list[bool]:
        """The present default of this thread, in a list."""
        return [cls.get_default()]

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        type(self)._local.value = self._previous


class set_graph_mode(Setting):
    """Set whether objects may be shared (the default `graph=True`), at once or for a `with` block.

    Args:
        value: True to allow one object at several paths, False for trees only.

    Example:
        >>> with nnx.set_graph_mode(False):
        ...     nnx.set_graph_mode.get_default()
        False
    """


class set_graph_updates(Setting):
    """Set whether changes of structure reach the caller's objects (the default), at once or in a `with`.

    Args:
        value: True to propagate changes of attributes, False for values of Variables only.

    Example:
        >>> with nnx.set_graph_updates(False):
        ...     nnx.set_graph_updates.get_default()
        False
    """


def current_mode(graph: bool | None, graph_updates: bool | None) -> Mode:
    """The mode that these arguments mean here."""
    sharing = set_graph_mode.get_default() if graph is None else graph
    structure = set_graph_updates.get_default() if graph_updates is None else graph_updates
    return Mode(sharing, sharing and structure)


def _at(path: Path) -> str:
    """The path of a shared object."""
    return path_text(path) or "the root"


def check_tree(where: str, duplicates: list[Any], text: Callable[[Path], str] = _at) -> None:
    """Refuse shared objects in tree mode."""
    if duplicates:
        first, second = duplicates[0][:2]
        raise SharedVariableError(where, text(first), text(second))
