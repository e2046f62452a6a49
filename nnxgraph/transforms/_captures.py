"""What a function reaches by itself: objects, arrays and numbers behind its closure, globals and helpers.

A cached transform runs the user's function only while it is traced, so what the function reaches must be
known at each call: objects and arrays become arguments, numbers and strings a part of the key. `Roots` looks
through the function once and keeps *slots*, which read what a name holds now; a slot that is bound to another
object is simply the new root. Only what the code mentions is looked at.

Found are closure cells, globals, attributes of the user's modules, defaults, partials, the objects of
methods, helper functions and what these reach, containers, and plain objects of the user's classes. If a
trace meets a Variable that was not found, `deepen` looks into the classes of all objects too. Functions in
attributes of objects and hooks of Variables have Roots of their own: the GraphDef of a call names them.
"""

from __future__ import annotations

import argparse
import builtins
import collections
import enum
import functools
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._frame import is_left_over
from .._static import Static
from .._trees import one_level
from ..graph._graphdef import GraphDef, descriptions
from ..graph._registry import is_graph_value
from ._code import Mentioned, belongs_to_user, library_code, mentioned
from ._holding import Place, holding

_CONSTANTS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_PLAIN = (enum.Enum, np.dtype, np.ndarray, np.generic)
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_WHOLE = (type, str, bytes, int, float, complex)  # what is derived from them is compared by identity
_WALKED = (list, tuple, dict, set, frozenset, collections.deque)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_LIFE = frozenset(f"__{x}__" for x in ("init", "new", "post_init", "repr", "str", "eq", "hash", "del"))
_SLOT = (types.MemberDescriptorType,)
_KEY = (0, 2)  # where the key of what is captured stands in the graph of a call
_NOTHING = object()  # what an empty cell holds, or a name that is gone


class _Role(enum.Enum):
    """What is done with what a slot holds."""

    OBJECT = enum.auto()  # a root of the graph
    ARRAY = enum.auto()  # an argument where it can be put back, else a part of the key by identity
    CONSTANT = enum.auto()  # a part of the key
    CONTAINER = enum.auto()  # each of its values by its own role
    CODE = enum.auto()  # looked through; when there is another, all is looked through again
    OTHER = enum.auto()  # a part of the key by identity; another one is looked through


_LOOKED_THROUGH = (_Role.CODE, _Role.OTHER)


class Same:
    """Equal to what holds the very same value, which is not kept alive."""

    __slots__ = ("_hash", "_ref")

    def __init__(self, value: Any):
        self._ref = _reference(value)
        self._hash = id(value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Same:
            return False
        value = self._ref()
        return value is not None and value is other._ref()

    def __hash__(self) -> int:
        return self._hash


class Captured(NamedTuple):
    """What a function reaches by itself at one call.

    `objects` stay in place, `arrays` are put in the place of those that the function holds, `key` is what
    the program depends on besides. `names` are those of the objects and arrays, for texts; `places` say where
    the functions hold the arrays.
    """

    objects: tuple[Any, ...] = ()
    arrays: tuple[Any, ...] = ()
    key: Static | None = None
    names: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()

    def having(self, objects: Sequence[Any], name: str) -> Captured:
        """The same with more objects."""
        count = len(self.objects)
        names = (*self.names[:count], *[name] * len(objects), *self.names[count:])
        return self._replace(objects=(*self.objects, *objects), names=names)


NOTHING_CAPTURED = Captured()


class _Left(NamedTuple):
    """What a trace left in a slot that it changed, what it found there, and how often that happened.

    A list or set that traces change is a log, and what they change again and again a count: they are no
    longer a part of the key. Anything else counts only if it is as the trace left it.
    """

    after: Any
    before: Any
    times: int

    def counts_as(self, entry: Any) -> Any:
        """What stands in the key for what the slot holds now."""
        first = entry.value[0]
        is_log = isinstance(first, tuple) and first[0] in (list, set)
        return self.before if is_log or self.times > 2 or entry == self.after else entry


class _Slot(NamedTuple):
    """A way to read what a name holds now."""

    read: Callable[[], Any]
    name: str
    role: _Role
    code: tuple[Callable[[Any], bool], ...]  # whether a value is the code in it that was looked through
    owner: tuple[Any, ...]  # what binds the name: a cell, or a namespace and the name
    place: Place | None = None

    def values(self, x: Any, form: list[Any]) -> Iterator[tuple[Any, _Role]]:
        """What it holds, or what its container holds, with the roles; the containers go to `form`."""
        for value in _below(x, form) if self.role is _Role.CONTAINER else (x,):
            yield value, _role(value)


def _reference(x: Any) -> Callable[[], Any]:
    """A weak reference where there can be one."""
    try:
        return weakref.ref(x)
    except TypeError:
        return lambda: x


def _is_same(x: Any) -> Callable[[Any], bool]:
    """A test for the very same value, with the same code if it is a function."""
    reference, code = _reference(x), x.__code__ if isinstance(x, types.FunctionType) else None
    return lambda y: reference() is y and (code is None or y.__code__ is code)


def _cell(cell: types.CellType) -> Any:
    """What a cell holds now."""
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


def _entry(mapping: Any, name: str) -> Any:
    """What a namespace holds now under a name."""
    return mapping.get(name, _NOTHING)


def _role(x: Any) -> _Role:
    """What is done with a value."""
    if x is _NOTHING:
        return _Role.OTHER
    if is_graph_value(x):
        return _Role.CONSTANT if is_left_over(x) else _Role.OBJECT
    if type(x) in _CONSTANTS or isinstance(x, _PLAIN):
        return _Role.CONSTANT
    if isinstance(x, jax.Array):
        return _Role.ARRAY
    if isinstance(x, _FUNCTIONS) or library_code(x):
        return _Role.CODE
    if isinstance(x, _WALKED) or one_level(x) is not None:
        return _Role.CONTAINER
    plain = isinstance(x, _NAMESPACES) or (belongs_to_user(type(x)) and not isinstance(x, _WHOLE))
    return _Role.CODE if plain else _Role.OTHER


def _below(x: Any, form: list[Any]) -> Iterator[Any]:
    """The values in a container that are no containers themselves; what the containers are goes to `form`."""
    stack, met = [x], dict[int, int]()
    while stack:
        y = stack.pop()
        if _role(y) is not _Role.CONTAINER:
            yield y
        elif id(y) in met:
            form.append(met[id(y)])
        else:
            met[id(y)] = len(met)
            level = None if isinstance(y, _WALKED) else one_level(y)
            children = list(level[0] if level else y.values() if isinstance(y, dict) else y)
            form.append((type(y), tuple(y) if isinstance(y, dict) else len(children)))
            stack.extend(reversed(children))


def _code_key(x: Any) -> Any:
    """What stands for code in the key; what it reaches has slots of its own."""
    if isinstance(x, types.MethodType):
        return _code_key(x.__func__)
    if isinstance(x, functools.partial):
        return (_code_key(x.func), len(x.args), *x.keywords)
    if isinstance(x, types.FunctionType):
        return x.__code__ if belongs_to_user(x) and not library_code(x) else Same(x)
    return Same(x) if library_code(x) else type(x)


def _default(function: Callable[[], Any], field: str, key: Any) -> Any:
    """What a default of a function is now."""
    try:
        return getattr(function(), field)[key]
    except (LookupError, TypeError, AttributeError):
        return _NOTHING


def functions_of(graphdef: GraphDef) -> tuple[Any, ...]:
    """The user's functions in the attributes of a graph's objects, and the hooks of its Variables."""
    known = _functions.get(graphdef)
    if known is None:
        parts = descriptions(graphdef)
        values = [desc[1].value for path, desc, _ in parts if desc[0] == "static" and path[:2] != _KEY]
        specs = dict.fromkeys(record[1] for record in graphdef.records if record[0] == "variable")
        below = _below([*values, *(spec.hooks for spec in specs)], [])
        found = {id(f): f for f in below if isinstance(f, _FUNCTIONS) and belongs_to_user(f)}
        known = _functions[graphdef] = tuple(found.values())
    return known


_functions: weakref.WeakKeyDictionary[GraphDef, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def _operations(cls: type) -> set[str]:
    """The names under which Python itself calls methods of the instances of a class."""
    own = [attribute for c in cls.__mro__ if belongs_to_user(c) for attribute in vars(c).items()]
    names = {name for name, value in own if isinstance(value, types.FunctionType)}
    return {name for name in names - _LIFE if name.startswith("__") and name.endswith("__")}


class _Scan:
    """Looks through functions; `classes` are those whose methods the functions may call, if it is deep."""

    def __init__(self, functions: Sequence[Any], classes: tuple[type, ...] | None, given: Any):
        self.slots: list[_Slot] = []
        self.deep = classes is not None
        self.classes = list(classes or ())
        self._names: set[str] = set()  # attributes that the code mentions
        self._changed: set[tuple[Any, ...]] = set()  # owners of the names that the code binds
        self._seen: dict[int, Any] = {}  # with the values: they keep their ids
        self._numbers: dict[int, int] = {}  # of the user's functions, by their ids
        self._again: set[int] = set()  # those of them that are reached by another way too
        self._instances: list[Any] = []
        self._done: set[tuple[int, str]] = set()
        for i, f in enumerate(functions):
            self._value(f, "the function", i)
        for x in _below(given, []):
            if _role(x) is _Role.CODE:
                self._value(x, "an argument of a partial")
        self._attributes()
        self.slots = [s._replace(place=None) if self._stays(s) else s for s in self.slots]

    def _stays(self, slot: _Slot) -> bool:
        """Whether an array stays where it is: where code binds the name, or would run with the old one."""
        place = slot.place
        return slot.owner in self._changed or (place is not None and place.function in self._again)

    def _slot(
        self,
        read: Callable[[], Any],
        name: str,
        owner: tuple[Any, ...] = (None,),
        place: Place | None = None,
    ) -> None:
        """Watch a name, and look through what it holds."""
        x = read()
        slot = _Slot(read, name, _role(x), (), owner, place)
        values = list(slot.values(x, []))
        code = tuple(_is_same(value) for value, role in values if role in _LOOKED_THROUGH)
        self.slots.append(slot._replace(code=code))
        for value, _ in values:
            self._value(value, name)

    def _fixed(self, value: Any, name: str) -> None:
        """Look at a value that cannot be bound to another."""
        self._slot(lambda: value, name)

    def _value(self, x: Any, name: str, number: int | None = None) -> None:
        """Look through code; `number` is that of a function of the user."""
        if isinstance(x, types.MethodType):
            self._fixed(x.__self__, name)
            self._value(x.__func__, name)
        elif isinstance(x, functools.partial):
            self._value(x.func, name, number)
            for key, value in (*enumerate(x.args), *x.keywords.items()):
                self._fixed(value, f"{name} argument {key}")
        elif library_code(x):
            self._value(getattr(x, "__wrapped__", None), name)
        elif isinstance(x, types.FunctionType):
            self._function(x, number)
        elif isinstance(x, type):
            if self.deep or belongs_to_user(x):
                self.classes.append(x)
        elif _role(x) is _Role.CODE and id(x) not in self._seen:
            self._seen[id(x)] = x
            self._instances.append(x)
        elif self.deep and is_graph_value(x):
            self.classes.append(type(x))

    def _function(self, f: types.FunctionType, number: int | None = None) -> None:
        """Watch what a function holds and names."""
        if id(f) in self._seen or not belongs_to_user(f):
            self._again |= {self._numbers[id(f)]} if id(f) in self._numbers else set()
            return
        self._seen[id(f)] = f
        if number is not None:
            self._numbers[id(f)] = number
        code = mentioned(f.__code__)
        self._names |= code.attributes | (code.strings if self.deep or code.by_name() else frozenset())
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            if name in code.bound:
                self._changed.add((id(cell), None))
            place = None if number is None else Place(number, True, name)
            self._slot(functools.partial(_cell, cell), name, (id(cell), None), place)
        defaults = [("__defaults__", i) for i in range(len(f.__defaults__ or ()))]
        for field, key in (*defaults, *(("__kwdefaults__", name) for name in f.__kwdefaults__ or ())):
            self._slot(functools.partial(_default, _reference(f), field, key), f"default {key}")
        self._changed |= {(id(f.__globals__), name, None) for name in code.bound_globals}
        for name in sorted(code.globals - (vars(builtins).keys() - f.__globals__.keys())):
            self._global(f.__globals__, name, code, number)

    def _global(self, namespace: dict[str, Any], name: str, code: Mentioned, number: int | None) -> None:
        """Watch a global, or what the code may mean of a module of the user."""
        x = namespace.get(name, _NOTHING)
        if not isinstance(x, types.ModuleType):
            place = None if number is None or code.bound_globals else Place(number, False, name)
            read = functools.partial(_entry, namespace, name)
            self._slot(read, name, (id(namespace), name, None), place)
        elif belongs_to_user(x):
            for below in sorted(code.attributes & vars(x).keys()):
                if not isinstance(vars(x)[below], types.ModuleType):
                    read = functools.partial(_entry, vars(x), below)
                    self._slot(read, f"{name}.{below}", (id(vars(x)), below))

    def _attributes(self) -> None:
        """Watch the attributes that the code mentions of plain objects and classes, to the end."""
        count = -1
        while count != len(self._done):
            count = len(self._done)
            for x in (*self._instances, *self.classes):
                for name in sorted(
                    {*self._names, "__call__", *_operations(x if isinstance(x, type) else type(x))}
                ):
                    if (id(x), name) not in self._done:
                        self._done.add((id(x), name))
                        self._attribute(x, name)

    def _attribute(self, x: Any, name: str) -> None:
        """Watch an attribute of a plain object, or look through a method."""
        own = getattr(x, "__dict__", {})
        is_class = isinstance(x, type)
        if name in own and not is_class:
            self._slot(functools.partial(_entry, own, name), name, (id(own), name))
            return
        cls = x if is_class else type(x)
        value = next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None)
        is_method = isinstance(value, (types.FunctionType, staticmethod))
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if is_method and isinstance(value, types.FunctionType) and belongs_to_user(value):
            if is_class or (id(cls), name) not in self._done:
                self._done.add((id(cls), name))
                self._slot(functools.partial(getattr, cls, name, _NOTHING), name)
        elif isinstance(value, types.FunctionType) or library_code(value):
            self._value(value, name)
        elif value is not None and (
            self.deep or isinstance(value, _SLOT) or not hasattr(type(value), "__get__")
        ):
            read = functools.partial(getattr, x, name, _NOTHING)
            if read() is read():  # a descriptor may make its value anew
                self._slot(read, name, (id(x), name))
            else:
                self._value(read(), name)


class Roots:
    """What some functions reach by themselves, read anew at each call; does not keep the functions alive."""

    def __init__(self, *functions: Any, given: tuple[Any, ...] = (), deep: bool = False):
        self._references = tuple(map(_reference, functions))
        self._given = given  # arguments that the functions came with: code among them is looked through
        self._deep = deep  # whether the methods of all objects are looked into at once
        self._classes: tuple[type, ...] | None = None
        self._slots: list[_Slot] | None = None
        self._left: dict[int, _Left] = {}  # by slot

    def __call__(self) -> Captured:
        """What the functions reach now."""
        for _ in range(3):  # what a slot holds may be new code, which holds new slots
            if self._slots is None:
                self._slots = _Scan(self.functions(), self._classes, self._given).slots
                self._left = {}
            found = self._read(self._slots, self._left)
            if found is not None:
                return found
            self._slots = None
        return NOTHING_CAPTURED

    def functions(self) -> tuple[Any, ...]:
        """The functions."""
        return tuple(reference() for reference in self._references)

    def misses(self, objects: Sequence[Any]) -> bool:
        """Whether these objects have methods that are looked into from now on."""
        return self._deep and self.deepen(frozenset(map(type, objects)))

    def deepen(self, classes: frozenset[type]) -> bool:
        """Look into the methods of these classes too; False if that was done."""
        known = self._classes or ()
        if self._classes is not None and classes <= set(known):
            return False
        new = sorted(classes - set(known), key=lambda c: (c.__module__, c.__qualname__))
        self._classes, self._slots = (*known, *new), None
        return True

    def _read(self, slots: list[_Slot], left: dict[int, _Left]) -> Captured | None:
        """What the slots hold; None if that has to be looked through."""
        found = _Reading()
        for number, slot in enumerate(slots):
            x = slot.read()
            if _role(x) is not slot.role:
                return None
            known = iter(slot.code)
            form: list[Any] = []
            for value, role in slot.values(x, form):
                if role in _LOOKED_THROUGH and not next(known, lambda _: False)(value):
                    return None
                found.add(value, role, slot, form)
            found.close(number, form, left)
        return found.captured()

    def traced(self, before: Captured) -> None:
        """A trace has run: what it did to the names that it watches is no reason for another one."""
        left = self._left
        now = self._read(self._slots or [], {})
        if now is None or now.key is None or before.key is None:
            return
        after = dict(now.key.value)
        for number, entry in before.key.value:
            known = left.get(number)
            unchanged = entry if known is None else known.after
            if number in after and after[number] not in (entry, unchanged):
                left[number] = _Left(after[number], entry, 1 if known is None else known.times + 1)

    def with_arrays(self, values: Sequence[Any], places: Sequence[Place]) -> tuple[Any, ...]:
        """The functions with these arrays in the place of those that they hold."""
        by_place = dict(zip(places, values, strict=True))
        return tuple(holding(f, i, by_place) for i, f in enumerate(self.functions()))


class _Reading:
    """Collects what slots hold at one call."""

    def __init__(self) -> None:
        self.objects: dict[int, tuple[int, Any, str]] = {}
        self.arrays: list[tuple[Any, str, Place]] = []
        self.key: list[tuple[int, Any]] = []

    def add(self, x: Any, role: _Role, slot: _Slot, form: list[Any]) -> None:
        """Add one value; `form` gets what the program depends on."""
        if role is _Role.OBJECT:
            number, _, _ = self.objects.setdefault(id(x), (len(self.objects), x, slot.name))
            form.append(number)
        elif role is _Role.ARRAY and slot.place is not None and slot.role is _Role.ARRAY:
            self.arrays.append((x, slot.name, slot.place))
        elif role is _Role.ARRAY or role is _Role.OTHER:
            form.append(Same(x))
        elif role is _Role.CODE:
            form.append(_code_key(x))
        elif role is _Role.CONSTANT:
            by_identity = is_graph_value(x) or (isinstance(x, np.ndarray) and x.size > 64)
            form.append(Same(x) if by_identity else x)

    def close(self, number: int, form: list[Any], left: dict[int, _Left]) -> None:
        """All of one slot is added; what a trace left there counts as what it found."""
        if form:
            entry = Static(tuple(form))
            self.key.append((number, left[number].counts_as(entry) if number in left else entry))

    def captured(self) -> Captured:
        """All that was added."""
        objects = [(x, name) for _, x, name in self.objects.values()]
        arrays, array_names, places = zip(*self.arrays, strict=True) if self.arrays else ((), (), ())
        names = (*(name for _, name in objects), *array_names)
        key = Static(tuple(self.key)) if self.key else None
        return Captured(tuple(x for x, _ in objects), arrays, key, names, places)
