"""Both ways of `_jax`: the private names, and what stands in for them."""

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import _frame, _jax

WAYS = [_jax.trace_by_context, _jax.trace_by_opaque_state]


@pytest.mark.parametrize("current", WAYS)
def test_eager_code_has_one_trace(current):
    assert current() is current()


@pytest.mark.parametrize("current", WAYS)
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())])
def test_a_transform_has_a_trace_of_its_own(current, transform):
    eager, seen = current(), []

    @transform
    def f(x):
        seen.append((current() is eager, current() is current()))
        return x

    f(jnp.ones(2))
    assert seen == [(False, True)]
    assert current() is eager


@pytest.mark.parametrize("current", WAYS)
def test_writes_are_judged_alike_in_both_ways(current, monkeypatch):
    monkeypatch.setattr(_jax, "current_trace", current)
    monkeypatch.setattr(_jax, "EVAL_TRACE", current())
    v = nnx.Variable(jnp.ones(2))

    @jax.jit
    def raw(x):
        inner = nnx.Variable(x)
        inner[...] = inner * 2
        return inner[...]

    assert raw(jnp.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(nnx.errors.TraceWriteError):
        jax.jit(lambda x: v.set_value(x))(jnp.ones(2))
    nnx.jit(lambda v: v.set_value(v * 3))(v)
    assert v[...].tolist() == [3.0, 3.0]


def test_the_fallback_knows_nothing_of_lanes(monkeypatch):
    monkeypatch.setattr(_jax, "_batching", None)
    assert _jax.differs_by_lane(jnp.ones(2)) is None


def test_values_that_differ_by_lane_are_known():
    seen = []
    jax.vmap(lambda x: seen.append((_jax.differs_by_lane(x), _jax.differs_by_lane(jnp.ones(2)))))(jnp.ones(3))
    assert seen == [(True, False)]


def test_frames_are_left_as_they_were_after_an_exception():
    with pytest.raises(ZeroDivisionError):
        nnx.jit(lambda x: 1 // 0)(1.0)
    assert _frame.thread.frame is None


def test_a_write_under_a_raw_transform_leaves_the_variable_alone():
    v = nnx.Param(jnp.ones(2))
    with pytest.raises(nnx.errors.TraceWriteError):
        jax.grad(lambda x: (v.set_value(x), x.sum())[1])(jnp.zeros(2))
    assert v[...].tolist() == [1.0, 1.0]


def test_reads_under_a_raw_transform_are_legal():
    v = nnx.Param(jnp.full(2, 3.0))
    assert jax.jit(lambda x: v * x)(jnp.ones(2)).tolist() == [3.0, 3.0]
    assert jax.vmap(lambda x: v[0] * x)(jnp.ones(2)).tolist() == [3.0, 3.0]
