"""Classes of objects: bases in any order, arguments of the class, properties, metaclasses."""

import abc
import copy
import enum
import functools
import pickle
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import SlotsError

T = TypeVar("T")

COPIES = {
    "merge": lambda m: nnx.merge(*nnx.split(m)),
    "clone": nnx.clone,
    "tree.map": lambda m: jax.tree.map(lambda x: x, m),
    "raw jit": lambda m: jax.jit(lambda m: m)(m),
    "nnx.jit": lambda m: nnx.jit(nnx.clone)(m),
    "deepcopy": copy.deepcopy,
}
each = pytest.mark.parametrize("way", COPIES)


@runtime_checkable
class Callable1(Protocol):
    def __call__(self, x: Any) -> Any: ...


class HasName(Protocol):
    name: str


class Abstract(abc.ABC):  # a mixin
    @abc.abstractmethod
    def __call__(self, x): ...


class Mixin:
    """A plain class with state in its constructor and a call of super."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mixed = True


BASES = {
    "generic last": (nnx.Module, Generic[T]),
    "generic first": (Generic[T], nnx.Module),
    "protocol last": (nnx.Module, Callable1),
    "protocol first": (Callable1, nnx.Module),
    "protocol with a field": (nnx.Module, HasName),
    "abstract last": (nnx.Module, Abstract),
    "abstract first": (Abstract, nnx.Module),
    "all": (nnx.Module, Callable1, Generic[T], Abstract),
    "all, the other way": (Abstract, Callable1, nnx.Module, Generic[T]),
    "plain first": (Mixin, nnx.Module),
    "two modules": (nnx.Dropout, nnx.Module),
    "pytree": (Generic[T], nnx.Pytree),
}


@each
@pytest.mark.parametrize("name", BASES)
def test_mo5_bases_in_any_order(name, way):
    class Made(*BASES[name]):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(2))

        def __call__(self, x):
            return x * self.w

    made = Made()
    twin = COPIES[way](made)
    assert type(twin) is Made
    assert nnx.graphdef(twin) is nnx.graphdef(made)
    assert twin(2.0).tolist() == [2.0, 2.0]
    assert isinstance(twin, Callable1)


@pytest.mark.parametrize("name", [n for n in BASES if "generic" in n or "all" in n or n == "pytree"])
def test_mo5_subscripted_classes_make_the_same_objects(name):
    class Made(*BASES[name]):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(2))

        def __call__(self, x):
            return x

    class Sub(Made[int]):
        pass

    class Deeper(Sub, Generic[T]):
        pass

    assert Made.__parameters__ == (T,)
    assert vars(Made[int]()).keys() == {"w"}
    assert nnx.graphdef(Made[int]()) is nnx.graphdef(Made())
    assert Made[int]().__orig_class__ == Made[int]
    assert type(nnx.clone(Sub())) is Sub
    assert type(jax.tree.map(lambda x: x, Deeper[str]())) is Deeper


def test_abstract_methods_are_enforced():
    class Half(nnx.Module, Abstract):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Half()


def test_protocol_class_may_have_parameters():
    class Fits(Protocol[T]):
        def fit(self, x: T) -> T: ...

    class Made(Fits[int], nnx.Module):
        def fit(self, x):
            return x

    assert nnx.clone(Made()).fit(1) == 1


def test_arguments_of_the_class_are_passed_on():
    seen = []

    class Base(nnx.Module):
        def __init_subclass__(cls, *, registry=None, **kwargs):
            super().__init_subclass__(**kwargs)
            seen.append((cls.__name__, registry))

    class Opaque(Base, registry="a", pytree=False):
        pass

    class Seen(Opaque, registry="b"):
        pass

    assert seen == [("Opaque", "a"), ("Seen", "b")]
    assert len(jax.tree.leaves([Opaque(), Seen()])) == 1
    with pytest.raises(TypeError):
        type("Wrong", (nnx.Module,), {}, unknown=1)


def test_metaclass_of_the_user():
    made = []

    class Meta(type):
        def __call__(cls, *args, **kwargs):
            made.append(cls.__name__)
            return super().__call__(*args, **kwargs)

    class Made(nnx.Module, metaclass=Meta):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(1))

    twin = nnx.clone(Made())
    assert (type(twin), made) == (Made, ["Made"])


def test_several_modules_are_bases():
    class A(nnx.Module):
        def __init__(self):
            super().__init__()
            self.a = nnx.Param(jnp.ones(1))

    class B(nnx.Module):
        def __init__(self):
            super().__init__()
            self.b = nnx.Param(jnp.ones(1))

    class Both(A, B):
        pass

    assert list(nnx.state(Both())) == ["b", "a"]


@pytest.mark.parametrize("slots", [("a",), "a"])
def test_slots_are_refused(slots):
    made = type("Slotted", (nnx.Module,), {"__slots__": slots})
    with pytest.raises(SlotsError, match="Slotted"):
        nnx.split(made())


# Attributes that are no attributes.


class Computed(nnx.Module):
    """Properties, a cached property, class attributes."""

    scale = 2.0
    table = jnp.arange(3.0)

    class Mode(enum.Enum):
        A = 1

    def __init__(self):
        self.w = nnx.Param(jnp.asarray(3.0))
        self.calls = nnx.static([])

    @property
    def double(self):
        return 2 * self.w[...]

    @double.setter
    def double(self, value):
        self.w[...] = value / 2

    @functools.cached_property
    def slow(self):
        self.calls.append(1)
        return self.scale * self.w[...]


@each
def test_properties_are_no_attributes(way):
    model = Computed()
    model.double = 8.0
    twin = COPIES[way](model)
    assert (float(twin.w[...]), float(twin.double)) == (4.0, 8.0)
    assert list(nnx.state(twin)) == ["w"]
    assert vars(twin).keys() == {"w", "calls"}
    with pytest.raises(AttributeError):
        del twin.double


@each
def test_cached_property_is_no_state(way):
    model = Computed()
    before = nnx.graphdef(model)
    assert float(model.slow) == float(model.slow) == 6.0
    assert len(model.calls) == 1
    model.calls.clear()
    assert nnx.graphdef(model) is before
    model.w[...] = 5.0
    twin = COPIES[way](model)
    assert "slow" not in vars(twin)
    assert float(twin.slow) == 10.0
    assert float(model.slow) == 6.0


def test_cached_property_is_left_out_of_a_pickle_and_inherited():
    model = Computed()
    model.slow  # noqa: B018  # computes it
    assert vars(pickle.loads(pickle.dumps(model))).keys() == {"w", "calls"}

    class Sub(Computed):
        @functools.cached_property
        def other(self):
            return self.slow + jnp.ones(())

    sub = Sub()
    assert float(sub.other) == 7.0
    assert list(nnx.state(sub)) == ["w"]
    assert vars(nnx.clone(sub)).keys() == {"w", "calls"}


def test_cached_property_inside_jit_does_not_come_out():
    model = Computed()
    out = nnx.jit(lambda m: m.slow + m.slow)(model)
    assert float(out) == 12.0
    assert "slow" not in vars(model)
    assert float(model.slow) == 6.0


def test_class_attributes_are_no_attributes():
    assert set(nnx.state(Computed())) == {"w"}
    model = Computed()
    model.table = model.table + 1.0
    assert set(nnx.state(model)) == {"w", "table"}
    assert nnx.clone(model).Mode.A is Computed.Mode.A
