"""What a compiled function reaches by itself: read anew at each call, written in place, traced once."""

import dataclasses
import functools
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import CaptureError
from tests.transforms.subjects import Cell, Empty, f32, traced, values

CELL = Cell(4.0)
SCALE = 2.0
ARRAY = jnp.ones(2)
BOX = types.SimpleNamespace(cell=Cell(3.0))


def helper(x):
    return CELL.loss(x) * SCALE


class Trainer:
    """A plain object of the user's, no part of a graph."""

    def __init__(self):
        self.cell = Cell()
        self.rate = 0.5
        self.calls = 0

    def step(self, x):
        return self.cell.loss(x) * self.rate

    @property
    def twice(self):
        return self.cell.w[...] * 2.0

    def counted(self, x):
        self.calls += 1
        return self.step(x) + self.twice


@dataclasses.dataclass
class Config:
    scale: float = 2.0


def count(run, change, expected):
    """Run twice with a change between, which a plain function would see."""
    first = float(run(f32(1.0)))
    change()
    assert (first, float(run(f32(1.0)))) == expected


def test_values_are_read_anew_and_written_with_one_trace():
    cell = Cell()
    f, runs = traced(lambda x: cell.loss(x))
    step = nnx.jit(f)
    outs = []
    for w in (2.0, 3.0):
        cell.w[...] = f32(w)
        outs.append(float(step(f32(1.0))))
    assert outs == [2.0, 3.0]
    assert float(cell.n[...]) == 2.0
    assert len(runs) == 1


def test_static_attributes_of_a_capture_are_seen():
    cell = Cell()
    step = nnx.jit(lambda x: x * (2.0 if cell.tag == "plain" else 3.0))
    count(step, lambda: setattr(cell, "tag", "other"), (2.0, 3.0))


def test_a_name_bound_to_another_object_is_the_new_root_without_a_trace():
    cell = Cell(2.0)
    f, runs = traced(lambda x: cell.loss(x))

    def rebind():
        nonlocal cell
        cell = Cell(5.0)

    count(nnx.jit(f), rebind, (2.0, 5.0))
    assert float(cell.n[...]) == 1.0
    assert len(runs) == 1


def test_a_global_helper_and_what_it_reaches():
    CELL.w[...] = f32(4.0)
    count(nnx.jit(lambda x: helper(x)), lambda: CELL.w.set_value(f32(5.0)), (8.0, 10.0))


def test_a_number_of_a_global_is_seen(monkeypatch):
    CELL.w[...] = f32(4.0)
    step = nnx.jit(helper)
    count(step, lambda: monkeypatch.setitem(globals(), "SCALE", 3.0), (8.0, 12.0))


def test_a_helper_bound_to_another_function_is_seen(monkeypatch):
    step = nnx.jit(lambda x: helper(x))
    CELL.w[...] = f32(4.0)
    count(step, lambda: monkeypatch.setitem(globals(), "helper", lambda x: x), (8.0, 1.0))


@pytest.mark.parametrize("numbers", [(1.0, 2.0), (1, True), ("a", "b"), (None, 3)])
def test_plain_values_of_a_closure_are_a_part_of_the_key(numbers):
    value = numbers[0]

    def f(x):
        return x, str(value), type(value)

    g, runs = traced(lambda x: f(x)[0])
    step = nnx.jit(g)
    step(f32(1.0))
    value = numbers[1]
    step(f32(1.0))
    step(f32(1.0))
    assert len(runs) == 2


def test_a_count_that_the_function_keeps_itself_is_not_a_part_of_the_key():
    runs = 0
    listed, table, box = [], {"n": 0}, types.SimpleNamespace(n=0)

    @nnx.jit
    def f(x):
        nonlocal runs
        runs += 1
        listed.append(1)
        table["n"] += 1
        box.n += 1
        return x

    for _ in range(3):
        f(f32(1.0))
    assert (runs, listed, table, box.n) == (1, [1], {"n": 1}, 1)


def test_arrays_of_a_closure_and_of_globals_are_read_anew_without_a_trace(monkeypatch):
    array = jnp.ones(2)
    f, runs = traced(lambda x: x)

    def total(x):
        f(x)
        return (array + ARRAY).sum() * x

    step = nnx.jit(total)
    first = float(step(f32(1.0)))
    array = jnp.full(2, 3.0, jnp.float32)
    monkeypatch.setitem(globals(), "ARRAY", jnp.full(2, 2.0, jnp.float32))
    assert (first, float(step(f32(1.0)))) == (4.0, 10.0)
    assert len(runs) == 1
    assert not isinstance(array, jax.core.Tracer)


def test_numpy_arrays_of_a_closure_stay_concrete_and_are_seen():
    order = np.array([1, 0])
    step = nnx.jit(lambda x: x * sum(i * float(n) for i, n in enumerate(order)))
    first = float(step(f32(1.0)))
    order = np.array([0, 1])
    assert (first, float(step(f32(1.0)))) == (0.0, 1.0)


def test_a_raw_array_of_a_captured_object_is_seen():
    holder = Empty(table=jnp.ones(2))
    step = nnx.jit(lambda x: holder.table.sum() * x)
    count(step, lambda: setattr(holder, "table", jnp.full(2, 2.0)), (2.0, 4.0))


def test_a_raw_array_of_a_captured_object_that_the_function_replaces_counts_on():
    holder = Empty(n=f32(0.0), rows=[f32(0.0)])
    f, runs = traced(lambda x: None)

    def bump(x):
        f(x)
        holder.n = holder.n + x
        holder.rows[0] = holder.rows[0] + 2 * x
        return holder.n

    step = nnx.jit(bump)
    rows = holder.rows
    assert [float(step(f32(1.0))) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]
    assert (float(holder.n), float(rows[0])) == (4.0, 8.0)
    assert holder.rows is rows
    assert len(runs) <= 2


def test_structure_of_a_captured_object_changes_in_place():
    holder = Empty(items=[], tag="old", gone=1)
    items = holder.items

    @nnx.jit
    def f(x):
        if holder.tag == "old":
            holder.tag = "new"
            holder.items.append(x)
            holder.w = nnx.Param(x)
            del holder.gone
        return holder.w[...]

    assert [float(f(f32(3.0))) for _ in range(2)] == [3.0, 3.0]
    assert list(vars(holder)) == ["items", "tag", "w"]
    assert holder.items is items
    assert [float(x) for x in items] == [3.0]


def test_an_exception_leaves_a_captured_object_as_it_was():
    holder = Empty(items=[1], table={"a": 1}, cell=Cell(), old=2)
    cell, spec = holder.cell, holder.cell.w.get_metadata()

    @nnx.jit
    def f(x):
        holder.items.append(x)
        holder.table["b"] = x
        holder.cell.w[...] = x
        holder.cell.w.set_metadata(note=1)
        holder.cell = None
        del holder.old
        raise KeyError("stop")

    with pytest.raises(KeyError):
        f(f32(1.0))
    assert vars(holder) == {"items": [1], "table": {"a": 1}, "cell": cell, "old": 2}
    assert cell.w.get_metadata() == spec
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}


def test_captured_and_passed_is_one_object_inside_and_out():
    cell = Cell()

    @nnx.jit
    def f(passed):
        assert passed is cell
        passed.n[...] += 1.0
        cell.n[...] += 10.0
        return passed

    assert f(cell) is cell
    assert float(cell.n[...]) == 11.0


def test_a_captured_object_may_be_returned_and_attached():
    cell = Cell()
    other = Empty()

    @nnx.jit
    def f(other):
        other.cell = cell
        other.w = cell.w
        return {"cell": cell}

    assert f(other)["cell"] is cell
    assert other.cell is cell
    assert other.w is cell.w


def test_defaults_partials_methods_and_containers():
    cells = [Cell(1.0), Cell(2.0), Cell(3.0), Cell(5.0)]
    table = {"a": [cells[2]]}

    def f(x, *, cell=cells[0]):
        return cell.loss(x) + keep(x) + table["a"][0].loss(x) + method(x)

    keep, method = functools.partial(Cell.loss, cells[1]), cells[3].loss
    step = nnx.jit(f)
    assert [float(step(f32(1.0))) for _ in range(2)] == [11.0, 11.0]
    assert [float(c.n[...]) for c in cells] == [2.0] * 4
    table["a"][0] = Cell(10.0)
    assert float(step(f32(1.0))) == 18.0


def test_plain_objects_modules_and_properties(monkeypatch):
    trainer = Trainer()
    compiled = nnx.jit(trainer.counted)
    assert [float(compiled(f32(1.0))) for _ in range(2)] == [5.0, 5.0]
    assert trainer.calls == 1
    trainer.rate = 1.0
    assert float(compiled(f32(1.0))) == 6.0
    trainer.cell = Cell(3.0)
    assert float(compiled(f32(1.0))) == 9.0
    count(
        nnx.jit(lambda x: BOX.cell.loss(x)), lambda: monkeypatch.setattr(BOX, "cell", Cell(1.0)), (3.0, 1.0)
    )


def test_the_attributes_of_a_plain_configuration_are_seen():
    config = Config()
    count(nnx.jit(lambda x: x * config.scale), lambda: setattr(config, "scale", 3.0), (2.0, 3.0))


def test_a_function_that_our_transforms_wrapped_is_looked_through():
    cell = Cell()
    loss = nnx.grad(cell.loss)
    step = nnx.jit(loss)
    assert [float(step(f32(1.0))) for _ in range(2)] == [2.0, 2.0]
    cell.w[...] = f32(3.0)
    assert float(nnx.jit(lambda x: loss(x))(f32(1.0))) == 3.0
    assert float(cell.n[...]) == 3.0
    assert float(nnx.jit(jax.checkpoint(lambda x: cell.w[...] * x))(f32(2.0))) == 6.0


def test_methods_of_captured_classes_are_looked_into_when_a_trace_asks():
    class Calls(Cell):
        def __call__(self, x):
            return super().__call__(x) + CELL.w[...]

    model = Calls()
    CELL.w[...] = f32(4.0)
    step = nnx.jit(lambda x: model(x))
    count(step, lambda: CELL.w.set_value(f32(5.0)), (6.0, 7.0))
    assert float(nnx.jit(lambda m, x: m(x))(model, f32(1.0))) == 7.0


def test_names_in_strings_are_followed_when_a_trace_asks():
    trainer = Trainer()
    step = nnx.jit(lambda x: getattr(trainer, "cell").loss(x))  # noqa: B009  # what is tested
    count(step, lambda: trainer.cell.w.set_value(f32(3.0)), (2.0, 3.0))


def test_captures_of_captures_in_nested_jits():
    cell = Cell()
    inner = nnx.jit(lambda x: cell.loss(x))
    outer = nnx.jit(lambda x: inner(x) + inner(x))
    assert [float(outer(f32(1.0))) for _ in range(2)] == [4.0, 4.0]
    assert float(cell.n[...]) == 4.0


def test_what_is_behind_a_wall_is_named():
    hidden = weakref.ref(CELL)
    with pytest.raises(CaptureError, match=r"Param\(float32\[\]\)"):
        nnx.jit(lambda x: hidden().w * x)(1.0)


def call(f, *args):
    return f(*args)


PARTIALS = {
    "function": lambda f: functools.partial(call, f),
    "partial": lambda f: functools.partial(call, functools.partial(call, f)),
    "transformed": lambda f: functools.partial(call, nnx.remat(f)),
    "list": lambda f: functools.partial(lambda fs, x: fs[0](x), [f]),
}


@pytest.mark.parametrize("partial", PARTIALS.values(), ids=PARTIALS.keys())
def test_functions_among_the_arguments_of_a_partial_are_looked_through(partial):
    cell = Cell()
    f = nnx.jit(partial(lambda x: cell(x)))
    assert [float(f(f32(1.0))) for _ in range(2)] == [2.0, 2.0]
    cell.w[...] = f32(5.0)
    assert float(f(f32(1.0))) == 5.0
    assert float(cell.n[...]) == 3.0


@pytest.mark.parametrize("raw", [jax.grad, jax.vmap, jax.checkpoint, jax.jacfwd, jax.jit])
def test_what_a_function_reaches_under_a_raw_transform_is_found(raw):
    cell = Cell()
    jitted = nnx.jit(raw(lambda x: cell.w[...] * x))
    for w in (2.0, 5.0):
        cell.w[...] = f32(w)
        assert float(jitted(jnp.ones((1,) if raw is jax.vmap else ())).sum()) == w
