"""The Optimizer computes what optax computes by hand, eagerly and under transforms, in one trace."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnxgraph as nnx
from tests.training.models import (
    PARAMS,
    PLAIN,
    WITH_ARGUMENTS,
    X,
    Y,
    gradients,
    loss,
    make,
    pure_loss,
    value_and_grad,
)

STEPS = 3

# optax compiles the branches of these anew at each eager step.
SLOW_WHEN_EAGER = ("MultiSteps", "apply_if_finite", "muon")
EAGER = {name: make_tx for name, make_tx in PLAIN.items() if name not in SLOW_WHEN_EAGER}

eager = pytest.mark.parametrize("make_tx", EAGER.values(), ids=EAGER.keys())
plain = pytest.mark.parametrize("make_tx", PLAIN.values(), ids=PLAIN.keys())
with_arguments = pytest.mark.parametrize(
    ("make_tx", "names"), WITH_ARGUMENTS.values(), ids=WITH_ARGUMENTS.keys()
)


def by_hand(make_tx, names=(), wrap=lambda f: f):
    """Parameters, updates and state after some steps of optax alone."""
    tx, params = make_tx(), PARAMS
    state = tx.init(params)
    tx_update = wrap(tx.update)
    for _ in range(STEPS):
        value, grads = value_and_grad(params)
        known = {"value": value, "grad": grads, "value_fn": pure_loss}
        extra = {name: known[name] for name in names}
        updates, state = tx_update(grads, state, params, **extra)
        params = optax.apply_updates(params, updates)
    return params, updates, state


def assert_same(ours, theirs, tolerance=0.0):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = map(jax.random.key_data, (a, b))
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=tolerance, atol=tolerance
        )


@eager
@pytest.mark.relaxed
def test_equals_optax_bit_for_bit(make_tx):
    theirs = by_hand(make_tx)
    model = make()
    optimizer = nnx.Optimizer(model, make_tx(), wrt=nnx.Param)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for _ in range(STEPS):
            updates = optimizer.update(model, gradients(model))
    assert_same((nnx.state(model, nnx.Param), updates, optimizer.optax_state()), theirs)
    assert optimizer.step[...] == STEPS


@with_arguments
@pytest.mark.relaxed
def test_equals_optax_with_extra_arguments(make_tx, names):
    theirs = by_hand(make_tx, names)
    model = make()
    optimizer = nnx.Optimizer(model, make_tx(), wrt=nnx.Param)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for _ in range(STEPS):
            value, grads = value_and_grad(nnx.state(model, nnx.Param))
            known = {"value": value, "grad": grads, "value_fn": loss}
            updates = optimizer.update(model, grads, **{name: known[name] for name in names})
    assert_same((nnx.state(model, nnx.Param), updates, optimizer.optax_state()), theirs, 1e-6)


@plain
@pytest.mark.relaxed
def test_equals_optax_under_jit_in_one_trace(make_tx):
    theirs = by_hand(make_tx, wrap=jax.jit)
    model = make()
    traces = []

    @nnx.jit
    def step(model, optimizer, grads):
        traces.append(1)
        return optimizer.update(model, grads)

    optimizer = nnx.Optimizer(model, make_tx(), wrt=nnx.Param)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for _ in range(STEPS):
            updates = step(model, optimizer, gradients(model))
    assert_same((nnx.state(model, nnx.Param), updates, optimizer.optax_state()), theirs, 1e-6)
    assert len(traces) == 1


@with_arguments
def test_extra_arguments_under_jit_in_one_trace(make_tx, names):
    traces = []

    @nnx.jit
    def step(model, optimizer):
        traces.append(1)
        value, grads = nnx.value_and_grad(loss)(model)
        known = {"value": value, "grad": grads, "value_fn": loss}
        optimizer.update(model, grads, **{name: known[name] for name in names})
        return value

    model = make()
    optimizer = nnx.Optimizer(model, make_tx(), wrt=nnx.Param)
    values = [step(model, optimizer) for _ in range(STEPS)]
    assert values[-1] < values[0]
    assert len(traces) == 1


def test_rebuilt_optimizer_does_not_retrace():
    traces = []

    @nnx.jit
    def step(model, optimizer):
        traces.append(1)
        optimizer.update(model, nnx.grad(loss)(model))

    def make_tx(rate):
        schedule = optax.warmup_cosine_decay_schedule(0.0, rate, 2, 10)
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))

    for _ in range(3):
        model = make()
        step(model, nnx.Optimizer(model, make_tx(1e-2), wrt=nnx.Param))
    assert len(traces) == 1
    step(model, nnx.Optimizer(model, make_tx(2e-2), wrt=nnx.Param))
    assert len(traces) == 2


def test_rebuilt_mask_does_not_retrace():
    traces = []

    @nnx.jit
    def step(model, optimizer, grads):
        traces.append(1)
        optimizer.update(model, grads)

    def train_one(least):
        model = make()
        mask = jax.tree.map(lambda p: p.ndim > least, nnx.state(model, nnx.Param))
        optimizer = nnx.Optimizer(model, optax.adamw(1e-2, mask=mask), wrt=nnx.Param)
        step(model, optimizer, gradients(model))

    train_one(1)
    train_one(1)
    assert len(traces) == 1
    train_one(0)
    assert len(traces) == 2


def test_mask_made_in_a_compiled_function():
    @nnx.jit
    def create():
        model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        mask = jax.tree.map(lambda p: p.ndim > 1, nnx.state(model))
        return model, nnx.Optimizer(model, optax.masked(optax.sgd(0.0), mask), wrt=nnx.Param)

    model, optimizer = create()
    grads = nnx.map_state(lambda path, v: v.replace(jnp.ones(v.shape)), nnx.state(model))
    kernel, bias = model.kernel[...], model.bias[...]
    nnx.jit(lambda m, o, g: o.update(m, g))(model, optimizer, grads)
    assert (model.kernel[...] == kernel).all()
    np.testing.assert_allclose(model.bias[...], bias + 1)


def test_scan_over_steps_equals_a_loop():
    def step(carry, x):
        model, optimizer = carry
        grads = nnx.grad(lambda m: ((m(x) - Y) ** 2).mean())(model)
        optimizer.update(model, grads)
        return carry, loss(model)

    batches = jnp.stack([X, X + 1, X - 1])  # (steps, batch, features)
    looped, scanned = make(), make()
    optimizers = [nnx.Optimizer(m, optax.adam(1e-2), wrt=nnx.Param) for m in (looped, scanned)]
    expected = [step((looped, optimizers[0]), x)[1] for x in batches]
    _, losses = nnx.scan(step)((scanned, optimizers[1]), batches)
    np.testing.assert_allclose(losses, jnp.stack(expected), rtol=1e-5)
    assert optimizers[1].step[...] == 3


def test_vmap_trains_an_ensemble():
    @nnx.vmap(in_axes=0, out_axes=0)
    def create(seed):
        model = nnx.Linear(4, 3, rngs=nnx.Rngs(seed))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.vmap(in_axes=(0, 0), out_axes=0)
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(loss)(model))
        return loss(model)

    model, optimizer = create(jnp.arange(3))
    values = [step(model, optimizer) for _ in range(2)]
    single = nnx.Linear(4, 3, rngs=nnx.Rngs(2))
    alone = nnx.Optimizer(single, optax.adam(1e-2), wrt=nnx.Param)
    for value in values:
        alone.update(single, nnx.grad(loss)(single))
        np.testing.assert_allclose(value[2], loss(single), rtol=1e-5)
    assert optimizer.step.shape == (3,)


def test_only_what_wrt_selects_changes():
    model = make()
    head = nnx.All(nnx.Param, nnx.PathContains("head"))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=head)
    before = nnx.state(model, nnx.Param)
    updates = optimizer.update(model, gradients(model))  # of all: what is beyond wrt is left out
    after = nnx.to_flat_state(nnx.state(model, nnx.Param))
    changed = {path for path, v in after if (v != dict(nnx.to_flat_state(before))[path]).any()}
    assert changed == {("head", "kernel"), ("head", "bias")}
    assert list(updates) == ["head"]


def test_several_kinds_are_trained_together():
    class Scaled(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(2))
            self.s = nnx.BatchStat(jnp.ones(2))

    model = Scaled()
    wrt = (nnx.Param, nnx.BatchStat)
    optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=wrt)
    grads = nnx.grad(lambda m: (m.w[...] * m.s[...]).sum(), argnums=nnx.DiffState(0, wrt))(model)
    optimizer.update(model, grads)
    assert model.w[...].tolist() == model.s[...].tolist() == [0.5, 0.5]


def test_plain_arrays_can_be_trained():
    class Plain(nnx.Module):
        def __init__(self):
            self.w = jnp.ones(2)

    model = Plain()
    optimizer = nnx.Optimizer(model, optax.adam(0.5), wrt=nnx.PathContains("w"))
    assert type(optimizer.opt_state[0].mu["w"]) is nnx.OptVariable
    optimizer.update(model, nnx.State({"w": jnp.ones(2)}))
    np.testing.assert_allclose(model.w, [0.5, 0.5], rtol=1e-5)


def test_a_variable_alone_can_be_trained():
    w = nnx.Param(jnp.ones(2))
    optimizer = nnx.Optimizer(w, optax.sgd(0.5), wrt=nnx.Param)
    optimizer.update(w, nnx.Param(jnp.ones(2)))
    assert w[...].tolist() == [0.5, 0.5]


def test_bfloat16_parameters_keep_their_dtype():
    model = nnx.Linear(4, 3, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    optimizer.update(model, nnx.grad(loss)(model))
    assert model.kernel.dtype == model.bias.dtype == jnp.bfloat16


def test_model_and_optimizer_keeps_the_model():
    twins = make(), make()
    optimizer = nnx.ModelAndOptimizer(twins[0], optax.adam(1e-2))
    apart = nnx.Optimizer(twins[1], optax.adam(1e-2), wrt=nnx.Param)
    nnx.jit(lambda o: o.update(nnx.grad(loss)(o.model)))(optimizer)
    nnx.jit(lambda m, o: o.update(m, nnx.grad(loss)(m)))(twins[1], apart)
    assert optimizer.model is twins[0]
    assert_same(nnx.state(twins[0], nnx.Param), nnx.state(twins[1], nnx.Param), 1e-7)


def test_generic_in_the_model():
    assert nnx.Optimizer[nnx.Linear](nnx.Linear(2, 3, rngs=nnx.Rngs(0)), optax.sgd(0.1), wrt=nnx.Param)
