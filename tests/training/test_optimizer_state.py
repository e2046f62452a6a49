"""What an Optimizer holds: kinds, paths and metadata; how it lives through clone, pickle and donation."""

import copy
import functools
import pickle

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnxgraph as nnx
from nnxgraph.errors import TransformationPickleError
from nnxgraph.training import _optax
from tests.training.models import LABELS, MASK, PARAMS, gradients, loss, make

ADAM = functools.partial(optax.adam, 1e-2)


def small(**metadata):
    return nnx.Linear(4, 3, kernel_metadata=metadata, rngs=nnx.Rngs(0))


def make_optimizer(model, tx):
    return nnx.Optimizer(model, tx, wrt=nnx.Param)


def leaves(optimizer):
    """Path and Variable of all that an optimizer holds."""
    return dict(nnx.to_flat_state(nnx.state(optimizer)))


def test_state_mirrors_the_paths_of_the_parameters():
    optimizer = make_optimizer(make(), optax.adam(1e-2))
    held = leaves(optimizer)
    mirrored = [path for path, _ in nnx.to_flat_state(PARAMS)]
    expected = {("opt_state", 0, name, *path) for name in ("mu", "nu") for path in mirrored}
    assert {path for path, v in held.items() if type(v) is nnx.OptVariable} == expected
    assert {path for path, v in held.items() if type(v) is nnx.OptArray} == {("opt_state", 0, "count")}
    assert {path for path, v in held.items() if type(v) is nnx.OptState} == {("step",)}
    assert held["step",].dtype == jnp.uint32
    assert len(nnx.state(optimizer, nnx.OptState)) == 2
    assert len(nnx.state(optimizer, nnx.Param)) == 0


def test_state_inherits_the_metadata_of_the_parameters():
    optimizer = make_optimizer(small(sharding_names=("in", "out"), tag="frozen"), optax.adam(1e-2))
    for moment in (optimizer.opt_state[0].mu, optimizer.opt_state[0].nu):
        assert moment["kernel"].sharding_names == ("in", "out")
        assert moment["kernel"].tag == "frozen"
        assert moment["bias"].get_metadata() == {}


def test_state_of_another_shape_inherits_no_sharding():
    model = small(sharding_names=("in", "out"), tag="frozen")
    state = make_optimizer(model, optax.lbfgs(memory_size=2)).opt_state
    memory = state[0].diff_params_memory["kernel"]
    assert memory.shape == (2, 4, 3)
    assert memory.get_metadata() == {"tag": "frozen"}
    assert state[0].params["kernel"].sharding_names == ("in", "out")


def test_hooks_of_a_parameter_do_not_run_on_the_state():
    model = nnx.Linear(2, 2, kernel_metadata={"on_get_value": lambda v, x: x + 100}, rngs=nnx.Rngs(0))
    optimizer = make_optimizer(model, optax.sgd(0.5, momentum=0.9))
    before = model.kernel.raw_value
    optimizer.update(model, nnx.State({"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}))
    np.testing.assert_array_equal(optimizer.opt_state[0].trace["kernel"][...], jnp.ones((2, 2)))
    np.testing.assert_allclose(model.kernel.raw_value, before - 0.5, rtol=1e-6)


def test_what_is_masked_out_holds_no_state():
    optimizer = make_optimizer(make(), optax.masked(optax.adam(1e-2), MASK))
    held = {path[-1] for path, v in leaves(optimizer).items() if type(v) is nnx.OptVariable}
    assert held == {"kernel"}
    assert optimizer.opt_state.inner_state[0].mu["head"]["bias"] == optax.MaskedNode()


def test_state_follows_parameters_whose_metadata_changed_since():
    model = make()
    tx = optax.multi_transform({"head": optax.adam(0.1), "body": optax.adamw(0.1, mask=MASK)}, LABELS)
    tx = optax.multi_transform({"head": optax.adam(0.1), "body": optax.set_to_zero()}, LABELS)
    optimizer = make_optimizer(model, tx)
    grads = gradients(model)
    model.head.kernel.set_metadata(tag="new")
    before = model.head.kernel[...], model.body[0].kernel[...]
    updates = optimizer.update(model, grads)
    assert (model.head.kernel[...] != before[0]).all()
    assert (model.body[0].kernel[...] == before[1]).all()
    assert updates["head"]["kernel"].tag == model.head.kernel.tag == "new"


def test_injected_hyperparameters_are_read_and_set():
    model = small()
    optimizer = make_optimizer(model, optax.inject_hyperparams(optax.sgd)(learning_rate=0.5))
    rate = optimizer.opt_state.hyperparams["learning_rate"]
    assert rate[...] == 0.5
    before = model.bias[...]
    rate[...] = 0.25
    optimizer.update(model, nnx.map_state(lambda path, v: v.replace(jnp.ones(v.shape)), nnx.state(model)))
    np.testing.assert_allclose(model.bias[...], before - 0.25)


def test_tied_weights_have_one_slot():
    class Tied(nnx.Module):
        def __init__(self):
            self.a = nnx.Param(jnp.array(2.0))
            self.b = self.a

    model = Tied()
    optimizer = make_optimizer(model, optax.adam(0.5))
    assert list(optimizer.opt_state[0].mu) == ["a"]
    optimizer.update(model, nnx.grad(lambda m: m.a[...] * m.b[...])(model))
    np.testing.assert_allclose(model.a[...], 1.5, rtol=1e-5)
    assert model.a is model.b


def test_a_transformation_whose_state_changes_its_structure():
    def init(params):
        return {"first": True, "seen": None}

    def update(updates, state, params=None):
        return updates, {"first": False, "seen": updates}

    model = small()
    optimizer = make_optimizer(model, optax.GradientTransformation(init, update))
    grads = nnx.map_state(lambda path, v: v.replace(jnp.ones(v.shape)), nnx.state(model))
    for step in range(3):
        assert optimizer.opt_state["first"].get_value() == (step == 0)
        optimizer.update(model, grads)
    assert type(optimizer.opt_state["seen"]["bias"]) is nnx.OptVariable


def test_functions_in_a_state_are_kept():
    def init(params):
        return jnp.tanh, jnp.zeros(())

    def update(updates, state, params=None):
        f, count = state
        return jax.tree.map(f, updates), (f, count + 1)

    model = small()
    optimizer = make_optimizer(model, optax.GradientTransformation(init, update))
    grads = nnx.map_state(lambda path, v: v.replace(jnp.ones(v.shape)), nnx.state(model))
    nnx.jit(lambda m, o, g: o.update(m, g))(model, optimizer, grads)
    assert optimizer.opt_state[0] is jnp.tanh
    assert optimizer.opt_state[1][...] == 1


def stepped(model, optimizer):
    """The parameters after one more step."""
    optimizer.update(model, gradients(model))
    return nnx.state(model, nnx.Param)


COPIES = {
    "clone": nnx.clone,
    "deepcopy": copy.deepcopy,
    "merge": lambda pair: nnx.merge(*nnx.split(pair)),
    "pickle": lambda pair: pickle.loads(pickle.dumps(pair)),
    "cloudpickle": lambda pair: pickle.loads(cloudpickle.dumps(pair)),
}
PICKLES = (COPIES["pickle"], COPIES["cloudpickle"])


@pytest.mark.parametrize("twin", COPIES.values(), ids=COPIES.keys())
@pytest.mark.parametrize("tx", [ADAM, optax.adam(1e-2)], ids=["factory", "transformation"])
def test_a_copy_goes_on_alone(twin, tx):
    pair = [make(), make_optimizer(make(), tx)]
    stepped(*pair)
    other = twin(pair)
    expected = stepped(*pair)
    assert other[1].step[...] == 1
    assert stepped(*other) == expected
    assert jax.tree.structure(other[1].optax_state()) == jax.tree.structure(pair[1].optax_state())
    if tx is ADAM or twin not in PICKLES:  # a function that was pickled by value is another one
        assert nnx.graphdef(other) is nnx.graphdef(pair)


def test_pickle_without_cloudpickle_says_what_to_write(monkeypatch):
    monkeypatch.setattr(_optax, "cloudpickle", None)
    assert pickle.loads(pickle.dumps(make_optimizer(small(), ADAM))).step[...] == 0
    with pytest.raises(TransformationPickleError, match=r"Write tx=functools.partial\(optax.adam, 1e-3\)"):
        pickle.dumps(make_optimizer(small(), optax.adam(1e-2)))


def test_a_factory_is_the_same_as_what_it_makes():
    optimizer = make_optimizer(small(), ADAM)
    assert isinstance(optimizer.tx, optax.GradientTransformation)


def test_tx_can_be_replaced():
    model = small()
    optimizer = make_optimizer(model, optax.sgd(0.5))
    optimizer.tx = optax.sgd(0.0)
    before = nnx.state(model)
    optimizer.update(model, before)
    assert nnx.state(model) == before


# Here the state starts as the parameters themselves, and a hyperparameter is an array of the caller.
SHARING = {
    "schedule free": optax.contrib.schedule_free_sgd(0.1),
    "injected array": optax.inject_hyperparams(optax.sgd)(jnp.array(0.1, jnp.float32)),
    "ema of gradients": optax.chain(optax.ema(0.9, debias=False), optax.trace(0.9), optax.sgd(0.1)),
}


@pytest.mark.parametrize("tx", SHARING.values(), ids=SHARING.keys())
def test_no_two_places_hold_one_array(tx):
    model = make()
    optimizer = make_optimizer(model, tx)
    for _ in range(2):
        held = jax.tree.leaves((nnx.state(model, nnx.Param), optimizer.optax_state()))
        assert len({id(x) for x in held}) == len(held)
        optimizer.update(model, gradients(model))


@pytest.mark.parametrize("tx", SHARING.values(), ids=SHARING.keys())
def test_steps_with_donated_arguments(tx):
    model = make()
    optimizer = make_optimizer(model, tx)
    step = nnx.jit(lambda m, o: o.update(m, nnx.grad(loss)(m)), donate_argnums=(0, 1))
    first = loss(model)
    for _ in range(3):
        step(model, optimizer)
    assert loss(model) < first
    make_optimizer(make(), tx)  # what tx itself holds was not donated
