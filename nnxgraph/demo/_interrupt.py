"""Ctrl-C, noted and acted on between two steps."""

import signal
from types import FrameType, TracebackType


class Interrupt:
    """As a context manager: the first Ctrl-C is noted in `requested`, the second one ends at once."""

    requested = False

    def __enter__(self) -> "Interrupt":
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Notes one Ctrl-C, and lets the next one end the program, even where it was ignored before."""
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
