"""Whatever changed since the last call, the next one sees: as plain Python would.

A compiled function is called until all that may be kept is kept, then something is changed outside of it, and
it is called again, twice. An equal model goes through the same without a transform.
"""

import functools
import types

import jax
import numpy as np
import optax
import pytest

import nnxgraph as nnx
from tests.transforms.mutations import MUTATIONS, Block, Box, Model, observe, seen_of
from tests.transforms.subjects import Empty, f32

QUICK = {"xla_backend_optimization_level": 0}  # the programs are compiled to be run a few times
jit = functools.partial(nnx.jit, compiler_options=QUICK)
JITTED = jit(observe)

# What changes nothing that a function can see.
UNSEEN = {
    "equal __dict__", "cached property read", "list replaced by its copy", "dict replaced by its copy",
    "dataclass replaced by an equal one", "function replaced by an equal one",
}  # fmt: skip


class Observed(Model):
    """A model that is observed by its own methods."""

    def observed(self):
        return observe(self)

    def __call__(self):
        return observe(self)

    @nnx.jit
    def compiled(self):
        return observe(self)


# Each setting: of a lift and a model, a call without arguments. A lift of None means without a transform.
def argument(lift, m):
    f = JITTED if lift else observe
    return lambda: f(m)


def keyword(lift, m):
    f = lift(lambda x, *, m: observe(m)) if lift else lambda x, *, m: observe(m)
    return lambda: f(1.0, m=m)


def in_containers(lift, m):
    def f(x):
        return observe(x["models"][0][1])

    f = lift(f) if lift else f
    return lambda: f({"models": [(1.0, m)], "x": f32(1.0)})


def below_another(lift, m):
    holder = Empty(deep=[{"m": Empty(m=m)}], other=Block(1.0))
    f = JITTED if lift else observe
    return lambda: f(holder)


def closure(lift, m):
    def f():
        return observe(m)

    return lift(f) if lift else f


def closure_of_an_owner(lift, m):
    owner = types.SimpleNamespace(holder=[Empty(m=m)])

    def f():
        return observe(owner.holder[0].m)

    return lift(f) if lift else f


HELD = None


def by_global():
    return observe(HELD)


def global_name(lift, m):
    f = lift(by_global) if lift else by_global

    def call():
        global HELD
        HELD = m
        return f()

    return call


def bound_method(lift, m):
    m.__class__ = Observed
    return lift(m.observed) if lift else m.observed


def method_of_the_class(lift, m):
    m.__class__ = Observed
    return (lambda: m.compiled()) if lift else m.observed


def callable_object(lift, m):
    m.__class__ = Observed
    return lift(m) if lift else m


def partial(lift, m):
    f = functools.partial(observe, k=2.0)
    return lift(functools.partial(f, m)) if lift else functools.partial(f, m)


def cached_partial(lift, m):
    return nnx.cached_partial(JITTED, m) if lift else functools.partial(observe, m)


def second_instance(lift, m):
    """Two instances in turn, of which the other one does not change."""
    f = JITTED if lift else observe
    other = Model(5.0)

    def call():
        return Empty(both=[f(other), f(m), f(other)])

    return call


def two_at_once(lift, m):
    f = JITTED if lift else observe
    other = Model(5.0)
    return lambda: Empty(both=[f(m, other), f(other, m)])


def overlapping(lift, m):
    f = JITTED if lift else observe
    return lambda: Empty(both=[f(m, m.child), f([m.child], {"m": m})])


def twice(lift, m):
    f = JITTED if lift else observe
    return lambda: Empty(both=[f(m, m), f(m, Model(5.0))])


def passed_and_captured(lift, m):
    def f(x):
        return observe(x, m)

    f = lift(f) if lift else f
    return lambda: f(m)


def two_wrappers(lift, m):
    f, g = (lift(lambda m: observe(m)), JITTED) if lift else (observe, observe)
    return lambda: Empty(both=[f(m), g(m)])


def donated(lift, m):
    f = lift(observe, donate_argnums=0) if lift else observe
    return lambda: f(m)


def without_graph_updates(lift, m):
    f = lift(observe, graph_updates=False) if lift else observe
    return lambda: f(m)


def inside_another(lift, m):
    """A compiled function in a compiled function."""
    inner = nnx.jit(observe) if lift else observe
    f = lift(lambda m: inner(m)) if lift else inner
    return lambda: f(m)


def under_remat(lift, m):
    f = lift(nnx.remat(observe)) if lift else observe
    return lambda: f(m)


def with_a_static_argument(lift, m):
    def f(x, mode):
        return Empty(seen=observe(x), mode=len(mode["names"]))

    f = lift(f, static_argnums=1) if lift else f
    return lambda: f(m, {"names": ["a"]})


def with_optimizer_and_metrics(lift, m):
    """Among the arguments of a training step."""
    block, metric = Block(1.0), nnx.metrics.Average()
    optimizer = nnx.Optimizer(block, optax.adam(0.5), wrt=nnx.Param)

    def f(m, block, optimizer, *, metric):
        optimizer.update(block, nnx.state(block, nnx.Param))
        metric.update(values=block.w[...])
        return Empty(seen=observe(m), state=nnx.state((block, metric)), step=optimizer.step[...])

    f = lift(f) if lift else f
    return lambda: f(m, block, optimizer, metric=metric)


def after_a_trace(lift, m):
    """A function that is only traced, or lowered, in between."""
    f = lift(observe) if lift else observe

    def call():
        if lift:
            f.trace(m)
            f.eval_shape(m)
        return f(m)

    return call


SETTINGS = [
    keyword, in_containers, below_another, closure, closure_of_an_owner, global_name, bound_method,
    method_of_the_class, callable_object, partial, cached_partial, second_instance, two_at_once, overlapping,
    twice, passed_and_captured, two_wrappers, donated, without_graph_updates, inside_another, under_remat,
    with_a_static_argument, with_optimizer_and_metrics, after_a_trace,
]  # fmt: skip
EACH_IN = 3  # settings besides the plain one that a mutation is tried in


def in_turn(names, others):
    """Pairs of a name and an element of a list, in which each name has EACH_IN, and each element is used."""
    pairs = [
        (name, others[(i * EACH_IN + k) % len(others)])
        for i, name in enumerate(names)
        for k in range(EACH_IN)
    ]
    return [pytest.param(*pair, id=f"{pair[0]} - {pair[1].__name__}") for pair in pairs]


def check_calls(ours, plain, m, twin, times=2):
    """Calls with and without a transform give the same, and leave the same."""
    for _ in range(times):
        held = without_arrays(m)
        assert seen_of(ours()) == seen_of(plain())
        assert seen_of(m) == seen_of(twin)
        assert all(x is y for x, y in zip(held, without_arrays(m), strict=True))


def without_arrays(m):
    """The attributes of a model that are no arrays, and do not hold arrays in a way that is made anew."""
    return [x for x in vars(m).values() if not isinstance(x, (jax.Array, np.ndarray, tuple, Box))]


def check(setting, mutate, make=Model):
    """What a mutation changes is seen by the next call, in a setting; whether it changes anything."""
    m, twin = make(), make()
    ours, plain = setting(jit, m), setting(None, twin)
    check_calls(ours, plain, m, twin)
    before = seen_of(twin)
    mutate(m)
    mutate(twin)
    changed = seen_of(twin) != before
    check_calls(ours, plain, m, twin)
    return changed


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_changed_is_seen(name):
    assert check(argument, MUTATIONS[name]) == (name not in UNSEEN)


@pytest.mark.parametrize(("name", "setting"), in_turn(MUTATIONS, SETTINGS))
def test_what_changed_is_seen_wherever_the_object_stands(name, setting):
    check(setting, MUTATIONS[name])
