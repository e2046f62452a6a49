"""Graphs as values: split, merge, update and their kin, all thin readings of the one walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

import jax
from jax.tree_util import GetAttrKey

from .._filters import Filter
from .._printing import Opened, opened, tree_text
from .._repr import path_text, short
from .._spec import VariableSpec
from .._state import State, fresh_leaf, states_by_filter
from .._trees import own_containers
from .._typing import Key, Path
from .._values import copy_array
from .._variable import Variable
from ..errors import NotAGraphDefError, NotANodeError, StateMismatchError
from ._describe import open_graphdef
from ._graphdef import GraphDef, leaf_starts
from ._traverse import check_sharing, recursive_map
from ._walk import flatten
from ._walk import unflatten as build

N = TypeVar("N")
Node = Any
PureState = tuple[GraphDef, State]  # what `split` returns without filters


def leaf_objects(graphdef: GraphDef, leaves: list[Any], objects: list[Any]) -> list[tuple[Path, Any]]:
    """(path, live Variable or raw array) for each leaf, in order of the graph."""
    holders = dict(zip(graphdef.paths, objects, strict=True))
    out = []
    for path, i in graphdef.leaf_paths:
        holder = holders.get(path)
        out.append((path, holder if isinstance(holder, Variable) else leaves[i]))
    return out


def open_graph(where: str, node: Any, graph: bool | None) -> tuple[GraphDef, list[Any], list[Any]]:
    """GraphDef, leaves and objects of what a user gave."""
    graphdef, leaves, objects = flatten(node)
    check_sharing(where, graphdef, graph)
    check_node(where, graphdef, node)
    return graphdef, leaves, objects


def check_node(where: str, graphdef: GraphDef, node: Any) -> None:
    """Refuse a value that is no graph."""
    if not graphdef.records and graphdef.root[0] == "static":
        raise NotANodeError(where, short(node))


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
    return _split("split", node, filters, graph)


def _split(where: str, node: Node, filters: Sequence[Filter], graph: bool | None) -> tuple[Any, ...]:
    """The GraphDef of a node, and one State for each filter."""
    graphdef, leaves, objects = open_graph(where, node, graph)
    fresh = [(path, fresh_leaf(leaf)) for path, leaf in leaf_objects(graphdef, leaves, objects)]
    return (graphdef, *states_by_filter(where, fresh, filters, exhaustive=True))


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
    items = leaf_objects(*open_graph("state", node, graph))
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
    items = leaf_objects(*open_graph("variables", node, graph))
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
        >>> nnx.graphdef(nnx.Dict(scale=nnx.Param(jnp.ones(2)), act=nnx.relu))
        GraphDef( # 2 objects, 1 leaf
          Dict({
            'scale': Param(),
            'act': relu
          })
        )
    """
    return open_graph("graphdef", node, graph)[0]


def flat_leaves(where: str, graphdef: GraphDef, states: Sequence[Any]) -> list[Any]:
    """The leaves that a GraphDef asks for, in its order, from States; later States win."""
    known = graphdef.addresses
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
    graphdef_or_graphstate: GraphDef | GraphState,
    /,
    *states: Any,
    copy: bool = False,
    recreate_variables: bool = True,
) -> Any:
    """Build the object that a GraphDef and its values describe.

    Args:
        graphdef_or_graphstate: What `split` returned first, or what `unpack` returned.
        *states: The States; later ones win where two have the same path.
        copy: Whether to copy the arrays too.
        recreate_variables: False to put the Variables of the States into the object.

    Returns:
        A new object, with new Variables.

    Raises:
        NotAGraphDefError: If the first argument is neither.
        StateMismatchError: If a leaf is missing or unknown.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> twin = nnx.merge(*nnx.split(model))
        >>> twin.kernel is model.kernel, bool((twin.kernel == model.kernel).all())
        (False, True)
    """
    if isinstance(graphdef_or_graphstate, GraphState):
        states = (graphdef_or_graphstate.state, *states)
        graphdef_or_graphstate = graphdef_or_graphstate.graphdef
    if not isinstance(graphdef_or_graphstate, GraphDef):
        raise NotAGraphDefError("merge", type(graphdef_or_graphstate).__name__)
    leaves = flat_leaves("merge", graphdef_or_graphstate, states)
    return assemble(graphdef_or_graphstate, leaves, copy=copy, recreate_variables=recreate_variables)[0]


def assemble(
    gd: GraphDef,
    leaves: Sequence[Any],
    known: Sequence[Any] = (),
    kept: Mapping[int, Any] | None = None,
    *,
    copy: bool = False,
    recreate_variables: bool = True,
) -> tuple[Any, list[Any]]:
    """The value of a GraphDef with leaves that may be Variables, and its objects in order."""
    values = _own([x.get_raw_value() if isinstance(x, Variable) else x for x in leaves], copy)
    given = {k: x for k, x in enumerate(leaves) if isinstance(x, Variable)}
    objects = {i: given[k] for i, k in enumerate(leaf_starts(gd)) if k in given and _holds(gd, i)}
    specs = {i: x._spec for i, x in objects.items()}
    kept = {**({} if recreate_variables else objects), **(kept or {})}
    return build(_with_specs(gd, specs), values, kept, known)


def _holds(gd: GraphDef, i: int) -> bool:
    """Whether an object is a Variable, which holds the leaf that its record starts with."""
    return bool(gd.records[i][0] == "variable")


def _with_specs(gd: GraphDef, specs: Mapping[int, VariableSpec]) -> GraphDef:
    """The same graph with other kinds or metadata of Variables, by number."""
    pairs = enumerate(gd.records)
    records = tuple(("variable", specs[i]) if i in specs else record for i, record in pairs)
    return gd if records == gd.records else GraphDef(gd.root, records)


class GraphState(MutableMapping[Key, Any]):
    """A GraphDef and a State in one value: a JAX pytree whose children are those of the State.

    Args:
        _graphdef: The static description.
        _state: The values, all of them or those that the first filter of `unpack` matched.

    Example:
        >>> packed = nnx.unpack(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> zeros = jax.tree.map(jnp.zeros_like, packed)
        >>> nnx.merge(zeros).kernel[...].any().item(), packed['bias'].shape
        (False, (3,))
    """

    __slots__ = ("_graphdef", "_state")

    def __init__(self, _graphdef: GraphDef, _state: Any):
        self._graphdef = _graphdef
        self._state = _state

    @property
    def graphdef(self) -> GraphDef:
        """The static description."""
        return self._graphdef

    @property
    def state(self) -> Any:
        """The values."""
        return self._state

    def __getitem__(self, key: Key) -> Any:
        return self._state[key]

    def __setitem__(self, key: Key, value: Any) -> None:
        self._state[key] = value

    def __delitem__(self, key: Key) -> None:
        del self._state[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __eq__(self, other: object) -> bool:
        if type(other) is not GraphState:
            return NotImplemented
        return self._graphdef is other._graphdef and bool(self._state == other._state)

    __hash__ = None  # type: ignore[assignment]  # a mutable mapping

    __repr__ = tree_text


jax.tree_util.register_pytree_with_keys(
    GraphState,
    lambda pair: (((GetAttrKey("state"), pair.state),), pair.graphdef),
    lambda graphdef, children: GraphState(graphdef, *children),
)


def _open(pair: GraphState) -> Opened:
    """How a GraphState is shown."""
    pairs = [("graphdef", pair._graphdef), ("state", pair._state)]
    return Opened("GraphState(", ")", pairs, id(pair), is_object=True, tall=True)


opened.register(GraphState, _open)
opened.register(GraphDef, open_graphdef)


def unpack(node: Node, *filters: Filter, graph: bool | None = None) -> Any:
    """Split a graph into one value that holds its description and its values; `merge` takes it.

    Args:
        node: A Module or other object, a Variable, or a container of them.
        *filters: Which leaves go into which State, narrow ones first; together they must match every leaf.
        graph: False to refuse shared Variables.

    Returns:
        A GraphState; if there are several filters, a tuple of a GraphState with the leaves of the first,
        and one State for each of the others.

    Raises:
        NonExhaustiveError: If a leaf matches no filter.

    Example:
        >>> model = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
        >>> params, stats = nnx.unpack(model, nnx.Param, ...)
        >>> list(params), nnx.merge(params, stats).mean.shape
        (['scale', 'bias'], (2,))
    """
    gd, first, *rest = _split("unpack", node, filters, graph)
    packed = GraphState(gd, first)
    return (packed, *rest) if rest else packed


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
    return copied("clone", node, variables, arrays, graph)


def copied(where: str, node: N, variables: bool, arrays: bool, graph: bool | None) -> N:
    """A copy of a graph, with its Variables if `variables` is False, else with new ones."""
    gd, leaves, objects = open_graph(where, node, graph)
    kept = {} if variables else {i: x for i, x in enumerate(objects) if isinstance(x, Variable)}
    return build(gd, _own(leaves, arrays), kept)[0]  # type: ignore[no-any-return]  # the same structure


def _own(values: Sequence[Any], arrays: bool) -> list[Any]:
    """Values in containers of their own, and in buffers of their own if `arrays`."""
    return [jax.tree.map(copy_array, v) if arrays else own_containers(v) for v in values]


def map(
    f: Callable[[Path, Any], Any], node: N, /, *, graph: bool | None = None, recreate_variables: bool = True
) -> N:
    """A copy of a graph with `f(path, leaf)` for each leaf.

    Args:
        f: The function. Its second argument is a Variable of its own with today's value, or a plain array; it
            returns a Variable, or a value for one like it.
        node: The object; it is not changed.
        graph: False to refuse shared Variables.
        recreate_variables: False to put the Variables that `f` returns into the copy.

    Returns:
        The copy, with the same sharing; `f` is called once for each Variable.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> halved = nnx.map(lambda path, x: x[...].astype(jnp.bfloat16), model)
        >>> halved.kernel.dtype, model.kernel.dtype
        (dtype(bfloat16), dtype('float32'))
    """
    gd, leaves, objects = open_graph("map", node, graph)
    mapped: list[Any] = [None] * len(leaves)
    for (path, leaf), (_, i) in zip(leaf_objects(gd, leaves, objects), gd.leaf_paths, strict=True):
        mapped[i] = f(path, fresh_leaf(leaf))
    return assemble(gd, mapped, recreate_variables=recreate_variables)[0]  # type: ignore[no-any-return]  # the same structure


def pure(tree: Any) -> Any:
    """A copy of a tree or graph with the raw value in the place of each Variable.

    Args:
        tree: A State, an object, a Variable, or a container of them.

    Returns:
        The copy.

    Example:
        >>> state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> isinstance(state['kernel'], nnx.Param), isinstance(nnx.pure(state)['kernel'], jax.Array)
        (True, True)
    """
    return recursive_map(lambda path, x: x.get_raw_value() if isinstance(x, Variable) else x, tree)


def as_pure(tree: Any) -> Any:
    """A copy of a tree or graph with the raw value in the place of each Variable; the same as `pure`.

    Args:
        tree: A State, an object, a Variable, or a container of them.

    Returns:
        The copy.

    Example:
        >>> nnx.as_pure({'a': nnx.Param(3)})
        {'a': 3}
    """
    return pure(tree)
