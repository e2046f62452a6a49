"""Frames: reads are always legal, writes where the value can be handed back."""

import contextlib
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import _frame, _jax
from nnxgraph._frame import Frame
from nnxgraph.errors import LeakedVariableError, TraceWriteError

RAW = {
    "jit": lambda f, x: jax.jit(f)(x),
    "grad": lambda f, x: jax.grad(lambda x: f(x).sum())(x),
    "vmap": lambda f, x: jax.vmap(f)(x),
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,)),
    "checkpoint": lambda f, x: jax.checkpoint(f)(x),
    "eval_shape": lambda f, x: jax.eval_shape(f, x),
    "cond": lambda f, x: jax.lax.cond(True, f, lambda x: x, x),
    "scan": lambda f, x: jax.lax.scan(lambda c, y: (f(c), y), x, None, length=2),
    "while_loop": lambda f, x: jax.lax.while_loop(lambda x: False, f, x),
    "fori_loop": lambda f, x: jax.lax.fori_loop(0, 2, lambda i, x: f(x), x),
    "map": lambda f, x: jax.lax.map(f, x),
    "make_jaxpr": lambda f, x: jax.make_jaxpr(f)(x),
    "jit of vmap": lambda f, x: jax.jit(jax.vmap(f))(x),
}
each = pytest.mark.parametrize("name", RAW)


@pytest.fixture(params=["context", "opaque"])
def trace_way(request, monkeypatch):
    """Both ways of asking JAX which trace is active."""
    if request.param == "opaque":
        monkeypatch.setattr(_jax, "current_trace", _jax.trace_by_opaque_state)
        monkeypatch.setattr(_jax, "EVAL_TRACE", _jax.trace_by_opaque_state())


def ones():
    return jnp.ones(2, jnp.float32)


@each
def test_read_of_an_outer_variable_is_legal_under_each_raw_transform(name, trace_way):
    v = nnx.Param(ones())
    RAW[name](lambda x: x * v, ones())
    assert v[...].tolist() == [1.0, 1.0]


@each
def test_write_to_an_outer_variable_is_refused_and_leaves_it_alone(name, trace_way):
    v = nnx.Param(ones())
    before = v[...]

    def f(x):
        v[...] = x * 2
        return x

    with pytest.raises(TraceWriteError, match=r"Cannot write Param\(float32\[2\]\) from another trace level"):
        RAW[name](f, ones())
    assert v[...] is before


@pytest.mark.parametrize(
    "write",
    [
        lambda v, x: v.set_value(x),
        lambda v, x: v.set_raw_value(x),
        lambda v, x: setattr(v, "value", x),
        lambda v, x: v.__setitem__(0, x[0]),
        lambda v, x: v.__iadd__(x),
        lambda v, x: v.copy_from(nnx.Param(x)),
        lambda v, x: v.update_from_state(nnx.Param(x)),
        lambda v, x: nnx.update(v, nnx.Param(x)),
        lambda v, x: nnx.update({"a": v}, {"a": x}),
    ],
)
def test_every_way_of_writing_is_checked(write):
    v = nnx.Param(ones())
    before = v[...]
    with pytest.raises(TraceWriteError):
        jax.jit(lambda x: write(v, x))(ones())
    assert v[...] is before


@each
def test_variable_made_under_a_transform_is_read_and_written_there(name, trace_way):
    def f(x):
        v = nnx.Param(x)
        v[...] = v[...] * 2
        return v[...]

    RAW[name](f, ones())


@pytest.mark.parametrize("name", ["jit", "grad", "vmap", "checkpoint", "eval_shape", "cond"])
def test_module_passed_to_a_raw_transform_is_written_there(name, trace_way):
    def f(v):
        v[...] = v[...] * 2
        return v[...]

    v = nnx.Param(ones())
    calls = {
        "grad": lambda: jax.grad(lambda v: f(v).sum())(v),
        "cond": lambda: jax.lax.cond(True, f, lambda v: v[...], v),
    }
    calls.get(name, lambda: RAW[name](f, v))()
    assert v[...].tolist() == [1.0, 1.0]


def test_write_in_an_inner_trace_to_a_variable_of_an_outer_trace_is_refused(trace_way):
    def outer(x):
        v = nnx.Param(x)
        jax.jit(lambda y: v.set_value(y))(x)

    with pytest.raises(TraceWriteError, match="jit, "):
        jax.jit(outer)(ones())


def test_write_between_traces_is_legal_again():
    v = nnx.Param(ones())
    with contextlib.suppress(TraceWriteError):
        jax.jit(lambda x: v.set_value(x))(ones())
    v[...] = jnp.zeros(2, jnp.float32)
    assert v[...].tolist() == [0.0, 0.0]


def test_variable_that_leaked_out_of_a_raw_trace_is_not_written(trace_way):
    leaked = []
    jax.jit(lambda x: leaked.append(nnx.Param(x)) or x)(ones())
    with pytest.raises(LeakedVariableError, match="under a raw JAX transform"):
        leaked[0][...] = ones()


def test_error_of_a_vmap_names_vmap():
    v = nnx.Param(ones())
    with pytest.raises(TraceWriteError, match=r"a raw JAX transform \(vmap\) is active here, "):
        jax.vmap(v.set_value)(ones())


# Frames themselves.


def test_write_in_a_frame_stays_in_its_overlay():
    v = nnx.Param(ones())
    with Frame("outer") as outer:
        v[...] = ones() * 2
        with Frame("inner") as inner:
            v[...] = v[...] + 1
            assert v[...].tolist() == [3.0, 3.0]
            assert inner.late_written() == [v]
        assert v[...].tolist() == [2.0, 2.0]
    assert v[...].tolist() == [1.0, 1.0]
    assert outer.late == [v]


def test_read_is_recorded_in_every_frame_on_the_way():
    v = nnx.Param(ones())
    with Frame("outer") as outer, Frame("middle") as middle, Frame("inner") as inner:
        assert v[0] == 1.0
        assert [f.late for f in (outer, middle, inner)] == [[v]] * 3
        assert not outer.late_written()
        w = nnx.Param(ones())
        assert w[0] == 1.0
    assert outer.late == [v]


def test_bound_variable_has_the_value_it_was_given():
    v = nnx.Param(ones())
    with Frame("jit") as frame:
        frame.bind(v, ones() * 5)
        assert v[0] == 5.0
        assert not frame.late
        v[...] = ones() * 6
        assert frame.now[v][0] == 6.0
        assert frame.before[v][0] == 5.0
    assert v[0] == 1.0


@pytest.mark.parametrize(
    "use", [lambda v: v[...], lambda v: v.set_value(ones()), lambda v: v + 1], ids=["read", "write", "add"]
)
def test_variable_of_a_frame_that_ended_is_refused(use):
    with Frame("scan"):
        v = nnx.Param(ones())
    with pytest.raises(
        LeakedVariableError, match=r"Param\(float32\[2\]\) was made inside a function under scan"
    ):
        use(v)
    with Frame("other"), pytest.raises(LeakedVariableError):
        use(v)


def test_frame_is_left_after_an_exception():
    with pytest.raises(ZeroDivisionError), Frame("jit") as frame:
        raise ZeroDivisionError
    assert _frame.thread.frame is None
    assert not frame.alive


def test_write_under_a_raw_trace_inside_a_frame_names_both():
    v = nnx.Param(ones())
    with (
        Frame("remat"),
        pytest.raises(TraceWriteError, match=r"\(jit, scan.*\) is active here inside nnx\.remat"),
    ):
        jax.jit(v.set_value)(ones())


def test_frames_belong_to_their_thread():
    v = nnx.Param(ones())
    seen = []

    def other():
        seen.append((_frame.thread.frame, v[0].item()))
        v[...] = ones() * 7

    with Frame("jit"):
        v[...] = ones() * 2
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert v[0] == 2.0
    assert seen == [(None, 1.0)]
    assert v[0] == 7.0


def test_variables_die_with_their_model():
    v = nnx.Param(ones())
    ref = weakref.ref(v)
    with Frame("jit"):
        assert v[0] == 1.0
    with contextlib.suppress(TraceWriteError):
        jax.jit(v.set_value)(ones())
    del v
    gc.collect()
    assert ref() is None
