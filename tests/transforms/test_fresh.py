"""Functions that are traced once see what they reach by the ways that Python has, and do not outlive it."""

import collections
import functools
import gc
import types
import weakref

import pytest

import nnxgraph as nnx
from nnxgraph._static import PROGRAMS
from tests.transforms.subjects import Cell, f32

SCALE = 2.0
ARRAY = f32(2.0)


def _cond(f):
    return lambda x: nnx.cond(True, f, f, x)


def _scan(f):
    body = nnx.scan(lambda x: f(x), in_axes=(None,), out_axes=0, length=1)
    return lambda x: body(x)[0]


eager = pytest.mark.parametrize("lift", [_cond, _scan])
each = pytest.mark.parametrize("lift", [nnx.jit, _cond, _scan])


def _check(lift, f, change):
    """The function gives 2, and 3 after the change, each time."""
    run = lift(f)
    for expected in (2.0, 3.0):
        assert [float(run(f32(1.0))) for _ in range(2)] == [expected] * 2
        change()


class Scaled(Cell):
    """A module whose methods reach more than its values."""

    scale = 2.0

    def by_class(self, x):
        return x * self.scale

    def by_global(self, x):
        return _scaled(x)

    @property
    def factor(self):
        return SCALE


def _scaled(x):
    return x * SCALE


REACHED = {
    "class": (lambda m, x: m.by_class(x), lambda p: p.setattr(Scaled, "scale", 3.0)),
    "global": (lambda m, x: m.by_global(x), lambda p: p.setitem(globals(), "SCALE", 3.0)),
    "property": (lambda m, x: m.factor * x, lambda p: p.setitem(globals(), "SCALE", 3.0)),
    "method": (lambda m, x: m.by_class(x), lambda p: p.setattr(Scaled, "by_class", lambda self, x: x * 3.0)),
}


@eager
@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize(("f", "change"), REACHED.values(), ids=REACHED.keys())
def test_what_methods_of_objects_reach_is_seen(lift, passed, f, change, monkeypatch):
    model = Scaled()
    if not passed:
        _check(lift, lambda x: f(model, x), lambda: change(monkeypatch))
    elif lift is _cond:
        _check(lambda f: lambda x: nnx.cond(True, f, f, model, x), f, lambda: change(monkeypatch))
    else:
        body = nnx.scan(f, in_axes=(None, None), out_axes=0, length=1)
        _check(lambda f: lambda x: body(model, x)[0], f, lambda: change(monkeypatch))


class Plain:
    """An object of the user that Python's own operations reach."""

    def __init__(self):
        self.k = 2.0
        self.entries = [2.0]

    def __getitem__(self, i):
        return self.entries[i]

    def __mul__(self, x):
        return self.k * x

    def __iter__(self):
        return iter(self.entries)

    def __enter__(self):
        return self.k

    def __exit__(self, *error):
        return None

    def set(self, value):
        self.k = self.entries[0] = value


def _by_with(plain):
    def f(x):
        with plain as k:
            return x * k

    return f


WAYS = {
    "item": lambda plain: lambda x: x * plain[0],
    "operator": lambda plain: lambda x: plain * x,
    "iteration": lambda plain: lambda x: x * sum(plain),
    "with": _by_with,
    "getattr": lambda plain: lambda x: x * getattr(plain, "k"),  # noqa: B009  # what is tested
    "vars": lambda plain: lambda x: x * vars(plain)["k"],
    "dict": lambda plain: lambda x: x * plain.__dict__["k"],
}


@each
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_plain_objects_are_seen_through_operations_and_by_name(lift, way):
    plain = Plain()
    _check(lift, way(plain), lambda: plain.set(3.0))


class Missing:
    """An object that raises another error for an attribute that it has not."""

    def __init__(self):
        self.__dict__["values"] = {"k": 2.0}

    def __getattr__(self, name):
        return self.values[name]


@each
def test_objects_with_attributes_of_their_own_making_are_seen(lift):
    missing = Missing()
    _check(lift, lambda x: x * missing.k, lambda: missing.values.update(k=3.0))


@each
def test_deques_are_seen(lift):
    deque = collections.deque([2.0])
    _check(lift, lambda x: x * deque[0], lambda: deque.append(deque.popleft() + 1.0))


@each
def test_code_that_is_replaced_in_place_is_seen(lift):
    def helper(x):
        return x * 2.0

    def other(x):
        return x * SCALE * 1.5

    _check(lift, lambda x: helper(x), lambda: setattr(helper, "__code__", other.__code__))


def _recursive(x, n=2):
    return _recursive(x, n - 1) if n else x * ARRAY


ROUTES = {
    "jit": lambda f: nnx.jit(f),
    "one function twice": lambda f: lambda x: nnx.cond(True, f, f, x),
    "helper of another": lambda f: lambda x: nnx.cond(True, lambda x: f(x), f, x),
    "switch": lambda f: lambda x: nnx.switch(2, [f, _kept, f], x),
}


@pytest.mark.parametrize("f", [_recursive, lambda x: x * ARRAY], ids=["recursive", "plain"])
@pytest.mark.parametrize("lift", ROUTES.values(), ids=ROUTES.keys())
def test_arrays_of_functions_that_run_in_several_places_are_seen(lift, f, monkeypatch):
    _check(lift, f, lambda: monkeypatch.setitem(globals(), "ARRAY", f32(3.0)))


def _kept(x):
    return x


def _grows(v):
    return v + 1.0


def _is_small(v):
    return v < 3.0


LOOPS = {
    "true_fun": lambda f, x: nnx.cond(True, f, _kept, x),
    "false_fun": lambda f, x: nnx.cond(True, _kept, f, x),
    "branch": lambda f, x: nnx.switch(0, [_kept, f, _kept], x),
    "body_fun": lambda f, x: nnx.while_loop(_is_small, lambda v: v + f(v), x),
    "cond_fun": lambda f, x: nnx.while_loop(lambda v: f(v) < 5.0, _grows, x),
    "method": lambda f, x: nnx.cond(True, Cell().loss, f, x),
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
def test_programs_die_with_any_of_their_functions(loop):
    before = [len(vars(f).get(PROGRAMS, ())) for f in (_kept, _grows, _is_small, Cell.loss)]
    cells = []
    for _ in range(3):
        cell = Cell()
        loop(lambda x, cell=cell: cell.w * x, f32(1.0))
        cells.append(weakref.ref(cell))
        del cell
    gc.collect()
    assert [cell() for cell in cells] == [None] * 3
    assert before == [len(vars(f).get(PROGRAMS, ())) for f in (_kept, _grows, _is_small, Cell.loss)]


def test_programs_of_functions_without_a_closure_die_with_the_others():
    def fresh():
        return types.FunctionType(_kept.__code__, globals())

    for _ in range(3):
        nnx.cond(True, _grows, fresh(), f32(1.0))
        nnx.cond(True, fresh(), _grows, f32(1.0))
    gc.collect()
    assert not any("cond" in key for f in (_kept, _grows) for key in vars(f).get(PROGRAMS, ()))


def test_copies_of_a_function_by_wraps_have_programs_of_their_own():
    def double(x):
        return x * 2.0

    assert float(nnx.cond(True, double, _kept, f32(1.0))) == 2.0

    @functools.wraps(double)
    def triple(x):
        return x * 3.0

    assert float(nnx.cond(True, triple, _kept, f32(1.0))) == 3.0
    assert float(nnx.cond(True, double, _kept, f32(1.0))) == 2.0
