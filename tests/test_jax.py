"""The private names of JAX: each serves, and so does its fallback."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import _jax

WAYS = [_jax.trace_by_context, _jax.trace_by_opaque_state]
each = pytest.mark.parametrize("current", WAYS, ids=["context", "opaque"])
TRANSFORMS = {
    "jit": lambda f: jax.jit(f),
    "vmap": lambda f: jax.vmap(f),
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, y: (f(c), y), x, None, length=1),
}


@each
def test_trace_is_the_same_object_as_long_as_it_is_active(current):
    assert current() is current()

    def f(x):
        here = current()
        jnp.sin(x)
        assert current() is here
        return x

    jax.jit(f)(jnp.ones(2))


@each
@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_transform_has_a_trace_of_its_own(current, name):
    seen = [current()]
    TRANSFORMS[name](lambda x: seen.append(current()) or x)(jnp.ones(2))
    assert seen[0] is not seen[1]
    assert current() is seen[0]


@each
def test_nested_traces_differ(current):
    seen = []

    def inner(x):
        seen.append(current())
        return x

    def outer(x):
        seen.append(current())
        jax.jit(inner)(x)
        seen.append(current())
        return x

    jax.jit(outer)(jnp.ones(2))
    assert seen[0] is seen[2]
    assert seen[0] is not seen[1]


@each
def test_reference_to_a_trace_finds_it(current):
    refs = []

    def f(x):
        refs.append(_jax.trace_reference(current()))
        assert refs[0]() is current()
        return x

    jax.jit(f)(jnp.ones(2))
    assert refs[0]() is not current()


def test_opaque_traces_are_forgotten():
    for _ in range(12):
        jax.jit(lambda x: (_jax.trace_by_opaque_state(), x)[1])(jnp.ones(2))
    _jax.trace_by_opaque_state()
    assert len(_jax._opaque_traces) < 10


@pytest.mark.parametrize(
    ("name", "expected"), [("jit", "jit, scan"), ("vmap", "vmap"), ("grad", "grad"), ("scan", "jit, scan")]
)
def test_name_of_the_transform(name, expected):
    seen = []
    TRANSFORMS[name](lambda x: seen.append(_jax.transform_name(_jax.current_trace())) or x)(jnp.ones(2))
    assert expected in seen[0]


def test_value_that_differs_by_lane_is_known():
    seen = []
    constant = jnp.ones(2)
    jax.vmap(lambda x: seen.append((_jax.differs_by_lane(x), _jax.differs_by_lane(constant))) or x)(constant)
    assert seen == [(True, False)]
    assert _jax.differs_by_lane(constant) is False


def test_lanes_are_unknown_without_the_private_name(monkeypatch):
    monkeypatch.setattr(_jax, "_batching", None)
    assert _jax.differs_by_lane(jnp.ones(2)) is None


@each
def test_writes_are_judged_alike_in_both_ways(current, monkeypatch):
    monkeypatch.setattr(_jax, "current_trace", current)
    monkeypatch.setattr(_jax, "EVAL_TRACE", current())
    v = nnx.Variable(jnp.ones(2))
    with pytest.raises(nnx.errors.TraceWriteError):
        jax.jit(lambda x: v.set_value(x))(jnp.ones(2))
    nnx.jit(lambda v: v.set_value(v * 3))(v)
    assert v[...].tolist() == [3.0, 3.0]


def test_tracers_are_known():
    assert not _jax.is_tracer(jnp.ones(2))
    jax.jit(lambda x: pytest.fail("an array") if not _jax.is_tracer(x) else x)(jnp.ones(2))


class Box:
    """Something that holds an array, and is no pytree."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        return self.value


def test_registered_type_is_an_array_to_all_functions_of_jax():
    kind = type("Known", (Box,), {})
    _jax.register_array_like(kind, lambda box: box.value)
    x, i = kind(jnp.ones((2, 2))), kind(jnp.asarray(1))
    assert jax.typeof(x).shape == (2, 2)
    assert jax.lax.sin(x).shape == jax.jit(lambda: jax.lax.sin(x))().shape == (2, 2)
    assert len(jax.lax.split(x, (1, 1))) == 2
    assert jnp.arange(3)[i] == jnp.arange(3)[..., i] == jnp.arange(3).at[i].get() == 1


@pytest.mark.parametrize("name", ["_core", "_dtypes"])
def test_types_are_not_registered_without_the_private_names_and_the_error_says_what_to_do(monkeypatch, name):
    monkeypatch.setattr(_jax, name, None)
    kind = type("Unknown", (Box,), {})
    _jax.register_array_like(kind, lambda box: box.value)
    assert jnp.asarray(kind(jnp.zeros(2))).tolist() == [0.0, 0.0]
    with pytest.raises((TypeError, ValueError), match="explicitly convert your object"):
        jax.lax.sin(kind(jnp.zeros(2)))


def test_functions_that_are_not_there_are_not_wrapped():
    _jax._convert_first(None, "asarray", _jax.plain)
    assert not hasattr(None, "asarray")


def test_library_may_be_imported_while_a_function_is_traced():
    code = """
import jax, jax.numpy as jnp
def f(x):
    import nnxgraph
    return x
jax.jit(f)(jnp.ones(2))
from nnxgraph import _jax
assert _jax.EVAL_TRACE is _jax.current_trace()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
