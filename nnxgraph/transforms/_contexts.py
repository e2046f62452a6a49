"""Splits and merges that know each other, for crossing into a JAX transform by hand.

    with update_context(tag):           the crossing as a whole
      outside  split_context            (1) objects get numbers
      inside   merge_context, inner     (2) twins of them, with the same numbers
      inside   split_context            (3) what is the twin of an object outside has its number
      outside  merge_context            (4) that object is changed in place; what has no number is new

These are `graph._indexed` with the index kept between the calls. (3) runs only while JAX traces: the
numbers are in the GraphDefs, so a cached trace serves another call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator, Mapping, MutableMapping
from typing import Any

from .. import _jax
from .._filters import Filter
from .._state import FlatState, states_by_filter
from ..errors import ContextError, NotAGraphDefError
from ..graph._functional import Node, flat_leaves
from ..graph._graphdef import GraphDef
from ..graph._indexed import build_onto, flatten


class _ByIdentity(MutableMapping[Any, int]):
    """Numbers of objects, which need be neither hashable nor comparable."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[Any, int]] = {}

    def __getitem__(self, x: Any) -> int:
        return self._items[id(x)][1]

    def __setitem__(self, x: Any, number: int) -> None:
        self._items[id(x)] = (x, number)

    def __delitem__(self, x: Any) -> None:
        del self._items[id(x)]

    def __iter__(self) -> Iterator[Any]:
        return (x for x, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)


def _no_trace() -> object:
    """Stands for a trace that was not met yet."""
    return None


class UpdateContext:
    """One crossing: the objects outside by number, and the numbers of their twins inside.

    Args:
        tag: The tag it was opened with.

    Example:
        >>> with nnx.update_context('example') as context:
        ...     nnx.current_update_context('example') is context
        True
    """

    def __init__(self, tag: Hashable):
        self.tag = tag
        self.outer_index_outer_ref: dict[int, Any] = {}
        self.inner_ref_outer_index: MutableMapping[Any, int] = _ByIdentity()
        self._outside = self._inside = _no_trace
        self._merged_inside = False

    def is_inner(self) -> bool:
        """Whether the code that runs is inside: behind a merge inside, and not in the trace of the split."""
        if not self._merged_inside:
            return False
        outside = self._outside()
        return self._inside() is outside or _jax.current_trace() is not outside

    def flatten_end(self, ref_index: Mapping[Any, int]) -> None:
        """Note the objects that were split outside, by their numbers."""
        self.outer_index_outer_ref = {i: x for x, i in ref_index.items()}
        self.inner_ref_outer_index = _ByIdentity()
        self._merged_inside = False
        self._outside = _jax.trace_reference(_jax.current_trace())

    def unflatten_end(self, index_ref: Mapping[int, Any], inner_merge: bool) -> None:
        """Note the twins made inside, by the numbers of the objects outside; or that all is back."""
        self._merged_inside = inner_merge
        if not inner_merge:
            self.inner_ref_outer_index = _ByIdentity()
            return
        self.inner_ref_outer_index.update((x, i) for i, x in index_ref.items())
        self._inside = _jax.trace_reference(_jax.current_trace())


class _Open(threading.local):
    """The contexts that are open in each thread, by tag."""

    def __init__(self) -> None:
        self.contexts: dict[Hashable, list[UpdateContext]] = {}


_open = _Open()


@contextlib.contextmanager
def update_context(tag: Hashable) -> Iterator[UpdateContext]:
    """Bring what happens to twins of objects inside a JAX transform back to the objects outside.

    Inside of it, split outside, merge inside, split inside, and merge outside: changed values, attributes and
    references reach the objects that were split, and what is new comes out new. Also a decorator.

    Args:
        tag: What `split_context` and `merge_context` name to find this context. A tag may be used again
            inside of its own context, for a crossing of its own.

    Yields:
        The context.

    Example:
        >>> @jax.jit
        ... def double(graphdef, state):
        ...     with nnx.merge_context('double', inner=True) as ctx:
        ...         twin = ctx.merge(graphdef, state)
        ...     twin.bias[...] = twin.bias[...] * 2.0
        ...     with nnx.split_context('double') as ctx:
        ...         return ctx.split(twin)
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> model.bias[...] = jnp.ones(3)
        >>> with nnx.update_context('double'):
        ...     with nnx.split_context('double') as ctx:
        ...         graphdef, state = ctx.split(model)
        ...     graphdef, state = double(graphdef, state)
        ...     with nnx.merge_context('double', inner=False) as ctx:
        ...         same = ctx.merge(graphdef, state)
        >>> same is model, model.bias[...].tolist()
        (True, [2.0, 2.0, 2.0])
    """
    context = UpdateContext(tag)
    stack = _open.contexts.setdefault(tag, [])
    stack.append(context)
    try:
        yield context
    finally:
        stack.pop()
        if not stack:
            del _open.contexts[tag]


def current_update_context(tag: Hashable) -> UpdateContext:
    """The innermost open context of a tag.

    Args:
        tag: The tag that `update_context` was called with.

    Returns:
        The context.

    Raises:
        ContextError: If none is open.

    Example:
        >>> with nnx.update_context('example'):
        ...     nnx.current_update_context('example').tag
        'example'
    """
    if tag not in _open.contexts:
        found = f"no update_context({tag!r}) is open"
        raise ContextError("current_update_context", found, f"with nnx.update_context({tag!r}): ...")
    return _open.contexts[tag][-1]


class SplitContext:
    """Splits objects that may share others; `split_context` makes it.

    Args:
        ctxtag: The tag of the update context, if there is one.
        ref_index: The numbers of the objects that were met.
        is_inner: Whether the objects are twins, made inside.

    Example:
        >>> shared = nnx.Param(jnp.ones(2))
        >>> with nnx.split_context() as ctx:
        ...     first = ctx.split(nnx.List([shared]))
        ...     second = ctx.split(nnx.List([shared]))
        >>> len(first[1]), len(second[1])
        (1, 0)
    """

    def __init__(self, ctxtag: Hashable | None, ref_index: MutableMapping[Any, int], is_inner: bool):
        self.ctxtag = ctxtag
        self.ref_index = ref_index
        self.is_inner = is_inner

    def split(self, node: Node, *filters: Filter) -> Any:
        """`nnx.split`, but objects that this context split before are described by their number."""
        graphdef, flat = self._flatten(node)
        return (graphdef, *states_by_filter("SplitContext.split", list(flat), filters, exhaustive=True))

    def flatten(self, node: Node, *filters: Filter, with_paths: bool = True) -> Any:
        """`nnx.flatten`, as `split` is `nnx.split`; one FlatState, or list of leaves, for each filter."""
        graphdef, flat = self._flatten(node)
        split = flat.split(*filters) if filters else flat
        parts = split if isinstance(split, tuple) else (split,)
        return (graphdef, *(part if with_paths else list(part.leaves) for part in parts))

    def _flatten(self, node: Node) -> tuple[GraphDef, FlatState]:
        """Take a node apart, and say which numbers its objects have."""
        if self.ctxtag is None:
            return flatten(node, ref_index=self.ref_index)
        if self.is_inner:
            outer = current_update_context(self.ctxtag).inner_ref_outer_index
            return flatten(node, ref_index=self.ref_index, ref_outer_index=outer)
        start = len(self.ref_index)
        graphdef, flat = flatten(node, ref_index=self.ref_index)
        numbers = tuple(range(start, start + len(graphdef.records)))
        return GraphDef(graphdef.root, graphdef.records, numbers), flat


class MergeContext:
    """Merges what one `split_context` split; `merge_context` makes it.

    Args:
        ctxtag: The tag of the update context, if there is one.
        index_ref: The objects that were made, by number.
        is_inner: Whether the objects are twins, made inside; None without a tag.

    Example:
        >>> shared = nnx.Param(jnp.ones(2))
        >>> with nnx.split_context() as ctx:
        ...     first, second = ctx.split(nnx.List([shared])), ctx.split(nnx.List([shared]))
        >>> with nnx.merge_context() as ctx:
        ...     ctx.merge(*first)[0] is ctx.merge(*second)[0]
        True
    """

    def __init__(self, ctxtag: Hashable | None, index_ref: dict[int, Any], is_inner: bool | None):
        self.ctxtag = ctxtag
        self.index_ref = index_ref
        self.is_inner = is_inner

    def merge(self, graphdef: GraphDef, state: Any, /, *states: Any) -> Any:
        """`nnx.merge`, but objects that this context made before, or that are outside, are themselves."""
        return self._build("MergeContext.merge", graphdef, (state, *states))

    def unflatten(self, graphdef: GraphDef, flat_state: Any, /, *flat_states: Any) -> Any:
        """`merge` for what `SplitContext.flatten` returned."""
        if isinstance(flat_state, list) and isinstance(graphdef, GraphDef):
            paths = [path for path, _ in graphdef.leaf_paths]
            flat_state = FlatState(zip(paths, flat_state, strict=True), sort=False)
        return self._build("MergeContext.unflatten", graphdef, (flat_state, *flat_states))

    def _build(self, where: str, graphdef: GraphDef, states: tuple[Any, ...]) -> Any:
        """Put a node together, and note its objects by number."""
        if not isinstance(graphdef, GraphDef):
            raise NotAGraphDefError(where, type(graphdef).__name__)
        outside: Mapping[int, Any] = {}
        if self.ctxtag is not None and not self.is_inner:
            outside = current_update_context(self.ctxtag).outer_index_outer_ref
        leaves = flat_leaves(where, graphdef, states)
        root, objects = build_onto(graphdef, leaves, self.index_ref, outside)
        start = len(self.index_ref)
        numbers = graphdef.outer or () if self.is_inner else range(start, start + len(objects))
        self.index_ref.update((i, x) for i, x in zip(numbers, objects, strict=False) if i is not None)
        return root


@contextlib.contextmanager
def split_context(ctxtag: Hashable | None = None) -> Iterator[SplitContext]:
    """Split several objects and keep what they share.

    Args:
        ctxtag: The tag of an open `update_context`, to bring changes back. The objects of one crossing are
            split in one block. Whether that is outside or inside is known from the merge inside.

    Yields:
        A SplitContext; its `split` and `flatten` are used like `nnx.split` and `nnx.flatten`.

    Raises:
        ContextError: If no `update_context` of the tag is open.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> with nnx.split_context() as ctx:
        ...     graphdef1, params, rest = ctx.split(model, nnx.Param, ...)
        ...     graphdef2, nothing = ctx.split([model])
        >>> with nnx.merge_context() as ctx:
        ...     twin, (same,) = ctx.merge(graphdef1, params, rest), ctx.merge(graphdef2, nothing)
        >>> twin is same
        True
    """
    context = None if ctxtag is None else current_update_context(ctxtag)
    is_inner = context is not None and context.is_inner()
    split = SplitContext(ctxtag, _ByIdentity(), is_inner)
    yield split
    if context is not None and not is_inner:
        context.flatten_end(split.ref_index)


@contextlib.contextmanager
def merge_context(ctxtag: Hashable | None = None, inner: bool | None = None) -> Iterator[MergeContext]:
    """Merge several objects that were split in one `split_context`, in the order of the splits.

    Args:
        ctxtag: The tag of an open `update_context`.
        inner: With a tag, True inside of the transform, where twins are made, and False outside, where the
            objects that were split are changed in place.

    Yields:
        A MergeContext; its `merge` and `unflatten` are used like `nnx.merge` and `nnx.unflatten`.

    Raises:
        ContextError: If no `update_context` of the tag is open, or `inner` is missing.

    Example:
        >>> a = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> with nnx.update_context('swap'):
        ...     with nnx.split_context('swap') as ctx:
        ...         pure = ctx.split(a)
        ...     with nnx.merge_context('swap', inner=True) as ctx:
        ...         twin = ctx.merge(*pure)
        ...     twin.extra = nnx.Param(jnp.ones(2))
        ...     with nnx.split_context('swap') as ctx:
        ...         pure = ctx.split(twin)
        ...     with nnx.merge_context('swap', inner=False) as ctx:
        ...         same = ctx.merge(*pure)
        >>> same is a, a.extra.shape
        (True, (2,))
    """
    if (ctxtag is None) != (inner is None):
        found = f"ctxtag={ctxtag!r} with inner={inner!r}"
        raise ContextError(
            "merge_context", found, "nnx.merge_context(tag, inner=True) inside of the transform"
        )
    context = None if ctxtag is None else current_update_context(ctxtag)
    merge = MergeContext(ctxtag, {}, inner)
    yield merge
    if context is not None:
        context.unflatten_end(merge.index_ref, bool(inner))
