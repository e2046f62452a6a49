"""State: the values of a graph, by path.

A `State` is a mapping from keys to Variables, arrays, or further levels. It is a value: what `split` and
`state` return holds Variables of its own, and later training does not change it. As a JAX pytree its
children are its first-level entries, so that key paths read like the model.

Levels below the first are plain dicts, which JAX flattens fastest; a level whose keys JAX could not sort
(strings beside integers) is a State of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import jax
from jax.tree_util import DictKey

from ._filters import Filter, filters_to_predicates
from ._frame import reading_constants
from ._printing import Opened, opened, tree_text
from ._repr import path_text, short
from ._static import compare_by_parts
from ._trees import path_order, same_array, same_structure
from ._typing import Key, Path
from ._variable import Variable
from .errors import EntryNotFoundError, NonExhaustiveError, StateMismatchError

Flat = list[tuple[Path, Any]]


def _is_level(x: Any) -> bool:
    """Whether a value is a level below, and no leaf."""
    return type(x) is dict or isinstance(x, State)


def _raw(level: Any) -> dict[Key, Any]:
    """A level as a plain dict."""
    return level._mapping if isinstance(level, State) else level


def _walk(level: dict[Key, Any], path: Path, out: Flat) -> Flat:
    """The leaves of a level with their paths, appended to a list."""
    pending: Flat = [(path, level)]
    while pending:
        path, value = pending.pop()
        if _is_level(value):
            pending += [((*path, key), below) for key, below in reversed(_raw(value).items())]
        else:
            out.append((path, value))
    return out


def _nest(items: Iterable[tuple[Path, Any]]) -> dict[Key, Any]:
    """Nested dicts from paths."""
    root: dict[Key, Any] = {}
    for path, value in items:
        if not path:
            advice = "Expected a key for each leaf. Write nnx.State({'name': value})."
            raise StateMismatchError("State", ("a leaf has an empty path",), advice)
        level = root
        for key in path[:-1]:
            below = level.setdefault(key, {})
            level = below if type(below) is dict else _clash(path)
        if type(level.get(path[-1])) is dict:
            _clash(path)
        level[path[-1]] = value
    _box_unsortable(root)
    return root


def _clash(path: Path) -> Any:
    """Refuse a path that is both a leaf and a level."""
    advice = "Expected paths of which none begins another."
    raise StateMismatchError("State", (f"{path_text(path)} is both a leaf and a level",), advice)


def _box_unsortable(level: dict[Key, Any]) -> None:
    """Make a State of each level below whose keys JAX could not sort."""
    pending = [level]
    for at in pending:  # grows as it goes
        pending += [below for below in at.values() if type(below) is dict]
    for at in reversed(pending):
        at.update({k: State._of(v) for k, v in at.items() if type(v) is dict and not sortable(v)})


def sortable(keys: Iterable[Key]) -> bool:
    """Whether JAX can sort the keys of a plain dict."""
    try:
        sorted(keys)  # type: ignore[type-var]  # whether they compare is the question
    except TypeError:
        return False
    return True


class State(MutableMapping[Key, Any]):
    """The values of a graph, by path: a mapping to Variables, arrays and further levels.

    Args:
        mapping: A nested mapping, or an iterable of (key, value) pairs; levels are copied, leaves are not.

    Example:
        >>> state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> state['kernel'].shape, state.bias.shape
        ((2, 3), (3,))
    """

    __slots__ = ("__weakref__", "_mapping")

    _mapping: dict[Key, Any]

    def __init__(self, mapping: Any = (), /, *, _copy: bool = True):
        mapping = _raw(mapping)
        mapping = mapping if isinstance(mapping, dict) and not _copy else dict(mapping)
        object.__setattr__(self, "_mapping", _copied(mapping) if _copy else mapping)

    @classmethod
    def _of(cls, mapping: dict[Key, Any]) -> State:
        """A State around a dict that is not copied."""
        state = object.__new__(cls)
        object.__setattr__(state, "_mapping", mapping)
        return state

    @property
    def raw_mapping(self) -> dict[Key, Any]:
        """The nested dict below, not a copy."""
        return self._mapping

    def __getitem__(self, key: Key) -> Any:
        value = self._mapping[key]
        return State._of(value) if type(value) is dict else value

    def __setitem__(self, key: Key, value: Any) -> None:
        self._mapping[key] = _copied(value) if isinstance(value, (dict, State)) else value

    def __delitem__(self, key: Key) -> None:
        del self._mapping[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_mapping" or name not in self._mapping:
            known = () if name == "_mapping" else tuple(str(k) for k in self._mapping)
            raise EntryNotFoundError("State", name, known)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        self.__getattr__(name)
        del self[name]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State):
            return NotImplemented
        a, b = dict(to_flat_state(self)), dict(to_flat_state(other))
        return a.keys() == b.keys() and all(_same_leaf(leaf, b[path]) for path, leaf in a.items())

    __hash__ = None  # type: ignore[assignment]  # a mutable mapping

    __repr__ = tree_text

    def __or__(self, other: State) -> State:
        return State.merge(self, other)

    def __sub__(self, other: State) -> State:
        taken = set(to_flat_state(other).paths)
        return State._of(_nest((p, v) for p, v in _walk(self._mapping, (), []) if p not in taken))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_state_over, (type(self), dict(self._mapping)))

    def flat_state(self) -> FlatState:
        """The leaves with their paths."""
        return to_flat_state(self)

    @classmethod
    def from_flat_path(cls, flat_state: Any, /) -> State:
        """The State with the leaves at these paths."""
        return from_flat_state(flat_state)

    def map(self, f: Callable[[Path, Any], Any]) -> State:
        """A State with `f(path, leaf)` for each leaf."""
        return from_flat_state([(path, f(path, leaf)) for path, leaf in to_flat_state(self)])

    def split(self, first: Filter, /, *filters: Filter) -> Any:
        """One State for each filter, which together match every leaf; a single one is not in a tuple."""
        items = list(to_flat_state(self))
        states = states_by_filter("State.split", items, (first, *filters), exhaustive=True)
        return states if filters else states[0]

    def filter(self, first: Filter, /, *filters: Filter) -> Any:
        """The leaves that match, one State for each filter; a single one is not in a tuple."""
        items = list(to_flat_state(self))
        states = states_by_filter("State.filter", items, (first, *filters), exhaustive=False)
        return states if filters else states[0]

    @staticmethod
    def merge(state: Any, /, *states: Any) -> State:
        """All leaves in one State; later ones win."""
        merged = dict(pair for s in (state, *states) for pair in to_flat_state(s))
        return from_flat_state(merged)

    def to_pure_dict(self, extract_fn: Callable[[Any], Any] | None = None) -> dict[Key, Any]:
        """Nested dicts of plain values; see the function of the same name."""

        def extract(x: Any) -> Any:
            return x.get_raw_value() if isinstance(x, Variable) else x

        take = extract_fn or extract
        return plain((path, take(leaf)) for path, leaf in to_flat_state(self))

    def replace_by_pure_dict(
        self, pure_dict: Mapping[Key, Any], replace_fn: Callable[[Any, Any], Any] | None = None
    ) -> None:
        """Set the values from nested dicts of plain values; see the function of the same name."""

        def replaced(old: Any, new: Any) -> Any:
            return old.replace(new) if isinstance(old, Variable) else new

        old = dict(to_flat_state(self))
        found = Paths(old).leaves(pure_dict)
        unknown = tuple(f"{path_text(path)} is not in the state" for path, known, _ in found if known is None)
        if unknown:
            raise StateMismatchError("replace_by_pure_dict", unknown, "Expected paths that the state has.")
        replace = replace_fn or replaced
        new = {known: replace(old[known], value) for _, known, value in found if known is not None}
        fresh = _nest((path, new.get(path, leaf)) for path, leaf in old.items())
        self._mapping.clear()
        self._mapping.update(fresh)


def _state_over(cls: type[State], mapping: dict[Key, Any]) -> State:
    """The State with this nested dict, for pickles."""
    return cls._of(mapping)


def _same_leaf(a: Any, b: Any) -> bool:
    """Whether two leaves are equal: the same object, or Variables of one spec with the same values."""
    if a is b:
        return True
    if isinstance(a, Variable) and isinstance(b, Variable):
        if a._spec is not b._spec:
            return False
        a, b = a.get_raw_value(), b.get_raw_value()
    return same_structure(a, b) and all(map(same_array, jax.tree.leaves(a), jax.tree.leaves(b)))


def _copied(mapping: Any) -> dict[Key, Any]:
    """A nested mapping with levels of its own."""
    return _nest(_walk(levels(mapping), (), []))


def levels(mapping: Any) -> dict[Key, Any]:
    """Any nested mapping as nested dicts."""
    root: dict[Key, Any] = {}
    pending = [(root, mapping)]
    while pending:
        level, source = pending.pop()
        level.update(_raw(source))
        for key, value in level.items():
            if isinstance(value, Mapping):
                level[key] = {}
                pending.append((level[key], value))
    return root


def _leaf_text(x: Any) -> str:
    """A leaf in a few words, for an error."""
    return x._describe() if isinstance(x, Variable) else short(x)


def _flatten_with_keys(state: State) -> tuple[tuple[tuple[DictKey, Any], ...], tuple[Key, ...]]:
    """The entries with their JAX keys."""
    return tuple((DictKey(k), v) for k, v in state._mapping.items()), tuple(state._mapping)


jax.tree_util.register_pytree_with_keys(
    State,
    _flatten_with_keys,
    lambda keys, children: State._of(dict(zip(keys, children, strict=True))),
    lambda state: (tuple(state._mapping.values()), tuple(state._mapping)),
)


def _static_parts(state: State) -> Iterator[tuple[Any, Any]]:
    """What distinguishes two States inside static values."""
    with reading_constants():
        for path, leaf in _walk(state._mapping, (), []):
            is_variable = isinstance(leaf, Variable)
            yield (path, leaf._spec if is_variable else None), leaf.get_raw_value() if is_variable else leaf


compare_by_parts(State, _static_parts)


class FlatState(Sequence[tuple[Path, Any]]):
    """The leaves of a State with their paths, as a sequence of pairs.

    Args:
        items: Pairs of path and leaf.
        sort: Whether to sort them by path.

    Example:
        >>> flat = nnx.to_flat_state(nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0))))
        >>> flat.paths
        (('kernel',), ('bias',))
    """

    __slots__ = ("leaves", "paths")

    paths: tuple[Path, ...]
    leaves: tuple[Any, ...]

    def __init__(self, items: Iterable[tuple[Path, Any]], /, *, sort: bool):
        pairs = list(items)
        if sort:
            pairs.sort(key=lambda pair: path_order(pair[0]))
        self.paths = tuple(tuple(path) for path, _ in pairs)
        self.leaves = tuple(leaf for _, leaf in pairs)

    @classmethod
    def from_sorted_keys_values(cls, keys: Iterable[Path], values: Iterable[Any], /) -> FlatState:
        """A FlatState from paths and leaves in the same order."""
        return cls(zip(keys, values, strict=True), sort=False)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return FlatState(list(self)[index], sort=False)
        return self.paths[index], self.leaves[index]

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[tuple[Path, Any]]:
        return zip(self.paths, self.leaves, strict=True)

    __repr__ = tree_text

    def to_nested_state(self) -> State:
        """The same leaves as a State."""
        return from_flat_state(self)

    def split(self, first: Filter, /, *filters: Filter) -> Any:
        """One FlatState for each filter; a single one is not in a tuple."""
        groups = _grouped("FlatState.split", list(self), (first, *filters), exhaustive=True)
        flat = tuple(FlatState(g, sort=False) for g in groups)
        return flat if filters else flat[0]

    def filter(self, first: Filter, /, *filters: Filter) -> Any:
        """The leaves that match, one FlatState for each filter; a single one is not in a tuple."""
        groups = _grouped("FlatState.filter", list(self), (first, *filters), exhaustive=False)
        flat = tuple(FlatState(g, sort=False) for g in groups)
        return flat if filters else flat[0]

    @staticmethod
    def merge(
        flat_state: Iterable[tuple[Path, Any]], /, *flat_states: Iterable[tuple[Path, Any]]
    ) -> FlatState:
        """All leaves in one FlatState; later ones win."""
        merged = dict(pair for flat in (flat_state, *flat_states) for pair in flat)
        return FlatState(merged.items(), sort=False)


jax.tree_util.register_pytree_with_keys(
    FlatState,
    lambda flat: (tuple((DictKey(p), v) for p, v in flat), flat.paths),
    FlatState.from_sorted_keys_values,
    lambda flat: (flat.leaves, flat.paths),
)


def _open(x: Any) -> Opened:
    """How a State or FlatState is shown: as a mapping."""
    pairs = x._mapping.items() if isinstance(x, State) else x
    return Opened(type(x).__name__ + "({", "})", pairs, id(x), is_mapping=True, is_object=True, tall=True)


opened.register(State, _open)
opened.register(FlatState, _open)


def _grouped(where: str, items: Flat, filters: Sequence[Filter], exhaustive: bool) -> list[Flat]:
    """The items by the first filter that matches each."""
    predicates = filters_to_predicates(filters)
    groups: list[Flat] = [[] for _ in predicates]
    rest: Flat = []
    for path, value in items:
        for group, predicate in zip(groups, predicates, strict=True):
            if predicate(path, value):
                group.append((path, value))
                break
        else:
            rest.append((path, value))
    if rest and exhaustive:
        left = tuple(f"{path_text(path)}: {_leaf_text(value)}" for path, value in rest)
        raise NonExhaustiveError(where, left)
    return groups


def states_by_filter(
    where: str, items: Flat, filters: Sequence[Filter], exhaustive: bool
) -> tuple[State, ...]:
    """One State for each filter, over items in order."""
    if not filters:
        return (_state_of(items),)
    return tuple(map(_state_of, _grouped(where, items, filters, exhaustive)))


def _state_of(items: Flat) -> Any:
    """The leaves as a State; the leaf itself where the graph is a single one."""
    return items[0][1] if len(items) == 1 and not items[0][0] else State._of(_nest(items))


def to_flat_state(state: Any) -> FlatState:
    """The leaves of a State with their paths.

    Args:
        state: A State or nested mapping.

    Returns:
        A sequence of (path, leaf) pairs in the order of the State.

    Example:
        >>> state = nnx.State({'a': {'b': jnp.ones(2)}})
        >>> nnx.to_flat_state(state).paths
        (('a', 'b'),)
    """
    return FlatState(_walk(_raw(state) if _is_level(state) else dict(state), (), []), sort=False)


def from_flat_state(flat_state: Any, *, cls: type[State] = State) -> State:
    """The State with the leaves at these paths.

    Args:
        flat_state: A FlatState, a mapping from path to leaf, or an iterable of pairs.
        cls: The class of the result.

    Returns:
        The nested State.

    Example:
        >>> nnx.from_flat_state({('a', 'b'): jnp.ones(2)})
        State({ # arrays: 2 (8 B)
          'a': {'b': Array([1., 1.], dtype=float32)}
        })
    """
    items = flat_state.items() if isinstance(flat_state, Mapping) else flat_state
    return cls._of(_nest((tuple(path), leaf) for path, leaf in items))


def plain(items: Iterable[tuple[Path, Any]]) -> dict[Key, Any]:
    """Nested plain dicts from paths."""
    root: dict[Key, Any] = {}
    for path, value in items:
        level = root
        for key in path[:-1]:
            level = level.setdefault(key, {})
        level[path[-1]] = value
    return root


class Paths:
    """The paths of a graph, addressed by integer and string spellings of a key alike."""

    def __init__(self, paths: Iterable[Path]):
        self._exact = set(paths)
        self._spelled = {tuple(map(str, path)): path for path in self._exact}

    def find(self, path: Path) -> Path | None:
        """The path that is meant, if there is one."""
        return path if path in self._exact else self._spelled.get(tuple(map(str, path)))

    def leaves(self, state: Any) -> list[tuple[Path, Path | None, Any]]:
        """(path, path that is meant, leaf) of a State, of nested mappings, or of a single leaf.

        A mapping that stands at one of the paths is a leaf: the value of a Variable that holds a dict.
        """
        if isinstance(state, FlatState):
            return [(path, self.find(path), leaf) for path, leaf in state]
        out: list[tuple[Path, Path | None, Any]] = []
        pending: Flat = [((), state)]
        while pending:
            path, x = pending.pop()
            found = self.find(path)
            if isinstance(x, Mapping) and (found is None or (x is state and not len(x))):
                pending += [((*path, key), value) for key, value in reversed(list(_raw(x).items()))]
            else:
                out.append((path, found, plain(_walk(_raw(x), (), [])) if isinstance(x, State) else x))
        return out


def fresh_leaf(x: Any) -> Any:
    """A leaf of a State's own: a new Variable with today's value, an array as it is."""
    return x.replace() if isinstance(x, Variable) else x
