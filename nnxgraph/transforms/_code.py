"""What a function's code mentions, and whose code it is."""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
import types
from typing import Any, NamedTuple

_HOME = __name__.partition(".")[0]
_PATHS = tuple({sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")})
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_BY_NAME = frozenset({"getattr", "hasattr", "vars", "__dict__"})  # reach attributes that strings name
_BINDS = frozenset({"STORE_DEREF", "DELETE_DEREF"})
_BINDS_GLOBAL = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})


class Mentioned(NamedTuple):
    """What a code object mentions, with the code that stands in it."""

    globals: frozenset[str]
    attributes: frozenset[str]
    strings: frozenset[str]  # which may be names for getattr
    bound: frozenset[str]  # variables of enclosing functions that it binds
    bound_globals: frozenset[str]

    def by_name(self) -> bool:
        """Whether it may reach attributes whose names are strings."""
        return not _BY_NAME.isdisjoint(self.globals | self.attributes)


@functools.lru_cache(maxsize=4096)
def mentioned(code: types.CodeType) -> Mentioned:
    """What a code object mentions."""
    found: dict[str, set[str]] = {}
    for instruction in dis.get_instructions(code):
        found.setdefault(instruction.opname, set()).add(str(instruction.argval))
    below = [mentioned(c) for c in code.co_consts if isinstance(c, types.CodeType)]

    def names(operations: frozenset[str], field: str) -> frozenset[str]:
        own = [name for operation in operations for name in found.get(operation, ())]
        return frozenset(own).union(*(getattr(m, field) for m in below))

    constants = {c for c in code.co_consts if isinstance(c, str) and c.isidentifier()}
    return Mentioned(
        names(_GLOBAL, "globals"),
        names(_ATTRIBUTE, "attributes"),
        names(frozenset(), "strings") | constants,
        names(_BINDS, "bound") & frozenset(code.co_freevars),
        names(_BINDS_GLOBAL, "bound_globals"),
    )


def belongs_to_user(x: Any) -> bool:
    """Whether a function, class or module is the user's own, and not of a library."""
    return _is_users(x.__name__ if isinstance(x, types.ModuleType) else getattr(x, "__module__", None))


@functools.lru_cache(maxsize=4096)
def _is_users(module: str | None) -> bool:
    """Whether a module of this name stands outside of the installed libraries."""
    if (
        module == "__main__"
    ):  # the file may be that of a library which runs the user's code: python -m cProfile
        return True
    top = (module or "").partition(".")[0]
    if top == _HOME or top in sys.builtin_module_names or top in ("jax", "jaxlib", "numpy", "optax"):
        return False
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return file is None or not file.startswith(_PATHS)


def library_code(x: Any) -> bool:
    """Whether a callable is a library's wrapper around a function, as a jitted function is."""
    if isinstance(x, types.FunctionType):
        return "__wrapped__" in x.__dict__ and not _is_users(x.__globals__.get("__name__"))
    return not (isinstance(x, type) or belongs_to_user(type(x))) and hasattr(x, "__wrapped__")
