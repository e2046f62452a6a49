"""Programs that users write with several transforms at once, against the same program in raw JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnxgraph as nnx
from nnxgraph.errors import GraphChangeError
from tests.transforms.subjects import carried, f32

DATA = jax.random.normal(jax.random.key(0), (4, 8, 3))  # (microbatches, B, din)


class Net(nnx.Module):
    """A layer, and a count of the batches it has seen."""

    def __init__(self):
        self.layer = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        self.batches = nnx.BatchStat(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.batches[...] += 1
        return self.layer(x)


def loss_of(model, batch):
    return (model(batch) ** 2).mean()


def add(a, b):
    return jax.tree.map(jnp.add, a, b)


def accumulate(model, batches):
    """The mean loss and the mean gradients over microbatches, one after the other."""

    def body(i, carry):
        grads, total, model = carry
        loss, now = nnx.value_and_grad(loss_of)(model, batches[i])
        return add(grads, now), total + loss, model

    zeros = jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param))
    grads, total, _ = nnx.fori_loop(0, len(batches), body, (zeros, f32(0.0), model))
    count = f32(len(batches))
    return jax.tree.map(lambda g: g / count, grads), total / count


@nnx.jit
def train_step(model, optimizer, batches):
    grads, loss = accumulate(model, batches)
    optimizer.update(model, grads)
    return loss


def test_lp7_gradients_accumulate_in_a_fori_loop_before_one_update():
    model = Net()
    optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=nnx.Param)
    params = {name: model.layer.kernel[...] if name == "w" else model.layer.bias[...] for name in "wb"}

    def raw(params, batch):
        return ((batch @ params["w"] + params["b"][None]) ** 2).mean()

    for _ in range(2):
        loss = train_step(model, optimizer, DATA)
        parts = [jax.value_and_grad(raw)(params, batch) for batch in DATA]
        np.testing.assert_allclose(loss, sum(part[0] for part in parts) / f32(4.0), rtol=1e-6)
        mean = jax.tree.map(lambda *g: sum(g) / f32(4.0), *(part[1] for part in parts))
        params = jax.tree.map(lambda p, g: p - f32(0.5) * g, params, mean)
    np.testing.assert_allclose(model.layer.kernel[...], params["w"], rtol=1e-5)
    np.testing.assert_allclose(model.layer.bias[...], params["b"], rtol=1e-5)
    assert int(model.batches[...]) == 8
    assert int(optimizer.step[...]) == 2


def test_lp7_accumulation_carries_what_it_writes_and_no_parameters():
    def run(batches):
        return accumulate(Net(), batches)

    written = [
        "int32[]",
        "int32[]",
        "float32[]",
        "float32[3,2]",
        "float32[2]",
    ]  # the first is the loop's count
    assert carried(run, DATA) == sorted(written)


def wrong_type(i, carry):
    grads, total, model = carry
    return {**grads, "b": jnp.zeros((2, 1))}, total, model


def wrong_keys(i, carry):
    grads, total, model = carry
    return {"w": grads["w"]}, total, model


def wrong_order(i, carry):
    grads, total, model = carry
    return grads, model, total


def grown(i, carry):
    carry[2].extra = nnx.Param(jnp.ones(2))
    return carry


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (wrong_type, "- carry[0].b comes in as float32[2] and goes out as float32[2,1]"),
        (wrong_keys, "- carry[0] was a dict with 2 entries and is a dict with 1 entries"),
        (wrong_order, "- carry[1] was an array and is an object of the arguments"),
        (grown, "- carry[2] has a new attribute 'extra'"),
    ],
    ids=lambda x: x.__name__ if callable(x) else None,
)
def test_lp7_error_says_which_leaf_of_the_carry_differs(body, text):
    carry = ({"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}, f32(0.0), Net())
    with pytest.raises(GraphChangeError) as caught:
        nnx.fori_loop(0, 4, body, carry)
    assert text in str(caught.value)


def test_deep_stack_of_layers_runs_in_a_scan_with_remat():
    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def make(rngs):
        return nnx.Linear(3, 3, rngs=rngs)

    layers = make(nnx.Rngs(0))
    forward = nnx.scan(
        nnx.remat(lambda x, layer: nnx.tanh(layer(x))), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry
    )

    def raw(params, x):
        for i in range(3):
            x = jnp.tanh(x @ params["kernel"][i] + params["bias"][i][None])
        return x.sum()

    params = {"kernel": layers.kernel[...], "bias": layers.bias[...]}
    grads = nnx.grad(lambda layers, x: forward(x, layers).sum())(layers, DATA[0])
    expected = jax.grad(raw)(params, DATA[0])
    for name, value in expected.items():
        np.testing.assert_allclose(grads[name][...], value, atol=1e-5)


def test_optimizer_is_carried_through_a_scan_over_batches():
    def step(carry, batch):
        model, optimizer = carry
        loss, grads = nnx.value_and_grad(loss_of)(model, batch)
        optimizer.update(model, grads)
        return carry, loss

    def fresh():
        model = Net()
        return model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

    ours, plain = fresh(), fresh()
    (model, _), losses = nnx.jit(nnx.scan(step))(ours, DATA)
    assert model is ours[0]
    expected = [step(plain, batch)[1] for batch in DATA]
    np.testing.assert_allclose(losses, jnp.stack(expected), rtol=1e-5)
    np.testing.assert_allclose(model.layer.kernel[...], plain[0].layer.kernel[...], rtol=1e-5)
    assert int(ours[1].step[...]) == 4
