"""Variables: values, writes, metadata, kinds, hooks, copies."""

import copy
import pickle

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import (
    AttributeNotFoundError,
    KindMismatchError,
    UnsupportedVariableError,
    ValueMismatchError,
)


class Watched(nnx.Variable):
    """A kind with hooks, which count."""

    log: list = []  # noqa: RUF012  # shared on purpose: the class is a test's only witness

    def on_create_value(self, value):
        self.log.append("create")
        return value * 10

    def on_set_value(self, value):
        self.log.append("set")
        return value + 1

    def on_get_value(self, value):
        self.log.append("get")
        return value * 2


class Loose(nnx.Param):
    """A kind declared without slots, as users write them."""


def ones(*shape, dtype=jnp.float32):
    return jnp.ones(shape, dtype)


@pytest.fixture
def watched():
    Watched.log.clear()
    return Watched(jnp.asarray(1.0, jnp.float32))


# Reading and writing.


def test_ellipsis_reads_the_array_itself():
    x = ones(2)
    assert nnx.Param(x)[...] is x


def test_full_assignment_of_a_fitting_array_keeps_the_array_itself():
    v, x = nnx.Param(ones(2)), jnp.zeros(2, jnp.float32)
    v[...] = x
    assert v[...] is x


@pytest.mark.parametrize(
    ("now", "new", "expected"),
    [
        (jnp.float32, np.float64(3), jnp.float32),
        (jnp.float32, 3, jnp.float32),
        (jnp.float32, True, jnp.float32),
        (jnp.bfloat16, np.float32(3), jnp.bfloat16),
        (jnp.float16, jnp.asarray(3, jnp.bfloat16), jnp.float16),
        (jnp.int8, 3, jnp.int8),
        (jnp.int32, np.uint8(3), jnp.int32),
        (jnp.complex64, 3.0, jnp.complex64),
        (jnp.uint32, np.int32(3), jnp.uint32),
    ],
)
@pytest.mark.parametrize("index", [..., 0, slice(None), slice(0, 1)], ids=str)
def test_assignment_casts_within_the_kind_of_number(now, new, expected, index):
    v = nnx.Param(jnp.zeros(2, now))
    v[index] = new
    assert v.dtype == expected
    assert v[0] == jnp.asarray(new).astype(now)
    assert not v[...].weak_type


@pytest.mark.parametrize(
    ("now", "new"),
    [
        (jnp.int32, 1.5),
        (jnp.int32, np.float32(1.5)),
        (jnp.float32, 1j),
        (jnp.bool_, 1),
        (jnp.bool_, 0.5),
        (jnp.int32, jnp.asarray(1, jnp.bfloat16)),
    ],
)
@pytest.mark.parametrize("index", [..., 0], ids=str)
def test_assignment_that_would_lose_the_kind_of_number_is_refused(now, new, index):
    v = nnx.Param(jnp.zeros(2, now))
    before = v[...]
    with pytest.raises(ValueMismatchError, match="would be cut down"):
        v[index] = new
    assert v[...] is before


@pytest.mark.parametrize("new", [np.ones(3), np.ones((2, 2)), np.ones((1, 3)), np.ones(0)])
def test_full_assignment_of_another_shape_is_refused(new):
    v = nnx.Param(ones(2))
    with pytest.raises(ValueMismatchError, match="does not broadcast"):
        v[...] = new


def test_partial_assignment_of_another_shape_is_refused():
    v = nnx.Param(ones(2, 3))
    with pytest.raises(ValueMismatchError, match=r"Param\(float32\[2,3\]\): cannot assign float32\[2\]"):
        v[0] = ones(2)


def test_full_assignment_broadcasts():
    v = nnx.Param(ones(2, 3))
    v[...] = jnp.arange(3.0)
    assert v[...].tolist() == [[0.0, 1.0, 2.0]] * 2


def test_set_value_takes_another_shape_and_dtype():
    v = nnx.Param(ones(2))
    v.set_value(jnp.zeros((3, 1), jnp.int32))
    assert v.shape == (3, 1)
    assert v.dtype == jnp.int32


def test_value_is_a_property_to_read_and_write():
    v = nnx.Param(ones(2))
    v.value = ones(3)
    assert v.value is v[...]
    assert v.shape == (3,)


def test_assignment_of_a_variable_takes_its_value():
    v, w = nnx.Param(ones(2)), nnx.BatchStat(jnp.zeros(2, jnp.float32))
    v[...] = w
    assert v[...] is w[...]
    v[0] = nnx.Param(jnp.asarray(5.0, jnp.float32))
    assert v[...].tolist() == [5.0, 0.0]


def test_variables_index_variables():
    v, i = nnx.Param(jnp.arange(4.0)), nnx.Variable(jnp.asarray([1, 3]))
    assert v[i].tolist() == [1.0, 3.0]
    assert nnx.Param(jnp.eye(2))[i[0] - 1, nnx.Variable(jnp.asarray(0))] == 1.0
    v[i] = 0.0
    assert v[...].tolist() == [0.0, 0.0, 2.0, 0.0]


def test_index_reads_and_writes_dicts_in_a_copy():
    v = nnx.Variable({"a": ones(1), "b": ones(1)})
    before = v[...]
    v["a"] = ones(3)
    assert v["a"].shape == (3,)
    assert before["a"].shape == (1,)
    assert list(v[...]) == ["a", "b"]


def test_assignment_to_a_key_of_random_bits_is_refused():
    v = nnx.Variable(jax.random.key(0))
    with pytest.raises(ValueMismatchError):
        v[...] = jnp.zeros((), jnp.uint32)
    v[...] = jax.random.key(1)
    assert jax.random.key_data(v[...]).tolist() == [0, 1]


def test_shapes_without_values_are_replaced_by_arrays():
    v = nnx.Param(jax.ShapeDtypeStruct((2,), jnp.float32))
    assert (v.shape, v.dtype) == ((2,), jnp.float32)
    v[...] = ones(2)
    assert v[...].tolist() == [1.0, 1.0]


def test_full_assignment_traces_to_no_operation():
    def f(v, x):
        v[...] = x
        return v[...]

    assert not jax.make_jaxpr(f)(nnx.Param(ones(2)), ones(2)).eqns


@pytest.mark.parametrize("value", [1.0, 2, True, "text", None, [1, 2], {"a": 1}, np.ones(2), (ones(1), None)])
def test_any_value_may_be_held(value):
    v = nnx.Variable(value)
    assert v[...] is value
    v.set_value(3)
    assert v.get_value() == 3


# Kinds.


def test_kind_is_the_class():
    assert nnx.Param(1).type is nnx.Param.var_type.fget(nnx.Param(1)) is nnx.Param


@pytest.mark.parametrize("option", ["hijax", "ref"])
def test_modes_that_are_not_there_are_refused_but_accepted_if_off(option):
    with pytest.raises(UnsupportedVariableError, match=rf"Param\(..., {option}=True\)"):
        nnx.Param(ones(1), **{option: True})
    v = nnx.Param(ones(1), **{option: False})
    assert getattr(v, option) is False
    assert not v.get_metadata()


@pytest.mark.parametrize(
    "kind", [nnx.Param, nnx.BatchStat, nnx.Cache, nnx.Intermediate, nnx.Perturbation, Loose]
)
def test_kinds_are_pytrees_with_one_leaf(kind):
    v = kind(ones(2), tag="a")
    leaves, treedef = jax.tree.flatten(v)
    twin = jax.tree.unflatten(treedef, leaves)
    assert leaves == [v[...]]
    assert type(twin) is kind
    assert twin is not v
    assert twin.tag == "a"


def test_key_path_of_a_variable():
    ((path, _),) = jax.tree_util.tree_leaves_with_path(nnx.Param(1))
    assert jax.tree_util.keystr(path) == ".value"


def test_treedefs_differ_by_kind_and_metadata():
    trees = [
        jax.tree.structure(v)
        for v in (nnx.Param(1), nnx.BatchStat(1), nnx.Param(1, a=1), nnx.Param(1, a=True))
    ]
    assert len(set(trees)) == 4
    assert jax.tree.structure(nnx.Param(2, a=[1])) == jax.tree.structure(nnx.Param(3, a=[1]))


def test_generic_alias_makes_the_same_variable():
    assert not nnx.Param[jax.Array](ones(1)).get_metadata()


# Metadata.


@pytest.mark.parametrize(
    "value",
    [
        1,
        None,
        "a",
        [1, [2]],
        {"k": [1]},
        {1, 2},
        ("in", None),
        np.ones(3),
        jnp.ones(3),
        jnp.float32,
        len,
        lambda x: x,
    ],
    ids=lambda value: type(value).__name__,
)
def test_metadata_may_be_anything(value):
    v = nnx.Param(ones(1), note=value)
    assert np.array_equal(v.note, value) if hasattr(value, "shape") else v.note == value
    assert v.has_metadata("note")
    assert not v.has_metadata("other")
    assert nnx.graphdef([v]) is nnx.graphdef([v])


def test_metadata_that_can_change_belongs_to_no_one_else():
    axes = ["in"]
    v, w = nnx.Param(ones(1), axes=axes), nnx.Param(ones(1), axes=["in"])
    axes.append("out")
    v.axes.append("out")
    v.get_metadata("axes").append("out")
    v.get_metadata()["axes"].append("out")
    assert v.axes == w.axes == ["in"]


@pytest.mark.parametrize("name", ["dtype", "shape", "ndim", "size"])
def test_attributes_of_the_array_win_over_metadata_of_that_name(name):
    v = nnx.Param(jnp.ones((2, 3), jnp.float32), **{name: "meant otherwise"})
    assert getattr(v, name) == getattr(v[...], name)
    assert v.get_metadata(name) == "meant otherwise"


@pytest.mark.parametrize("name", ["type", "value", "raw_value", "copy", "tag", "T", "mean"])
def test_metadata_of_any_name_is_kept(name):
    v = nnx.Param(ones(2))
    v.set_metadata(name, 3)
    assert v.get_metadata(name) == 3
    assert v.type is nnx.Param
    assert v.value is v[...]
    assert v.replace().get_metadata() == {name: 3}


def test_attribute_assignment_sets_metadata():
    v = nnx.Param(ones(1))
    v.tag = "a"
    assert v.get_metadata() == {"tag": "a"}
    del v.tag
    assert v.get_metadata() == {}


def test_metadata_is_replaced_by_a_mapping_and_extended_by_keywords():
    v = nnx.Param(ones(1), a=1, b=2)
    v.set_metadata(b=3)
    assert v.get_metadata() == {"a": 1, "b": 3}
    v.set_metadata({"c": 4})
    assert v.get_metadata() == {"c": 4}


@pytest.mark.parametrize("alias", ["sharding_names", "sharding", "out_sharding"])
def test_sharding_names_have_one_spelling(alias):
    v = nnx.Param(ones(1), **{alias: ("a",)})
    assert v.get_metadata() == {"sharding_names": ("a",)}
    v.set_metadata(**{alias: ("b",)})
    assert v.sharding_names == ("b",)
    assert v.replace(**{alias: ("c",)}).sharding_names == ("c",)
    assert nnx.Param(ones(1)).sharding_names is None


def test_get_metadata_of_a_missing_name_raises_or_gives_the_default():
    v = nnx.Param(ones(1), sharding_names=("a",))
    assert v.get_metadata("missing", 3) == 3
    assert v.get_metadata("missing", None) is None
    with pytest.raises(AttributeNotFoundError, match=r"Did you mean 'sharding_names'\?"):
        v.get_metadata("sharding_name")
    with pytest.raises(AttributeNotFoundError):
        v.del_metadata("missing")


@pytest.mark.parametrize("name", ["kernal", "_private", "shap"])
def test_unknown_attribute_names_the_variable(name):
    v = nnx.Param(ones(2), kernel=1)
    assert not hasattr(v, name)
    with pytest.raises(AttributeError, match=rf"Param\(float32\[2\]\) has no attribute '{name}'"):
        getattr(v, name)


def test_box_of_an_initializer_is_unwrapped_and_explicit_metadata_wins():
    init = nnx.with_metadata(lambda shape: jnp.zeros(shape), axes=("in",), tag="box")
    v = nnx.Param(init((2,)), tag="mine")
    assert v.get_metadata() == {"axes": ("in",), "tag": "mine"}
    assert v.shape == (2,)


# Hooks.


def test_hooks_of_the_class_run_once_each(watched):
    watched.set_value(jnp.asarray(3.0, jnp.float32))
    assert float(watched.get_value()) == 8.0
    assert float(watched.get_raw_value()) == 4.0
    assert Watched.log == ["create", "set", "get"]


def test_hooks_see_indexed_and_in_place_writes(watched):
    watched[...] = jnp.asarray(1.0, jnp.float32)
    assert float(watched.raw_value) == 2.0
    watched += 1.0  # get gives 4, set adds 1
    assert float(watched.raw_value) == 6.0


def test_raw_writes_and_copies_run_no_hook(watched):
    Watched.log.clear()
    watched.set_raw_value(jnp.asarray(5.0, jnp.float32))
    twins = [watched.replace(), copy.copy(watched), nnx.clone(watched), pickle.loads(pickle.dumps(watched))]
    twins += [jax.tree.map(lambda x: x, watched), copy.deepcopy(watched)]
    assert [float(t.raw_value) for t in twins] == [5.0] * 6
    assert not Watched.log


def test_hooks_of_the_metadata_run_after_those_of_the_class():
    Watched.log.clear()
    v = Watched(jnp.asarray(0.0, jnp.float32), on_set_value=[lambda v, x: x * 3, lambda v, x: x + 0.5])
    v.set_value(jnp.asarray(1.0, jnp.float32))
    assert float(v.raw_value) == (1 + 1) * 3 + 0.5


def test_hooks_of_axes_run():
    seen = []
    v = nnx.Param(ones(1), on_add_axis=lambda v, i, name: seen.append(("add", i, name)))
    v.set_metadata(on_remove_axis=lambda v, i, name: seen.append(("remove", i, name)))
    v.add_axis(0, "layers")
    v.remove_axis(0, "layers")
    assert seen == [("add", 0, "layers"), ("remove", 0, "layers")]


@pytest.mark.parametrize("index", [0, 1, 2, -1, -2])
def test_axes_are_named_in_the_sharding(index):
    v = nnx.Param(ones(2, 3), sharding_names=("a", "b"))
    v.add_axis(index, "layers")
    expected = ["a", "b"]
    expected.insert(index if index >= 0 else len(expected) + 1 + index, "layers")
    assert v.sharding_names == tuple(expected)
    v.remove_axis(index, "layers")
    assert v.sharding_names == ("a", "b")


# Copies, identity, pickles, texts.


def test_replace_keeps_kind_and_metadata_and_leaves_the_variable_alone():
    v = nnx.Param(ones(2), tag="a")
    w = v.replace(jnp.zeros(3), note=1)
    assert type(w) is nnx.Param
    assert w.get_metadata() == {"tag": "a", "note": 1}
    assert (w.shape, v.shape, v.get_metadata()) == ((3,), (2,), {"tag": "a"})


@pytest.mark.parametrize("act", ["replace", "copy_from"])
def test_values_of_another_kind_are_refused(act):
    with pytest.raises(KindMismatchError, match="from a Param to a BatchStat"):
        getattr(nnx.BatchStat(ones(1)), act)(nnx.Param(ones(1)))


def test_copy_from_takes_value_and_metadata():
    v, w = nnx.Param(ones(2), a=1), nnx.Param(jnp.zeros(3), b=2)
    v.copy_from(w)
    assert v[...] is w[...]
    assert v.get_metadata() == {"b": 2}


@pytest.mark.parametrize(
    "dump",
    [pickle.dumps, cloudpickle.dumps, lambda v: pickle.dumps(v, protocol=2)],
    ids=["pickle", "cloud", "2"],
)
@pytest.mark.parametrize(
    "value",
    [ones(2), np.ones(2), jax.random.key(3), {"k": jax.random.key(3)}, jnp.ones(2, jnp.bfloat16), 3, None],
)
def test_pickle_keeps_value_kind_metadata_and_identity(dump, value):
    v = Loose(value, axes=["in"])
    first, second = pickle.loads(dump([v, v]))
    assert first is second
    assert type(first) is Loose
    assert first.axes == ["in"]
    assert jax.tree.structure(first) == jax.tree.structure(v)
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(v), strict=True):
        assert np.all(x == y)


def test_deepcopy_copies_the_array_and_keeps_identity():
    v = nnx.Param(np.ones(2))
    first, second = copy.deepcopy([v, v])
    assert first is second is not v
    first[...][0] = 5
    assert v[...].tolist() == [1.0, 1.0]


def test_variables_are_keys_by_identity():
    v, w = nnx.Param(ones(2)), nnx.Param(ones(2))
    table = {v: 1, w: 2}
    assert (table[v], table[w], len({v, w, v})) == (1, 2, 2)


def test_format_without_a_spec_is_the_text_and_with_one_that_of_the_value():
    v = nnx.Param(ones(2, 3), tag="a")
    assert f"{v}" == repr(v)
    assert f"{nnx.Param(jnp.float32(1.25)):.1f}" == "1.2"


def test_eager_sharding_is_remembered():
    assert nnx.Param(ones(1), eager_sharding=False).get_metadata() == {"eager_sharding": False}
