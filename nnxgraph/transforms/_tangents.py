"""Tangents and cotangents: as users write and read them, and as the leaves that JAX takes and returns.

To an array belongs an array; to a container one of the same shape; to an object a State with the paths of
what is differentiated by. A `Form` knows what stands where, and goes both ways: `read` is generous, since
users write tangents by hand, `show` has one form only.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._repr import path_text, short
from .._state import FlatState, State, from_flat_state
from .._trees import same_structure, shape_struct
from .._typing import Path
from .._variable import Variable, new_variable
from ..errors import TangentError
from ..graph._functional import leaf_objects
from ..graph._graphdef import Desc, GraphDef, Shape, count_leaves, desc_children, descriptions, leaf_starts
from ..graph._registry import is_node
from ..graph._walk import flatten, level_below
from ._crossing import Crossing
from ._lanes import Names


class LeafType(NamedTuple):
    """The type of a tangent leaf, which may be a pytree of arrays."""

    treedef: Any
    arrays: tuple[tuple[tuple[int, ...], Any], ...]

    def zero(self) -> Any:
        """The tangent that is zero."""
        return self.treedef.unflatten([_zeros(shape, dtype) for shape, dtype in self.arrays])

    def shapes(self) -> Any:
        """The shapes and dtypes, without arrays."""
        return self.treedef.unflatten([shape_struct(*array) for array in self.arrays])


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    """A zero; the type that stands for derivatives by integers exists outside of JAX arrays only."""
    return np.zeros(shape, dtype) if dtype == jax.dtypes.float0 else jnp.zeros(shape, dtype)


def tangent_type(x: Any) -> LeafType:
    """The type of the tangents of a leaf."""
    leaves, treedef = jax.tree.flatten(x)
    return LeafType(treedef, tuple((np.shape(a), _tangent_dtype(a)) for a in leaves))


def _tangent_dtype(x: Any) -> Any:
    """The dtype of the tangents of an array: its own, or float0 for what cannot be differentiated by."""
    dtype = x.dtype if hasattr(x, "dtype") else jax.dtypes.result_type(x)
    return dtype if jnp.issubdtype(dtype, np.inexact) else jax.dtypes.float0


Wrap = Callable[[Any, Any], Any]  # a Variable's spec, and what belongs to it, as it is shown


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Form:
    """What tangents belong to: the places `roots` of a graph, and the type of the tangents of each leaf.

    A leaf without a type has no tangent. `what` and `names` are for texts: "tangents", "cotangents" ... A
    result may hold objects of the arguments, whose tangents are those of `inputs`.
    """

    transform: str
    what: str
    graphdef: GraphDef
    roots: tuple[Path, ...]
    types: tuple[LeafType | None, ...]
    names: tuple[str, ...] | None = None  # of the arguments; None where the graph is a result
    inputs: Form | None = None

    def numbers(self) -> list[int]:
        """Which leaves have a tangent."""
        return [k for k, t in enumerate(self.types) if t is not None]

    def all_types(self) -> list[LeafType]:
        """The types of all tangents, those of inputs last."""
        own = [t for t in self.types if t is not None]
        return own if self.inputs is None else own + self.inputs.all_types()

    def find(self, values: Sequence[Any]) -> list[Any]:
        """The tangents, in order, from what a user wrote for each root; None for zero."""
        reader = _Reader(self)
        for path, desc, first in self._parts():
            if path in self.roots:
                reader.read(desc, values[self.roots.index(path)], itertools.count(first), path)
        if reader.problems:
            raise TangentError(self.transform, self.what, tuple(reader.problems))
        return reader.found()

    def read(self, values: Sequence[Any]) -> list[Any]:
        """The tangents, in order, from what a user wrote for each root."""
        return self.filled(self.find(values))

    def filled(self, tangents: Sequence[Any]) -> list[Any]:
        """The tangents with zeros for None."""
        return [t.zero() if x is None else x for x, t in zip(tangents, self.all_types(), strict=True)]

    def show(self, tangents: Sequence[Any], wrap: Wrap = new_variable) -> list[Any]:
        """What belongs to each root, from the tangents in order."""
        view = self.view(tangents, wrap)
        shown = {path: view.value(desc, itertools.count(first)) for path, desc, first in self._parts()}
        return [shown[path] for path in self.roots]

    def view(self, tangents: Sequence[Any], wrap: Wrap) -> _View:
        """What reads the tangents by the number of their leaf."""
        numbers = self.numbers()
        own, rest = tangents[: len(numbers)], tangents[len(numbers) :]
        known = self.inputs.view(rest, wrap) if self.inputs is not None else None
        return _View(self.graphdef, dict(zip(numbers, own, strict=True)), wrap, known)

    def _parts(self) -> Iterator[tuple[Path, Desc, int]]:
        """The path and description of all arguments, or of the result, with the number of its first leaf."""
        if self.names is None:
            yield (), self.graphdef.root, 0
            return
        first = sum(map(count_leaves, self.graphdef.root[2][:2]))
        for part in (2, 3):
            for key, desc in desc_children(self.graphdef.root[2][part]):
                yield (part, key), desc, first
                first += count_leaves(desc)

    def text(self, path: Path) -> str:
        """A path of the graph, as the user would write it."""
        if self.names is None:
            return f"result{path_text(path)}"
        return Names(self.transform, "", self.names).argument(path)


def form_of_arguments(crossing: Crossing, what: str, roots: tuple[Path, ...], lane: int = 0) -> Form:
    """The form of the tangents of what stands in one lane of a call."""
    pairs = zip(crossing.leaves, crossing.layout.lane_of, strict=True)
    types = tuple(tangent_type(x) if at == lane else None for x, at in pairs)
    names = crossing.names
    return Form(names.transform, what, crossing.layout.graphdef, roots, types, names.arguments)


def form_of_result(transform: str, what: str, out: Any) -> Form:
    """The form of the tangents of a result."""
    graphdef, leaves, _ = flatten(out)
    return Form(transform, what, graphdef, ((),), tuple(map(tangent_type, leaves)))


class _View:
    """Reads tangents by the number of their leaf, in the shape of a description."""

    def __init__(self, graphdef: GraphDef, by_number: dict[int, Any], wrap: Wrap, known: _View | None = None):
        self.graphdef = graphdef
        self.known = known  # of the graph that known objects belong to
        self.records = graphdef.records
        self.starts = leaf_starts(graphdef)
        self.by_number = by_number
        self.wrap = wrap
        self.entered: set[int] = set()

    def value(self, desc: Desc, numbers: Iterator[int]) -> Any:
        """Containers as they are, arrays by tangents, objects by States."""
        tag = desc[0]
        if tag == "leaf":
            return self.by_number.get(next(numbers))
        if tag == "container":
            return desc[1].close([self.value(child, numbers) for child in desc[2]])
        if tag == "static":
            return desc[1].value
        if tag == "known":
            known = self._of_known(desc)
            return State({}) if known is None else known.value(("node", desc[1]), numbers)
        if self.records[desc[1]][0] == "variable":
            return self._variable(desc[1])
        return from_flat_state(self._below(desc))

    def _of_known(self, desc: Desc) -> _View | None:
        """What reads the tangents of an object of another graph; None if it is in no graph."""
        return self.known if self.known is not None and desc[1] < len(self.known.records) else None

    def _variable(self, i: int) -> Any:
        """What belongs to a Variable, as a Variable of the same spec."""
        return self.wrap(self.records[i][1], self.by_number.get(self.starts[i]))

    def _below(self, desc: Desc) -> list[tuple[Path, Any]]:
        """What belongs to leaves below an object that were not met before, with their paths."""
        found: list[tuple[Path, Any]] = []
        following = dict(enumerate(self.starts))
        for path, below, owner in descriptions(self.graphdef, desc, self.entered):
            if below[0] == "leaf":
                k, following[owner] = following[owner], following[owner] + 1
                if k in self.by_number:
                    found.append((path, self.by_number[k]))
            elif below[0] == "node" and below[1] not in self.entered:
                i = below[1]
                if self.records[i][0] == "variable" and self.starts[i] in self.by_number:
                    found.append((path, self._variable(i)))
            elif below[0] == "known":
                known = self._of_known(below)
                further = [] if known is None else known._below(("node", below[1]))
                found += [((*path, *end), x) for end, x in further]
        return found


class _Reader:
    """Finds the leaf that each part of a user's tangents belongs to."""

    def __init__(self, form: Form):
        self.form = form
        self.records = form.graphdef.records
        self.starts = leaf_starts(form.graphdef)
        self.given: dict[int, Any] = {}
        self.problems: list[str] = []
        self.known = _Reader(form.inputs) if form.inputs is not None else None

    def found(self) -> list[Any]:
        """The tangents in order, those of inputs last; None where there is none."""
        own = [self.given.get(k) for k in self.form.numbers()]
        return own if self.known is None else own + self.known.found()

    def read(self, desc: Desc, value: Any, numbers: Iterator[int], path: Path) -> None:
        """Read the tangents of what a description describes."""
        tag = desc[0]
        if tag == "leaf":
            self._give(next(numbers), value, path)
        elif tag == "container":
            self._container(desc, value, numbers, path)
        elif tag == "node" and self.records[desc[1]][0] == "variable":
            self._give(self.starts[desc[1]], value, path)
        elif tag == "node" and value is not None:
            self._object(value, path)
        elif tag == "known" and value is not None:
            self._known(desc[1], value)

    def _known(self, i: int, value: Any) -> None:
        """Read the tangents of an object of the arguments that is in the result."""
        if self.known is None or i >= len(self.known.records):
            self.problems.append("the result holds a captured object, which has no tangents")
            return
        self.known.read(("node", i), value, iter(()), self.known.form.graphdef.paths[i])
        self.problems += self.known.problems
        self.known.problems.clear()

    def _container(self, desc: Desc, value: Any, numbers: Iterator[int], path: Path) -> None:
        """Read the tangents of a container, which is a container of the same shape."""
        below: dict[Any, Any] = dict.fromkeys(desc[1].keys)
        if value is not None:
            children, keys, treedef = level_below(value) or ((), (), None)
            below = dict(zip(keys, children, strict=True))
            is_dict = type(value) is dict and desc[1].cls is dict and below.keys() == set(desc[1].keys)
            if not is_dict and Shape(type(value), keys, treedef) != desc[1]:
                self.problems.append(f"{self.form.text(path)} is {_shape(desc)}, found {short(value)}")
                return
        for key, child in desc_children(desc):
            self.read(child, below[key], numbers, (*path, key))

    def _object(self, value: Any, path: Path) -> None:
        """Read the tangents of an object: a mapping of paths, or an object."""
        if is_node(value):
            graphdef, leaves, objects = flatten(value)
            for below, x in leaf_objects(graphdef, leaves, objects):
                k = self.form.graphdef.find((*path, *below))
                if k is None or self.form.types[k] is not None:
                    self._give(k, x, (*path, *below))
        elif isinstance(value, (Mapping, FlatState)):
            pairs = value if isinstance(value, FlatState) else value.items()
            for key, x in pairs:
                self._entry(x, (*path, *(key if isinstance(value, FlatState) else (key,))))
        else:
            self.problems.append(f"{self.form.text(path)} is an object, found {short(value)}")

    def _entry(self, x: Any, path: Path) -> None:
        """Read one entry of a mapping: what belongs to a leaf, or a further level."""
        k = self.form.graphdef.find(path)
        if k is None and isinstance(x, (list, tuple)):
            x = dict(enumerate(x))
        if k is None and (isinstance(x, Mapping) or is_node(x)):
            self._object(x, path)
        elif x is not None:
            self._give(k, x, path)

    def _give(self, k: int | None, x: Any, path: Path) -> None:
        """Note the tangent of a leaf."""
        x = x.get_raw_value() if isinstance(x, Variable) else x
        expected = None if k is None else self.form.types[k]
        if k is None:
            self.problems.append(f"{self.form.text(path)} is not a path of the object")
        elif x is None:
            return
        elif expected is None:
            self.problems.append(f"{self.form.text(path)} is not differentiated by")
        elif k in self.given:
            self.problems.append(f"{self.form.text(path)} is a shared Variable and is given twice")
        else:
            self._check(k, expected, x, path)

    def _check(self, k: int, expected: LeafType, x: Any, path: Path) -> None:
        """Note the tangent of a leaf if it has the right type."""
        x = dict(x.raw_mapping) if isinstance(x, State) else x
        leaves = jax.tree.leaves(x)
        treedef: Any = jax.tree.structure(x)
        if treedef == expected.treedef:
            pairs = list(zip(leaves, expected.arrays, strict=True))
            if all(map(_fits, pairs)):
                arrays = [a if hasattr(a, "dtype") else jnp.asarray(a, t[1]) for a, t in pairs]
                self.given[k] = treedef.unflatten(arrays)
                return
        self.problems.append(f"{self.form.text(path)} is {_said(expected.shapes())}, found {_said(x)}")


def _fits(pair: tuple[Any, tuple[tuple[int, ...], Any]]) -> bool:
    """Whether an array is a tangent of a type; a Python number has any floating dtype."""
    x, (shape, dtype) = pair
    if isinstance(x, (bool, int, float, complex)):
        kind = np.complexfloating if type(x) is complex else np.inexact
        return shape == () and bool(jnp.issubdtype(dtype, kind))
    return np.shape(x) == shape and bool(getattr(x, "dtype", None) == dtype)


def _said(x: Any) -> str:
    """Tangents in a few words."""
    leaves = jax.tree.leaves(x)
    return short(leaves[0] if len(leaves) == 1 and same_structure(x, leaves[0]) else x)


def _shape(desc: Desc) -> str:
    """A container in a few words."""
    count = len(desc[2])
    return f"a {desc[1].cls.__name__} with {count} {'entry' if count == 1 else 'entries'}"
