"""What functions in attributes of objects, and hooks of Variables, reach is seen at each call."""

import types

import pytest

import nnxgraph as nnx
from tests.transforms.subjects import f32, traced

SETTINGS = types.SimpleNamespace(scale=1.0)
SCALE = 1.0


class Scaled(nnx.Module):
    """Applies a function that it holds."""

    def __init__(self, scale):
        self.w = nnx.Param(f32(1.0))
        self.scale = scale

    def __call__(self, x):
        return self.scale(self.w * x)


class Hooked(nnx.Module):
    """A Variable with a function for a hook."""

    def __init__(self, scale):
        self.w = nnx.Param(f32(1.0), on_get_value=lambda variable, value: scale(value))

    def __call__(self, x):
        return self.w * x


def by_cell():
    held = 1.0

    def change(value):
        nonlocal held
        held = value

    return lambda x: x * held, change


def by_list():
    held = [1.0]
    return lambda x: x * held[0], lambda value: held.__setitem__(0, value)


def by_array():
    held = {"scale": f32(1.0)}
    return lambda x: x * held["scale"], lambda value: held.update(scale=f32(value))


def by_object():
    return lambda x: x * SETTINGS.scale, lambda value: setattr(SETTINGS, "scale", value)


def by_global():
    return lambda x: x * SCALE, lambda value: globals().update(SCALE=value)


def by_variable():
    held = nnx.Variable(f32(1.0))
    return lambda x: x * held, lambda value: held.set_value(f32(value))


WAYS = [by_list, by_array, by_object, by_global, by_variable]


@pytest.mark.parametrize(
    ("kind", "way"), [(Scaled, by_cell), *((k, w) for k in (Scaled, Hooked) for w in WAYS)]
)
@pytest.mark.parametrize("is_passed", [True, False])
def test_what_it_reaches_is_read_anew(way, kind, is_passed):
    scale, change = way()
    module = kind(scale)
    passed, captured = nnx.jit(lambda module, x: module(x)), nnx.jit(lambda x: module(x))
    for value in (1.0, 3.0, 3.0, 5.0):
        change(value)
        found = passed(module, f32(1.0)) if is_passed else captured(f32(1.0))
        assert float(found) == value == float(module(f32(1.0)))
    change(1.0)


def test_a_variable_that_it_reaches_costs_no_trace():
    scale, change = by_variable()
    module = Hooked(scale)
    f, runs = traced(lambda module, x: module(x))
    jitted = nnx.jit(f)
    for value in (1.0, 2.0, 3.0):
        change(value)
        assert float(jitted(module, f32(1.0))) == value
    assert len(runs) == 1


def test_hook_writes_what_it_reaches():
    count = nnx.Variable(0)

    def counted(variable, value):
        count[...] += 1
        return value

    v = nnx.Variable(f32(0.0), on_set_value=counted)
    step = nnx.jit(lambda v: v.set_value(v + 1))
    for expected in (1, 2):
        step(v)
        assert (int(count[...]), float(v[...])) == (expected, expected)


def test_hook_that_logs_is_traced_once():
    log = []
    v = nnx.Variable(f32(0.0), on_set_value=lambda variable, value: log.append(1) or value)
    f, runs = traced(lambda v: v.set_value(v + 1))
    step = nnx.jit(f)
    for _ in range(3):
        step(v)
    assert (float(v[...]), len(runs), len(log)) == (3.0, 1, 1)


@pytest.mark.parametrize("transform", [lambda f: f, nnx.jit, nnx.remat])
def test_module_that_holds_its_own_method_is_one_object(transform):
    class Own(nnx.Module):
        def __init__(self):
            self.n = nnx.Variable(f32(0.0))
            self.step = self.count
            self.read = lambda: self.n[...]

        def count(self):
            self.n[...] += 1.0

    @transform
    def run(own):
        own.n[...] += 10.0
        own.step()
        return own.read()

    own = Own()
    assert [float(run(own)) for _ in range(2)] == [11.0, 22.0]
    assert float(own.n[...]) == 22.0


def test_what_a_trace_left_in_a_list_is_no_reason_to_fail_or_to_trace_anew():
    kept = []
    f, runs = traced(lambda x: kept.append(nnx.Param(x)) or x)
    jitted = nnx.jit(f)
    assert [float(jitted(f32(1.0))) for _ in range(3)] == [1.0] * 3
    assert (len(kept), len(runs)) == (1, 1)
