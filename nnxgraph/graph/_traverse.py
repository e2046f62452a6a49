"""Walking over live graphs: every value with its path, what is shared, and rebuilding."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from .._filters import Filter, filters_to_predicates
from .._repr import path_text
from .._settings import check_tree, current_mode
from .._typing import Key, Path
from .._variable import Variable
from ..errors import CycleError
from ._graphdef import GraphDef, descriptions
from ._registry import Kind, is_graph_value, is_node, kind_of, node_type
from ._walk import flatten, level_below


def check_sharing(where: str, graphdef: GraphDef, graph: bool | None) -> None:
    """Refuse shared objects if the mode is that of trees."""
    if not current_mode(graph, None).sharing:
        check_tree(where, duplicate_paths(graphdef))


def children(x: Any) -> list[tuple[Key, Any]]:
    """The keys and values right below a node or container; nothing for a leaf or a static value."""
    kind = kind_of(x)
    if kind is Kind.NODE:
        return list(node_type(type(x)).attributes(x).items())
    level = level_below(x)
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
        check_sharing("iter_graph", flatten(node)[0], graph)
    return _iterate(node)


Opened = frozenset[int]  # the containers that a value stands in, up to the object that holds them


def _iterate(node: Any) -> Iterator[tuple[Path, Any]]:
    """Every value after those below it; the values that are entered stand on a stack."""
    seen: dict[int, Any] = {}  # objects; keeps what it names, so that no id is used twice
    nothing: Opened = frozenset()
    root: Path = ()
    stack = [(root, node, *_enter(root, node, seen, nothing))]
    while stack:
        path, x, below, opened = stack[-1]
        step = next(below, None)
        if step is None:
            stack.pop()
            yield path, x
        elif not (is_graph_value(step[1]) and id(step[1]) in seen):
            here = (*path, step[0])
            stack.append((here, step[1], *_enter(here, step[1], seen, opened)))


def _enter(
    path: Path, x: Any, seen: dict[int, Any], opened: Opened
) -> tuple[Iterator[tuple[Key, Any]], Opened]:
    """What stands right below a value, and the containers that it stands in."""
    if is_graph_value(x):
        seen[id(x)] = x
        return iter(() if isinstance(x, Variable) else children(x)), frozenset()
    below = children(x)
    if below and id(x) in opened:
        raise CycleError(path_text(path), type(x).__name__)
    return iter(below), opened | {id(x)} if below else opened


def iter_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Key, Any]]:
    """The objects right below an object: its attributes, and what stands in its plain containers.

    Args:
        node: The object.
        graph: False to refuse shared Variables.

    Returns:
        An iterator of (key, object), each object once. The key is the name of the attribute; for an object
        in a list, tuple or dict it is the path to it, such as `('layers', 0)`.

    Example:
        >>> model = nnx.Dict(head=nnx.Linear(2, 3, rngs=nnx.Rngs(0)), act=nnx.relu, drop=[nnx.Dropout(0.5)])
        >>> [(key, type(child).__name__) for key, child in nnx.iter_children(model)]
        [('head', 'Linear'), (('drop', 0), 'Dropout')]
    """
    if not current_mode(graph, None).sharing:
        check_sharing("iter_children", flatten(node)[0], graph)
    return _children_once(node)


def _children_once(node: Any) -> Iterator[tuple[Key, Any]]:
    """The objects right below one, itself left out: a bound method that it keeps leads back to it."""
    seen = {id(node)}
    for path, child in _objects_in(node, (), frozenset()):
        if id(child) not in seen:
            seen.add(id(child))
            yield (path[0] if len(path) == 1 else path), child


def _objects_in(x: Any, path: Path, opened: Opened) -> Iterator[tuple[Path, Any]]:
    """The objects right below a value with their paths, through plain containers."""
    if id(x) in opened:
        raise CycleError(path_text(path), type(x).__name__)
    for key, child in children(x):
        if is_node(child):
            yield (*path, key), child
        elif not isinstance(child, Variable):
            yield from _objects_in(child, (*path, key), opened | {id(x)})


def duplicate_paths(gd: GraphDef) -> list[list[Path]]:
    """All paths of each object that is reached by more than one, read off the description."""
    paths: dict[int, list[Path]] = {}
    for path, desc, _ in descriptions(gd):
        if desc[0] == "node":
            paths.setdefault(desc[1], []).append(path)
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
    gd, _, objects = flatten(node)
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
    check_sharing("recursive_map", flatten(node)[0], graph)
    return _run(_rebuild(f, node, (), {}))


Step = Generator[Any, Any, Any]  # yields further steps, is sent their results, returns its own


def _run(step: Step) -> Any:
    """The result of a step; the steps that are open stand on a stack, so deep graphs need no recursion."""
    stack, result = [step], None
    while stack:
        try:
            stack.append(stack[-1].send(result))
            result = None
        except StopIteration as end:
            stack.pop()
            result = end.value
    return result


def _rebuild(f: Callable[[Path, Any], Any], x: Any, path: Path, done: dict[int, tuple[Any, Any]]) -> Step:
    """`f` of a value whose children are mapped; `done` holds each object with what it became."""
    kind = kind_of(x)
    if kind is Kind.NODE or kind is Kind.VARIABLE:
        if id(x) not in done:
            done[id(x)] = (x, x)
            if kind is Kind.NODE:
                ways = node_type(type(x))
                twin = ways.create(type(x))
                done[id(x)] = (x, twin)
                attributes = yield _rebuild_all(f, list(ways.attributes(x).items()), path, done)
                ways.replace(twin, attributes, dict(ways.marks(x)))
            done[id(x)] = (x, f(path, done[id(x)][1]))
        return done[id(x)][1]
    level = level_below(x)
    if level is not None:
        parts = yield _rebuild_all(f, list(zip(level[1], level[0], strict=True)), path, done)
        closed = parts if kind is Kind.DICT else list(parts.values())
        x = type(x)(closed) if level[2] is None else level[2].unflatten(closed)
    return f(path, x)


def _rebuild_all(
    f: Callable[[Path, Any], Any], items: list[tuple[Key, Any]], path: Path, done: dict[int, Any]
) -> Step:
    """The mapped children by key."""
    mapped = {}
    for key, child in items:
        mapped[key] = yield _rebuild(f, child, (*path, key), done)
    return mapped
