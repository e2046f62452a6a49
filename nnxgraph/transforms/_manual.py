"""The Boundary by hand, for people who write their own transform: pytrees of objects as plain pytrees.

`to_tree` replaces each object in a pytree by a `NodeStates`, its description and its values, which any JAX
transform takes; `from_tree` puts the objects back. `split_inputs(transform(merge_inputs(f)))` is both on
both sides. All are `_contexts`, used on every object of a tree.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
from jax.tree_util import GetAttrKey

from .._state import State
from .._trees import plain_key
from .._typing import MISSING, Missing, Path
from ..errors import NodeStatesError, PrefixError
from ..graph._graphdef import GraphDef
from ..graph._registry import is_graph_value
from ..graph._walk import Walk
from ._contexts import MergeContext, SplitContext, merge_context, split_context, update_context
from ._functions import argument_names, returns
from ._lanes import Names, PrefixRule, Resolver, collect_lanes
from ._prefix import read_prefix


@dataclasses.dataclass(frozen=True, eq=False)
class NodeStates:
    """An object as a pytree: its description, which is static, and its values.

    Args:
        _graphdef: The description; None for a prefix of other NodeStates.
        states: The values, or their prefixes, one State for each filter.
        metadata: Whatever is to be known on the other side; static, hashable.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> node = nnx.NodeStates.from_split(*nnx.split(model))
        >>> jax.tree.map(jnp.zeros_like, node).state['bias'].shape
        (3,)
    """

    _graphdef: GraphDef | None
    states: tuple[Any, ...]
    metadata: Any = None

    @classmethod
    def from_split(cls, graphdef: GraphDef, state: Any, /, *states: Any, metadata: Any = None) -> NodeStates:
        """What `split` returned, in one value."""
        return cls(graphdef, (state, *states), metadata)

    @classmethod
    def from_states(cls, state: Any, *states: Any) -> NodeStates:
        """Values without a description."""
        return cls(None, (state, *states))

    @classmethod
    def from_prefixes(cls, prefixes: Any, /, *, metadata: Any = None) -> NodeStates:
        """Prefixes such as axes, one for each State of the NodeStates that they are for."""
        return cls(None, tuple(prefixes), metadata)

    @property
    def graphdef(self) -> GraphDef:
        """The description."""
        if self._graphdef is None:
            raise NodeStatesError("graphdef", "states alone", "what NodeStates.from_split made")
        return self._graphdef

    @property
    def state(self) -> Any:
        """The values, where they are in one State."""
        if len(self.states) != 1:
            found = f"{len(self.states)} states"
            raise NodeStatesError("state", found, "one. Write `.states` for the tuple of all of them")
        return self.states[0]

    def replace(self, **updates: Any) -> NodeStates:
        """The same with other `states` or `metadata`."""
        return dataclasses.replace(self, **updates)


def _node_states(metadata: Any, children: Any) -> NodeStates:
    """The NodeStates with these children."""
    graphdef, states = children
    return NodeStates(graphdef, states, metadata)


# The GraphDef is a child, since a leafless child fits a prefix that has None in its place.
jax.tree_util.register_pytree_with_keys(
    NodeStates,
    lambda node: (
        ((GetAttrKey("graphdef"), node._graphdef), (GetAttrKey("states"), node.states)),
        node.metadata,
    ),
    _node_states,
)


def is_tree_node(x: Any) -> bool:
    """Whether a value stands for an object."""
    return isinstance(x, NodeStates)


def default_split_fn(ctx: SplitContext, path: Path, prefix: Any, node: Any) -> Any:
    """An object as NodeStates with one State; other leaves as they are."""
    return NodeStates.from_split(*ctx.split(node)) if is_graph_value(node) else node


def merge_tree_node(ctx: MergeContext, path: Path, prefix: Any, node: Any) -> Any:
    """The object that a NodeStates stands for; other leaves as they are."""
    return ctx.merge(node.graphdef, *node.states) if is_tree_node(node) else node


_Leaves = list[tuple[Path, Any, Any]]  # path, prefix, leaf


def _leaves_of(where: str, tree: Any, prefix: Any, is_leaf: Callable[[Any], bool]) -> tuple[_Leaves, Any]:
    """The leaves of a tree with their paths and prefixes, and its treedef."""
    items, shape = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    treedef: Any = shape  # JAX leaves it untyped
    prefix = None if isinstance(prefix, Missing) else prefix
    boxed = jax.tree.map(lambda p: lambda: p, prefix, is_leaf=_is_prefix_leaf)  # None is a prefix, not a node
    try:
        opened = jax.tree.leaves(jax.tree.broadcast(boxed, treedef.unflatten(range(len(items)))))
    except ValueError:
        raise PrefixError(where, "prefix", "the tree", repr(prefix), f"a prefix of {treedef}") from None
    triples = zip(items, opened, strict=True)
    return [(tuple(map(plain_key, path)), p(), leaf) for (path, leaf), p in triples], treedef


def _is_prefix_leaf(x: Any) -> bool:
    """Whether a prefix is for all that stands below."""
    return x is None or isinstance(x, PrefixRule | State) or is_graph_value(x)


def _check_aliasing(names: Names, part: Any, leaves: _Leaves) -> None:
    """Refuse a Variable that is reached with two prefixes."""
    nodes = [(path, read_prefix(prefix), x) for path, prefix, x in leaves if is_graph_value(x)]
    walk = Walk()
    _, _, descs = walk.root([x for _, _, x in nodes])
    lanes = collect_lanes(*(prefix for _, prefix, _ in nodes))
    resolver = Resolver(names, lanes, walk.records, walk.objects, 0)
    for desc, (path, prefix, _) in zip(descs, nodes, strict=True):
        resolver.visit(desc, prefix, (part, *path), iter(()))


def to_tree(
    tree: Any,
    /,
    *,
    prefix: Any = MISSING,
    split_fn: Callable[[SplitContext, Path, Any, Any], Any] = default_split_fn,
    map_non_graph_nodes: bool = False,
    ctxtag: Hashable | None = None,
    check_aliasing: bool = True,
) -> Any:
    """Replace each object in a pytree by a pytree that holds its description and its values.

    What objects share is in the first of them only; `from_tree` makes it shared again.

    Args:
        tree: A pytree of objects, Variables and other leaves.
        prefix: A prefix of the tree, such as `in_axes`; what stands for an object is given to `split_fn`.
        split_fn: `split_fn(ctx, path, prefix, node)` gives what replaces an object, by default a NodeStates
            of one State; `ctx` is a SplitContext.
        map_non_graph_nodes: Whether `split_fn` gets the other leaves too.
        ctxtag: The tag of an open `update_context`.
        check_aliasing: Whether to refuse a Variable that is reached with two prefixes.

    Returns:
        The pytree.

    Raises:
        AliasError: If a Variable is reached with two prefixes.
        PrefixError: If the prefix does not fit the tree.

    Example:
        Axes by filter for a transform that knows prefixes of pytrees only:

        >>> def split_axes(ctx, path, axes, node):
        ...     return nnx.NodeStates.from_split(*ctx.split(node, *axes.filters), metadata=axes)
        >>> axes = nnx.StateAxes({nnx.Param: 0, ...: None})
        >>> models = nnx.vmap(lambda i: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))(jnp.arange(4))
        >>> tree = nnx.to_tree((models,), prefix=(axes,), split_fn=split_axes)
        >>> in_axes = nnx.NodeStates.from_prefixes(axes.axes, metadata=axes)
        >>> jax.vmap(lambda t: nnx.from_tree(t).bias[...], in_axes=(in_axes,))(*tree).shape
        (4, 3)
    """
    leaves, treedef = _leaves_of("to_tree", tree, prefix, is_graph_value)
    if check_aliasing and not isinstance(prefix, Missing):
        _check_aliasing(Names("to_tree", "prefix"), "tree", leaves)
    with split_context(ctxtag) as ctx:
        out = [
            split_fn(ctx, path, p, x) if map_non_graph_nodes or is_graph_value(x) else x
            for path, p, x in leaves
        ]
    return treedef.unflatten(out)


def from_tree(
    tree: Any,
    /,
    *,
    prefix: Any = MISSING,
    merge_fn: Callable[[MergeContext, Path, Any, Any], Any] = merge_tree_node,
    is_node_leaf: Callable[[Any], bool] = is_tree_node,
    is_leaf: Callable[[Any], bool] = is_tree_node,
    map_non_graph_nodes: bool = False,
    is_inner: bool | None = None,
    ctxtag: Hashable | None = None,
) -> Any:
    """Put objects back into a pytree that `to_tree` made.

    Args:
        tree: The pytree.
        prefix: A prefix of the tree; what stands for an object is given to `merge_fn`.
        merge_fn: `merge_fn(ctx, path, prefix, leaf)` gives the object for what `split_fn` made of it; `ctx`
            is a MergeContext.
        is_node_leaf: Whether a leaf stands for an object.
        is_leaf: Where the tree ends.
        map_non_graph_nodes: Whether `merge_fn` gets the other leaves too.
        is_inner: With a tag, whether this is inside of the transform.
        ctxtag: The tag of an open `update_context`.

    Returns:
        The pytree with objects: new ones, or with a tag and outside, those that were split.

    Raises:
        ContextError: If a tag is given without `is_inner`, or no `update_context` of the tag is open.
        PrefixError: If the prefix does not fit the tree.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> tree = nnx.to_tree({'a': model, 'b': [model], 'x': jnp.ones(2)})
        >>> twin = nnx.from_tree(jax.tree.map(jnp.zeros_like, tree))
        >>> twin['a'] is twin['b'][0], twin['a'].kernel[...].any().item(), twin['x'].tolist()
        (True, False, [0.0, 0.0])
    """
    leaves, treedef = _leaves_of("from_tree", tree, prefix, is_leaf)
    with merge_context(ctxtag, is_inner) as ctx:
        out = [
            merge_fn(ctx, path, p, x) if map_non_graph_nodes or is_node_leaf(x) else x
            for path, p, x in leaves
        ]
    return treedef.unflatten(out)


_INPUTS = "split_merge_inputs"


@returns(Any)
def split_inputs(f: Any = MISSING, *, ctxtag: Hashable = _INPUTS, prefix: Any = MISSING) -> Any:
    """Call a transformed function that takes and returns pytrees with objects: the outside of a transform.

    `nnx.split_inputs(transform(nnx.merge_inputs(f)))` takes the arguments of `f`, each as one pytree, through
    a transform that knows pytrees only. What `f` does to objects reaches the caller's. `transform` sees
    a function that returns `(arguments, result)`, where of the arguments only the objects come back, so
    `out_axes=(in_axes, ...)` is right for a map; keyword arguments are a dict behind the others.

    All values of these objects come back and are written, also those that `f` only reads. A map therefore
    needs the `out_axes` above, and a call under a raw JAX transform needs its objects from inside of it:
    for an object from outside it raises TraceWriteError. The transforms of nnxgraph write what changed.

    Args:
        f: The transformed function; left out for a decorator.
        ctxtag: The tag that this and `merge_inputs` share.
        prefix: A prefix of the positional arguments, such as the transform's `in_axes`, to refuse a Variable
            that is reached with two of them. Without it the first argument decides for what both share.

    Returns:
        The function, or a decorator.

    Raises:
        AliasError: If a Variable is reached with two prefixes.
        PrefixError: If the prefix does not fit the arguments.
        TraceWriteError: If an object comes from outside of a raw JAX transform that is active.

    Example:
        >>> @nnx.split_inputs
        ... @jax.jit
        ... @nnx.merge_inputs
        ... def halve(model, x):
        ...     model.kernel[...] = model.kernel[...] * 0.5
        ...     return model(x)
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> model.kernel[...] = jnp.ones((2, 3))
        >>> halve(model, jnp.ones(2)).tolist(), float(model.kernel[0, 0])
        ([1.0, 1.0, 1.0], 0.5)
    """
    names = Names("split_inputs", "prefix", argument_names(f))

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not isinstance(prefix, Missing):
            _check_aliasing(names, 0, _leaves_of("split_inputs", args, prefix, is_graph_value)[0])
        with update_context(ctxtag):
            args, kwargs = to_tree((args, kwargs), ctxtag=ctxtag)
            packed = f(*args, **kwargs)
            return from_tree(packed, ctxtag=ctxtag, is_inner=False)[1]

    return wrapper


@returns(tuple[Any, Any])
def merge_inputs(f: Any = MISSING, *, ctxtag: Hashable = _INPUTS) -> Any:
    """Make a function over objects one over pytrees: the inside of a transform; see `split_inputs`.

    Args:
        f: The function; left out for a decorator.
        ctxtag: The tag that this and `split_inputs` share.

    Returns:
        A function of the arguments as `to_tree` makes them, which returns `(arguments, result)`; or a
        decorator.

    Raises:
        ContextError: If it is called outside of the function that `split_inputs` made.

    Example:
        >>> def count(model, x):
        ...     model.calls[...] += 1.0
        ...     return model.weight[...] * x
        >>> model = nnx.Dict(weight=nnx.Param(jnp.ones(3)), calls=nnx.Variable(jnp.zeros(3)))
        >>> mapped = jax.vmap(nnx.merge_inputs(count), in_axes=(0, None), out_axes=((0, None), 0))
        >>> nnx.split_inputs(mapped)(model, jnp.asarray(2.0)).tolist(), model.calls[...].tolist()
        ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    """

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        args, kwargs = from_tree((args, kwargs), ctxtag=ctxtag, is_inner=True)
        out = f(*args, **kwargs)
        given = (*args, kwargs) if kwargs else args
        objects = jax.tree.map(lambda x: x if is_graph_value(x) else None, given, is_leaf=is_graph_value)
        tree: tuple[Any, Any] = to_tree((objects, out), ctxtag=ctxtag)
        return tree

    return wrapper
