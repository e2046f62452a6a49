"""flatten and unflatten: split and merge that tell, and take, which object has which number.

They are for programs that cross a boundary by hand, where an object inside must find the one outside that
it stands for. An index is a mapping: `ref_index` goes from objects to numbers, `index_ref` back. Objects
that an index already has when a call begins are described by their number alone.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from .._frame import check_write
from .._spec import set_spec
from .._state import FlatState, fresh_leaf
from .._variable import Variable
from ..errors import NotAGraphDefError, UnknownIndexError
from ._functional import Node, assemble, check_node, flat_leaves, leaf_objects
from ._graphdef import GraphDef, descriptions, leaf_starts
from ._traverse import check_sharing
from ._walk import Walk


def flatten(
    node: Node,
    /,
    *,
    with_paths: bool = True,
    ref_index: MutableMapping[Any, int] | None = None,
    ref_outer_index: Mapping[Any, int] | None = None,
    graph: bool | None = None,
) -> tuple[GraphDef, Any]:
    """Take a graph apart into its description and its leaves in order.

    Args:
        node: A Module or other object, a Variable, or a container of them.
        with_paths: Whether the leaves come with their paths.
        ref_index: A mapping from objects to numbers, to which those of this graph are added; objects that
            it has already are described by their number. Keys are looked up by `hash` and identity.
        ref_outer_index: The index outside of objects; the GraphDef keeps it, so that `unflatten` can find
            the objects outside.
        graph: False to refuse shared Variables.

    Returns:
        `(graphdef, flat_state)`; the second is a list of leaves if `with_paths` is False. Variables are new
        ones, as in `split`.

    Example:
        >>> graphdef, flat = nnx.flatten(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> flat.paths
        (('kernel',), ('bias',))
        >>> nnx.unflatten(graphdef, flat).bias.shape
        (3,)
    """
    met = [] if ref_index is None else list(ref_index.items())
    walk = Walk({id(x): i for x, i in met})
    root = walk.root(node)
    outer = None
    if ref_outer_index is not None:
        found = {id(x): i for x, i in ref_outer_index.items()}
        outer = tuple(found.get(id(x)) for x in walk.objects)
    graphdef = GraphDef(root, tuple(walk.records), outer)
    check_sharing("flatten", graphdef, graph)
    check_node("flatten", graphdef, node)
    if ref_index is not None:
        ref_index.update((x, i) for i, x in enumerate(walk.objects, len(met)))
    items = leaf_objects(graphdef, walk.all_leaves(), walk.objects)
    fresh = [(path, fresh_leaf(leaf)) for path, leaf in items]
    return graphdef, FlatState(fresh, sort=False) if with_paths else [leaf for _, leaf in fresh]


def unflatten(
    graphdef: GraphDef,
    state: Any,
    /,
    *,
    index_ref: MutableMapping[int, Any] | None = None,
    outer_index_outer_ref: Mapping[int, Any] | None = None,
    copy_variables: bool = False,
    recreate_variables: bool = True,
) -> Node:
    """Build the graph that a description and its leaves make.

    Args:
        graphdef: What `flatten` or `split` returned first.
        state: A State, FlatState or nested mapping, or a list of leaves in order.
        index_ref: A mapping from numbers to objects, to which those of this graph are added; the objects
            that it has already are what the numbers of known objects mean.
        outer_index_outer_ref: Objects outside by their index; those that the GraphDef names are changed in
            place and stand in the result, all others are new.
        copy_variables: Whether to copy the arrays too.
        recreate_variables: False to put the Variables of the state into the graph.

    Returns:
        The graph.

    Raises:
        NotAGraphDefError: If the first argument is no GraphDef.
        StateMismatchError: If a leaf is missing or unknown.
        UnknownIndexError: If the GraphDef names an object by a number that `index_ref` has not.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> graphdef, flat = nnx.flatten(model, ref_outer_index={model: 0})
        >>> nnx.unflatten(graphdef, flat, outer_index_outer_ref={0: model}) is model
        True
    """
    if not isinstance(graphdef, GraphDef):
        raise NotAGraphDefError("unflatten", type(graphdef).__name__)
    known = dict(index_ref or {})
    options = {"copy": copy_variables, "recreate_variables": recreate_variables}
    leaves = _ordered(graphdef, state)
    root, objects = build_onto(graphdef, leaves, known, outer_index_outer_ref or {}, **options)
    if index_ref is not None:
        index_ref.update(enumerate(objects, len(known)))
    return root


def build_onto(
    graphdef: GraphDef,
    leaves: Sequence[Any],
    known: Mapping[int, Any],
    outside: Mapping[int, Any],
    **options: bool,
) -> tuple[Node, list[Any]]:
    """The graph of a GraphDef over objects known by number and objects outside, and its objects in order."""
    missing = sorted(d[1] for _, d, _ in descriptions(graphdef) if d[0] == "known" and d[1] not in known)
    if missing:
        raise UnknownIndexError(tuple(missing), len(known))
    kept = {i: outside[o] for i, o in enumerate(graphdef.outer or ()) if o is not None and o in outside}
    for x in kept.values():
        if isinstance(x, Variable):
            check_write(x)
    top = [known.get(i) for i in range(max(known, default=-1) + 1)]
    root, objects = assemble(graphdef, leaves, top, kept, **options)
    _write_kept(graphdef, leaves, kept)
    return root, objects


def _ordered(graphdef: GraphDef, state: Any) -> list[Any]:
    """The leaves of a state in the order of a GraphDef."""
    if isinstance(state, Sequence) and not isinstance(state, FlatState):
        order = [path for path, _ in graphdef.leaf_paths]
        state = FlatState(zip(order, state, strict=True), sort=False)
    return flat_leaves("unflatten", graphdef, (state,))


def _write_kept(graphdef: GraphDef, leaves: Sequence[Any], kept: Mapping[int, Any]) -> None:
    """Give the Variables that stay their new values and metadata."""
    starts = leaf_starts(graphdef)
    for i, x in kept.items():
        if isinstance(x, Variable):
            leaf = leaves[starts[i]]
            x.set_raw_value(leaf.get_raw_value() if isinstance(leaf, Variable) else leaf)
            set_spec(x, leaf._spec if isinstance(leaf, Variable) else graphdef.records[i][1])
