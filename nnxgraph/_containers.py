"""Containers with identity: List, Dict, and Sequential.

Plain lists and dicts just work as attributes. These are for users who want a container that can be shared,
take part in a cycle, or be passed around as a module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, Self, TypeVar, overload

from ._module import Module
from ._pytree import check_attribute, has_data, marks_of, set_marks, unmarked
from ._static import packed
from .errors import EntryNotFoundError
from .graph._graphdef import TypedKeys
from .graph._registry import NodeType, register_node_type

T = TypeVar("T")


class List(Module, MutableSequence[T]):
    """A list that is an object of the graph.

    It does what a list does, but is equal to itself alone, as every object of the graph is. `index`,
    `count`, `remove` and `in` look for Variables, objects and arrays by identity.

    Args:
        it: The initial elements.

    Example:
        >>> layers = nnx.List([nnx.Linear(2, 2, rngs=nnx.Rngs(0))])
        >>> layers.append(nnx.relu)
        >>> len(layers), layers[-1] is nnx.relu
        (2, True)
    """

    __slots__ = ("_nnx_items",)
    _nnx_items: list[Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        object.__setattr__(self, "_nnx_items", [])
        return self

    def __init__(self, it: Iterable[T] | None = None, /):
        self._nnx_items.extend(it if it is not None else ())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> List[T]: ...
    def __getitem__(self, index: Any) -> Any:
        found = self._nnx_items[index]
        return List(found) if isinstance(index, slice) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        check_attribute(self, index, value)
        self._nnx_items[index] = value

    def __delitem__(self, index: Any) -> None:
        check_attribute(self, index)
        del self._nnx_items[index]

    def __len__(self) -> int:
        return len(self._nnx_items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._nnx_items)

    def __contains__(self, value: object) -> bool:
        return any(_is_item(x, value) for x in self._nnx_items)

    def insert(self, index: int, value: T) -> None:
        """Insert a value before an index."""
        check_attribute(self, index, value)
        self._nnx_items.insert(index, value)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The first index of a value; Variables, objects and arrays are looked up by identity."""
        for i in range(*slice(start, stop).indices(len(self))):
            if _is_item(self._nnx_items[i], value):
                return i
        raise ValueError("List.index: the value is not in the list")

    def count(self, value: Any) -> int:
        """How often a value is in the list; Variables, objects and arrays are counted by identity."""
        return sum(_is_item(x, value) for x in self._nnx_items)

    def copy(self) -> List[T]:
        """A new list with the same elements."""
        return List(self._nnx_items)

    def sort(self, *, key: Callable[[T], Any] | None = None, reverse: bool = False) -> None:
        """Sort the elements in place, as `list.sort` does."""
        check_attribute(self, slice(None))
        self[:] = sorted(self._nnx_items, key=key, reverse=reverse)

    def __add__(self, other: Iterable[T]) -> List[T]:
        return List([*self, *other])

    def __radd__(self, other: Iterable[T]) -> List[T]:
        return List([*other, *self])

    def __mul__(self, times: int) -> List[T]:
        return List(self._nnx_items * times)

    __rmul__ = __mul__

    def __imul__(self, times: int) -> Self:
        self[:] = self._nnx_items * times
        return self

    def __getstate__(self) -> Any:
        return (packed(self._nnx_items), *super().__getstate__())

    def __setstate__(self, state: Any) -> None:
        self._nnx_items.extend(state[0])
        super().__setstate__(state[1:])


def _is_item(x: Any, value: Any) -> bool:
    """Whether two elements are the same; `==` is asked of plain values alone."""
    if x is value:
        return True
    return not (has_data(x) or has_data(value)) and bool(x == value)


class Dict(Module, MutableMapping[Any, T]):
    """A dict that is an object of the graph; string keys are also attributes.

    It does what a dict does, with keys of any hashable types, but is equal to itself alone, as every object
    of the graph is. An entry whose name is that of a method is read as `d['items']`.

    Args:
        *args: A mapping or an iterable of pairs, as for `dict`.
        **kwargs: Further entries.

    Example:
        >>> heads = nnx.Dict(a=nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
        >>> heads['a'] is heads.a, list(heads)
        (True, ['a'])
    """

    __slots__ = ("_nnx_items",)
    _nnx_items: dict[Any, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        object.__setattr__(self, "_nnx_items", {})
        return self

    def __init__(self, *args: Any, **kwargs: Any):
        self.update(*args, **kwargs)

    def __getitem__(self, key: Any) -> T:
        return self._nnx_items[key]  # type: ignore[no-any-return]  # as annotated by the user

    def __setitem__(self, key: Any, value: T) -> None:
        check_attribute(self, key, value)
        self._nnx_items[key] = unmarked(self, key, value)

    def __delitem__(self, key: Any) -> None:
        check_attribute(self, key)
        del self._nnx_items[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._nnx_items)

    def __len__(self) -> int:
        return len(self._nnx_items)

    def __getattr__(self, name: str) -> Any:
        if name == "_nnx_items":  # not made yet
            raise AttributeError(name)
        if name not in self._nnx_items:
            raise self._not_found(name)
        return self._nnx_items[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("__class__", "__orig_class__"):  # typing notes `Dict[int](...)`
            object.__setattr__(self, name, value)
        else:
            self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self._nnx_items:
            raise self._not_found(name)
        del self[name]

    def _not_found(self, name: str) -> EntryNotFoundError:
        """The error of an attribute that no entry has the name of."""
        return EntryNotFoundError(
            type(self).__name__, name, tuple(k for k in self._nnx_items if isinstance(k, str))
        )

    def __reversed__(self) -> Iterator[Any]:
        keys: Iterator[Any] = reversed(self._nnx_items)
        return keys

    @classmethod
    def fromkeys(cls, keys: Iterable[Any], value: Any = None, /) -> Self:
        """A new Dict with these keys and one value for all."""
        return cls(dict.fromkeys(keys, value))

    def copy(self) -> Dict[T]:
        """A new Dict with the same entries."""
        return Dict(self._nnx_items)

    def __or__(self, other: Any) -> Dict[Any]:
        return Dict({**self, **other}) if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Any) -> Dict[Any]:
        return Dict({**other, **self}) if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __getstate__(self) -> Any:
        return (packed(self._nnx_items), *super().__getstate__())

    def __setstate__(self, state: Any) -> None:
        self._nnx_items.update(state[0])
        super().__setstate__(state[1:])


def _list_attributes(x: List[Any]) -> dict[Any, Any]:
    """The elements by index, then the attributes by name."""
    return {**dict(enumerate(x._nnx_items)), **vars(x)}


def _refill_list(x: List[Any], attributes: dict[Any, Any], marks: Mapping[str, str]) -> None:
    """Give a List other elements."""
    own = {k: v for k, v in attributes.items() if isinstance(k, str)}
    x._nnx_items[:] = [v for k, v in attributes.items() if k not in own]
    vars(x).clear()
    vars(x).update(own)
    set_marks(x, marks)


def _refill_dict(x: Dict[Any], attributes: dict[Any, Any], marks: Mapping[str, str]) -> None:
    """Give a Dict other entries and attributes."""
    x._nnx_items.clear()
    x._nnx_items.update(attributes)
    set_marks(x, marks)


def _keys_of(attributes: Mapping[Any, Any]) -> tuple[Any, ...]:
    """The names of a container of its entries, in order."""
    return TypedKeys(attributes)


register_node_type(
    List,
    NodeType(_list_attributes, marks_of, lambda cls: List.__new__(cls), _refill_list, brackets=("([", "])")),
)
register_node_type(
    Dict,
    NodeType(
        lambda x: x._nnx_items, marks_of, lambda cls: Dict.__new__(cls), _refill_dict, _keys_of, ("({", "})")
    ),
)


class Sequential(Module):
    """Layers called one after the other; a tuple is passed on as several arguments, a dict by keyword.

    Args:
        *fns: The layers or functions, or one list or tuple of them. None at all is the identity.

    Example:
        >>> model = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.relu)
        >>> model(jnp.ones((1, 2))).shape
        (1, 3)
    """

    def __init__(self, *fns: Any):
        if len(fns) == 1 and isinstance(fns[0], (list, tuple, List)):
            fns = tuple(fns[0])
        self.layers = list(fns)

    def __call__(self, *args: Any, rngs: Any = None, **kwargs: Any) -> Any:
        """Call the layers in turn.

        Args:
            *args: The arguments of the first layer.
            rngs: Passed to each layer that takes `rngs`, if given.
            **kwargs: Keyword arguments of the first layer.

        Returns:
            What the last layer returns; the one argument if there is no layer.
        """
        output: Any = args[0] if len(args) == 1 and not kwargs else args
        for i, f in enumerate(self.layers):
            if i > 0:
                args = output if isinstance(output, tuple) else (output,)
                kwargs = {}
                if isinstance(output, dict):
                    args, kwargs = (), dict(output)
            if rngs is not None and _takes_rngs(f):
                kwargs = {**kwargs, "rngs": rngs}
            output = f(*args, **kwargs)
        return output


def _takes_rngs(f: Any) -> bool:
    """Whether a callable has a parameter `rngs`."""
    try:
        return "rngs" in inspect.signature(f).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
