"""Lanes: which leaves a JAX transform treats alike.

A *prefix* says for a part of the arguments which lane its leaves take: a lane value (an axis, a sharding,
"differentiated" ...) for everything below, a list, tuple or dict of prefixes for a container of the same
shape, or a rule such as `StateAxes` that looks at each Variable. `Resolver` walks a description along with
its prefix and gives each leaf the number of its lane.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .._filters import to_predicate
from .._repr import path_text, short
from .._typing import Path
from ..errors import AliasError, ArgumentTypeError, PrefixError, UnmatchedFilterError
from ..graph._graphdef import Desc, record_leaves

Lane = Hashable


class _Marker(type):
    """The type of classes that stand for themselves."""

    def __repr__(cls) -> str:
        return f"nnx.{cls.__name__}"


class Carry(metaclass=_Marker):
    """Marks what a loop carries, in `in_axes` and `out_axes` of `nnx.scan`.

    Example:
        >>> total, ys = nnx.scan(lambda c, x: (c + x, c))(jnp.zeros(()), jnp.ones(3))
        >>> ys.tolist()
        [0.0, 1.0, 2.0]
    """


class _StaticLane:
    """The lane of values that are part of the program."""

    def __repr__(self) -> str:
        return "static"


STATIC = _StaticLane()


class NoLane(KeyError):
    """A rule says nothing of a leaf."""


class PrefixRule:
    """A prefix that looks at each leaf."""

    def lane_at(self, path: Path, x: Any, in_node: bool) -> Lane:
        """The lane of a leaf; `path` starts at what the rule is given for."""
        raise NotImplementedError

    def lane_values(self) -> Sequence[Lane]:
        """All lanes that the rule may name."""
        raise NotImplementedError


class _FilterRule(PrefixRule):
    """Filters with a lane each; the first that matches decides."""

    def __init__(self, by_filter: Any, /):
        items = by_filter.items() if isinstance(by_filter, Mapping) else by_filter
        self._items = tuple(items)
        self._predicates = tuple((to_predicate(f), lane) for f, lane in self._items)

    def lane_at(self, path: Path, x: Any, in_node: bool) -> Lane:
        lane: Lane = self.map_prefix(path, x)
        return lane

    def lane_values(self) -> Sequence[Lane]:
        return [lane for _, lane in self._items]

    def map_prefix(self, path: Path, variable: Any) -> Any:
        """The lane of the first filter that matches.

        Args:
            path: The path of the Variable below the argument.
            variable: The Variable.

        Raises:
            UnmatchedFilterError: If no filter matches.
        """
        for predicate, lane in self._predicates:
            if predicate(path, variable):
                return lane
        where = path_text(path).removeprefix(".")
        raise UnmatchedFilterError(type(self).__name__, where, short_variable(variable))

    @property
    def filters(self) -> tuple[Any, ...]:
        """The filters, in order."""
        return tuple(f for f, _ in self._items)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._items == other._items

    def __hash__(self) -> int:
        return hash((type(self), self._items))

    def __repr__(self) -> str:
        inner = ", ".join(f"{f!r}: {lane!r}" for f, lane in self._items)
        return f"{type(self).__name__}({{{inner}}})"


def short_variable(x: Any) -> str:
    """A leaf in a few words, for texts."""
    return x._describe() if hasattr(x, "_describe") else short(x)


class StateAxes(_FilterRule):
    """Which axis of each kind of Variable a `vmap`, `pmap` or `scan` maps over.

    Args:
        filter_axes: A mapping from filters to an axis, `None` (the same for all lanes), or `nnx.Carry`; the
            first filter that matches decides.

    Example:
        >>> axes = nnx.StateAxes({nnx.Param: 0, ...: None})
        >>> axes.axes
        (0, None)
    """

    @property
    def axes(self) -> tuple[Any, ...]:
        """The axes, in the order of the filters."""
        return tuple(lane for _, lane in self._items)

    def __getitem__(self, key: Any) -> Any:
        return dict(self._items)[key]

    def items(self) -> Any:
        """Pairs of filter and axis."""
        return self._items


class StateSharding(_FilterRule):
    """Which sharding each kind of Variable has in a `jit`.

    Args:
        filter_sharding: A mapping from filters to shardings; the first filter that matches decides.

    Example:
        >>> nnx.StateSharding({nnx.Param: None, ...: None}).shardings
        (None, None)
    """

    @property
    def shardings(self) -> tuple[Any, ...]:
        """The shardings, in the order of the filters."""
        return tuple(lane for _, lane in self._items)


def is_structured(prefix: Any) -> bool:
    """Whether a prefix is a container of prefixes, and not a lane that is a tuple of its own."""
    return type(prefix) in (tuple, list, dict)


class _MappedRule(PrefixRule):
    """A rule whose lanes are turned into others."""

    def __init__(self, rule: PrefixRule, turn: Callable[[Any], Lane]):
        self.rule = rule
        self.turn = turn

    def lane_at(self, path: Path, x: Any, in_node: bool) -> Lane:
        return self.turn(self.rule.lane_at(path, x, in_node))

    def lane_values(self) -> list[Lane]:
        return list(map(self.turn, self.rule.lane_values()))


def map_lanes(prefix: Any, turn: Callable[[Any], Lane]) -> Any:
    """A prefix with each of its lanes turned into another."""
    if isinstance(prefix, PrefixRule):
        return _MappedRule(prefix, turn)
    if type(prefix) is dict:
        return {key: map_lanes(p, turn) for key, p in prefix.items()}
    if is_structured(prefix):
        return type(prefix)(map_lanes(p, turn) for p in prefix)
    return turn(prefix)


def collect_lanes(*prefixes: Any) -> list[Lane]:
    """The distinct lanes that prefixes name, in order of appearance."""
    found: dict[Lane, None] = {}

    def visit(prefix: Any) -> None:
        if isinstance(prefix, PrefixRule):
            found.update(dict.fromkeys(prefix.lane_values()))
        elif is_structured(prefix):
            for p in prefix.values() if type(prefix) is dict else prefix:
                visit(p)
        elif prefix is not STATIC:
            found[prefix] = None

    for prefix in prefixes:
        visit(prefix)
    return list(found)


class Names:
    """How texts call things: the transform, its parameters for prefixes, the user's arguments and results."""

    def __init__(
        self,
        transform: str,
        parameter: str,
        arguments: tuple[str, ...] = (),
        results: Callable[[Path], Path] = lambda path: path,
        captured: tuple[str, ...] = (),
    ):
        self.captured = captured
        self.transform = transform
        self.parameter = parameter
        self.arguments = arguments
        self.results = results

    def argument(self, path: Path) -> str:
        """A path of the arguments' GraphDef, as the user would write it."""
        parts: Any = ("captured", "self", 0, 1)
        return self.text((parts[path[0]], *path[1:]))

    def captured_text(self, path: Path) -> str:
        """A path below what is captured: the name by which the function knows it."""
        group: Any = path[0]
        i: Any = path[1]
        at = i if group == 0 else i - len(self.captured)
        known = -len(self.captured) <= at < len(self.captured)
        return (self.captured[at] if known else "captured") + path_text(path[2:])

    def text(self, path: Path) -> str:
        """A path that starts with the part (0 args, 1 kwargs, or 'result'), as the user would write it."""
        if not path:
            return "the arguments"
        part, rest = path[0], path[1:]
        if part == "result":
            return f"result{path_text(self.results(rest))}"
        if part in (0, 1) and not rest:
            return f"the {'keyword' if part else 'positional'} arguments"
        if part == "captured" and len(rest) > 1:
            return self.captured_text(rest)
        if part not in (0, 1, "self") or not rest:
            return f"{part}{path_text(rest)}"
        i: Any = rest[0]
        if part == 0:
            name = self.arguments[i] if i < len(self.arguments) else f"args[{i}]"
        elif part == "self":
            name = "self" if i == 0 else f"bound[{i}]"
        else:
            name = i
        return name + path_text(rest[1:])


_Part = tuple[Desc, Any, Path, Path]  # a description, its prefix, its path, and that below the argument


class Resolver:
    """Gives each leaf of a graph its lane, and refuses one Variable in two lanes."""

    def __init__(
        self,
        names: Names,
        lanes: Sequence[Lane],
        records: Sequence[Desc],
        objects: Sequence[Any],
        first: int,
    ):
        self.names = names
        self.index = {lane: i for i, lane in enumerate(lanes)}
        self.lanes = lanes
        self.records = records
        self.objects = objects
        self.starts = []
        for record in records:
            self.starts.append(first)
            first += record_leaves(record)
        self.lane_of: list[int] = [-1] * first
        self.where: dict[int, Path] = {}  # the path at which each leaf got its lane
        self.places: dict[int, tuple[Any, Path, Path]] = {}  # object: prefix, local path, path
        self._weak: set[int] = set()  # leaves whose lane an argument may still overrule
        self._entered: set[tuple[int, int, bool]] = set()

    def visit(
        self,
        desc: Desc,
        prefix: Any,
        path: Path,
        numbers: Iterator[int],
        local: Path = (),
        in_node: bool = False,
        weak: bool = False,
    ) -> None:
        """Give the leaves below a description their lanes, depth first."""
        levels = [self._level([(desc, prefix, path, local)], numbers, in_node, weak)]
        while levels:  # no recursion: objects may form long chains
            below = next(levels[-1], None)
            if below is None:
                levels.pop()
            else:
                levels.append(below)

    def _level(
        self, parts: Iterable[_Part], numbers: Iterator[int], in_node: bool, weak: bool
    ) -> Iterator[Any]:
        """Give the leaves among the parts their lanes; yields the level below a part before the next one."""
        for desc, prefix, path, local in parts:
            tag = desc[0]
            if tag == "node":
                i = desc[1]
                if self.records[i][0] == "variable":
                    self._leaf(self.starts[i], prefix, path, local, self.objects[i], True, weak)
                elif (i, id(prefix), weak) not in self._entered:
                    yield self._object(i, prefix, path, local, weak)
            elif tag == "leaf":
                self._leaf(next(numbers), prefix, path, local, None, in_node, weak)
            elif tag == "static":
                self._static(desc, prefix, path, in_node or weak)
            elif tag == "container":
                triples = zip(desc[1].keys, desc[2], self.prefixes(desc, prefix, path), strict=True)
                start = None if is_structured(prefix) else local  # a rule's paths start where it stands
                below = [
                    (child, p, (*path, key), () if start is None else (*start, key))
                    for key, child, p in triples
                ]
                yield self._level(below, numbers, in_node, weak)

    def _object(self, i: int, prefix: Any, path: Path, local: Path, weak: bool) -> Iterator[Any]:
        """The level of an object's attributes."""
        record = self.records[i]
        self._entered.add((i, id(prefix), weak))
        if is_structured(prefix):
            self._refuse(prefix, path, f"one lane or a rule for the {record[1].__name__}")
        self.places.setdefault(i, (prefix, local, path))
        pairs = zip(record[2], record[3], strict=True)
        below = [(child, prefix, (*path, name), (*local, name)) for name, child in pairs]
        return self._level(below, itertools.count(self.starts[i]), True, weak)

    def _leaf(self, k: int, prefix: Any, path: Path, local: Path, x: Any, in_node: bool, weak: bool) -> None:
        """Give a leaf its lane."""
        if isinstance(prefix, PrefixRule):
            try:
                prefix = prefix.lane_at(local, x, in_node)
            except NoLane:
                self._refuse(prefix, path, "an entry for this path")
        elif is_structured(prefix):
            self._refuse(prefix, path, "one lane for a leaf")
        lane = self.index.get(prefix, -1)
        if lane < 0:
            self._refuse(prefix, path, f"one of {', '.join(map(repr, self.lanes))}")
        if self.lane_of[k] < 0 or k in self._weak:
            self.lane_of[k], self.where[k] = lane, path
            (self._weak.add if weak else self._weak.discard)(k)
        elif self.lane_of[k] != lane and not weak:
            self._clash(k, path, lane, x)

    def _clash(self, k: int, path: Path, lane: int, x: Any) -> None:
        """Refuse a leaf with two lanes."""
        raise AliasError(
            self.names.transform,
            self.names.parameter,
            short_variable(x) if x is not None else "the array",
            (self.names.text(self.where[k]), repr(self.lanes[self.lane_of[k]])),
            (self.names.text(path), repr(self.lanes[lane])),
        )

    def _static(self, desc: Desc, prefix: Any, path: Path, allowed: bool) -> None:
        """Refuse a static value where data is expected."""
        if allowed or prefix is STATIC or desc[1].value is None:
            return
        raise ArgumentTypeError(self.names.transform, self.names.text(path), short(desc[1].value))

    def prefixes(self, desc: Desc, prefix: Any, path: Path) -> Sequence[Any]:
        """The prefix of each child of a container."""
        shape, children = desc[1], desc[2]
        if not is_structured(prefix):
            return [prefix] * len(children)
        if type(prefix) is dict:
            if shape.cls is not dict or set(prefix) != set(shape.keys):
                self._refuse(prefix, path, f"a dict with the keys {list(shape.keys)}")
            return [prefix[key] for key in shape.keys]
        if len(prefix) != len(children) or shape.cls not in (tuple, list):
            self._refuse(
                prefix,
                path,
                f"one entry for each of the {len(children)} parts of a {shape.cls.__name__}",
            )
        return list(prefix)

    def _refuse(self, prefix: Any, path: Path, expected: str) -> None:
        """Refuse a prefix."""
        raise PrefixError(
            self.names.transform,
            self.names.parameter,
            self.names.text(path),
            repr(prefix),
            expected,
        )
