"""Graphs as values: split, merge, update and their kin, all thin readings of the one walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from .._filters import Filter, filters_to_predicates
from .._frame import check_write
from .._repr import path_text, short
from .._settings import check_tree, current_mode
from .._state import FlatState, State, fresh_leaf, states_by_filter, to_flat_state
from .._typing import Key, Path
from .._variable import Variable
from ..errors import NotANodeError, StateMismatchError
from ._graphdef import Desc, GraphDef, record_leaves
from ._registry import Kind, is_graph_value, is_node, kind_of, node_type
from ._walk import Build, change_object, one_level
from ._walk import flatten as walk
from ._walk import unflatten as build

N = TypeVar("N")
Node = Any


def _leaf_objects(graphdef: GraphDef, leaves: list[Any], objects: list[Any]) -> list[tuple[Path, Any]]:
    """(path, live Variable or raw array) for each leaf, in order of the graph."""
    holders = dict(zip(graphdef.paths, objects, strict=True))
    out = []
    for path, i in graphdef.leaf_paths:
        holder = holders.get(path)
        out.append((path, holder if isinstance(holder, Variable) else leaves[i]))
    return out


def _open(where: str, node: Any, graph: bool | None) -> tuple[GraphDef, list[tuple[Path, Any]]]:
    """GraphDef and live leaves by path."""
    graphdef, leaves, objects = walk(node)
    if not current_mode(graph, None).sharing:
        check_tree(where, duplicate_paths(graphdef))
    if not objects and graphdef.root[0] == "static":
        raise NotANodeError(where, short(node))
    return graphdef, _leaf_objects(graphdef, leaves, objects)


def _states(where: str, items: list[tuple[Path, Any]], filters: Sequence[Filter], exhaustive: bool) -> Any:
    """States of the filters; the leaf itself where the graph is a single Variable or array."""
    if len(items) == 1 and items[0][0] == ():
        return tuple(items[0][1] for _ in filters or (...,))
    return states_by_filter(where, items, filters, exhaustive)


def split(node: Node, *filters: Filter, graph: bool | None = None) -> Any:
    """Split a graph into its static description and its values.

    Args:
        node: A Module or other object, a Variable, or a container of them.
        *filters: Which leaves go into which State, narrow ones first; together they must match every leaf.
        graph: False to refuse shared Variables.

    Returns:
        `(graphdef, state)`, or `(graphdef, state, ...)` with one State for each filter. The States hold
        Variables of their own: later changes to the node do not reach them.

    Raises:
        NonExhaustiveError: If a leaf matches no filter.

    Example:
        >>> model = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
        >>> graphdef, params, stats = nnx.split(model, nnx.Param, nnx.BatchStat)
        >>> list(params), list(stats)
        (['scale', 'bias'], ['mean', 'var'])
    """
    graphdef, items = _open("split", node, graph)
    fresh = [(path, fresh_leaf(leaf)) for path, leaf in items]
    return (graphdef, *_states("split", fresh, filters, exhaustive=True))


def state(node: Node, *filters: Filter, graph: bool | None = None) -> Any:
    """The values of a graph as a State.

    Args:
        node: A Module or other object, a Variable, or a container of them.
        *filters: Which leaves to take; all of them if there are none. Leaves that match none are left out.
        graph: False to refuse shared Variables.

    Returns:
        A State, or a tuple of one State for each filter if there are several. A State is a value: later
        changes to the node do not reach it.

    Example:
        >>> best = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param)
        >>> best['kernel'].shape
        (2, 3)
    """
    _, items = _open("state", node, graph)
    fresh = [(path, fresh_leaf(leaf)) for path, leaf in items]
    states = _states("state", fresh, filters, exhaustive=False)
    return states if len(filters) > 1 else states[0]


def variables(node: Node, *filters: Filter, graph: bool | None = None) -> Any:
    """The live Variables of a graph, in the shape of a State.

    Args:
        node: A Module or other object, a Variable, or a container of them.
        *filters: Which leaves to take; all of them if there are none.
        graph: False to refuse shared Variables.

    Returns:
        A State whose Variables are those of the node, or a tuple of States if there are several filters.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nnx.variables(model)['kernel'] is model.kernel
        True
    """
    _, items = _open("variables", node, graph)
    states = _states("variables", items, filters, exhaustive=False)
    return states if len(filters) > 1 else states[0]


def graphdef(node: Node, /, *, graph: bool | None = None) -> GraphDef:
    """The static description of a graph.

    Args:
        node: A Module or other object, a Variable, or a container of them.
        graph: False to refuse shared Variables.

    Returns:
        The GraphDef; equal graphs have one and the same.

    Example:
        >>> nnx.graphdef(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        GraphDef(3 objects, 2 leaves)
    """
    return _open("graphdef", node, graph)[0]


def flat_leaves(where: str, graphdef: GraphDef, states: Sequence[Any]) -> list[Any]:
    """The leaves that a GraphDef asks for, in its order, from States; later States win."""
    given: dict[Path, Any] = {}
    for s in states:
        given.update(_items(s))
    texts = {tuple(map(str, path)): path for path in given}
    problems = []
    leaves: list[Any] = [None] * len(graphdef.leaf_paths)
    for path, i in graphdef.leaf_paths:
        found = path if path in given else texts.get(tuple(map(str, path)))
        if found is None:
            problems.append(f"{path_text(path) or 'the value'} is missing")
        else:
            leaves[i] = given.pop(found)
    problems += [f"{path_text(path)} is not in the graph" for path in given]
    if problems:
        advice = "Expected one leaf for each path. Write merge(graphdef, state, other_state) to join parts."
        raise StateMismatchError(where, tuple(problems), advice)
    return leaves


def _items(s: Any) -> list[tuple[Path, Any]]:
    """(path, leaf) pairs of a State, a FlatState, a mapping, or a single leaf."""
    if isinstance(s, FlatState):
        return list(s)
    return list(to_flat_state(s)) if isinstance(s, (State, Mapping)) else [((), s)]


def merge(
    graphdef: GraphDef,
    /,
    *states: Any,
    copy: bool = False,
    recreate_variables: bool = True,
) -> Any:
    """Build the object that a GraphDef and its values describe.

    Args:
        graphdef: What `split` returned first.
        *states: The States; later ones win where two have the same path.
        copy: Whether to copy the arrays too.
        recreate_variables: False to put the Variables of the States into the object.

    Returns:
        A new object, with new Variables.

    Raises:
        StateMismatchError: If a leaf is missing or unknown.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> twin = nnx.merge(*nnx.split(model))
        >>> twin.kernel is model.kernel, bool((twin.kernel == model.kernel).all())
        (False, True)
    """
    gd = graphdef
    leaves = flat_leaves("merge", gd, states)
    values = [x.get_raw_value() if isinstance(x, Variable) else x for x in leaves]
    if copy:
        values = [jax.tree.map(lambda a: a.copy() if hasattr(a, "copy") else a, v) for v in values]
    root, objects = build(gd, values)
    _take_metadata(gd, leaves, objects)
    return root if recreate_variables else _with_variables(gd, leaves)


def _take_metadata(gd: GraphDef, leaves: list[Any], objects: list[Any]) -> None:
    """The spec of a Variable in a State wins over the one in the GraphDef."""
    holders = dict(zip(gd.paths, objects, strict=True))
    for path, i in gd.leaf_paths:
        given, made = leaves[i], holders.get(path)
        if isinstance(given, Variable) and isinstance(made, Variable) and given._spec is not made._spec:
            made.__class__ = given._spec.kind
            made.set_metadata(dict(given._metadata))


def _with_variables(gd: GraphDef, leaves: list[Any]) -> Any:
    """The object of a GraphDef around the given Variables themselves."""
    root, objects = build(gd, [None] * len(leaves))
    holders = dict(zip(gd.paths, objects, strict=True))
    swap = {
        id(holders[path]): leaves[i] for path, i in gd.leaf_paths if isinstance(holders.get(path), Variable)
    }
    return recursive_map(lambda path, x: swap.get(id(x), x), root)


def update(node: Node, state: Any, /, *states: Any, strict: bool = True) -> None:
    """Give the Variables of a node the values of a State, in place.

    A State may hold a part of the node's leaves; the others stay as they are.

    Args:
        node: The object to change.
        state: A State, or nested dicts of values.
        *states: Further States; later ones win.
        strict: False to accept other shapes and to leave out paths that the node has not.

    Raises:
        StateMismatchError: If paths, kinds or shapes do not fit; then nothing is changed.
        TraceWriteError: If a Variable may not be written here; then nothing is changed.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nnx.update(model, {'bias': jnp.ones(3)})
        >>> model.bias[...].tolist()
        [1.0, 1.0, 1.0]
    """
    gd, leaves, objects = walk(node)
    holders = dict(zip(gd.paths, objects, strict=True))
    places = {path: (i, holders.get(path)) for path, i in gd.leaf_paths}
    texts = {tuple(map(str, path)): path for path in places}
    new: dict[Path, Any] = {}
    problems = []
    for given, value in (pair for s in (state, *states) for pair in _items(s)):
        found = given if given in places else texts.get(tuple(map(str, given)))
        if found is None:
            problems += [f"{path_text(given) or 'the value'} is not in the object"] if strict else []
        else:
            i, holder = places[found]
            problems += _misfit(found, holder, leaves[i], value) if strict else []
            new[found] = value
    if problems:
        advice = "Write update(..., strict=False) to accept other shapes and to skip unknown paths."
        raise StateMismatchError("update", tuple(problems), advice)
    _write_all(gd, leaves, objects, {places[path][0]: (places[path][1], v) for path, v in new.items()})


def _misfit(path: Path, holder: Any, old: Any, new: Any) -> list[str]:
    """What does not fit between a leaf and its new value."""
    where = path_text(path) or "the value"
    if isinstance(holder, Variable) and isinstance(new, Variable) and type(holder) is not type(new):
        return [f"{where} is a {type(holder).__name__}, found a {type(new).__name__}"]
    value = new.get_raw_value() if isinstance(new, Variable) else new
    if hasattr(old, "shape") and np.shape(value) != np.shape(old):
        return [f"{where} is {short(old)}, found {short(value)}"]
    return []


def _write_all(
    gd: GraphDef, leaves: list[Any], objects: list[Any], new: Mapping[int, tuple[Any, Any]]
) -> None:
    """Write leaves by number: into their Variables, and into the objects that hold raw arrays."""
    values = {i: v.get_raw_value() if isinstance(v, Variable) else v for i, (_, v) in new.items()}
    written = [(h, v, values[i]) for i, (h, v) in new.items() if isinstance(h, Variable)]
    for holder, _, _ in written:
        check_write(holder)
    for holder, given, value in written:
        holder.set_raw_value(value)
        if isinstance(given, Variable) and given._spec is not holder._spec:
            holder.set_metadata(dict(given._metadata))
    raw = {i: values[i] for i, (h, _) in new.items() if not isinstance(h, Variable)}
    if raw:
        replace_raw_leaves(gd, leaves, objects, raw)


def replace_raw_leaves(gd: GraphDef, leaves: list[Any], objects: list[Any], raw: Mapping[int, Any]) -> None:
    """Put new arrays, by number of their leaf, where objects hold plain ones."""
    merged = [raw.get(i, leaf) for i, leaf in enumerate(leaves)]
    start = len(leaves) - sum(record_leaves(r) for r in gd.records)
    builder = Build(gd.records)
    builder.objects = list(objects)
    for x, record in zip(objects, gd.records, strict=True):
        end = start + record_leaves(record)
        if record[0] == "object" and any(i in raw for i in range(start, end)):
            change_object(x, record, builder.attributes(record, iter(merged[start:end])))
        start = end

    return record_leaves(record)


def clone(node: N, variables: bool = True, *, arrays: bool = False, graph: bool | None = None) -> N:
    """A copy of a graph: new objects, new Variables, the same sharing.

    Args:
        node: The object.
        variables: False to keep the Variables themselves, under new objects.
        arrays: Whether to copy the arrays too; otherwise both share their buffers.
        graph: False to refuse shared Variables.

    Returns:
        The copy.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nnx.clone(model).kernel is model.kernel
        False
    """
    gd, *_ = _open("clone", node, graph)
    _, leaves, objects = walk(node)
    if not variables:
        kept = _leaf_objects(gd, leaves, objects)
        ordered: list[Any] = [None] * len(kept)
        for (_, holder), (_, i) in zip(kept, gd.leaf_paths, strict=True):
            ordered[i] = holder
        return _with_variables(gd, ordered)  # type: ignore[no-any-return]  # the same structure
    if arrays:
        leaves = [jax.tree.map(lambda a: a.copy() if hasattr(a, "copy") else a, v) for v in leaves]
    return build(gd, leaves)[0]  # type: ignore[no-any-return]  # the same structure


def pop(node: Node, *filters: Filter) -> Any:
    """Take Variables out of an object.

    Args:
        node: The object to change.
        *filters: Which Variables to take, at least one filter.

    Returns:
        A State with the Variables, or a tuple of one State for each filter if there are several.

    Raises:
        ValueError: If there is no filter.

    Example:
        >>> class Net(nnx.Module):
        ...     def __call__(self, x):
        ...         self.sow(nnx.Intermediate, 'h', x)
        ...         return x
        >>> net = Net()
        >>> y = net(jnp.ones(2))
        >>> list(nnx.pop(net, nnx.Intermediate)), hasattr(net, 'h')
        (['h'], False)
    """
    if not filters:
        raise ValueError("pop: expected at least one filter. Write nnx.pop(model, nnx.Intermediate).")
    predicates = filters_to_predicates(filters)
    gd, leaves, objects = walk(node)
    items = [(p, v) for p, v in _leaf_objects(gd, leaves, objects) if isinstance(v, Variable)]
    taken = [(p, v) for p, v in items if any(f(p, v) for f in predicates)]
    doomed = {id(v) for _, v in taken}
    for x, record in zip(objects, gd.records, strict=True):
        if record[0] == "object":
            ways = node_type(type(x))
            old = ways.attributes(x)
            new = {k: _without(v, doomed) for k, v in old.items() if id(v) not in doomed}
            if len(new) != len(old) or any(new[k] is not old[k] for k in new):
                ways.replace(x, new, ways.marks(x))
    states = states_by_filter("pop", [(p, fresh_leaf(v)) for p, v in taken], filters, exhaustive=True)
    return states if len(filters) > 1 else states[0]


def _without(x: Any, doomed: set[int]) -> Any:
    """A plain container without some Variables, changed in place where it can be; others as they are."""
    if type(x) is dict:
        for k in [k for k, v in x.items() if id(v) in doomed]:
            del x[k]
        for k, v in x.items():
            x[k] = _without(v, doomed)
    elif type(x) is list:
        x[:] = [_without(v, doomed) for v in x if id(v) not in doomed]
    elif type(x) is tuple and any(id(v) in doomed for v in x):
        return tuple(_without(v, doomed) for v in x if id(v) not in doomed)
    return x


def children(x: Any) -> list[tuple[Key, Any]]:
    """The keys and values right below a node or container; nothing for a leaf or a static value."""
    kind = kind_of(x)
    if kind is Kind.NODE:
        return list(node_type(type(x)).attributes(x).items())
    if kind is Kind.DICT:
        return list(x.items())
    if kind is Kind.LIST or kind is Kind.TUPLE:
        return list(enumerate(x))
    level = one_level(x) if kind is Kind.OTHER else None
    return list(zip(level[1], level[0], strict=True)) if level is not None else []


def iter_graph(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Any]]:
    """Every value of a graph with its path, children before their parents.

    Args:
        node: The object.
        graph: False to refuse shared Variables.

    Returns:
        An iterator of (path, value). Each object and Variable comes once, with its first path.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> [path for path, x in nnx.iter_graph(model) if isinstance(x, nnx.Param)]
        [('kernel',), ('bias',)]
    """
    if not current_mode(graph, None).sharing:
        _open("iter_graph", node, graph)
    return _iterate(node, (), set())


def _iterate(x: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, Any]]:
    if is_graph_value(x):
        if id(x) in seen:
            return
        seen.add(id(x))
    if not isinstance(x, Variable):
        for key, child in children(x):
            yield from _iterate(child, (*path, key), seen)
    yield path, x


def iter_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Key, Any]]:
    """The objects right below an object, with the names of the attributes that hold them.

    Args:
        node: The object.
        graph: False to refuse shared Variables.

    Returns:
        An iterator of (name, object).

    Example:
        >>> model = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.relu)
        >>> [type(child).__name__ for _, child in nnx.iter_children(model)]
        ['List']
    """
    return ((key, child) for key, child in children(node) if is_node(child))


def duplicate_paths(gd: GraphDef) -> list[list[Path]]:
    """All paths of each object that is reached by more than one, read off the description."""
    paths: dict[int, list[Path]] = {}

    def visit(desc: Desc, path: Path) -> None:
        if desc[0] == "node":
            paths.setdefault(desc[1], []).append(path)
            if len(paths[desc[1]]) == 1 and gd.records[desc[1]][0] == "object":
                _, _, names, below, _ = gd.records[desc[1]]
                for name, child in zip(names, below, strict=True):
                    visit(child, (*path, name))
        elif desc[0] == "container":
            for key, child in zip(desc[1].keys, desc[2], strict=True):
                visit(child, (*path, key))

    visit(gd.root, ())
    return [found for found in paths.values() if len(found) > 1]


def find_duplicates(node: Any, /, *, only: Filter = ...) -> list[list[Path]]:
    """The paths of every object and Variable that is reached by more than one path.

    Args:
        node: The object.
        only: Which objects and Variables to report.

    Returns:
        A list with the list of paths of each. What lies below a shared object is not listed again.

    Example:
        >>> class Tied(nnx.Module):
        ...     def __init__(self):
        ...         self.a = nnx.Param(jnp.ones(2))
        ...         self.b = self.a
        >>> nnx.find_duplicates(Tied())
        [[('a',), ('b',)]]
    """
    gd, _, objects = walk(node)
    predicate = filters_to_predicates((only,))[0]
    by_first = dict(zip(gd.paths, objects, strict=True))
    return [found for found in duplicate_paths(gd) if predicate(found[0], by_first[found[0]])]


def recursive_map(f: Callable[[Path, Any], Any], node: Any, /, *, graph: bool | None = None) -> Any:
    """Rebuild a graph with `f(path, value)` at every value, children before parents.

    Args:
        f: The function; called once for each object.
        node: The object; it is not changed.
        graph: False to refuse shared Variables.

    Returns:
        The new graph.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> twin = nnx.recursive_map(lambda path, x: None if path == ('bias',) else x, model)
        >>> twin.bias is None
        True
    """
    if not current_mode(graph, None).sharing:
        _open("recursive_map", node, graph)
    return _rebuild(f, node, (), {})


def _rebuild(f: Callable[[Path, Any], Any], x: Any, path: Path, done: dict[int, Any]) -> Any:
    if id(x) in done:
        return done[id(x)]
    kind = kind_of(x)
    if kind is Kind.NODE:
        ways = node_type(type(x))
        twin = done[id(x)] = ways.create(type(x))
        below = {k: _rebuild(f, v, (*path, k), done) for k, v in ways.attributes(x).items()}
        ways.replace(twin, below, dict(ways.marks(x)))
        done[id(x)] = f(path, twin)
        return done[id(x)]
    if kind is Kind.VARIABLE:
        done[id(x)] = f(path, x)
        return done[id(x)]
    if kind is Kind.DICT:
        return f(path, {k: _rebuild(f, v, (*path, k), done) for k, v in x.items()})
    if kind is Kind.LIST or kind is Kind.TUPLE:
        return f(path, type(x)([_rebuild(f, v, (*path, i), done) for i, v in enumerate(x)]))
    level = one_level(x) if kind is Kind.OTHER else None
    if level is not None:
        below_list = [_rebuild(f, v, (*path, k), done) for v, k in zip(level[0], level[1], strict=True)]
        x = jax.tree_util.tree_unflatten(level[2], below_list)
    return f(path, x)


def call(graphdef_state: tuple[GraphDef, Any], /) -> Any:
    """Call a split object, or its methods, as a function of its state.

    Args:
        graphdef_state: The pair that `split` returns.

    Returns:
        A proxy: calling it, or an attribute of it, returns `(result, (graphdef, state))`.

    Example:
        >>> pair = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> y, (graphdef, state) = nnx.call(pair)(jnp.ones((1, 2)))
        >>> y.shape
        (1, 3)
    """
    return CallProxy(graphdef_state, ())


class CallProxy:
    """A method of an object that exists only while it is called."""

    __slots__ = ("_pair", "_path")

    def __init__(self, pair: tuple[Any, ...], path: tuple[Any, ...]):
        self._pair = pair
        self._path = path

    def __getattr__(self, name: str) -> CallProxy:
        return CallProxy(self._pair, (*self._path, (True, name)))

    def __getitem__(self, key: Key) -> CallProxy:
        return CallProxy(self._pair, (*self._path, (False, key)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        node = merge(*self._pair)
        target = node
        for is_attribute, key in self._path:
            target = getattr(target, key) if is_attribute else target[key]
        result = target(*args, **kwargs)
        return result, split(node)
