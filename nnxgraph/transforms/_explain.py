"""Why a cached function was traced again."""

from __future__ import annotations

from .._settings import Mode
from ._crossing import Crossing


class Retraces:
    """What the last traces of one declaration depended on, and in what each new one differs from them."""

    def __init__(self, name: str):
        self.name = name
        self.texts: tuple[str, ...] = ()  # newest last

    def note(self, mode: Mode, crossing: Crossing) -> None:
        """A trace has run for these arguments."""

    def forget(self) -> None:
        """The next trace is the first one."""
