"""After an error everything is as it was: the user's objects, their lists and dicts, and the values."""

import collections

import jax
import jax.numpy as jnp
import optax
import pytest

import nnxgraph as nnx
from tests.strategies import reachable

Pair = collections.namedtuple("Pair", "first second")


class Net(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2), tag="kept")
        self.n = nnx.BatchStat(jnp.zeros(3))
        self.layers = [nnx.Linear(2, 2, rngs=nnx.Rngs(0)), {"a": nnx.Param(jnp.ones(1))}]
        self.table = jnp.arange(3.0)
        self.items = nnx.List([1, nnx.Param(jnp.ones(1))])
        self.entries = nnx.Dict(a=1)
        self.fixed = nnx.static((1, 2))
        self.mode = "train"


class Pinned(Net):
    def __init__(self):
        super().__init__()
        self.pair = Pair(nnx.Intermediate(jnp.ones(1)), 2)


def boom(model, x):
    model.w[...] = x
    model.n.set_value(x)
    model.layers.append(1)
    model.layers[1]["b"] = x
    model.items.append(x)
    model.entries.b = x
    model.table = x
    model.mode = "eval"
    del model.fixed
    model.w.tag = "changed"
    raise KeyError("boom")


def under(transform):
    """A lifted function that changes all there is, and fails."""
    return lambda model: transform(boom)(model, jnp.ones(2))


def optimize(model):
    optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
    grads = nnx.grad(lambda m: m.w.sum())(model)
    grads["w"].set_value(jnp.ones(7))
    optimizer.update(model, grads)


def swap_shape(model):
    graphdef, state = nnx.split(model)
    del state["n"]
    nnx.merge(graphdef, state, recreate_variables=False)


def outer_index(model):
    index = {}
    graphdef, flat = nnx.flatten(model, ref_index=index)
    outside = {i: x for x, i in index.items()}
    graphdef = graphdef.with_same_outer_index()
    nnx.unflatten(graphdef, flat[:-1], outer_index_outer_ref=outside)


FAILURES = {
    "update with another shape": lambda m: nnx.update(m, {"w": jnp.zeros(2), "n": jnp.zeros(7)}),
    "update with an unknown path": lambda m: nnx.update(m, {"table": jnp.zeros(3), "layers": {"9": 1}}),
    "update with another kind": lambda m: nnx.update(m, {"w": jnp.zeros(2), "n": nnx.Param(jnp.zeros(3))}),
    "update under a raw transform": lambda m: jax.jit(lambda x: nnx.update(m, {"w": x, "table": m.table}))(
        jnp.zeros(2)
    ),
    "merge without a leaf": swap_shape,
    "unflatten without a leaf": outer_index,
    "pop without a filter": nnx.pop,
    "pop with no filter": lambda m: nnx.pop(m, 3),
    "pop under a raw transform": lambda m: jax.jit(lambda x: nnx.pop(m, nnx.BatchStat))(1),
    "set_attributes": lambda m: m.set_attributes(mode="eval", nothing=1),
    "train": lambda m: m.train(mode="eval", nothing=1),
    "set_metadata under a raw transform": lambda m: jax.jit(lambda x: nnx.set_metadata(m, tag="new"))(1),
    "sow on a name that is taken": lambda m: m.sow(nnx.Intermediate, "w", 1),
    "an array where a static value stands": lambda m: setattr(m, "fixed", jnp.ones(2)),
    "a static mark around an array": lambda m: setattr(m, "mode", nnx.static(jnp.ones(2))),
    "a value of another shape": lambda m: m.w.__setitem__(..., jnp.ones(7)),
    "a value of another kind of number": lambda m: m.w.__setitem__(0, 1j),
    "copy_from of another kind": lambda m: m.w.copy_from(m.n),
    "metadata that is not there": lambda m: m.w.del_metadata("nothing"),
    "an element beyond the end": lambda m: m.items.__setitem__(7, 1),
    "an entry that is not there": lambda m: m.entries.__delitem__("b"),
    "an attribute that is not there": lambda m: delattr(m, "nothing"),
    "an optimizer with the wrong gradients": optimize,
    "a failing function under jit": under(nnx.jit),
    "a failing function under grad": under(nnx.grad),
    "a failing function under vmap": under(lambda f: nnx.vmap(f, in_axes=(None, 0))),
    "a failing function under remat": under(nnx.remat),
    "a failing branch": lambda m: nnx.cond(True, boom, boom, m, jnp.ones(2)),
    "a failing loop": lambda m: nnx.fori_loop(0, 2, lambda i, m: boom(m, jnp.ones(2)), m),
    "a failing map": lambda m: nnx.map(lambda path, x: boom(m, 1) if path == ("nothing",) else 1 / 0, m),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_after_an_error_everything_is_as_it_was(failure):
    model = Net()
    before, objects = nnx.split(model), set(reachable(model))
    with pytest.raises(Exception):  # noqa: B017  # which one, other tests say
        FAILURES[failure](model)
    assert nnx.split(model) == before
    assert set(reachable(model)) == objects


def test_after_pop_from_a_fixed_container_everything_is_as_it_was():
    model = Pinned()
    before, objects = nnx.split(model), set(reachable(model))
    with pytest.raises(nnx.errors.FixedContainerError):
        nnx.pop(model, nnx.Intermediate, nnx.Param)
    assert nnx.split(model) == before
    assert set(reachable(model)) == objects


def test_after_a_failed_replacement_a_state_is_as_it_was():
    state = nnx.state(Net())
    before = nnx.merge_state(state)
    with pytest.raises(nnx.errors.StateMismatchError):
        state.replace_by_pure_dict({"w": jnp.zeros(2), "nothing": 1})
    assert state == before
