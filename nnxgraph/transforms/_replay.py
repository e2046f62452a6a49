"""Loops and branches run the user's code once: trace it to a jaxpr, look at what changed, replay the jaxpr.

A `Replay` is a pure function of leaves, which knows which outputs are inputs passed through. `Match` pairs
the leaves that a loop carries: as they come in, and as they go out of the body.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from .._repr import path_text, short
from .._trees import same_structure
from ..graph._graphdef import Desc, count_leaves, desc_children, leaf_starts, record_leaves
from ._crossing import Change, Crossing, Layout, gather


class Replay:
    """The trace of a function `(layout, lanes, ...) -> (head, (change, lanes))`."""

    change: Change
    head: Any  # shapes
    leaves: list[Any]  # shapes, in the order of the change
    weak: list[bool]  # whether each of them is weakly typed

    def __init__(self, pure: Callable[..., Any], layout: Layout, *args: Any):
        closed, shapes = jax.make_jaxpr(pure, return_shape=True)(layout, *args)
        self._closed = closed
        self.consts = closed.consts  # what the function closes over
        self._out_tree = jax.tree.structure(shapes)
        self.head, (self.change, lanes) = shapes
        self.leaves = gather(lanes, self.change.lane_of)
        self.weak = [all(jax.tree.leaves(w)) for w in self._by_leaf([a.weak_type for a in closed.out_avals])]
        inputs = jax.tree.unflatten(jax.tree.structure(args), range(len(closed.jaxpr.invars)))
        self._inputs = gather(inputs[0], layout.lane_of)
        number = {id(v): i for i, v in enumerate(closed.jaxpr.invars)}
        self._sources = self._by_leaf([number.get(id(v), -1) for v in closed.jaxpr.outvars])

    def _by_leaf(self, flat: list[Any]) -> list[Any]:
        """Facts about flat outputs, by leaf of the change."""
        return gather(jax.tree.unflatten(self._out_tree, flat)[1][1], self.change.lane_of)

    def __call__(
        self, layout: Layout, *args: Any, consts: Sequence[Any] | None = None
    ) -> tuple[Any, list[Any]]:
        """The head, and the leaves in the order of the change."""
        closed: Any = self._closed
        run = jaxpr_as_fun(closed if consts is None else closed.replace(consts=list(consts)))
        out = run(*jax.tree.leaves(args))
        head, (_, lanes) = jax.tree.unflatten(self._out_tree, out)
        return head, gather(lanes, self.change.lane_of)

    def passes(self, position: int, k: int) -> bool:
        """Whether an output leaf is the k-th input leaf, passed through."""
        source, given = self._sources[position], self._inputs[k]
        return same_structure(source, given) and jax.tree.leaves(source) == jax.tree.leaves(given)


class Match:
    """Which output leaf is the next value of which input leaf, in what a loop carries."""

    def __init__(self, crossing: Crossing, change: Change):
        self._records = crossing.layout.graphdef.records
        self._starts = leaf_starts(crossing.layout.graphdef)
        self._new_records = change.records
        self._text = ""
        self.source: dict[int, int] = {k: p for p, k in enumerate(change.written)}
        self.differences: list[str] = []
        self._replaced: dict[int, int] = {}  # input object: the new object that stands for it
        self._root = len(change.written) + change.edit_leaves()
        sizes = [count_leaves(change.root), *map(record_leaves, change.records)]
        self._new_starts = list(itertools.accumulate(sizes, initial=self._root))[1:]

    def carried(self, before: Desc, after: Desc, first: int, text: str) -> None:
        """Pair the leaves of the carried value, whose first input leaf is number `first`."""
        self._pair(before, after, itertools.count(first), itertools.count(self._root), text)

    def _pair(self, before: Desc, after: Desc, ins: Iterator[int], outs: Iterator[int], text: str) -> None:
        """Pair the leaves of two descriptions."""
        tags = (before[0], after[0])
        if tags == ("leaf", "leaf"):
            self._claim(next(ins), next(outs), text)
        elif tags == ("node", "known"):
            if before[1] != after[1]:
                self.differences.append(f"{text} is another object of the arguments than before")
        elif tags == ("node", "node"):
            self._objects(before[1], after[1], text)
        elif tags == ("container", "container") and before[1] == after[1]:
            for (key, child), (_, other) in zip(desc_children(before), desc_children(after), strict=True):
                self._pair(child, other, ins, outs, text + path_text((key,)))
        elif before != after:
            self.differences.append(f"{text} was {said(before)} and is {said(after)}")

    def _claim(self, k: int, position: int, text: str) -> None:
        """Note the next value of an input leaf."""
        if k in self.source:
            self.differences.append(f"{text} is written and then replaced")
        self.source[k] = position

    def _objects(self, i: int, j: int, text: str) -> None:
        """Pair an object with the new one that stands for it."""
        if i in self._replaced:
            if self._replaced[i] != j:
                self.differences.append(f"{text} was one object at two places and is two objects")
            return
        self._replaced[i] = j
        before, after = self._records[i], self._new_records[j]
        ins, outs = itertools.count(self._starts[i]), itertools.count(self._new_starts[j])
        if before[0] == "variable" and before == after:
            self._claim(next(ins), next(outs), text)
        elif before[0] == "object" and before[:3] == after[:3]:
            for name, child, other in zip(before[2], before[3], after[3], strict=True):
                self._pair(child, other, ins, outs, text + path_text((name,)))
        else:
            self.differences.append(f"{text} was {_record_said(before)} and is {_record_said(after)}")


def said(desc: Desc) -> str:
    """A description in a few words."""
    if desc[0] == "container":
        return f"a {desc[1].cls.__name__} with {len(desc[2])} entries"
    if desc[0] == "static":
        return short(desc[1].value)
    return {"leaf": "an array", "node": "an object", "known": "an object of the arguments"}[desc[0]]


def _record_said(record: Desc) -> str:
    """An object's record in a few words."""
    if record[0] == "variable":
        return f"a {record[1].kind.__name__}"
    return f"a {record[1].__name__} with the attributes {', '.join(map(str, record[2])) or '(none)'}"


def edit_texts(crossing: Crossing, edits: Sequence[tuple[int, Desc]]) -> list[str]:
    """What changed about objects, attribute by attribute."""
    graphdef = crossing.layout.graphdef
    texts = []
    for i, after in edits:
        path = graphdef.paths[i]
        where = crossing.names.argument(path)
        before = graphdef.records[i]
        if before[0] == "variable":
            texts.append(f"{where} has other metadata")
            continue
        old = dict(zip(before[2], before[3], strict=True))
        new = dict(zip(after[2], after[3], strict=True))
        texts += [f"{where} has a new attribute {name!r}" for name in new if name not in old]
        texts += [f"{where} has lost the attribute {name!r}" for name in old if name not in new]
        for name in (n for n in old if n in new and _differ(old[n], new[n])):
            texts.append(f"{where}: attribute {name!r} {_changed(old[name], new[name])}")
    return texts


def _changed(old: Desc, new: Desc) -> str:
    """How two descriptions differ, in a few words."""
    before, after = said(old), said(new)
    if before != after:
        return f"was {before} and is {after}"
    return (
        "is another object than before" if old[0] == "node" else f"is {after} as before, with other contents"
    )


def _differ(old: Desc, new: Desc) -> bool:
    """Whether a description changed."""
    if old[0] == "node" and new[0] == "known":
        return bool(old[1] != new[1])
    if old[0] == "container" and new[0] == "container" and old[1] == new[1]:
        return any(map(_differ, old[2], new[2]))
    return old != new


def is_weak(x: Any) -> bool:
    """Whether all arrays of a leaf are weakly typed, as Python numbers are."""
    return all(getattr(jax.typeof(a), "weak_type", False) for a in jax.tree.leaves(x))


def retyped(before: Any, after: Any, after_weak: bool) -> Any | None:
    """A carried leaf with the type that the body gives it; itself if it has it; None if that cannot be."""
    if not same_structure(before, after):
        return None
    pairs = list(zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))
    if any(jnp.shape(b) != a.shape for b, a in pairs):
        return None
    same = all(jax.typeof(b).dtype == a.dtype for b, a in pairs)
    if same and (after_weak or not is_weak(before)):
        return before
    if not is_weak(before):
        return None
    wider = [jnp.asarray(b, jnp.promote_types(jax.typeof(b).dtype, a.dtype)) for b, a in pairs]
    return jax.tree.unflatten(jax.tree.structure(before), wider)


def type_text(x: Any) -> str:
    """The type of a leaf in a few words."""
    leaves = jax.tree.leaves(x)
    return short(jax.typeof(leaves[0])) if len(leaves) == 1 else short(x)
