"""Static values compared by structure.

A value that is not data is part of the program. Two programs are the same if their static values are: so
`optax.adam(1e-3)` built twice, or a lambda made anew in `__init__`, must be equal, and another learning
rate must not. `static_key` gives a hashable snapshot of a value:

* numbers, strings, None: by type and value (`1`, `True` and `1.0` differ);
* functions: by code, defaults, closure contents, attributes and globals namespace;
* partial, methods, tuples, lists, dicts, sets, dataclass instances: by type and contents;
* small numpy arrays: by bytes;
* a State, such as a mask in an optimizer: by paths, specs and values;
* instances of a class with a `__hash__` of its own: by that;
* anything else: by identity.
"""

from __future__ import annotations

import copy
import dataclasses
import dis
import enum
import functools
import importlib
import operator
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_SMALL_ARRAY = 64
PROGRAMS = "__nnx_programs__"  # under which a function keeps what was compiled for it
_NOT_COMPARED = ("__wrapped__", PROGRAMS)
_PLAIN = frozenset({bool, int, str, bytes, type(None)})
_REUSED = _PLAIN | {type(jnp.float32)}  # types of values that do not change and of which there are few
_BY_IDENTITY = (type, types.ModuleType, types.BuiltinFunctionType, np.ufunc)


class _Is:
    """Equal only to itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Is and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Is, (self.value,))


class _Equal:
    """Equal as the class of the value says, and never across classes."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        if type(other) is not _Equal or type(self.value) is not type(other.value):
            return False
        if self.value is other.value:
            return True
        try:
            same = self.value == other.value  # an array if values compare elementwise: not equal then
        except Exception:  # whatever the class of the user raises
            return False
        return isinstance(same, (bool, np.bool_)) and bool(same)

    def __hash__(self) -> int:
        return hash(self.value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Equal, (self.value,))


def static_key(value: Any) -> Hashable:
    """A hashable snapshot: equal keys mean that the values make the same program."""
    return _key(value, {})


def _key(x: Any, seen: dict[int, int]) -> Hashable:
    """The key of a value, with the values seen above it."""
    t = type(x)
    if t in _PLAIN:
        return (t, x)
    if t is float:
        return (t, x.hex())  # 0.0 is not -0.0, and nan is nan
    if t is complex:
        return (t, x.real.hex(), x.imag.hex())
    if id(x) in seen:
        return ("seen", seen[id(x)])
    if isinstance(x, _BY_IDENTITY):
        return _Is(x)
    seen[id(x)] = len(seen)
    structural = _STRUCTURAL.get(t)
    if structural is not None:
        return structural(x, seen)
    return _key_by_kind(x, seen)


def _key_by_kind(x: Any, seen: dict[int, int]) -> Hashable:
    """The key of a value whose type is not in the table."""
    t = type(x)
    if isinstance(x, tuple):
        return ("tuple", t, tuple(_key(c, seen) for c in x))
    if isinstance(x, (np.ndarray, np.generic)):
        small = x.size <= _SMALL_ARRAY and not x.dtype.hasobject
        return ("numpy", x.dtype, x.shape, x.tobytes()) if small else _Is(x)
    if isinstance(x, jax.Array) or hasattr(t, "__jax_array__"):
        return _Is(x)  # == would be elementwise
    if dataclasses.is_dataclass(x):
        return ("dataclass", t, tuple((name, _key(v, seen)) for name, v in _attributes(x).items()))
    hashes: Any = t.__hash__
    if hashes is not None and hashes is not object.__hash__ and _is_hashable(x):
        return _Equal(x)
    if isinstance(x, (list, dict, set)):
        return _Is(x)
    own = getattr(x, "__dict__", None)
    if type(own) is dict and _is_optax(t):
        return ("object", t, tuple((k, _key(v, seen)) for k, v in own.items()))
    return _Is(x)


def _is_hashable(x: Any) -> bool:
    """Whether the hash of a value can be taken: its class, or what it holds, may fail to."""
    try:
        hash(x)
    except Exception:  # whatever the class of the user raises
        return False
    return True


def _is_optax(t: type) -> bool:
    """optax keeps hyperparameters in a few plain objects (MultiSteps); they never change after creation."""
    return t.__module__.partition(".")[0] == "optax"


def _function_key(f: types.FunctionType, seen: dict[int, int]) -> Hashable:
    """The key of a function: code, globals, defaults, closure, attributes."""
    rebound = _rebound_names(f.__code__)
    cells = zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
    closure = tuple(_cell_key(c, name in rebound, seen) for name, c in cells)
    own = tuple((k, _key(v, seen)) for k, v in vars(f).items() if k not in _NOT_COMPARED) if vars(f) else ()
    defaults = (_key(f.__defaults__, seen), _key(f.__kwdefaults__, seen))
    return ("function", f.__code__, _Is(f.__globals__), defaults, closure, own)


def _cell_key(cell: types.CellType, rebound: bool, seen: dict[int, int]) -> Hashable:
    """The key of what a closure holds."""
    try:
        value = cell.cell_contents
    except ValueError:
        return "empty cell"
    # optax.cosine_decay_schedule turns an int of its own closure into a float when first called
    return _key(float(value) if rebound and type(value) is int else value, seen)


@functools.lru_cache(maxsize=4096)
def _rebound_names(code: types.CodeType) -> frozenset[str]:
    """Names of enclosing functions' variables that the code assigns to."""
    stores = ("STORE_DEREF", "DELETE_DEREF")
    names = {i.argval for i in dis.get_instructions(code) if i.opname in stores}
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _rebound_names(const)
    return frozenset(names & set(code.co_freevars))


_STRUCTURAL: dict[type, Callable[[Any, dict[int, int]], Hashable]] = {
    types.FunctionType: _function_key,
    types.MethodType: lambda x, s: ("method", _key(x.__func__, s), _key(x.__self__, s)),
    functools.partial: lambda x, s: (
        "partial",
        _key(x.func, s),
        _key(x.args, s),
        _key(x.keywords, s),
    ),
    list: lambda x, s: ("list", tuple(_key(c, s) for c in x)),
    dict: lambda x, s: ("dict", tuple((_key(k, s), _key(v, s)) for k, v in x.items())),
    set: lambda x, s: ("set", frozenset(_key(c, s) for c in x)),
    frozenset: lambda x, s: ("frozenset", frozenset(_key(c, s) for c in x)),
    types.SimpleNamespace: lambda x, s: ("namespace", _key(vars(x), s)),
}


def _attributes(x: Any) -> dict[str, Any]:
    """What an instance of a dataclass holds: its fields, and what was set beside them."""
    fields = {f.name: getattr(x, f.name) for f in dataclasses.fields(x) if hasattr(x, f.name)}
    beside = getattr(x, "__dict__", {})
    cached = functools.cached_property
    return fields | {k: v for k, v in beside.items() if not isinstance(getattr(type(x), k, None), cached)}


def compare_by_parts(cls: type, parts: Callable[[Any], Iterable[tuple[Hashable, Any]]]) -> None:
    """Compare instances of a class by (label, part) pairs; a part must live as long as its owner."""
    _STRUCTURAL[cls] = lambda x, s: (cls, tuple((label, _key(part, s)) for label, part in parts(x)))


def is_mutable(x: Any) -> bool:
    """Whether a static value can change in place, so that two owners must not share it.

    Only for values whose key is their contents: a copy of one that is compared by identity would differ.
    """
    if type(x) in (list, dict, set, types.SimpleNamespace):
        return True
    if isinstance(x, tuple):
        return any(is_mutable(c) for c in x)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        frozen = x.__dataclass_params__.frozen  # type: ignore[attr-defined]  # set on every dataclass
        return not frozen or any(map(is_mutable, _attributes(x).values()))
    return False


def held_by(x: Any) -> tuple[Hashable, ...]:
    """The mutable things that functions in a value hold, each equal only to itself.

    Two functions that hold equal lists are one program as long as nothing is appended, and not one function.
    """
    found: dict[int, _Is] = {}
    _find_held(x, False, found, set())
    return tuple(found.values())


def _find_held(x: Any, in_function: bool, found: dict[int, _Is], seen: set[int]) -> None:
    """Note what a value holds, if it stands in a function."""
    if type(x) in _REUSED or id(x) in seen:
        return
    seen.add(id(x))
    if in_function and is_mutable(x):
        found[id(x)] = _Is(x)
    elif isinstance(x, types.FunctionType):
        rebound = _rebound_names(x.__code__)
        for name, cell in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True):
            if name in rebound:
                found[id(cell)] = _Is(cell)
            elif cell != _EMPTY_CELL:
                _find_held(cell.cell_contents, True, found, seen)
        for part in (x.__defaults__, *(x.__kwdefaults__ or {}).values()):
            _find_held(part, True, found, seen)
    elif isinstance(x, types.MethodType):
        _find_held(x.__func__, True, found, seen)
    elif isinstance(x, functools.partial):
        for part in (x.func, x.args, *x.keywords.values()):
            _find_held(part, True, found, seen)
    elif isinstance(x, (list, tuple, dict)):
        for part in x.values() if isinstance(x, dict) else x:
            _find_held(part, in_function, found, seen)


def own_copy(x: Any) -> Any:
    """A copy of the mutable parts of a static value; what they hold otherwise stays shared."""
    if not is_mutable(x):
        return x
    if type(x) is dict:
        return {k: own_copy(v) for k, v in x.items()}
    if isinstance(x, (list, set, tuple)) and not dataclasses.is_dataclass(x):
        parts = [own_copy(c) for c in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    twin = copy.copy(x)
    for name, value in (vars(x) if type(x) is types.SimpleNamespace else _attributes(x)).items():
        object.__setattr__(twin, name, own_copy(value))
    return twin


class _Named:
    """Stands in a pickle for a function that is found by its name, though pickle alone would not find it."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str):
        self.module = module
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _find(self.module, self.name)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_find, (self.module, self.name))


def _find(module: str, name: str) -> Any:
    """What a module has under a name, which may be dotted."""
    return operator.attrgetter(name)(importlib.import_module(module))


_KNOW_THEIR_NAME = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_PUBLIC_MODULES = ("jax.nn", "jax.numpy", "jax.lax", "jax.scipy.special")


def packed(x: Any) -> Any:
    """A value as it goes into a pickle: jitted functions, such as `jax.nn.relu`, by their name."""
    t = type(x)
    if t is list or t is tuple:
        parts = t(packed(c) for c in x)
        return parts if any(map(operator.is_not, parts, x)) else x
    if t is dict:
        entries = {k: packed(v) for k, v in x.items()}
        return entries if any(map(operator.is_not, entries.values(), x.values())) else x
    if t is functools.partial:
        return t(packed(x.func), *packed(x.args), **packed(x.keywords))
    if not callable(x) or isinstance(x, _KNOW_THEIR_NAME):
        return x
    name = getattr(x, "__qualname__", None) or getattr(x, "__name__", None)
    for module in (*_PUBLIC_MODULES, getattr(x, "__module__", None)):
        if isinstance(name, str) and getattr(sys.modules.get(module or ""), name, None) is x:
            return _Named(str(module), name)
    return x


_EMPTY_CELL = types.CellType()


class Static:
    """A static value with its key, as it stands in a GraphDef."""

    __slots__ = ("_hash", "key", "mutable", "value")

    def __init__(self, value: Any, key: Hashable = None, hash_of_key: int | None = None):
        self.key = static_key(value) if key is None else key
        self.mutable = is_mutable(value)
        self.value = own_copy(value) if self.mutable else value
        self._hash = hash(self.key) if hash_of_key is None else hash_of_key

    def lasts(self) -> bool:
        """Whether the value keeps its key for as long as it lives."""
        kinds = (*_BY_IDENTITY, enum.Enum, np.dtype, float)
        return not self.mutable and (type(self.value) in _REUSED or isinstance(self.value, kinds))

    def fresh(self) -> Any:
        """The value for one new owner."""
        return own_copy(self.value) if self.mutable else self.value

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(other) is Static and self._hash == other._hash and bool(self.key == other.key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Static({self.value!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Static, (packed(self.value),))


class _KeyOfFunction(NamedTuple):
    """The key of a function that is its code and plain defaults: it names them, so the function may die."""

    key: Hashable
    hash: int
    defaults: tuple[Any, ...] | None
    keywords: dict[str, Any] | None


_function_keys: weakref.WeakKeyDictionary[types.FunctionType, _KeyOfFunction] = weakref.WeakKeyDictionary()
_small_static = functools.lru_cache(maxsize=4096, typed=True)(Static)


def static_of(value: Any) -> Static:
    """The Static of a value; keys that cannot change are kept: of numbers, strings, closed functions."""
    t = type(value)
    if t in _REUSED:
        return _small_static(value)
    if t is not types.FunctionType or value.__closure__ is not None or value.__dict__:
        return Static(value)
    known = _function_keys.get(value)
    if known is None or not _still_holds(known, value):
        known = _key_of_function(value)
        if known is None:
            return Static(value)
        _function_keys[value] = known
    return Static(value, known.key, known.hash)


def _still_holds(known: _KeyOfFunction, f: types.FunctionType) -> bool:
    """Whether a function has the defaults that its key names."""
    keywords = f.__kwdefaults__
    if f.__defaults__ is not known.defaults or (keywords is None) != (known.keywords is None):
        return False
    if keywords is None or known.keywords is None:
        return True
    same = map(operator.is_, keywords.values(), known.keywords.values())
    return len(keywords) == len(known.keywords) and all(same) and list(keywords) == list(known.keywords)


def _key_of_function(f: types.FunctionType) -> _KeyOfFunction | None:
    """What to keep of a function without closure; None if its defaults may change in place."""
    keywords = f.__kwdefaults__
    if not all(type(x) in _PLAIN for x in (*(f.__defaults__ or ()), *(keywords or {}).values())):
        return None
    key = static_key(f)
    return _KeyOfFunction(key, hash(key), f.__defaults__, None if keywords is None else dict(keywords))
