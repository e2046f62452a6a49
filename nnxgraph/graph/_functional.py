"""Graphs as values: split, merge, update and their kin, all thin readings of the one walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_not
from typing import Any, TypeVar

import jax
import numpy as np

from .._filters import Filter, filters_to_predicates
from .._frame import check_write
from .._repr import path_text, short
from .._spec import VariableSpec
from .._state import Paths, fresh_leaf, states_by_filter
from .._typing import Key, Path
from .._values import copy_array, is_key
from .._variable import Variable
from ..errors import (
    FixedContainerError,
    MissingFilterError,
    NotAGraphDefError,
    NotANodeError,
    StateMismatchError,
)
from ._graphdef import (
    ROOT,
    GraphDef,
    count_leaves,
    desc_children,
    descriptions,
    leaf_starts,
    record_leaves,
)
from ._registry import node_type
from ._traverse import check_sharing
from ._walk import Build, change_object, in_place
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


def _open(where: str, node: Any, graph: bool | None) -> tuple[GraphDef, list[Any], list[Any]]:
    """GraphDef, leaves and objects of what a user gave."""
    graphdef, leaves, objects = walk(node)
    check_sharing(where, graphdef, graph)
    if not objects and graphdef.root[0] == "static":
        raise NotANodeError(where, short(node))
    return graphdef, leaves, objects


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
    graphdef, leaves, objects = _open("split", node, graph)
    fresh = [(path, fresh_leaf(leaf)) for path, leaf in _leaf_objects(graphdef, leaves, objects)]
    return (graphdef, *states_by_filter("split", fresh, filters, exhaustive=True))


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
    items = _leaf_objects(*_open("state", node, graph))
    fresh = [(path, fresh_leaf(leaf)) for path, leaf in items]
    states = states_by_filter("state", fresh, filters, exhaustive=False)
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
    items = _leaf_objects(*_open("variables", node, graph))
    states = states_by_filter("variables", items, filters, exhaustive=False)
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
    known = Paths(path for path, _ in graphdef.leaf_paths)
    given = [found for s in states for found in known.leaves(s)]
    by_path = {path: leaf for _, path, leaf in given if path is not None}
    leaves: list[Any] = [None] * len(graphdef.leaf_paths)
    problems = []
    for path, i in graphdef.leaf_paths:
        if path in by_path:
            leaves[i] = by_path[path]
        else:
            problems.append(f"{path_text(path) or 'the value'} is missing")
    problems += [f"{path_text(p) or 'a value'} is not in the graph" for p, path, _ in given if path is None]
    if problems:
        advice = "Expected one leaf for each path. Write merge(graphdef, state, other_state) to join parts."
        raise StateMismatchError(where, tuple(problems), advice)
    return leaves


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
        NotAGraphDefError: If the first argument is no GraphDef.
        StateMismatchError: If a leaf is missing or unknown.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> twin = nnx.merge(*nnx.split(model))
        >>> twin.kernel is model.kernel, bool((twin.kernel == model.kernel).all())
        (False, True)
    """
    if not isinstance(graphdef, GraphDef):
        raise NotAGraphDefError("merge", type(graphdef).__name__)
    gd = graphdef
    leaves = flat_leaves("merge", gd, states)
    values = [x.get_raw_value() if isinstance(x, Variable) else x for x in leaves]
    if copy:
        values = [jax.tree.map(copy_array, v) for v in values]
    given = {k: x for k, x in enumerate(leaves) if isinstance(x, Variable)}
    objects = {i: given[k] for i, k in enumerate(leaf_starts(gd)) if k in given and _holds(gd, i)}
    specs = {i: x._spec for i, x in objects.items()}
    return build(_with_specs(gd, specs), values, {} if recreate_variables else objects)[0]


def _holds(gd: GraphDef, i: int) -> bool:
    """Whether an object is a Variable, which holds the leaf that its record starts with."""
    return bool(gd.records[i][0] == "variable")


def _with_specs(gd: GraphDef, specs: Mapping[int, VariableSpec]) -> GraphDef:
    """The same graph with other kinds or metadata of Variables, by number."""
    pairs = enumerate(gd.records)
    records = tuple(("variable", specs[i]) if i in specs else record for i, record in pairs)
    return gd if records == gd.records else GraphDef(gd.root, records)


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
    numbers = dict(gd.leaf_paths)
    known = Paths(numbers)
    new: dict[int, tuple[Any, Any]] = {}
    problems = []
    for path, found, value in (leaf for s in (state, *states) for leaf in known.leaves(s)):
        if found is None:
            problems += [f"{path_text(path) or 'the value'} is not in the object"] if strict else []
            continue
        i, holder = numbers[found], holders.get(found)
        problems += _misfit(found, holder, leaves[i], value) if strict else []
        if i < count_leaves(gd.root) and type(node) not in (list, dict):
            problems.append(f"{path_text(found) or 'the value'} is a plain array outside of any object")
        new[i] = (holder, value)
    if problems:
        advice = "Write update(..., strict=False) to accept other shapes and to skip unknown paths."
        raise StateMismatchError("update", tuple(problems), advice)
    _write_all(node, gd, leaves, objects, new)


def _misfit(path: Path, holder: Any, old: Any, new: Any) -> list[str]:
    """What does not fit between a leaf and its new value."""
    where = path_text(path) or "the value"
    if isinstance(holder, Variable) and isinstance(new, Variable) and type(holder) is not type(new):
        return [f"{where} is a {type(holder).__name__}, found a {type(new).__name__}"]
    value = new.get_raw_value() if isinstance(new, Variable) else new
    if hasattr(old, "shape") and not _same_form(old, value):
        return [f"{where} is {short(old)}, found {short(value)}"]
    return []


def _same_form(old: Any, new: Any) -> bool:
    """Whether a value is an array (or number) of the same shape, and a random key where there was one."""
    if not (hasattr(new, "shape") or isinstance(new, (bool, int, float, complex))):
        return False
    return bool(np.shape(new) == np.shape(old)) and is_key(new) == is_key(old)


def _write_all(
    node: Node,
    gd: GraphDef,
    leaves: list[Any],
    objects: list[Any],
    new: Mapping[int, tuple[Any, Any]],
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
    start = count_leaves(gd.root)
    if any(i < start for i in raw):
        builder = Build(gd.records)
        builder.objects = objects
        in_place(node, builder.value(gd.root, iter([raw.get(i, leaves[i]) for i in range(start)])))


def replace_raw_leaves(gd: GraphDef, leaves: list[Any], objects: list[Any], raw: Mapping[int, Any]) -> None:
    """Put new arrays, by number of their leaf, where objects hold plain ones."""
    merged = [raw.get(i, leaf) for i, leaf in enumerate(leaves)]
    builder = Build(gd.records)
    builder.objects = objects
    for x, record, start in zip(objects, gd.records, leaf_starts(gd), strict=True):
        end = start + record_leaves(record)
        if record[0] == "variable" or not any(i in raw for i in range(start, end)):
            continue
        attributes = dict(node_type(type(x)).attributes(x))
        for name, desc in zip(record[2], record[3], strict=True):
            end = start + count_leaves(desc)
            if any(i in raw for i in range(start, end)):
                attributes[name] = builder.value(desc, iter(merged[start:end]))
            start = end
        change_object(x, record, attributes)


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
    gd, leaves, objects = _open("clone", node, graph)
    if arrays:
        leaves = [jax.tree.map(copy_array, v) for v in leaves]
    kept = {} if variables else {i: x for i, x in enumerate(objects) if isinstance(x, Variable)}
    return build(gd, leaves, kept)[0]  # type: ignore[no-any-return]  # the same structure


def pop(node: Node, *filters: Filter) -> Any:
    """Take Variables out of an object.

    Args:
        node: The object to change.
        *filters: Which Variables to take, at least one filter.

    Returns:
        A State with the Variables, or a tuple of one State for each filter if there are several.

    Raises:
        MissingFilterError: If there is no filter.
        FixedContainerError: If a Variable stands in a namedtuple or another container of a fixed form.

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
        raise MissingFilterError("pop")
    predicates = filters_to_predicates(filters)
    gd, leaves, objects = walk(node)
    items = [(p, v) for p, v in _leaf_objects(gd, leaves, objects) if isinstance(v, Variable)]
    taken = [(p, v) for p, v in items if any(f(p, v) for f in predicates)]
    doomed = {id(v) for _, v in taken}
    _check_removable(gd, objects, doomed)
    states = states_by_filter("pop", [(p, fresh_leaf(v)) for p, v in taken], filters, exhaustive=True)
    _without(node, doomed)
    for x, record in zip(objects, gd.records, strict=True):
        if record[0] == "object":
            ways = node_type(type(x))
            old = ways.attributes(x)
            new = {k: _without(v, doomed) for k, v in old.items() if id(v) not in doomed}
            if len(new) != len(old) or any(new[k] is not old[k] for k in new):
                ways.replace(x, new, ways.marks(x))
    return states if len(filters) > 1 else states[0]


def _check_removable(gd: GraphDef, objects: list[Any], doomed: set[int]) -> None:
    """Refuse Variables in containers that cannot lose an entry."""
    for path, desc, owner in descriptions(gd):
        if desc[0] != "container" or desc[1].cls in (list, dict):
            continue
        if desc[1].cls is tuple and owner != ROOT:
            continue
        for key, child in desc_children(desc):
            if child[0] == "node" and id(objects[child[1]]) in doomed:
                raise FixedContainerError(path_text((*path, key)), desc[1].cls.__name__)


def _without(x: Any, doomed: set[int]) -> Any:
    """A plain container without some Variables, changed in place where it can be; others as they are."""
    if type(x) is dict:
        for k in [k for k, v in x.items() if id(v) in doomed]:
            del x[k]
        for k, v in x.items():
            x[k] = _without(v, doomed)
    elif type(x) is list:
        x[:] = [_without(v, doomed) for v in x if id(v) not in doomed]
    elif type(x) is tuple:
        kept = tuple(_without(v, doomed) for v in x if id(v) not in doomed)
        return kept if len(kept) < len(x) or any(map(is_not, kept, x)) else x
    return x


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
