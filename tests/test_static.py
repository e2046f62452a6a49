"""Static values: which make the same program, and who owns those that can change."""

import copy
import dataclasses
import enum
import functools
import gc
import math
import pickle
import types
import weakref
from typing import Any, NamedTuple

import cloudpickle
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

import nnxgraph as nnx
from nnxgraph._static import Static, is_mutable, own_copy, static_key, static_of


class Point(NamedTuple):
    x: Any
    y: Any


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Config:
    width: int
    extra: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    width: int
    extra: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    width: int
    extra: Any = None


class Hashed:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Hashed and self.x == other.x

    def __hash__(self):
        return hash(self.x)


class Elementwise:
    """Compares as arrays do, and has a hash all the same."""

    def __eq__(self, other):
        return np.asarray([True, False])

    def __hash__(self):
        return 1


class Unhashable(dict):
    pass


def scale(x, *, by=2.0):
    return x * by


@jax.jit
def jitted(x):
    """A function that a decorator has replaced."""
    return x


def closure(*cells, rebind=None):
    count = rebind

    def f(x):
        nonlocal count
        count = None if count is None else count + 1
        return (x, cells)

    return f


EQUAL = {
    "int": lambda: 10**6,
    "float": lambda: 0.5,
    "nan": lambda: math.nan,
    "complex": lambda: 1 + 2j,
    "string": lambda: "".join(["a", "b"]),
    "list": lambda: [1, [2, {"a": {3}}]],
    "dict of int and str": lambda: {1: "a", "b": 2},
    "set": lambda: {1, 2, "a", (3, 4)},
    "namedtuple": lambda: Point(1, [2]),
    "dataclass": lambda: Config(1, {"a": [Colour.RED]}),
    "frozen dataclass": lambda: Frozen(1, [1]),
    "dataclass with slots": lambda: Slotted(1, [1]),
    "namespace": lambda: types.SimpleNamespace(a=[1]),
    "lambda": lambda: lambda x: x + 1,
    "closure": lambda: closure(1, [2], Config(3)),
    "nested function": lambda: closure(closure(1)),
    "defaults": lambda: functools.partial(lambda x, y=[1], *, z={"a": 2}: x),  # the default is the case
    "partial": lambda: functools.partial(scale, 1, by=[2]),
    "method": lambda: Hashed(1).__eq__,
    "hash of its own": lambda: Hashed((1, 2)),
    "small array": lambda: np.arange(6).reshape(2, 3),
    "numpy scalar": lambda: np.float32(3),
    "dtype": lambda: np.dtype("float32"),
    "optimizer": lambda: optax.adam(1e-3, b1=0.8),
    "schedule": lambda: optax.adamw(optax.cosine_decay_schedule(1e-3, 100)),
    "chain": lambda: optax.MultiSteps(optax.chain(optax.clip(1.0), optax.sgd(0.1)), 2),
    "sharding": lambda: jax.sharding.PartitionSpec("a", None),
}


@pytest.mark.parametrize("name", EQUAL)
def test_values_made_alike_are_equal(name):
    a, b = EQUAL[name](), EQUAL[name]()
    assert static_key(a) == static_key(b)
    assert hash(static_key(a)) == hash(static_key(b))
    assert Static(a) == Static(b)


@pytest.mark.parametrize("name", EQUAL)
def test_key_of_a_copy_for_an_owner_is_equal(name):
    value = EQUAL[name]()
    assert static_key(own_copy(value)) == static_key(value)
    assert Static(Static(value).fresh()) == Static(value)


DIFFERENT = {
    "int, bool, float": (1, True, 1.0, 1 + 0j, "1", b"1", np.int32(1), np.float32(1)),
    "zeros": (0.0, -0.0, 0, False, None),
    "lists and tuples": ([1], (1,), {1}, frozenset([1]), {1: None}, Point(1, None), [True], [[1]]),
    "order of a dict": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "keys": ({1: 0}, {True: 0}, {"1": 0}),
    "dataclasses": (Config(1), Frozen(1), Slotted(1), Config(1, []), Config(True)),
    "closures": (closure(1), closure(True), closure([1]), closure(closure(1)), closure()),
    "code": (lambda x: x + 1, lambda x: x + 2, scale),
    "partial": (functools.partial(scale), functools.partial(scale, by=2.0), functools.partial(scale, by=2)),
    "rates": (optax.adam(1e-3), optax.adam(1e-4), optax.adam(1e-3, b1=0.8), optax.sgd(1e-3)),
    "schedules": tuple(optax.adam(optax.cosine_decay_schedule(1e-3, n)) for n in (100, 200)),
    "arrays": (np.zeros(3), np.zeros(3, np.float32), np.zeros((3, 1)), np.ones(3)),
    "bits of two types": tuple(np.zeros(2, t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)),
    "enum": (Colour.RED, Colour.BLUE, 1),
    "objects": (object(), object(), Elementwise(), Elementwise()),
    "large arrays": (np.zeros(1000), np.zeros(1000)),
    "dict subclasses": (Unhashable(a=1), Unhashable(a=1)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_values_of_other_type_or_contents_differ(name):
    keys = [static_key(x) for x in DIFFERENT[name]]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "value",
    [Elementwise(), nnx.Param(jnp.ones(3)), jnp.ones(3), np.zeros(1000)],
    ids=["object", "Variable", "jax", "numpy"],
)
def test_equality_is_never_asked_of_arrays(value):
    assert static_key([value]) == static_key([value])
    assert Static(closure(value)) == Static(closure(value))


def test_function_that_closes_over_a_variable_is_equal_to_itself():
    class Net(nnx.Module):
        def __init__(self):
            w = nnx.Param(jnp.ones(3))
            self.f = lambda x: x * w

    net = Net()
    assert nnx.graphdef(net) is nnx.graphdef(net)


def test_function_attributes_count_but_not_what_it_wraps():
    a, b = (functools.wraps(scale)(lambda x: x) for _ in range(2))
    b.extra = 1
    assert static_key(a) != static_key(b)
    del b.extra
    assert static_key(a) == static_key(b)


def test_functions_of_other_globals_differ():
    code = "def f(x): return x + n"
    spaces = [{"n": 1}, {"n": 2}]
    for space in spaces:
        exec(code, space)
    assert static_key(spaces[0]["f"]) != static_key(spaces[1]["f"])


def test_recursive_functions_and_objects_have_a_key():
    def loop(x):
        return loop(x)

    cyclic = [1]
    cyclic.append(cyclic)
    assert static_key(loop) == static_key(loop)
    assert static_key(cyclic) == static_key(cyclic)


def test_key_is_a_snapshot():
    config = Config(1, [1])
    before = static_key(config)
    config.extra.append(2)
    assert static_key(config) != before


def test_attributes_beside_the_fields_count():
    a, b = Config(1), Config(1)
    b.beside = 2
    assert static_key(a) != static_key(b)


def test_cached_properties_do_not_count():
    @dataclasses.dataclass
    class Cached:
        n: int

        @functools.cached_property
        def square(self):
            return self.n**2

    a, b = Cached(3), Cached(3)
    assert a.square == 9
    assert static_key(a) == static_key(b)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], True), ({}, True), (set(), True), ((1, [2]), True), (Point(1, []), True), (Config(1), True),
        (Slotted(1), True), (Frozen(1, [1]), True), (Frozen(1), False), (types.SimpleNamespace(), True),
        ((1, 2), False), (frozenset(), False), ("a", False), (Config, False), (Unhashable(), False),
        (scale, False),
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_mutable_are_those_that_change_in_place_and_are_compared_by_contents(value, expected):
    assert is_mutable(value) is expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: Config(1, [1]),
        lambda: Slotted(1, [1]),
        lambda: Frozen(1, [1]),
        lambda: Point(1, [1]),
        lambda: types.SimpleNamespace(extra=[1]),
        lambda: [[1]],
        lambda: {"a": [1]},
    ],
)
def test_owners_share_no_value_that_can_change(make):
    class Net(nnx.Module):
        def __init__(self):
            self.config = make()

    def inner(x):
        return x.config.extra if hasattr(x.config, "extra") else next(iter(vars(x).values()))

    net = Net()
    graphdef, state = nnx.split(net)
    owners = [
        net,
        nnx.merge(graphdef, state),
        nnx.merge(graphdef, state),
        nnx.clone(net),
        jax.tree.map(jnp.sin, net),
    ]
    assert len({id(o.config) for o in owners}) == len({id(inner(o)) for o in owners}) == len(owners)
    assert {nnx.graphdef(o) for o in owners} == {graphdef}


def test_change_of_a_static_value_makes_another_graphdef():
    class Net(nnx.Module):
        def __init__(self):
            self.config = Config(1, [1])

    net = Net()
    before = nnx.graphdef(net)
    net.config.extra.append(2)
    assert nnx.graphdef(net) is not before
    assert nnx.merge(before, nnx.State({})).config == Config(1, [1])
    net.config.extra.pop()
    assert nnx.graphdef(net) is before


def test_what_is_compared_by_identity_is_kept():
    class Net(nnx.Module):
        def __init__(self):
            self.config = Unhashable(a=[1])

    net = Net()
    twin = nnx.clone(net)
    assert twin.config is net.config
    assert nnx.graphdef(twin) is nnx.graphdef(net)


@pytest.mark.parametrize(
    "f",
    [jax.nn.relu, jax.nn.silu, jax.nn.gelu, jnp.tanh, jnp.add, jax.lax.exp, jitted, jnp.float32, len, scale],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps], ids=["pickle", "cloudpickle"])
def test_functions_are_pickled_by_name(f, dump):
    values = [f, [f, 1], (f,), {"a": f}, functools.partial(f, 1), [{"b": (f,)}]]
    assert [pickle.loads(dump(Static(v))) for v in values] == [Static(v) for v in values]
    net = nnx.Dict(
        layers=[nnx.Dict(act=f)], seq=nnx.Sequential(f), items=nnx.List([f]), w=nnx.Param(1, init=f)
    )
    for twin in (pickle.loads(dump(net)), copy.deepcopy(net), pickle.loads(dump(nnx.split(net)[0]))):
        assert (twin if isinstance(twin, nnx.GraphDef) else nnx.graphdef(twin)) is nnx.graphdef(net)


@pytest.mark.parametrize(
    "copy_of", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
@pytest.mark.parametrize(
    "value",
    [1, [1, {"a": 2}], Config(1, [1]), Frozen(2), scale, Colour.RED, np.arange(3)],
    ids=lambda v: type(v).__name__,
)
def test_static_survives_copies(copy_of, value):
    assert copy_of(Static(value)) == Static(value)


def test_functions_die_with_their_owner():
    class Net(nnx.Module):
        def __init__(self):
            self.f = lambda x: x

    net = Net()
    ref = weakref.ref(net.f)
    assert nnx.graphdef(net) is nnx.graphdef(Net())
    del net
    gc.collect()
    assert ref() is None


def test_default_that_changes_in_place_is_seen():
    def f(x, y=[]):  # noqa: B006  # the case
        return x

    before = static_of(f)
    f.__defaults__[0].append(1)
    assert static_of(f) != before


class HashFails:
    def __hash__(self):
        raise ValueError("no hash")


class EqualityFails:
    def __hash__(self):
        return 1

    def __eq__(self, other):
        raise ValueError("no comparison")


@pytest.mark.parametrize("cls", [HashFails, EqualityFails])
def test_values_whose_hash_or_equality_fails_compare_by_identity(cls):
    a, b = cls(), cls()
    assert static_key(a) == static_key(a)
    assert static_key(a) != static_key(b)
    graph = nnx.Dict(a=a, b=b)
    assert nnx.graphdef(nnx.clone(graph)) is nnx.graphdef(graph)
