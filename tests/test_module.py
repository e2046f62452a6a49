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


def test_set_attributes_takes_filters():
    block = nnx.List([nnx.Dropout(0.5), nnx.Dropout(0.5)])
    block.set_attributes(nnx.PathContains(1), deterministic=True)
    assert [d.deterministic for d in block] == [False, True]


def test_an_unknown_attribute_changes_nothing():
    block = Block(rngs=nnx.Rngs(0))
    with pytest.raises(nnx.errors.UnknownAttributesError):
        block.set_attributes(deterministic=True, determinstic=True)
    assert not block.dropout.deterministic


def test_modules_are_listed_children_first():
    block = Block(rngs=nnx.Rngs(0))
    assert [path for path, _ in block.iter_modules()] == [("linear",), ("norm",), ("dropout",), ()]
    assert [name for name, _ in block.iter_children()] == ["linear", "norm", "dropout"]


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
