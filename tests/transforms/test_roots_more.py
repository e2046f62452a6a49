"""What a compiled function depends on besides values: what stands where, defaults, code, logs."""

import dataclasses
import math
import subprocess
import sys
import threading

import jax.numpy as jnp
import optax
import pytest

import nnxgraph as nnx
from tests.transforms.subjects import Cell, f32, traced


class Trainer:
    """A plain object with attributes of its class."""

    scale = 2.0

    def __init__(self):
        self.cell = Cell()
        self.log = []
        self.config = {"rate": 1.0, "calls": 0}

    def step(self, x):
        self.log.append(1)
        self.config["calls"] += 1
        return self.cell.loss(x) * self.config["rate"]

    @classmethod
    def scaled(cls, x):
        return x * cls.scale

    @staticmethod
    def fixed(x):
        return x * Trainer.scale

    def own(self, x):
        return x * self.scale


class Other:
    """Another class with a method of the same name."""

    @classmethod
    def scaled(cls, x):
        return x * 7.0


class Name(str):
    """A string of a class of its own."""

    __slots__ = ()


@dataclasses.dataclass(slots=True)
class Slotted:
    """A plain object without a dict."""

    cell: Cell
    scale: float


class Called:
    """A plain object that is called."""

    def __init__(self):
        self.cell = Cell()
        self.scale = 2.0

    def __call__(self, x):
        return self.cell.loss(x) * self.scale


CELL = Cell()


def both(f, change):
    """The function before and after a change."""
    g = nnx.jit(f)
    before = float(g(f32(1.0)))
    change()
    return before, float(g(f32(1.0)))


def test_a_name_bound_to_the_object_of_another_name_is_seen():
    a, b = Cell(1.0), Cell(2.0)
    x, y, z = a, b, a

    def change():
        nonlocal z
        z = b

    assert both(lambda q: (100 * x.w[...] + 10 * y.w[...] + z.w[...]) * q, change) == (121.0, 122.0)


def test_which_object_stands_where_in_a_list_is_seen():
    a, b = Cell(1.0), Cell(2.0)
    cells = [a, a, b]
    f = lambda q: sum(10**i * c.w[...] for i, c in enumerate(cells)) * q  # a closure is short
    assert both(f, lambda: cells.__setitem__(1, b)) == (211.0, 221.0)


def test_the_form_of_containers_is_seen():
    names, nested = {"a": 1}, [[1, 2], [3]]

    def f(q):
        return q * (10 if "a" in names else 20) * len(nested[0])

    def change():
        names["b"] = names.pop("a")
        nested[:] = [[1], [2, 3]]

    assert both(f, change) == (20.0, 20.0)
    nested[:] = [[1, 2], [3]]
    assert both(f, lambda: names.update(a=names.pop("b"))) == (40.0, 20.0)


def test_numbers_are_seen_by_a_function_that_updates_something():
    cell, scale, config = Cell(), 2.0, {"rate": 1.0}
    optimizer = nnx.Optimizer(cell, optax.sgd(0.0), wrt=nnx.Param)

    @nnx.jit
    def step(x):
        optimizer.update(cell, nnx.grad(lambda m: m.loss(x))(cell))
        return x * scale * config["rate"]

    found = [float(step(f32(1.0)))]
    scale = 3.0
    found.append(float(step(f32(1.0))))
    config["rate"] = 10.0
    assert [*found, float(step(f32(1.0)))] == [2.0, 3.0, 30.0]


@pytest.mark.parametrize(
    "f",
    [Trainer.scaled, Trainer.fixed, Trainer().own, Trainer().scaled],
    ids=["classmethod", "staticmethod", "method", "classmethod of an object"],
)
def test_attributes_of_classes_are_seen(f, monkeypatch):
    assert both(f, lambda: monkeypatch.setattr(Trainer, "scale", 3.0)) == (2.0, 3.0)


def test_other_defaults_are_seen():
    def f(q, k=2.0, *, cells=None):
        return q * k * cells[0].w[...]

    f.__kwdefaults__ = {"cells": (Cell(1.0),)}

    def change():
        f.__defaults__ = (5.0,)
        f.__kwdefaults__ = {"cells": (Cell(3.0),)}

    assert both(f, change) == (2.0, 15.0)


def test_another_helper_that_reaches_the_same_is_seen():
    def helper(q):
        return q * 2

    def other(q):
        return q * 3

    def f(q):
        return helper(q)

    def change():
        nonlocal helper
        helper = other

    assert both(f, change) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("one", "other", "f", "expected"),
    [
        (range(3), range(4), lambda k, x: x * len(k), (3.0, 4.0)),
        (slice(0, 2), slice(0, 4), lambda k, x: x * jnp.ones(5)[k].sum(), (2.0, 4.0)),
        (Name("a"), Name("abc"), lambda k, x: x * len(k), (1.0, 3.0)),
        (math.sin, math.cos, lambda k, x: x * k(0.0), (0.0, 1.0)),
        (optax.sgd(1.0), optax.sgd(2.0), lambda k, x: k.update(x, k.init(x))[0], (-1.0, -2.0)),
        (nnx.Param, ..., lambda k, x: x * len(nnx.to_flat_state(nnx.state(CELL, k))), (1.0, 2.0)),
        (Trainer, Other, lambda k, x: k.scaled(x), (2.0, 7.0)),
        (jnp.exp, jnp.square, lambda k, x: k(x - 1.0), (1.0, 0.0)),
    ],
    ids=["range", "slice", "derived", "builtin", "optax", "filter", "class", "jnp"],
)
def test_a_name_bound_to_another_value_of_any_kind_is_seen(one, other, f, expected):
    k = one

    def change():
        nonlocal k
        k = other

    assert both(lambda x: f(k, x), change) == expected


def test_objects_with_slots_and_callable_ones_are_seen():
    slotted, called = Slotted(Cell(), 2.0), Called()

    def change():
        slotted.scale = 3.0
        slotted.cell = Cell(5.0)
        called.scale = 7.0
        called.cell = Cell(1.0)

    assert both(lambda x: slotted.cell.loss(x) * slotted.scale, change) == (4.0, 15.0)
    called.cell = Cell(2.0)
    assert both(called, change) == (14.0, 7.0)


def test_what_a_trace_does_to_plain_containers_is_no_reason_for_another():
    trainer = Trainer()
    step = nnx.jit(trainer.step)
    found = [float(step(f32(1.0))) for _ in range(3)]
    assert (found, len(trainer.log), trainer.config["calls"]) == ([2.0] * 3, 1, 1)
    trainer.config["rate"] = 5.0
    assert [float(step(f32(1.0))) for _ in range(2)] == [10.0] * 2
    assert len(trainer.log) == 2


def test_functions_with_one_log_and_one_count_do_not_trace_each_other_anew():
    trainer = Trainer()
    f, g = nnx.jit(trainer.step), nnx.jit(lambda x: trainer.step(x) + 1)
    for _ in range(8):
        f(f32(1.0)), g(f32(1.0))
    runs = len(trainer.log)
    for _ in range(8):
        f(f32(1.0)), g(f32(1.0))
    assert len(trainer.log) == runs <= 8


def test_threads_share_a_compiled_function():
    cell, results = Cell(), []
    f, runs = traced(lambda x: cell.w[...] * x)
    compiled = nnx.jit(f)
    threads = [
        threading.Thread(target=lambda: results.extend(float(compiled(jnp.ones(()))) for _ in range(20)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [2.0] * 160
    assert len(runs) <= 16


def test_a_program_that_a_tool_runs_is_the_users_code(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import jax.numpy as jnp, nnxgraph as nnx\n"
        "class Cell(nnx.Module):\n"
        "    def __init__(self):\n"
        "        self.w = nnx.Param(jnp.float32(2.0))\n"
        "    def __call__(self, x):\n"
        "        return helper(self.w * x)\n"
        "def helper(x):\n"
        "    return x + shift.w\n"
        "cell, shift = Cell(), Cell()\n"
        "print(nnx.jit(lambda x: cell(x))(3.0))\n"
    )
    command = [sys.executable, "-m", "cProfile", "-o", str(tmp_path / "out"), str(program)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "8.0\n"
