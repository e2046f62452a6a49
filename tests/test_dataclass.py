"""Dataclasses that are objects of the graph: fields, marks, equality, and plain dataclasses too."""

from __future__ import annotations

import abc
import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnxgraph as nnx
from nnxgraph.errors import SlotsError, StaticArrayError
from tests.strategies import CONTENTS, RECIPES, build, neighbour, same

T = TypeVar("T")

COPIES = {
    "merge": lambda m: nnx.merge(*nnx.split(m)),
    "clone": nnx.clone,
    "tree.map": lambda m: jax.tree.map(lambda x: x, m),
    "raw jit": lambda m: jax.jit(lambda m: m)(m),
    "nnx.jit": lambda m: nnx.jit(lambda m: nnx.clone(m))(m),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "replace": dataclasses.replace,
}
each = pytest.mark.parametrize("way", COPIES)
DECORATORS = {"nnx": nnx.dataclass, "plain": dataclasses.dataclass}


@nnx.dataclass
class Layer(nnx.Pytree):
    kernel: jax.Array
    step: int = nnx.data(default=0)
    name: str = nnx.static(default="layer")
    sizes: list[int] = nnx.static(default_factory=list, repr=False)
    plain: int = 3


@nnx.dataclass
class Wide(Layer):
    width: int = nnx.data(kw_only=True, default=7)


@dataclasses.dataclass
class Plain(nnx.Module):
    kernel: NotDefinedAnywhere  # noqa: F821  # nothing may evaluate it
    step: nnx.Data[int] = nnx.data(default=0)  # noqa: RUF009  # makes a field
    name: Missing = nnx.static(default="layer")  # noqa: F821, RUF009  # as above
    sizes: nnx.Static[list[int]] = nnx.static(default_factory=list)  # noqa: RUF009  # makes a field


@each
@pytest.mark.parametrize("cls", [Layer, Plain])
def test_fields_of_a_dataclass_are_marked(way, cls):
    layer = COPIES[way](cls(jnp.ones(2)))
    assert nnx.to_flat_state(nnx.state(layer)).paths == (("kernel",), ("step",))
    assert layer.sizes == []
    layer.step = 4
    assert nnx.state(layer).step == 4
    with pytest.raises(StaticArrayError, match=r"(Layer|Plain)\.name"):
        layer.name = np.ones(2)


def test_text_of_a_dataclass_leaves_out_what_its_fields_say():
    text = "Layer( # arrays: 9 (36 B)\n  kernel=float32[9],\n  step=0,  # data\n  name='layer',  # static\n"
    assert repr(Layer(jnp.ones(9))) == text + "  plain=3\n)"


@pytest.mark.parametrize("cls", [Layer, Plain])
def test_mo9_array_in_a_static_field_is_refused_when_the_object_is_made(cls):
    with pytest.raises(StaticArrayError, match=r"\.sizes: found float64\[3\]"):
        cls(jnp.ones(2), sizes=np.ones(3))


def test_mo9_array_in_a_static_field_of_a_frozen_class_is_refused():
    @nnx.dataclass(frozen=True)
    class Frozen(nnx.Pytree):
        x: Any
        sizes: Any = nnx.static(default=())

    with pytest.raises(StaticArrayError, match=r"Frozen\.sizes"):
        Frozen(1, np.ones(3))
    assert nnx.state(Frozen(nnx.data(1))).x == 1


def test_fields_are_inherited_with_their_marks():
    wide = Wide(jnp.ones(2))
    assert set(nnx.state(wide)) == {"kernel", "step", "width"}
    assert wide.sizes is not Wide(jnp.ones(2)).sizes


@pytest.mark.parametrize("below", DECORATORS)
@pytest.mark.parametrize("above", DECORATORS)
def test_marks_are_inherited_and_overruled(above, below):
    @DECORATORS[above]
    class Base(nnx.Module):
        a: int = nnx.data(default=1)
        b: int = nnx.data(default=2)

    @DECORATORS[below]
    class Sub(Base):
        b: int = 3
        c: int = nnx.data(default=4)

    class Undecorated(Sub):
        pass

    assert nnx.state(Base()).to_pure_dict() == {"a": 1, "b": 2}
    assert nnx.state(Sub()).to_pure_dict() == {"a": 1, "c": 4}
    assert nnx.state(Undecorated()).to_pure_dict() == {"a": 1, "c": 4}


def test_mo11_annotations_are_never_evaluated():
    assert isinstance(Plain.__annotations__["kernel"], str)
    twin = nnx.clone(Plain(jnp.ones(2)))
    assert (type(twin), twin.step, twin.name) == (Plain, 0, "layer")


def test_marks_are_cached_by_class():
    Layer(jnp.ones(1))
    assert vars(Layer)["_nnx_class_marks"] == {"step": "data", "name": "static", "sizes": "static"}
    assert Layer._nnx_class_marks is not Wide._nnx_class_marks
    assert vars(Layer(jnp.ones(1))).keys() == {"kernel", "step", "name", "sizes", "plain"}


def test_post_init_and_init_vars_and_class_variables():
    @nnx.dataclass
    class Made(nnx.Module):
        n: dataclasses.InitVar[int]
        w: Any = dataclasses.field(init=False)
        count: Callable[[int], int] = abs

        def __post_init__(self, n):
            self.w = nnx.Param(jnp.ones(n))

    made = Made(3)
    assert nnx.state(made).to_pure_dict()["w"].shape == (3,)
    assert [f.name for f in dataclasses.fields(made)] == ["w", "count"]
    assert made == copy.deepcopy(made)


def test_replace_shares_what_is_not_replaced():
    layer = Layer(jnp.ones(2), sizes=[1])
    twin = dataclasses.replace(layer, step=5)
    assert (twin.step, layer.step) == (5, 0)
    assert twin.kernel is layer.kernel
    assert nnx.state(twin).step == 5


def test_frozen_dataclass_crosses():
    @nnx.dataclass(frozen=True)
    class Frozen(nnx.Pytree):
        x: jax.Array
        n: int = nnx.data(default=1)

    twin = nnx.clone(jax.tree.map(lambda x: x, Frozen(jnp.ones(2))))
    assert int(twin.n) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        twin.x = 1


@pytest.mark.parametrize(
    "options", [{"kw_only": True}, {"init": False}, {"match_args": False}, {"order": True}, {"eq": False}]
)
def test_options_mean_what_they_mean_to_dataclasses(options):
    class Body:
        a: int
        b: int = 2

    ours = nnx.dataclass(**options)(type("Made", (Body, nnx.Pytree), dict(vars(Body)) | {"__dict__": None}))
    plain = dataclasses.dataclass(**options)(type("Made", (Body,), dict(vars(Body)) | {"__dict__": None}))
    names = ("__match_args__", "__lt__", "__hash__")
    assert [n in vars(ours) for n in names] == [n in vars(plain) for n in names]
    if "order" in options:
        assert ours(1) < ours(2)


@pytest.mark.parametrize("fields", [{"x": "Any"}, {}])
def test_slots_are_refused(fields):
    with pytest.raises(SlotsError, match="Slotted declares __slots__"):
        nnx.dataclass(slots=True)(type("Slotted", (nnx.Module,), {"__annotations__": fields}))


# Equality.


def make(**changes):
    """A dataclass object with arrays, Variables, statics, containers and an object below."""
    fields = {
        "kernel": jnp.arange(3.0),
        "sizes": [1, 2],
        "plain": {"w": nnx.Param(jnp.ones(2), tag="a"), "act": nnx.relu, "d": nnx.Dict(x=np.ones(1))},
    }
    return Layer(**{**fields, **changes})


CHANGES = {
    "contents": {"kernel": jnp.arange(1.0, 4.0)},
    "shape": {"kernel": jnp.arange(4.0)},
    "dtype": {"kernel": jnp.arange(3)},
    "kind": {"kernel": "a"},
    "static": {"name": "other"},
    "list": {"sizes": [1, 3]},
    "type of a number": {"sizes": [1, 2.0]},
    "data": {"step": 1},
    "container": {"plain": ()},
    "metadata": {"plain": {**make().plain, "w": nnx.Param(jnp.ones(2), tag="b")}},
    "variable": {"plain": {**make().plain, "w": nnx.Param(jnp.zeros(2), tag="a")}},
    "kind of variable": {"plain": {**make().plain, "w": nnx.BatchStat(jnp.ones(2), tag="a")}},
    "object below": {"plain": {**make().plain, "d": nnx.Dict(x=np.zeros(1))}},
}


@pytest.mark.parametrize("way", [w for w in COPIES if "jit" not in w])  # jit turns numbers into arrays
def test_copies_are_equal_to_one_bool(way):
    layer = make()
    twin = COPIES[way](layer)
    assert (layer == twin) is True
    assert (layer != twin) is False


@pytest.mark.parametrize("name", CHANGES)
def test_objects_that_differ_are_unequal(name):
    assert (make() == make(**CHANGES[name])) is False
    assert (make() != make(**CHANGES[name])) is True


def test_keys_pytrees_and_shapes_are_compared():
    key = jax.random.key(0)
    assert Layer(key) == Layer(jax.random.key(0))
    assert Layer(key) != Layer(jax.random.key(1))
    assert Layer(key) != Layer(jax.random.key_data(key))
    assert Layer(nnx.Variable({"a": jnp.ones(1)})) == Layer(nnx.Variable({"a": jnp.ones(1)}))
    assert Layer(nnx.Variable({"a": jnp.ones(1)})) != Layer(nnx.Variable({"b": jnp.ones(1)}))
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    assert Layer(shape) == Layer(jax.ShapeDtypeStruct((2,), jnp.float32))
    assert Layer(shape) != Layer(jnp.ones(2))
    assert Layer(np.ones(2, np.float32)) == Layer(jnp.ones(2, jnp.float32))


def test_arrays_on_other_devices_are_compared_by_contents():
    here, there = jax.devices()[:2]
    assert Layer(jax.device_put(jnp.ones(2), here)) == Layer(jax.device_put(jnp.ones(2), there))


class Hostile:
    def __eq__(self, other):
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]  # what is tested


def looped():
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize("value", [Hostile, looped, lambda: nnx.Variable(Hostile()), lambda: deleted()])
def test_comparing_never_raises(value):
    layer = Layer(value())
    assert layer == layer  # what is tested
    assert layer != Layer(value())


def deleted():
    x = jnp.arange(2.0)
    x.delete()
    return x


def test_contents_of_tracers_are_not_known():
    seen = []
    jax.jit(lambda x, y: seen.append((Layer(x) == Layer(x), Layer(x) == Layer(y))))(1.0, 1.0)
    assert seen == [(True, False)]


def test_objects_of_other_classes_are_unequal():
    @nnx.dataclass
    class Other(Layer):
        pass

    assert (Layer(1) == Other(1)) is False
    assert Layer(1) != 1
    assert Layer(1).__eq__(1) is NotImplemented


def test_sharing_is_a_part_of_the_structure():
    w = nnx.Param(jnp.ones(1))
    assert Layer([w, w]) == Layer([w, w])
    assert Layer([w, w]) != Layer([w, nnx.Param(jnp.ones(1))])


@given(RECIPES, RECIPES, st.integers(0, 9), CONTENTS)
def test_objects_are_equal_iff_their_graphs_are_the_same(recipe, other, number, spec):
    layer = Layer(build(recipe))
    assert layer == Layer(build(recipe))
    assert layer == nnx.clone(layer)
    for changed in (build(other), build(neighbour(recipe, number, spec))):
        assert (layer == Layer(changed)) is same(layer.kernel, changed)


def test_fields_may_stay_out_of_a_comparison():
    @nnx.dataclass
    class Made(nnx.Pytree):
        a: int
        b: int = dataclasses.field(compare=False)

    assert Made(1, 2) == Made(1, 3)
    assert Made(1, 2) != Made(2, 2)


def test_hash_follows_the_rule_of_dataclasses():
    def made(body=(), **options):
        return nnx.dataclass(**options)(
            type("Made", (nnx.Pytree,), {"__annotations__": {"x": "Any"}, **dict(body)})
        )

    with pytest.raises(TypeError, match="unhashable"):
        hash(made()(1))
    frozen, unsafe, by_identity = made(frozen=True), made(unsafe_hash=True), made(eq=False)
    assert hash(frozen(jnp.ones(2))) == hash(frozen(jnp.ones(2)))
    assert hash(unsafe(jnp.ones(2))) == hash(unsafe(jnp.ones(2)))
    assert len({by_identity(1), by_identity(1)}) == 2
    own = made({"__hash__": lambda self: 7})
    assert hash(own(1)) == 7
    assert made({"__eq__": lambda self, other: 3})(1).__eq__(1) == 3


# Bases.


def test_dataclasses_may_be_generic_and_abstract():
    @nnx.dataclass
    class Base(nnx.Module, Generic[T], abc.ABC):
        x: T

        @abc.abstractmethod
        def __call__(self): ...

    @nnx.dataclass
    class Made(Base[int]):
        def __call__(self):
            return self.x

    with pytest.raises(TypeError, match="abstract"):
        Base(1)
    assert Made(2)() == 2
    assert nnx.clone(Made(jnp.ones(1))).x.shape == (1,)
