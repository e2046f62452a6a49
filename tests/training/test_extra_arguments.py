"""Functions of the parameters that optax calls: of their State, or of the model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnxgraph as nnx
from nnxgraph.errors import ValueFunctionError


class Scale(nnx.Module):
    """Two numbers to find, a static one, and one that counts calls."""

    def __init__(self):
        self.w = nnx.Param(jnp.array([3.0, -2.0]))
        self.power = 2
        self.calls = nnx.BatchStat(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        return ((self.w[...] * x) ** self.power).sum()


@functools.cache
def by_hand(target=0.0):
    """What one step of optax alone makes of w."""

    def loss(w):
        return ((w - target) ** 2).sum()

    w, tx = jnp.array([3.0, -2.0]), optax.lbfgs()
    value, grad = jax.value_and_grad(loss)(w)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        updates, _ = tx.update(grad, tx.init(w), w, value=value, grad=grad, value_fn=loss)
    return w + updates


def of_model(model):
    return model(jnp.ones(2))


def of_module_with_data(model, x):
    return model(x)


def of_either(m):
    return (m.w[...] ** 2).sum()


def merged(model):
    graphdef, _, rest = nnx.split(model, nnx.Param, ...)
    return lambda p: of_model(nnx.merge(graphdef, p, rest))


def step(model, optimizer, value_fn, **data):
    value, grads = nnx.value_and_grad(lambda m: of_module_with_data(m, jnp.ones(2)))(model)
    optimizer.update(model, grads, value=value, grad=grads, value_fn=value_fn, **data)
    return value


def optimizer_for(model):
    return nnx.Optimizer(model, optax.lbfgs(), wrt=nnx.Param)


FUNCTIONS = {
    "of the model": lambda model: of_model,
    "of the State": merged,
    "of either": lambda model: of_either,
    "compiled": lambda model: nnx.jit(of_model),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
@pytest.mark.parametrize("wrap", [lambda f: f, nnx.jit], ids=["eager", "jit"])
def test_value_fn_takes_the_model_or_the_state(function, wrap):
    model = Scale()
    optimizer = optimizer_for(model)
    wrap(lambda m, o: step(m, o, function(m)))(model, optimizer)
    np.testing.assert_allclose(model.w[...], by_hand(), rtol=1e-6)
    assert model.calls[...] == 1  # the calls of the line search leave no trace


def test_value_fn_takes_further_arguments():
    model = Scale()
    step(model, optimizer_for(model), of_module_with_data, x=jnp.ones(2))
    np.testing.assert_allclose(model.w[...], by_hand(), rtol=1e-6)


def test_value_fn_reads_what_is_captured():
    model, target = Scale(), nnx.Param(jnp.array([1.0, 1.0]))
    optimizer = optimizer_for(model)

    def loss(m):
        return ((m.w[...] - target[...]) ** 2).sum() + 0 * of_model(m)

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads, value=value, grad=grads, value_fn=loss)
    np.testing.assert_allclose(model.w[...], by_hand(1.0), rtol=1e-6)


def test_value_fn_that_takes_neither_is_named():
    def wrong(anything):
        raise KeyError("no such entry")

    model = Scale()
    optimizer = optimizer_for(model)
    before = nnx.state([model, optimizer])
    with pytest.raises(ValueFunctionError) as caught:
        optimizer.update(model, before[0], value=1.0, grad=before[0], value_fn=wrong)
    text = str(caught.value)
    assert "value_fn = the function test_value_fn_that_takes_neither_is_named.<locals>.wrong failed" in text
    assert "State: KeyError: 'no such entry'" in text
    assert "model: KeyError: 'no such entry'" in text
    assert "Write `value_fn=lambda model: loss(model, x, y)`" in text
    assert nnx.state([model, optimizer]) == before


def test_an_error_of_a_function_of_the_state_passes_once_it_has_worked():
    calls = []

    def sometimes(params):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("of its own")
        return (params["w"][...] ** 2).sum()

    model = Scale()
    with pytest.raises(RuntimeError, match="of its own"):
        step(model, optimizer_for(model), sometimes)


def test_states_among_the_extra_arguments_are_cut_down_to_the_parameters():
    seen = {}

    def update(updates, state, params=None, *, scales, other, **extra):
        seen["other"] = other
        return jax.tree.map(jnp.multiply, updates, scales), state

    tx = optax.chain(
        optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update), optax.sgd(1.0)
    )
    model = Scale()
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    scales = nnx.map_state(lambda path, v: jnp.full(v.shape, 2, v.dtype), nnx.state(model))  # more than wrt
    other = nnx.State({"x": jnp.ones(1)})
    optimizer.update(model, nnx.State({"w": jnp.array([1.0, 0.0])}), scales=scales, other=other)
    assert model.w[...].tolist() == [1.0, -2.0]
    assert seen["other"] is other


def test_obj_fn_takes_the_model():
    twins = Scale(), Scale()
    for model, function in zip(twins, (of_model, merged(twins[1])), strict=True):
        optimizer = nnx.Optimizer(model, optax.contrib.sophia(0.1), wrt=nnx.Param)
        optimizer.update(model, nnx.grad(of_model)(model), obj_fn=function)
    assert of_either(twins[0]) == of_either(twins[1]) < 13
