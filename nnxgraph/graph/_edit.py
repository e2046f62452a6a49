"""Changing graphs in place: update, pop, and setting metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_not
from typing import Any

import numpy as np

from .._filters import Filter, filters_to_predicates
from .._frame import check_changes, check_write
from .._repr import path_text, short
from .._state import fresh_leaf, states_by_filter
from .._trees import own_containers
from .._typing import Path
from .._values import is_key
from .._variable import Variable
from ..errors import FixedContainerError, MissingFilterError, StateMismatchError
from ._functional import Node, check_node, leaf_objects, open_graph
from ._graphdef import ROOT, GraphDef, count_leaves, desc_children, descriptions, leaf_starts, record_leaves
from ._registry import node_type
from ._walk import Build, change_object, flatten, in_place


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
    gd, leaves, objects = flatten(node)
    check_node("update", gd, node)
    holders = dict(zip(gd.paths, objects, strict=True))
    numbers = dict(gd.leaf_paths)
    known, root_leaves = gd.addresses, count_leaves(gd.root)
    new: dict[int, tuple[Any, Any]] = {}
    problems = []
    first = {i: path for path, i in gd.leaf_paths}
    for path, found, value in (leaf for s in (state, *states) for leaf in known.leaves(s)):
        i = numbers[found] if found is not None else gd.find(path)
        if i is None:
            problems += [f"{path_text(path) or 'the value'} is not in the object"] if strict else []
            continue
        holder = holders.get(first[i])
        problems += _misfit(path, holder, leaves[i], value) if strict else []
        if i < root_leaves and type(node) not in (list, dict):
            problems.append(f"{path_text(path) or 'the value'} is a plain array outside of any object")
        new[i] = (holder, value)
    if problems:
        advice = "Write update(..., strict=False) to accept other shapes and to skip unknown paths."
        raise StateMismatchError("update", tuple(problems), advice)
    _write_all(node, gd, leaves, objects, new)


def _misfit(path: Path, holder: Any, old: Any, new: Any) -> list[str]:
    """What does not fit between a leaf and its new value."""
    if isinstance(holder, Variable) and isinstance(new, Variable) and type(holder) is not type(new):
        return [
            f"{path_text(path) or 'the value'} is a {type(holder).__name__}, found a {type(new).__name__}"
        ]
    value = new.get_raw_value() if isinstance(new, Variable) else new
    if hasattr(old, "shape") and not _same_form(old, value):
        return [f"{path_text(path) or 'the value'} is {short(old)}, found {short(value)}"]
    return []


def _same_form(old: Any, new: Any) -> bool:
    """Whether a value is an array (or number) of the same shape, and a random key where there was one."""
    if type(new) is type(old) and new.dtype == old.dtype and new.shape == old.shape:
        return True
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
    values = {
        i: own_containers(v.get_raw_value() if isinstance(v, Variable) else v) for i, (_, v) in new.items()
    }
    written = [(h, v, values[i]) for i, (h, v) in new.items() if isinstance(h, Variable)]
    raw = {i: values[i] for i, (h, _) in new.items() if not isinstance(h, Variable)}
    for holder, _, _ in written:
        check_write(holder)
    renamed = [h for h, v, _ in written if isinstance(v, Variable) and v._spec is not h._spec]
    owners = raw_owners(gd, raw)
    check_changes((*renamed, *(objects[k] for k in owners)), raw.values)
    for holder, given, value in written:
        holder.set_raw_value(value)
        if isinstance(given, Variable) and given._spec is not holder._spec:
            holder.set_metadata(dict(given._metadata))
    if raw:
        replace_raw_leaves(gd, leaves, objects, raw, owners)
    start = count_leaves(gd.root)
    if any(i < start for i in raw):
        builder = Build(gd.records)
        builder.objects = objects
        in_place(node, builder.value(gd.root, iter([raw.get(i, leaves[i]) for i in range(start)])))


def raw_owners(gd: GraphDef, raw: Mapping[int, Any]) -> list[int]:
    """The numbers of the objects that hold plain arrays, given by number of their leaf."""
    spans = zip(leaf_starts(gd), map(record_leaves, gd.records), strict=True)
    held = [any(i in raw for i in range(start, start + n)) for start, n in spans] if raw else []
    return [k for k, holds in enumerate(held) if holds and gd.records[k][0] == "object"]


def replace_raw_leaves(
    gd: GraphDef, leaves: list[Any], objects: list[Any], raw: Mapping[int, Any], owners: Sequence[int]
) -> None:
    """Put new arrays, by number of their leaf, into the objects that hold plain ones."""
    merged = [raw.get(i, leaf) for i, leaf in enumerate(leaves)]
    builder = Build(gd.records)
    builder.objects = objects
    starts = leaf_starts(gd)
    for k in owners:
        x, record, start = objects[k], gd.records[k], starts[k]
        attributes = dict(node_type(type(x)).attributes(x))
        for name, desc in zip(record[2], record[3], strict=True):
            end = start + count_leaves(desc)
            if any(i in raw for i in range(start, end)):
                attributes[name] = builder.value(desc, iter(merged[start:end]))
            start = end
        change_object(x, record, attributes)


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
    gd, leaves, objects = flatten(node)
    check_node("pop", gd, node)
    items = [(p, v) for p, v in leaf_objects(gd, leaves, objects) if isinstance(v, Variable)]
    taken = [(p, v) for p, v in items if any(f(p, v) for f in predicates)]
    doomed = {id(v) for _, v in taken}
    _check_removable(gd, objects, doomed)
    states = states_by_filter("pop", [(p, fresh_leaf(v)) for p, v in taken], filters, exhaustive=True)
    _check_owners(gd, objects, doomed)
    _without(node, doomed)
    for x, record in zip(objects, gd.records, strict=True):
        if record[0] == "object":
            ways = node_type(type(x))
            old = ways.attributes(x)
            new = {k: _without(v, doomed) for k, v in old.items() if id(v) not in doomed}
            if len(new) != len(old) or any(new[k] is not old[k] for k in new):
                ways.replace(x, new, ways.marks(x))
    return states if len(filters) > 1 else states[0]


def _check_owners(gd: GraphDef, objects: list[Any], doomed: set[int]) -> None:
    """Refuse to take Variables from objects that cannot be changed here."""
    found = {
        o for _, d, o in descriptions(gd) if d[0] == "node" and o != ROOT and id(objects[d[1]]) in doomed
    }
    check_changes([objects[k] for k in sorted(found)], tuple)


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


def set_metadata(node: Node, /, *, only: Filter = Variable, **metadata: Any) -> None:
    """Set metadata of the Variables of a graph, in place.

    Args:
        node: A Module or other object, a Variable, or a container of them.
        only: Which Variables to change.
        **metadata: The entries to set.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nnx.set_metadata(model, only=nnx.PathContains('bias'), decay=False)
        >>> model.bias.decay, model.kernel.has_metadata('decay')
        (False, False)
    """
    predicate = filters_to_predicates((only,))[0]
    items = leaf_objects(*open_graph("set_metadata", node, None))
    chosen = [x for path, x in items if isinstance(x, Variable) and predicate(path, x)]
    check_changes(chosen, tuple)
    for x in chosen:
        x.set_metadata(**metadata)
