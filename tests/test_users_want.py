"""What users of such toolkits asked for, by the id of each wish: states, shared references, pickles."""

import copy
import inspect
import pickle

import cloudpickle
import jax
import jax.numpy as jnp
import optax
import pytest

import nnxgraph as nnx
from nnxgraph import errors


class Tied(nnx.Module):
    """An output head tied to an embedding."""

    def __init__(self):
        self.a = nnx.Param(jnp.asarray(2.0, jnp.float32))
        self.b = self.a

    def __call__(self, x):
        return self.a * self.b * x


class Trained(nnx.Module):
    """A model with all that a model has."""

    def __init__(self, *, rngs):
        self.layers = [nnx.Linear(2, 2, rngs=rngs) for _ in range(2)]
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.activation = nnx.relu

    def __call__(self, x):
        for layer in self.layers:
            x = self.activation(layer(x))
        return self.dropout(self.norm(x))


def trained():
    """A model after two steps, with its optimizer and a metric."""
    model = Trained(rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, lambda: optax.adam(1e-2), wrt=nnx.Param)
    metric = nnx.metrics.Average("loss")
    for _ in range(2):
        loss, grads = nnx.value_and_grad(lambda m: m(jnp.ones((4, 2))).sum())(model)
        optimizer.update(model, grads)
        metric.update(loss=loss)
    return model, optimizer, metric


# ST: split, merge, state.


def test_st1_later_states_override_in_merge():
    graphdef, state = nnx.split(Tied())
    override = nnx.State({"a": nnx.Param(jnp.asarray(5.0))})
    assert float(nnx.merge(graphdef, state, override).b[...]) == 5.0
    assert float(nnx.merge(graphdef, override, state).b[...]) == 2.0


def test_st3_state_with_two_filters_gives_two_states():
    found = nnx.state(nnx.BatchNorm(2, rngs=nnx.Rngs(0)), nnx.Param, nnx.BatchStat)
    assert [list(s) for s in found] == [["scale", "bias"], ["mean", "var"]]


@pytest.mark.parametrize("cut", [nnx.split, lambda m, f: nnx.state(m).split(f), nnx.unpack])
def test_st3_filters_that_leave_something_out_are_told_by_path_without_values(cut):
    model = nnx.Dict(big=nnx.BatchStat(jnp.full((100, 100), 123.0)), w=nnx.Param(jnp.ones(1)))
    with pytest.raises(errors.NonExhaustiveError) as caught:
        cut(model, nnx.Param)
    assert ".big: BatchStat(float32[100,100])" in str(caught.value)
    assert "123" not in str(caught.value)
    assert len(str(caught.value)) < 300


# TW: tied weights.


def test_tw1_a_tied_weight_is_one_leaf_with_the_whole_gradient():
    model = Tied()
    assert len(jax.tree.leaves(nnx.state(model))) == 1
    assert float(nnx.grad(lambda m: m(1.0))(model)["a"][...]) == 4.0


@pytest.mark.parametrize(
    "way",
    [
        nnx.clone,
        copy.deepcopy,
        lambda m: nnx.merge(*nnx.split(m)),
        lambda m: pickle.loads(pickle.dumps(m)),
        nnx.jit(lambda m: m),
        jax.jit(lambda m: m),
        lambda m: jax.tree.map(lambda x: x, m),
    ],
    ids=["clone", "deepcopy", "merge", "pickle", "nnx.jit", "jax.jit", "jax.tree"],
)
def test_tw1_a_tied_weight_stays_tied(way):
    twin = way(Tied())
    assert twin.a is twin.b
    twin.a[...] = 3.0
    assert float(twin(1.0)) == 9.0


def test_tw1_raw_grad_of_a_tied_model_counts_both_uses():
    grads = jax.grad(lambda m: m(1.0))(Tied())
    assert grads.a is grads.b
    assert float(grads.a[...]) == 4.0


# VA: Variables as arrays.


def test_va3_the_ways_to_a_value_agree():
    p = nnx.Param(jnp.arange(3.0))
    p.value = p.value + 1
    p.set_value(p.get_value() + 1)
    p[...] = p[...] + 1
    assert p[...] is p.value is p.get_value()
    assert p.value.tolist() == [3.0, 4.0, 5.0]


def test_va3_a_misspelt_attribute_names_the_kind_and_close_matches():
    with pytest.raises(AttributeError) as caught:
        _ = nnx.Param(jnp.ones(2, jnp.float32), kernel=1).kernal
    assert str(caught.value) == (
        "Param(float32[2]) has no attribute 'kernal': neither metadata nor the value has it. "
        "Did you mean 'kernel' or 'real'?"
    )


# PK: pickles.


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_pk1_a_trained_model_with_optimizer_and_metric_pickles_and_trains_on(pickler):
    model, optimizer, metric = pickler.loads(pickler.dumps(trained()))
    here = trained()
    assert nnx.state(model) == nnx.state(here[0])
    assert nnx.state(optimizer) == nnx.state(here[1])
    assert float(metric.compute()) == float(here[2].compute())
    for m, o in ((model, optimizer), here[:2]):
        o.update(m, nnx.grad(lambda m: m(jnp.ones((4, 2))).sum())(m))
    assert nnx.state(model) == nnx.state(here[0])


def facts_for(error):
    """Facts of the right types for the constructor of an error."""
    values = {"str": "x", "int": 1, "bool": True, "float": 1.0, "object": "x"}
    facts = []
    for parameter in list(inspect.signature(error.__init__).parameters.values())[1:]:
        text = str(parameter.annotation).split(" | ")[0]
        facts.append((("a", "b") if "str" in text else (1, 2)) if "[" in text else values.get(text, "x"))
    return facts


ERRORS = [getattr(errors, name) for name in errors.__all__ if name not in ("NnxError", "UnboundAxisWarning")]


@pytest.mark.parametrize("error", ERRORS)
def test_pk3_every_error_pickles_with_its_message(error):
    made = error(*facts_for(error))
    twin = pickle.loads(pickle.dumps(made))
    assert type(twin) is error
    assert str(twin) == str(made)
    assert str(made)
