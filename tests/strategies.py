"""Random graphs for hypothesis, and what it means that two graphs are the same.

A graph is drawn as a `Recipe`, a plain value: building it twice gives two graphs that are alike and share
nothing, and a recipe changed in one place gives a neighbour. Nothing here uses the walk of the library.
"""

import collections
import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import nnxgraph as nnx


class Block(nnx.Module):
    """A module whose attributes are set from outside."""


class Plain(nnx.Pytree):
    """An object that is no module."""


class Pair(NamedTuple):
    """A container of two entries that JAX knows by itself."""

    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    """A container that is registered with JAX: two children, one of them often an array."""

    left: Any
    right: Any


class Mode(enum.Enum):
    """A static value and a key that does not sort."""

    FAST = 1
    EXACT = 2


@dataclasses.dataclass
class Config:
    """A static value that may change in place and cannot be hashed."""

    width: int
    sizes: list[int] = dataclasses.field(default_factory=list)


def activation(x):
    """A function to be kept as an attribute."""
    return x


STATICS = (
    None, True, 1, 1.0, -0.0, 2 + 1j, "relu", b"bytes", activation, jnp.float32, Mode.FAST, Mode.EXACT, 0,
    False,
)  # fmt: skip
CONFIGS = ((8, ()), (8, (1, 2)), (9, (1, 2)))
ARRAYS = ("float32", "int32", "numpy", "scalar", "abstract", "key", "complex")
KINDS = (nnx.Param, nnx.BatchStat, nnx.Intermediate, nnx.Variable)
METADATA = ((), (("tag", "frozen"),), (("axes", ("in", "out")), ("notes", [1, 2])))
KEYS = ("b", "a", "c", 1, 0, True, Mode.FAST, Mode.EXACT, ("t", 1), (1, "t"))
CLASSES = {"block": Block, "plain": Plain, "list": nnx.List, "dict": nnx.Dict}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to build a graph: its objects with their attributes, and its Variables.

    Attributes name objects and Variables by number, counted round.
    """

    nodes: list[tuple[str, list[tuple[int, Any]]]]
    variables: list[tuple[int, Any, int]]


def array(kind: str, seed: int) -> Any:
    """A small array of a kind, whose values depend on the seed."""
    if kind == "key":
        return jax.random.key(seed)
    if kind == "abstract":
        return jax.ShapeDtypeStruct((2, seed % 3), jnp.float32)
    values = np.arange(seed, seed + 3)
    if kind == "numpy":
        return values.astype(np.float32)
    if kind == "scalar":
        return jnp.asarray(float(seed), jnp.float32)
    dtype = {"float32": np.float32, "int32": np.int32, "complex": np.complex64}[kind]
    return jnp.asarray(values.astype(dtype))


def tagged(tag: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Tuples that begin with a tag."""
    return st.tuples(st.just(tag), *parts)


def choice(table: tuple[Any, ...]) -> st.SearchStrategy[int]:
    """The number of an entry of a table."""
    return st.integers(0, len(table) - 1)


NUMBER = st.integers(0, 9)
ARRAY = tagged("array", choice(ARRAYS), st.integers(0, 5))
LEAF = st.one_of(
    tagged("node", NUMBER),
    tagged("variable", NUMBER),
    ARRAY,
    tagged("static", choice(STATICS)),
    tagged("config", choice(CONFIGS)),
)
CONTENTS = st.recursive(
    LEAF,
    lambda below: st.one_of(
        st.tuples(st.sampled_from(["list", "tuple"]), st.lists(below, max_size=3)),
        tagged("dict", st.lists(st.tuples(NUMBER, below), max_size=3)),
        st.tuples(st.sampled_from(["pair", "record", "ordered"]), st.lists(below, min_size=2, max_size=2)),
    ),
    max_leaves=4,
)
MARKED = tagged("mark", st.booleans(), tagged("static", st.sampled_from([1, 2, 3, 5])))
NODES = st.tuples(
    st.sampled_from(sorted(CLASSES)),
    st.lists(st.tuples(NUMBER, st.one_of(CONTENTS, CONTENTS, MARKED)), max_size=4),
)
VALUES = st.one_of(
    ARRAY,
    tagged("names", st.lists(ARRAY, max_size=2)),
    tagged("tuple", st.lists(ARRAY, max_size=2)),
)
VARIABLES = st.tuples(choice(KINDS), VALUES, choice(METADATA))
RECIPES = st.builds(Recipe, st.lists(NODES, min_size=1, max_size=5), st.lists(VARIABLES, max_size=4))


class Builder:
    """Builds the objects and Variables of a recipe."""

    def __init__(self, recipe: Recipe, concrete: bool = False):
        self.concrete = concrete  # arrays with values instead of shapes
        self.variables = [
            KINDS[kind](self.value(value), **dict(METADATA[metadata]))
            for kind, value, metadata in recipe.variables
        ]
        self.nodes = [CLASSES[kind]() for kind, _ in recipe.nodes]
        for node, (kind, attributes) in zip(self.nodes, recipe.nodes, strict=True):
            for number, spec in attributes:
                self.set(node, kind, number, spec)

    def set(self, node: Any, kind: str, number: int, spec: tuple[Any, ...]) -> None:
        """Give an object one more attribute or element."""
        name = KEYS[number] if kind == "dict" else "abcdefghij"[number]
        if kind != "list" and name in dict(below(node)):
            return
        if kind == "list":
            node.append(self.value(spec[2] if spec[0] == "mark" else spec))
        elif kind == "dict":
            node[name] = self.value(spec)
        else:
            setattr(node, name, self.value(spec))

    def value(self, spec: tuple[Any, ...]) -> Any:
        """The value that a specification means."""
        tag, rest = spec[0], spec[1:]
        if tag == "node":
            return self.nodes[rest[0] % len(self.nodes)]
        if tag == "variable":
            return self.variables[rest[0] % len(self.variables)] if self.variables else None
        if tag == "array":
            kind = ARRAYS[rest[0]]
            return array("float32" if self.concrete and kind == "abstract" else kind, rest[1])
        if tag == "static":
            return STATICS[rest[0]]
        if tag == "config":
            width, sizes = CONFIGS[rest[0]]
            return Config(width, list(sizes))
        if tag == "mark":
            return (nnx.data if rest[0] else nnx.static)(self.value(rest[1]))
        if tag == "dict":
            return {KEYS[number]: self.value(below) for number, below in rest[0]}
        return self.container(tag, [self.value(below) for below in rest[0]])

    def container(self, tag: str, parts: list[Any]) -> Any:
        """A container of parts that are built."""
        if tag == "names":
            return dict(zip("zy", parts, strict=False))
        if tag == "ordered":
            return collections.OrderedDict(zip(("z", "y"), parts, strict=True))
        if tag in ("pair", "record"):
            return (Pair if tag == "pair" else Record)(*parts)
        return parts if tag == "list" else tuple(parts)


def build(recipe: Recipe, concrete: bool = False) -> Any:
    """The object that a recipe describes: its first node."""
    return Builder(recipe, concrete).nodes[0]


GRAPHS = RECIPES.map(build)
CONCRETE_GRAPHS = RECIPES.map(lambda recipe: build(recipe, concrete=True))  # no shapes without values


def neighbour(recipe: Recipe, number: int, spec: tuple[Any, ...]) -> Recipe:
    """The recipe with one attribute of its first node changed."""
    (kind, attributes), *others = recipe.nodes
    if not attributes:
        return dataclasses.replace(recipe, nodes=[(kind, [(number, spec)]), *others])
    i = number % len(attributes)
    changed = [*attributes[:i], (attributes[i][0], spec), *attributes[i + 1 :]]
    return dataclasses.replace(recipe, nodes=[(kind, changed), *others])


def below(x: Any) -> list[tuple[Any, Any]]:
    """The keys and values right below an object or container, without the help of the library."""
    if isinstance(x, nnx.List):
        return [*enumerate(list(x)), *vars(x).items()]
    if isinstance(x, nnx.Dict):
        return list(x.items())
    if isinstance(x, nnx.Pytree):
        return list(vars(x).items())
    if isinstance(x, dict):
        return list(x.items())
    if isinstance(x, Pair):
        return list(x._asdict().items())
    if isinstance(x, Record):
        return [("left", x.left), ("right", x.right)]
    return list(enumerate(x)) if type(x) in (list, tuple) else []


def is_object(x: Any) -> bool:
    """Whether a value has identity in the graph."""
    return isinstance(x, nnx.Pytree | nnx.Variable)


def same(a: Any, b: Any, *, values: bool = True) -> bool:
    """Whether two graphs are isomorphic: types, order, statics, metadata, sharing; the values if asked."""
    there: dict[int, int] = {}
    back: dict[int, int] = {}

    def match(x: Any, y: Any) -> bool:
        if type(x) is not type(y) and not (_is_array(x) and _is_array(y)):
            return False
        if is_object(x):
            if id(x) in there or id(y) in back:
                return there.get(id(x)) == id(y) and back.get(id(y)) == id(x)
            there[id(x)], back[id(y)] = id(y), id(x)
        if isinstance(x, nnx.Variable):
            alike = x.get_metadata() == y.get_metadata()
            return alike and (not values or _alike(x.get_raw_value(), y.get_raw_value()))
        if isinstance(x, nnx.Pytree) or below(x):
            return _marks(x) == _marks(y) and entries(below(x), below(y))
        return _alike(x, y) if values or not _is_array(x) else _is_array(y)

    def entries(xs: list[tuple[Any, Any]], ys: list[tuple[Any, Any]]) -> bool:
        kinds = [(type(k), k) for k, _ in xs] == [(type(k), k) for k, _ in ys]
        return kinds and all(match(x, y) for (_, x), (_, y) in zip(xs, ys, strict=True))

    return match(a, b)


def _marks(x: Any) -> Any:
    marked = getattr(x, "_nnx_marks", {})
    return {name: mark for name, mark in marked.items() if name in dict(below(x))}


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def _alike(x: Any, y: Any) -> bool:
    """Whether two leaves are equal; arrays by dtype, shape and contents."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return x == y
    if _is_array(x):
        if not _is_array(y) or x.dtype != y.dtype or x.shape != y.shape:
            return False
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        return bool(np.array_equal(np.asarray(x), np.asarray(y)))
    if type(x) in (dict, tuple, list):
        xs, ys = dict(below(x)), dict(below(y))  # JAX sorts the keys of a dict in a Variable
        return xs.keys() == ys.keys() and all(_alike(v, ys[k]) for k, v in xs.items())
    return type(x) is type(y) and repr(x) == repr(y) if isinstance(x, float | complex) else x == y


def reachable(x: Any, values: bool = False) -> dict[int, Any]:
    """What of a graph can change in place, by id: objects, lists, dicts, records, configurations.

    With `values` also what is in the values of Variables.
    """
    found: dict[int, Any] = {}
    todo = [x]
    while todo:
        value = todo.pop()
        if id(value) in found:
            continue
        if is_object(value) or isinstance(value, list | dict | Record | Config):
            found[id(value)] = value
        if isinstance(value, Config):
            todo.append(value.sizes)
        if values and isinstance(value, nnx.Variable):
            todo.append(value.get_raw_value())
        todo += [v for _, v in below(value)]
    return found


def follow(x: Any, path: tuple[Any, ...]) -> Any:
    """The value at a path."""
    for key in path:
        x = next(v for k, v in below(x) if k == key and type(k) is type(key))
    return x
