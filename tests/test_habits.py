"""Habits of real model code, and what else users stumble over: each line of theirs as a test."""

import copy
import dataclasses
import enum
import functools
import math
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import NonExhaustiveError, StaticArrayError, UnknownAttributesError


class Kind(enum.Enum):
    LOCAL = 1
    GLOBAL = 2


@dataclasses.dataclass
class Inner:
    theta: float = 1e4
    kinds: list[Kind] = dataclasses.field(default_factory=lambda: [Kind.LOCAL, Kind.GLOBAL])


@dataclasses.dataclass
class Config:
    width: int = 2
    sizes: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    options: dict[str, Any] = dataclasses.field(default_factory=lambda: {"dtype": jnp.float32, "a": (1, {2})})
    inner: Inner = dataclasses.field(default_factory=Inner)


@dataclasses.dataclass(frozen=True)
class Frozen:
    width: int = 2
    sizes: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    options: dict[str, Any] = dataclasses.field(default_factory=lambda: {"dtype": jnp.float32, "a": (1, {2})})
    inner: Inner = dataclasses.field(default_factory=Inner)


class Net(nnx.Module):
    """Keeps what it is given, beside a parameter."""

    def __init__(self, **attributes):
        self.w = nnx.Param(jnp.ones(2))
        for name, value in attributes.items():
            setattr(self, name, value)


def traces_of(make, jit):
    """How often a function of a module is traced for several modules made alike."""
    traces = []
    f = jit(lambda m: traces.append(1) or m.w * 2)
    for _ in range(3):
        f(make())
    return traces


jits = pytest.mark.parametrize("jit", [nnx.jit, jax.jit])


# Configurations.


@jits
@pytest.mark.parametrize("cls", [Config, Frozen])
def test_configurations_of_equal_contents_do_not_retrace(cls, jit):
    assert cls.__hash__ is None or cls is Frozen
    with pytest.raises(TypeError):
        hash(cls())
    assert len(traces_of(lambda: Net(config=cls()), jit)) == 1
    assert len(traces_of(lambda: Net(configs=[cls(), {"a": cls()}]), jit)) == 1


CHANGES = {
    "number": {"width": 3},
    "type of a number": {"width": 2.0},
    "list": {"sizes": [1, 3]},
    "dict": {"options": {"dtype": jnp.float32, "a": (1, {3})}},
    "dtype": {"options": {"dtype": jnp.bfloat16, "a": (1, {2})}},
    "enum": {"inner": Inner(kinds=[Kind.GLOBAL, Kind.GLOBAL])},
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("cls", [Config, Frozen])
def test_configurations_of_other_contents_make_other_programs(cls, name):
    assert nnx.graphdef(Net(config=cls(**CHANGES[name]))) is not nnx.graphdef(Net(config=cls()))


def test_configuration_changed_in_place_is_seen():
    net, seen = Net(config=Config()), []
    f = nnx.jit(lambda m: seen.append(list(m.config.sizes)))
    f(net)
    net.config.sizes.append(3)
    f(net)
    f(net)
    assert seen == [[1, 2], [1, 2, 3]]


def test_configuration_of_a_copy_is_its_own():
    net = Net(config=Config())
    for twin in (nnx.clone(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        twin.config.sizes.append(9)
        assert net.config.sizes == [1, 2]


# Functions and classes.


def doubled(x):
    return 2 * x


CALLABLES = {
    "partial": lambda: functools.partial(jnp.sum, axis=0, keepdims=True),
    "partial of a partial": lambda: functools.partial(functools.partial(jnp.sum, axis=0), keepdims=True),
    "lambda": lambda: lambda x: x + 1,
    "function": lambda: doubled,
    "of another module": lambda: math.sqrt,
    "jitted": lambda: jax.nn.relu,
    "of jax.numpy": lambda: jnp.tanh,
    "ufunc": lambda: np.exp,
    "class": lambda: nnx.Linear,
    "classes": lambda: {"norm": nnx.LayerNorm, "layers": [nnx.Linear, nnx.Embed]},
    "partial of a class": lambda: functools.partial(nnx.Linear, use_bias=False),
    "initializer": lambda: nnx.initializers.normal(0.02),
    "method of a class": lambda: str.upper,
    "dtype": lambda: jnp.bfloat16,
}


@jits
@pytest.mark.parametrize("name", CALLABLES)
def test_callables_are_static_and_do_not_retrace(name, jit):
    net = Net(f=CALLABLES[name]())
    assert list(nnx.state(net)) == ["w"]
    assert len(traces_of(lambda: Net(f=CALLABLES[name]()), jit)) == 1
    assert list(nnx.state(nnx.clone(net))) == ["w"]


def test_class_that_is_an_attribute_is_called_later():
    net = Net(make=functools.partial(nnx.Linear, 2, use_bias=False))
    built = nnx.jit(lambda m, rngs: m.make(3, rngs=rngs))(net, nnx.Rngs(0))
    assert built.kernel.shape == (2, 3)


class Gelu(nnx.Module):
    """Chooses one of its own methods."""

    def __init__(self):
        self.w = nnx.Param(jnp.asarray(2.0))
        self.act = self.scaled

    def scaled(self, x):
        return x * self.w[...]


@pytest.mark.parametrize(
    "way",
    [
        nnx.clone,
        lambda m: nnx.merge(*nnx.split(m)),
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: jax.jit(lambda m: m)(m),
        lambda m: nnx.jit(nnx.clone)(m),
    ],
)
def test_method_that_is_an_attribute_is_bound_to_the_copy(way):
    twin = way(Gelu())
    assert twin.act.__self__ is twin
    twin.w[...] = 5.0
    assert float(twin.act(1.0)) == 5.0


# Caches.


class LayerCache(nnx.Module):
    def __init__(self):
        self.k = nnx.Cache(jnp.zeros((4, 2)))
        self.index = nnx.Cache(jnp.asarray(0))


def test_lists_of_cache_modules_go_through_raw_jit():
    traces = []

    @jax.jit
    def step(caches, x):
        traces.append(1)
        for i, cache in enumerate(caches):
            at = cache.index[...]
            cache.k[at] = x + i
            cache.k.set_value(x[0] * 10, index=(at, 0))
            cache.index.set_value(at + 1)
        return caches

    caches = [LayerCache(), LayerCache()]
    for t in range(2):
        caches = step(caches, jnp.full(2, float(t + 1)))
    assert [type(c) for c in caches] == [LayerCache] * 2
    assert caches[1].k[...].tolist() == [[10.0, 2.0], [20.0, 3.0], [0.0, 0.0], [0.0, 0.0]]
    assert [int(c.index[...]) for c in caches] == [2, 2]
    assert len(traces) == 1


def test_caches_are_written_in_place_by_lifted_jit():
    @nnx.jit
    def step(caches, x):
        for cache in caches:
            cache.k[cache.index] = x
            cache.index[...] += 1

    caches = [LayerCache(), LayerCache()]
    step(caches, jnp.ones(2))
    step(caches, 2 * jnp.ones(2))
    assert caches[0].k[...].tolist() == [[1.0, 1.0], [2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


# Plain arrays.


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.int32, jnp.bool_])
def test_plain_arrays_are_data_and_are_not_differentiated(dtype):
    net = Net(table=jnp.ones(2).astype(dtype))
    assert set(nnx.state(net)) == {"w", "table"}

    def loss(m):
        return (m.w * jnp.abs(m.table.astype(jnp.float32 if dtype != jnp.complex64 else dtype))).sum()

    grads = nnx.grad(loss)(net)
    assert set(grads) == {"w"}
    assert grads["w"][...].tolist() == [1.0, 1.0]
    nnx.jit(loss)(net)
    assert net.table.dtype == dtype


def test_frequency_tables_are_differentiated_when_asked_for():
    net = Net(freqs=jnp.ones(2))
    loss = lambda m: (m.w * m.freqs).sum()  # used twice
    assert set(nnx.grad(loss)(net)) == {"w"}
    assert set(nnx.grad(loss, argnums=nnx.DiffState(0, ...))(net)) == {"w", "freqs"}


# Containers of modules and of arrays.


def test_mo1_plain_containers_of_modules_just_work():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layers = []
            for _ in range(2):
                self.layers.append(nnx.Linear(2, 2, rngs=rngs))
            self.heads = {"a": nnx.Linear(2, 1, rngs=rngs), "b": (nnx.Linear(2, 3, rngs=rngs),)}

    model = Model(nnx.Rngs(0))
    assert [path[:-1] for path in nnx.to_flat_state(nnx.state(model)).paths[::2]] == [
        ("layers", 0),
        ("layers", 1),
        ("heads", "a"),
        ("heads", "b", 0),
    ]
    model.layers.append(nnx.Linear(2, 5, rngs=nnx.Rngs(1)))
    assert nnx.clone(model).layers[2].kernel.shape == (2, 5)
    assert len(jax.tree.leaves(model)) == 10


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Stats:
    mean: Any
    var: Any


def test_mo3_registered_pytrees_are_data_and_may_be_tagged():
    net = Net(stats=Stats(jnp.ones(2), jnp.zeros(2)), tagged=nnx.Param(Stats(jnp.ones(2), jnp.ones(2))))
    gd, params, rest = nnx.split(net, nnx.Param, ...)
    assert set(params) == {"w", "tagged"}
    assert nnx.to_flat_state(rest).paths == (("stats", "mean"), ("stats", "var"))
    twin = nnx.jit(lambda m: nnx.clone(m))(nnx.merge(gd, params, rest))
    assert (type(twin.stats), type(twin.tagged[...])) == (Stats, Stats)
    grads = nnx.grad(lambda m: (m.tagged[...].mean * m.stats.mean).sum())(net)
    assert grads["tagged"][...].mean.tolist() == [1.0, 1.0]


def test_mo7_list_has_the_list_protocol_and_int_paths():
    layers = nnx.List([nnx.Dropout(i / 10) for i in range(4)])
    first, last = layers[0], layers[-1]
    layers.insert(0, last)
    del layers[-1]
    layers.extend([nnx.Dropout(0.9)])
    assert layers.pop().rate == 0.9
    assert [x.rate for x in reversed(layers)] == [0.2, 0.1, 0.0, 0.3]
    assert (layers.index(first), len(layers[1:3]), len(layers + [last])) == (1, 2, 5)  # noqa: RUF005  # the operator
    assert [path for path, _ in layers.iter_modules()][:2] == [(0,), (1,)]


def test_mo9_array_in_a_static_attribute_is_refused_at_assignment():
    class Model(nnx.Module):
        def __init__(self):
            self.c = nnx.static(np.ones(3))

    with pytest.raises(StaticArrayError, match=r"Model\.c"):
        Model()


@pytest.mark.parametrize("make", [lambda d: d, nnx.data, nnx.Dict])
def test_dicts_with_keys_of_several_types(make):
    net = Net(d=make({2: jnp.ones(1), "a": 3, 1: jnp.zeros(1)}))
    twin = nnx.merge(*nnx.split(net))
    assert list(twin.d) == [2, "a", 1]
    assert list(jax.tree.map(lambda x: x, net).d) == [2, "a", 1]
    assert ("d", "a") in nnx.to_flat_state(nnx.state(net)).paths or make is not nnx.data
    assert nnx.jit(lambda m: m.d[2] + 1)(net).tolist() == [2.0]


# Cycles, errors.


def test_parent_and_child_refer_to_each_other():
    parent = Net(child=Net())
    parent.child.parent = parent
    twin = nnx.merge(*nnx.split(parent))
    assert twin.child.parent is twin
    assert len(jax.tree.leaves(parent)) == 2
    assert jax.tree.map(lambda x: x, parent).child.parent is not parent


def test_error_of_a_split_that_leaves_something_out_shows_no_contents():
    with pytest.raises(NonExhaustiveError) as caught:
        nnx.split(Net(table=jnp.full(3, 123.0)), nnx.Param)
    assert ".table: float32[3]" in str(caught.value)
    assert "123" not in str(caught.value)


def test_misspelt_mode_is_named_with_close_matches():
    with pytest.raises(UnknownAttributesError, match="Did you mean 'deterministic'"):
        nnx.Dropout(0.5).set_attributes(determinstic=True)


def test_array_attributes_win_over_metadata_of_the_same_name():
    w = nnx.Param(jnp.ones((2, 3)), dtype="mine", shape="mine", ndim=7, size=9)
    assert (w.dtype, w.shape, w.ndim, w.size) == (jnp.float32, (2, 3), 2, 6)
    assert w.get_metadata("dtype") == "mine"


# Marks.


@pytest.mark.parametrize(
    "way", [nnx.clone, copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_marks_survive_reassignment_and_deletion(way):
    net = way(Net(step=nnx.data(0), sizes=nnx.static([1])))
    del net.step, net.sizes
    net.step, net.sizes = 5, [2]
    assert nnx.state(net).step == 5
    with pytest.raises(StaticArrayError):
        net.sizes = jnp.ones(1)
    del net.step
    net.step = 6
    assert nnx.state(nnx.clone(net)).step == 6


def test_has_data_looks_into_marks_and_containers():
    assert nnx.is_data(nnx.data(jnp.ones(1)))
    assert not nnx.has_data({"a": [1, ("b", None)], 2: Config()})
    assert nnx.has_data(functools.partial(jnp.add, jnp.ones(1)))
    assert nnx.has_data(Gelu().scaled)
