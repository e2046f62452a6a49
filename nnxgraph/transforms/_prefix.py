"""Prefix trees: a State, an object or another pytree that says for each path below it which lane it takes.

So what `jax.tree.map(lambda _: 0, model)` gives is a prefix for `model`, here as in raw JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from .._pytree_jax import unflatten_hollow
from .._repr import path_text
from .._settings import check_tree, current_mode
from .._trees import one_level
from .._typing import Path
from .._variable import Variable
from ..graph._graphdef import Desc, GraphDef, descriptions, leaf_starts
from ..graph._registry import is_graph_value
from ..graph._traverse import duplicate_paths
from ..graph._walk import flatten
from ._lanes import Lane, NoLane, PrefixRule, StateAxes, is_structured


def prefix(node: Any, filter_map: Any, /, *, graph: bool | None = None) -> Any:
    """A tree like an object that has, where its leaves are, the lane of the first filter that matches.

    It serves as in_axes, in_shardings, in_specs and the like for that object, in the transforms here and in
    those of JAX itself.

    Args:
        node: An object, a State, or a container of them.
        filter_map: A mapping from filters to lanes, such as axes or shardings.
        graph: False to refuse shared Variables.

    Returns:
        A new tree with the structure of the node.

    Raises:
        UnmatchedFilterError: If no filter matches a leaf.
        SharedVariableError: If `graph` is False and a Variable is shared.

    Example:
        >>> keys = jax.random.split(jax.random.key(0), 5)
        >>> models = nnx.vmap(lambda key: nnx.Linear(2, 3, rngs=nnx.Rngs(key)))(keys)
        >>> axes = nnx.prefix(models, {nnx.Param: 0, ...: None})
        >>> jax.vmap(lambda model, x: model(x), in_axes=(axes, None))(models, jnp.ones(2)).shape
        (5, 3)
    """
    graphdef, leaves, objects = flatten(node)
    if not current_mode(graph, None).sharing:
        check_tree("nnx.prefix", duplicate_paths(graphdef), path_text)
    rule = _Named(filter_map)
    starts = leaf_starts(graphdef)
    holders = {k: x for x, k in zip(objects, starts, strict=True) if isinstance(x, Variable)}
    lanes: list[Any] = [None] * len(leaves)
    for path, k in graphdef.leaf_paths:
        lane = rule.map_prefix(path, holders.get(k, leaves[k]))
        several = k in holders and one_level(leaves[k]) is not None
        lanes[k] = jax.tree.map(lambda _, lane=lane: lane, leaves[k]) if several else lane
    return unflatten_hollow(graphdef, lanes)


class _Named(StateAxes):
    """The filters of `nnx.prefix`, for its texts."""


_Named.__name__ = "nnx.prefix"


class PrefixTree(PrefixRule):
    """A State, an object or another pytree as a prefix: looks up the path of a leaf."""

    def __init__(self, tree: Any):
        self._graphdef, self._leaves, objects = flatten(tree)
        self._has_nodes = any(not isinstance(x, Variable) for x in objects)
        self._name = type(tree).__name__

    def lane_at(self, path: Path, x: Any, in_node: bool) -> Lane:
        graphdef = self._graphdef
        desc: Desc = graphdef.root
        for depth, key in enumerate(path):
            below = _below(graphdef, desc)
            if below is None:
                return self._lane(desc, path[:depth])
            if key not in below:
                raise NoLane
            desc = below[key]
        if _below(graphdef, desc) is not None:
            raise NoLane
        return self._lane(desc, path)

    def _lane(self, desc: Desc, path: Path) -> Lane:
        """The lane that stands at a leaf, a Variable, or a static value."""
        if desc[0] == "static":
            lane: Lane = desc[1].value
            return lane
        k = self._graphdef.find(path)
        assert k is not None
        return _one(self._leaves[k])

    def lane_values(self) -> Sequence[Lane]:
        lanes = list(map(_one, self._leaves))
        if not self._has_nodes:  # the static values of an object are its attributes
            lanes += [d[1].value for _, d, _ in descriptions(self._graphdef) if d[0] == "static"]
        return lanes

    def __repr__(self) -> str:
        paths = [path_text(path).removeprefix(".") for path, _ in self._graphdef.leaf_paths]
        shown = ", ".join(paths[:8]) + (", ..." if len(paths) > 8 else "")
        article = "an" if self._name[:1] in "AEIOU" else "a"
        return f"{article} {self._name} with the paths {shown or '(none)'}"


def _below(graphdef: GraphDef, desc: Desc) -> dict[Any, Desc] | None:
    """The descriptions below a container or object by key; None for what has a lane of its own."""
    if desc[0] == "container":
        return dict(zip(desc[1].keys, desc[2], strict=True))
    if desc[0] == "node" and graphdef.records[desc[1]][0] == "object":
        _, _, names, children, _ = graphdef.records[desc[1]]
        return dict(zip(names, children, strict=True))
    return None


def _one(leaf: Any) -> Lane:
    """The one lane of a leaf, which may be a pytree of equal ones."""
    if leaf is None or one_level(leaf) is None:
        lane: Lane = leaf
        return lane
    lanes = jax.tree.leaves(leaf, is_leaf=lambda x: x is None)
    return lanes[0] if lanes and all(lane == lanes[0] for lane in lanes) else repr(leaf)


def read_prefix(prefix: Any) -> Any:
    """A prefix as the user gives it, with prefix trees made rules."""
    if isinstance(prefix, PrefixRule):
        return prefix
    if type(prefix) is dict:
        return {key: read_prefix(p) for key, p in prefix.items()}
    if is_structured(prefix):
        return type(prefix)(map(read_prefix, prefix))
    if prefix is not None and (is_graph_value(prefix) or one_level(prefix) is not None):
        return PrefixTree(prefix)
    return prefix


def read_prefixes(arguments: Any, results: Any) -> tuple[Any, Any]:
    """The prefixes of arguments and results as the user gives them; that of arguments may be a list."""
    arguments = tuple(arguments) if type(arguments) is list else arguments
    return read_prefix(arguments), read_prefix(results)
