"""Modules, their containers, and the settings of a thread."""

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx


class Block(nnx.Module):
    def __init__(self, *, rngs):
        self.linear = nnx.Linear(2, 2, rngs=rngs)
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


def test_train_and_eval_reach_all_modules_below():
    block = Block(rngs=nnx.Rngs(0))
    block.eval()
    assert block.dropout.deterministic
    assert block.norm.use_running_average
    block.train()
    assert not block.dropout.deterministic
    assert not block.norm.use_running_average


class Tagged(nnx.Module):
    """A module with an attribute that filters read as its tag."""

    def __init__(self, tag):
        self.tag = tag
        self.deterministic = False
        self.layers = [nnx.Dropout(0.5), {"x": nnx.Dropout(0.5)}]


MODE_FILTERS = {
    "none": ((), ["", ".layers[0]", ".layers[1].x"]),
    "everything": ((...,), ["", ".layers[0]", ".layers[1].x"]),
    "true": ((True,), ["", ".layers[0]", ".layers[1].x"]),
    "false": ((False,), []),
    "nothing": ((None,), []),
    "type": ((nnx.Dropout,), [".layers[0]", ".layers[1].x"]),
    "base type": ((nnx.Pytree,), ["", ".layers[0]", ".layers[1].x"]),
    "of type": ((nnx.OfType(Tagged),), [""]),
    "tag": (("front",), [""]),
    "other tag": (("back",), []),
    "key": ((nnx.PathContains("x"),), [".layers[1].x"]),
    "part of a key": ((nnx.PathContains("lay", exact=False),), [".layers[0]", ".layers[1].x"]),
    "path": ((nnx.PathIn(("layers", 0)),), [".layers[0]"]),
    "root": ((nnx.PathIn(()),), [""]),
    "function": ((lambda path, m: len(path) == 2,), [".layers[0]"]),
    "not": ((nnx.Not(nnx.Dropout),), [""]),
    "all": ((nnx.All(nnx.Dropout, nnx.PathContains(1)),), [".layers[1].x"]),
    "several": ((Tagged, nnx.PathContains("x")), ["", ".layers[1].x"]),
    "list": (([Tagged, nnx.PathContains("x")],), ["", ".layers[1].x"]),
}


@pytest.mark.parametrize("name", MODE_FILTERS)
def test_set_attributes_takes_filters(name):
    filters, expected = MODE_FILTERS[name]
    model = Tagged("front")
    model.set_attributes(*filters, deterministic=True, raise_if_not_found=bool(expected))
    found = {"": model, ".layers[0]": model.layers[0], ".layers[1].x": model.layers[1]["x"]}
    assert [path for path, m in found.items() if m.deterministic] == expected


def test_set_attributes_refuses_what_is_no_filter():
    with pytest.raises(nnx.errors.FilterError):
        Tagged("a").set_attributes(3, deterministic=True)


def test_a_misspelt_attribute_names_close_matches_and_changes_nothing():
    block = Block(rngs=nnx.Rngs(0))
    with pytest.raises(nnx.errors.UnknownAttributesError, match=r"Did you mean 'deterministic'\?"):
        block.set_attributes(deterministic=True, determinstic=True)
    assert not block.dropout.deterministic
    block.set_attributes(deterministic=True, determinstic=True, raise_if_not_found=False)
    assert block.dropout.deterministic
    assert not hasattr(block.dropout, "determinstic")


def test_attribute_must_be_found_among_the_modules_that_match():
    with pytest.raises(nnx.errors.UnknownAttributesError):
        Block(rngs=nnx.Rngs(0)).set_attributes(nnx.Linear, deterministic=True)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_modes_take_attributes_that_must_exist(mode):
    block = Block(rngs=nnx.Rngs(0))
    getattr(block, mode)(rate=0.25)
    assert block.dropout.rate == 0.25
    with pytest.raises(nnx.errors.UnknownAttributesError):
        getattr(block, mode)(raet=0.25)
    nnx.Dict().eval()


def test_the_users_attributes_overrule_nothing_of_the_mode():
    block = Block(rngs=nnx.Rngs(0))
    block.eval(momentum=0.5)
    assert (block.norm.momentum, block.norm.use_running_average) == (0.5, True)


class Defaults(nnx.Module):
    """Has its modes as defaults of the class and as a property."""

    deterministic = False
    dtype = jnp.float32
    _level = 0

    @property
    def level(self):
        return self._level

    @level.setter
    def level(self, value):
        if value < 0:
            raise ValueError("negative")
        self._level = value

    @property
    def fixed(self):
        return 1

    def method(self):
        return 2


def test_defaults_of_the_class_and_properties_are_attributes():
    model = Defaults()
    model.eval()
    model.set_attributes(level=3, dtype=jnp.bfloat16)
    assert (model.deterministic, model.level, model.dtype) == (True, 3, jnp.bfloat16)
    assert not Defaults.deterministic


@pytest.mark.parametrize("name", ["fixed", "method", "__class_getitem__"])
def test_what_cannot_be_set_is_no_attribute(name):
    with pytest.raises(nnx.errors.UnknownAttributesError):
        Defaults().set_attributes(**{name: 1})


def test_failing_to_set_one_attribute_changes_none():
    model = nnx.List([nnx.Dropout(0.5), Defaults()])
    model[0].level = 1
    with pytest.raises(ValueError, match="negative"):
        model.set_attributes(deterministic=True, level=-1)
    assert (model[0].deterministic, model[0].level, vars(model[1])) == (False, 1, {})


def test_set_attributes_in_tree_mode_refuses_shared_modules():
    model = nnx.Dict(a=nnx.Dropout(0.5))
    model.b = model.a
    with pytest.raises(nnx.errors.SharedVariableError):
        model.set_attributes(graph=False, deterministic=True)


def test_modules_are_listed_children_first():
    block = Block(rngs=nnx.Rngs(0))
    assert [path for path, _ in block.iter_modules()] == [("linear",), ("norm",), ("dropout",), ()]
    assert [name for name, _ in block.iter_children()] == ["linear", "norm", "dropout"]


def test_modules_in_plain_containers_are_children():
    model = Tagged("a")
    assert [key for key, _ in model.iter_children()] == [("layers", 0), ("layers", 1, "x")]
    assert [path for path, _ in model.iter_modules()] == [("layers", 0), ("layers", 1, "x"), ()]
    assert dict(nnx.iter_module_children(model)) == dict(model.iter_children())
    assert [key for key, _ in nnx.Dict(rngs=nnx.Rngs(0), d=nnx.Dict()).iter_children()] == ["d"]


def test_iterating_over_modules_ends_at_cycles():
    model = nnx.Dict(child=nnx.Dict())
    model.child.up = model
    assert [path for path, _ in model.iter_modules()] == [("child",), ()]
    assert [key for key, _ in model.child.iter_children()] == ["up"]


def test_sow_appends_and_pop_collects():
    model = nnx.Dict()
    for i in range(2):
        model.sow(nnx.Intermediate, "h", jnp.array(i))
    assert [int(x) for x in nnx.pop(model, nnx.Intermediate)["h"].get_value()] == [0, 1]
    assert "h" not in model


def test_sow_reduces_as_it_is_told():
    model = nnx.Dict()
    for i in (1, 2):
        model.sow(nnx.Intermediate, "h", i, reduce_fn=lambda a, b: a + b, init_fn=lambda: 0)
    assert model.h.get_value() == 3


def test_perturb_makes_no_state():  # IN2 of what users want
    model = nnx.Dict()
    assert model.perturb("h", jnp.ones(2)).tolist() == [1.0, 1.0]
    assert len(model) == 0


def test_perturb_adds_the_perturbation_there_is():
    model = nnx.Dict(h=nnx.Perturbation(jnp.zeros(2)))
    wrt = nnx.DiffState(0, nnx.Perturbation)
    grads = nnx.grad(lambda m: (3 * m.perturb("h", jnp.ones(2))).sum(), argnums=wrt)(model)
    assert grads["h"].tolist() == [3.0, 3.0]


def test_a_list_has_the_list_protocol():  # MO7 of what users want
    items = nnx.List([1, 2, 3])
    items.append(4)
    items.insert(0, 0)
    items.extend([5])
    del items[1]
    assert items.pop() == 5
    assert list(items) == [0, 2, 3, 4]
    assert (items[-1], list(items[1:3]), list(reversed(items))) == (4, [2, 3], [4, 3, 2, 0])
    assert list(items + [9]) == [0, 2, 3, 4, 9]  # noqa: RUF005  # the operator is tested
    assert items.index(3) == 2
    assert 2 in items


def test_elements_of_a_list_have_integer_paths():
    model = nnx.List([nnx.Param(jnp.ones(1)), nnx.relu])
    assert nnx.to_flat_state(nnx.state(model)).paths == ((0,),)


def test_a_dict_takes_keys_of_all_kinds():
    model = nnx.Dict({"a": nnx.Param(1), 2: nnx.Param(2)})
    assert set(nnx.state(model)) == {"a", 2}
    twin = nnx.merge(*nnx.split(model))
    assert twin[2].get_value() == 2
    assert jax.tree.map(lambda x: x * 2, model)[2].get_value() == 4


def test_sequential_passes_tuples_and_dicts_on():
    model = nnx.Sequential(lambda x: (x, x + 1), lambda a, b: {"x": a * b}, lambda x: x - 1)
    assert model(3) == 11


def test_an_empty_sequential_is_the_identity():  # LY7 of what users want
    assert nnx.Sequential()(3) == 3


def test_sequential_takes_a_list():
    assert nnx.Sequential([lambda x: x + 1, lambda x: x * 2])(1) == 4


def test_tree_mode_is_a_setting_of_a_while():
    model = nnx.Dict(a=nnx.Param(1))
    model["b"] = model["a"]
    with nnx.set_graph_mode(False), pytest.raises(nnx.errors.SharedVariableError):
        nnx.split(model)
    assert len(nnx.state(model)) == 1


def test_structure_stays_without_graph_updates():
    def grow(model):
        model.extra = nnx.Param(jnp.ones(1))
        model.a[...] += 1.0

    model = nnx.Dict(a=nnx.Param(jnp.zeros(1)))
    with nnx.set_graph_updates(False):
        nnx.jit(grow)(model)
    assert list(model) == ["a"]
    assert model.a[...].tolist() == [1.0]
