"""The base of all errors, and what their texts share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def listed(items: Iterable[object], limit: int = 20) -> str:
    """A bulleted list, cut after `limit` lines."""
    lines = [str(item) for item in items]
    shown = "".join(f"\n  - {line}" for line in lines[:limit])
    return shown + (f"\n  - ... and {len(lines) - limit} more" if len(lines) > limit else "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question with the known names that are close to one."""
    close = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


class NnxError(Exception):
    """Base of all errors of nnxgraph."""

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The message, built from the facts in `args`."""
        return " ".join(map(str, self.args))
