"""Objects: attributes, marks, dataclasses, texts, and their life as JAX pytrees."""

import collections
import copy
import dataclasses
import gc
import pickle
import weakref
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import MarkArgumentsError, MisplacedMarkError, StaticArrayError

T = TypeVar("T")


class Pair(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    x: Any
    note: Any = dataclasses.field(metadata={"static": True}, default=None)


class Box(nnx.Module):
    """Holds what it is given."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


def param(*shape):
    return nnx.Param(jnp.ones(shape, jnp.float32))


def identity(tree):
    return jax.tree.map(lambda x: x, tree)


ROUND_TRIPS = {
    "merge": lambda m: nnx.merge(*nnx.split(m)),
    "clone": nnx.clone,
    "tree.map": identity,
    "jit": lambda m: jax.jit(lambda m: m)(m),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}
each = pytest.mark.parametrize("way", ROUND_TRIPS)


# Data and static.


DATA = {
    "jax": lambda: jnp.ones(2),
    "numpy": lambda: np.ones(2),
    "numpy scalar": lambda: np.float32(1),
    "key": lambda: jax.random.key(0),
    "shape": lambda: jax.ShapeDtypeStruct((2,), jnp.float32),
    "variable": lambda: param(2),
    "object": lambda: Box(),
    "list": lambda: [param(1)],
    "nested": lambda: ({"a": [jnp.ones(1)]},),
    "namedtuple": lambda: Pair(jnp.ones(1), "b"),
    "record": lambda: Record(jnp.ones(1)),
}
STATIC = {
    "None": None, "int": 1, "float": 1.5, "bool": True, "string": "relu", "function": jnp.sin,
    "class": nnx.Param, "list": [1, [2]], "dict": {"a": 1}, "dtype": jnp.float32, "record": Record(1),
    "empty": [], "numbers": (1, 2.0),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_data_is_what_holds_arrays_variables_or_objects(name):
    assert nnx.is_data(DATA[name]())
    assert nnx.has_data([DATA[name]()])


@pytest.mark.parametrize("name", STATIC)
def test_static_is_everything_else(name):
    assert not nnx.is_data(STATIC[name])
    box = Box(value=STATIC[name])
    assert not nnx.state(box)
    assert not jax.tree.leaves(box)
    assert nnx.clone(box).value == STATIC[name]


def test_attribute_may_change_its_nature():
    box = Box(value=None)
    box.value = param(2)
    assert list(nnx.state(box)) == ["value"]
    box.value = "relu"
    assert not nnx.state(box)


def test_registered_data_type_is_a_leaf():
    class Handle:
        pass

    box = Box(handle=Handle())
    assert not nnx.state(box)
    nnx.register_data_type(Handle)
    assert nnx.state(box).handle is box.handle


# Marks.


@each
def test_marks_survive_copies_and_reassignment(way):
    box = Box(step=nnx.data(0), sizes=nnx.static([1, 2]))
    twin = ROUND_TRIPS[way](box)
    assert (int(twin.step), twin.sizes) == (0, [1, 2])
    twin.step, twin.sizes = 5, [3]
    assert nnx.state(twin).to_pure_dict() == {"step": 5}
    with pytest.raises(StaticArrayError):
        twin.sizes = np.ones(1)


def test_later_mark_overrules_the_earlier():
    box = Box(x=nnx.static(1))
    box.x = nnx.data(2)
    assert nnx.state(box).x == 2
    box.x = nnx.static(3)
    assert not nnx.state(box)
    assert nnx.static(nnx.data(1)).mark == "static"


def test_data_mark_reaches_into_containers():
    box = Box(x=nnx.data([1, (2.0, "name"), {"a": True, 3: None}]))
    assert nnx.to_flat_state(nnx.state(box)).paths == (("x", 0), ("x", 1, 0), ("x", 2, "a"))
    assert nnx.clone(box).x == [1, (2.0, "name"), {"a": True, 3: None}]


@pytest.mark.parametrize("name", DATA)
def test_array_marked_static_is_refused_at_assignment(name):
    box = Box()
    with pytest.raises(StaticArrayError, match=r"Box\.value: found .* marked static"):
        box.value = nnx.static(DATA[name]())
    assert not hasattr(box, "value")
    box.value = nnx.static("relu")
    with pytest.raises(StaticArrayError):
        box.value = DATA[name]()
    assert box.value == "relu"


@pytest.mark.parametrize("wrap", [lambda m: [m], lambda m: ({"a": m},), lambda m: nnx.List([m])])
def test_mark_inside_a_container_is_refused(wrap):
    box = Box(value=wrap(nnx.data(1)))
    with pytest.raises(MisplacedMarkError, match=r"Found nnx\.data\(\.\.\.\) at \.value"):
        nnx.split(box)


def test_check_pytree_finds_arrays_that_came_in_later():
    box = Box(inner=Box(sizes=nnx.static([1])))
    nnx.check_pytree(box)
    box.inner.sizes.append(jnp.ones(2))
    with pytest.raises(StaticArrayError, match=r"Box\.sizes"):
        nnx.check_pytree(box)


def test_check_pytree_looks_at_entries_and_containers():
    d = nnx.Dict({"a": nnx.static([1]), 3: nnx.static([])})
    nnx.check_pytree(Box(items=[d]))
    d[3].append(param(1))
    with pytest.raises(StaticArrayError, match=r"Dict\.3"):
        nnx.check_pytree(Box(items=[d]))
    with pytest.raises(MisplacedMarkError):
        nnx.check_pytree(Box(items=[nnx.data(1)]))


def test_marker_takes_a_value_or_the_arguments_of_a_field():
    with pytest.raises(MarkArgumentsError):
        nnx.data(1, default=2)
    assert nnx.static(default=1).default == 1


# Classes.


def test_empty_slots_of_mixins_are_fine():
    class Mixin:
        __slots__ = ()

    class Net(Mixin, nnx.Module):
        __slots__ = ()

    net = Net()
    net.w = param(1)
    assert list(nnx.state(net)) == ["w"]


@pytest.mark.parametrize("bases", [(nnx.Pytree, Generic[T]), (Generic[T], nnx.Pytree)], ids=["last", "first"])
def test_generic_classes(bases):
    class Made(*bases):
        def __init__(self):
            self.w = param(1)

    class Sub(Made[int]):
        pass

    assert Made.__parameters__ == (T,)
    for made in (Made[int](), Sub()):
        assert nnx.to_flat_state(nnx.state(made)).paths == (("w",),)
        assert type(identity(made)) is type(made)


class Made(nnx.Module):
    """A class whose constructor takes arguments, with a property that is not idempotent."""

    def __new__(cls, n, *, scale):
        return super().__new__(cls)

    def __init__(self, n, *, scale):
        self.w = param(n)
        self._scale = scale

    @property
    def scale(self):
        return self._scale

    @scale.setter
    def scale(self, value):
        self._scale = value * 2


@pytest.mark.parametrize("way", [w for w in ROUND_TRIPS if w not in ("pickle", "deepcopy", "copy")])
def test_object_is_rebuilt_without_its_constructor(way):
    made = Made(2, scale=3)
    made.scale = 5
    assert ROUND_TRIPS[way](made).scale == 10


def test_class_may_opt_out_of_being_a_pytree():
    class Opaque(nnx.Pytree, pytree=False):
        def __init__(self):
            self.w = param(1)

    opaque = Opaque()
    assert jax.tree.leaves(opaque) == [opaque]
    assert list(nnx.state(opaque)) == ["w"]


def test_attributes_hold_nothing_but_the_users():
    box = Box(a=1, b=nnx.static(2))
    nnx.split(box)
    jax.tree.leaves(box)
    assert vars(box) == {"a": 1, "b": 2}


def test_objects_die_when_they_are_dropped():
    box = Box(w=param(2), other=Box())
    box.other.up = box
    ref = weakref.ref(box)
    nnx.merge(*nnx.split(box))
    jax.tree.map(lambda x: x, box)
    del box
    gc.collect()
    assert ref() is None


# As a pytree.


def paths_of(tree):
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def test_key_paths_of_a_tree_read_like_the_model():
    net = Box(
        encoder=Box(layers=[Box(w=param(1)), "relu", Box(w=param(1))]),
        heads={"b": param(1), "a": (param(1),)},
    )
    net.pair = Pair(param(1), "static")
    net.items = nnx.List([param(1)])
    assert paths_of(net) == [
        ".encoder.layers[0].w.value", ".encoder.layers[2].w.value", ".heads['b'].value",
        ".heads['a'][0].value", ".pair.x.value", ".items[0].value",
    ]  # fmt: skip


def test_key_paths_of_a_graph_read_like_the_model():
    net = Box(layers=[Box(w=param(1))])
    net.tied = net.layers[0].w
    assert paths_of(net) == [".layers[0].w"]


def test_is_leaf_stops_at_objects_of_a_tree():
    net = Box(a=Box(w=param(1)), b=[Box(w=param(1))])
    found = jax.tree.leaves(net, is_leaf=lambda x: isinstance(x, Box) and x is not net)
    assert found == [net.a, net.b[0]]


def test_object_is_a_prefix():
    net = Box(w=param(3), t=jnp.arange(3.0), name="a")
    axes = jax.tree.map(lambda x: 0, net)
    assert jax.vmap(lambda m: m.w[...] + m.t, in_axes=(axes,))(net).tolist() == [1.0, 2.0, 3.0]
    assert jax.vmap(lambda m, x: m.t + x, in_axes=(None, 0))(net, jnp.zeros(2)).shape == (2, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Box(w=param(2), t=jnp.ones(2), name="a"),
        lambda: Box(inner=Box(t=np.ones(2), step=nnx.data(0)), d=nnx.Dict(t=jnp.ones(2))),
        lambda: (lambda w: Box(w=w, tied=w, t=jnp.ones(2), inner=Box(t=jnp.ones(1))))(param(2)),
    ],
    ids=["flat", "nested", "shared"],
)
@pytest.mark.parametrize(
    "fill", [0, 1.5, True, "axis", object(), jnp.ones(2)], ids=lambda v: type(v).__name__
)
def test_any_leaf_keeps_the_structure(make, fill):
    net = make()
    filled = jax.tree.map(lambda x: fill, net)
    assert jax.tree.structure(filled) == jax.tree.structure(net)
    assert jax.tree.leaves(filled) == [fill] * len(jax.tree.leaves(net)) or hasattr(fill, "shape")
    back = jax.tree.map(lambda old, new: old, net, filled)
    assert nnx.graphdef(back) is nnx.graphdef(net)


def test_placeholder_is_no_mark_that_stays():
    filled = jax.tree.map(lambda x: 0, Box(t=jnp.ones(2)))
    assert jax.tree.leaves(filled) == [0]
    filled.t = "relu"
    assert not jax.tree.leaves(filled)


@pytest.mark.parametrize("keys", [("b", "a"), (2, "a", 1), (("t", 1), (1, "t"))])
def test_order_and_keys_of_plain_dicts_are_kept(keys):
    net = Box(d={k: param(1) for k in keys}, e={"y": jnp.ones(1), "x": "static"})
    for way in ROUND_TRIPS.values():
        assert list(way(net).d) == list(keys)
    assert nnx.graphdef(identity(net)) is nnx.graphdef(net)


def test_containers_keep_their_types():
    net = Box(
        pair=Pair(param(1), "a"),
        record=Record(jnp.ones(1), note=[1]),
        ordered=collections.OrderedDict(b=param(1), a=None),
        default=collections.defaultdict(list, {"k": param(1)}),
    )
    for name in ("merge", "clone", "tree.map", "jit", "deepcopy"):
        twin = ROUND_TRIPS[name](net)
        assert [type(v) for v in vars(twin).values()] == [
            Pair,
            Record,
            collections.OrderedDict,
            collections.defaultdict,
        ]
        assert twin.record.note == [1]
        assert list(twin.ordered) == ["b", "a"]


def test_static_parts_of_registered_pytrees_may_be_arrays():
    def make(note):
        return Box(record=Record(jnp.ones(1), note=note))

    assert nnx.graphdef(make(np.arange(3))) is nnx.graphdef(make(np.arange(3)))
    assert nnx.graphdef(make(np.arange(3))) is not nnx.graphdef(make(np.arange(1, 4)))
    assert nnx.graphdef(make({"a": [1]})) is nnx.graphdef(make({"a": [1]}))
    weights = jnp.arange(3)
    assert nnx.graphdef(make(weights)) is nnx.graphdef(make(weights))


def test_sharing_and_cycles_survive_inside_one_argument():
    net = Box(w=param(2))
    net.tied, net.up, net.items = net.w, net, [net.w, Box(root=net)]
    twin = identity(net)
    assert twin.w is twin.tied is twin.items[0]
    assert twin.up is twin is twin.items[1].root
    assert len(jax.tree.leaves(net)) == 1


def test_gradient_of_tied_weights_adds_up():
    net = Box(a=nnx.Param(jnp.asarray(2.0)))
    net.b = net.a
    grads = jax.jit(jax.grad(lambda m: m.a * m.b))(net)
    assert grads.a is grads.b
    assert float(grads.a[...]) == 4.0


def test_raw_transforms_take_objects():
    net = Box(w=param(2), name="a")
    x = jnp.ones((3, 2))
    assert jax.jit(lambda m, x: m.w * x)(net, x[0]).shape == (2,)
    assert jax.vmap(lambda m, x: (m.w * x).sum(), in_axes=(None, 0))(net, x).shape == (3,)
    assert jax.eval_shape(lambda m: m, net).w.shape == (2,)
    assert jax.lax.scan(lambda m, x: (Box(w=m.w.replace(m.w * 2), name=m.name), x), net, x)[0].w[0] == 8.0
    assert jax.lax.cond(True, lambda m: m.w[...], lambda m: -m.w[...], net).tolist() == [1.0, 1.0]


def test_raw_jit_traces_once_for_objects_alike():
    traces = []

    @jax.jit
    def f(m):
        traces.append(1)
        return m.w[...]

    for _ in range(3):
        f(Box(w=param(2), act=lambda x: x + 1, sizes=[1, 2]))
    assert len(traces) == 1
    f(Box(w=param(2), act=lambda x: x + 2, sizes=[1, 2]))
    assert len(traces) == 2


def test_object_is_a_static_argument_by_identity():
    traces = []
    f = jax.jit(lambda m, x: traces.append(m) or x * m.n, static_argnums=0)
    box = Box(n=2)
    assert [int(f(box, 3)), int(f(box, 4)), int(f(Box(n=5), 4))] == [6, 8, 20]
    assert len(traces) == 2
