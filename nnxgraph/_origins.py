"""Where Variables and objects were made and where they stand, for the texts of errors.

Nothing is noted while all goes well: the place is searched when an error is built, among the objects that
refer to the Variable. The line in which a Variable was made is noted only after `set_origin_tracking(True)`.
"""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from typing import Any

from ._repr import path_text
from ._settings import Setting
from ._typing import Path
from ._values import is_object

_HOLDERS = 64  # how many that refer to a value are looked at
_STEPS = 24  # how often the garbage collector is asked


class set_origin_tracking(Setting):
    """Set whether errors can say in which line a Variable or object was made, at once or for a `with` block.

    It costs some microseconds for each Variable and object that the thread makes.

    Args:
        value: True to note the lines, False (the default) not to.

    Example:
        >>> with nnx.set_origin_tracking(True):
        ...     model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    """

    _default = False


tracking = set_origin_tracking._local  # read for each Variable that is made, so without a call
_origins: dict[int, tuple[weakref.ref[Any], str]] = {}
_PACKAGE = __name__.partition(".")[0]


def remember_origin(x: Any) -> None:
    """Note the line of the caller's code that makes a Variable or object."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    code = frame.f_code
    text = f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
    key = id(x)
    _origins[key] = (weakref.ref(x, lambda ref: _origins.pop(key, None)), text)


def _is_inside(module: str) -> bool:
    """Whether a module belongs to this package or to JAX, and is not the caller's."""
    return module.partition(".")[0] in (_PACKAGE, "jax")


def origin_of(x: Any) -> str | None:
    """The line in which something was made, if it was noted."""
    ref, text = _origins.get(id(x), (lambda: None, None))
    return text if ref() is x else None


def place_of(x: Any) -> str:
    """Where a value stands in the objects that hold it, `.layers[0].kernel of Net`; empty if in none."""
    path: Path = ()
    top, seen = x, {id(x)}
    search = _Search()
    while (found := search.holder(top)) is not None and id(found[0]) not in seen:
        top, path = found[0], found[1] + path
        seen.add(id(top))
    return f"{path_text(path)} of {type(top).__name__}" if path else ""


class _Search:
    """Looks for what holds a value, in a bounded number of steps: each asks the garbage collector."""

    def __init__(self) -> None:
        self._steps = _STEPS
        self._own: list[Any] = []  # lists of the search, which refer to what it looks at

    def holder(self, x: Any) -> tuple[Any, Path] | None:
        """An object of the graph that holds a value, right below or in plain containers, with the path."""
        self._steps -= 1
        if self._steps < 0:
            return None
        referrers = gc.get_referrers(x)
        self._own.append(referrers)
        own = {id(self._own), *map(id, self._own)}
        for referrer in itertools.islice(referrers, _HOLDERS):
            if id(referrer) in own:
                continue
            if is_object(referrer):
                names = [name for name, value in vars(referrer).items() if value is x]
                return referrer, tuple(names[:1])  # no name: its `__dict__`, or the entries of a List or Dict
            key = _key_in(referrer, x)
            above = self.holder(referrer) if key is not None else None
            if above is not None:
                return above[0], (*above[1], key)
        return None


def _key_in(container: Any, x: Any) -> Any:
    """The key of a value in a plain container; None if it is not there."""
    if type(container) is dict and "__builtins__" not in container:  # no module's globals
        return next((k for k, value in container.items() if value is x), None)
    if type(container) in (list, tuple):
        return next((i for i, value in enumerate(container) if value is x), None)
    return None
