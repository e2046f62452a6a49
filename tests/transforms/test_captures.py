"""What a function reaches by itself: read in every transform, written where the value can leave."""

import functools
import weakref

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import CapturedChangeError, CaptureError, LaneWriteError, TraceWriteError
from tests.transforms.subjects import Cell, Empty, cells, f32, values

CELL = Cell(4.0)

# Each runs a function without arguments once.
UNCACHED = {
    "grad": lambda f: nnx.grad(lambda t: (t, f()), has_aux=True)(f32(0.0))[1],
    "remat": lambda f: nnx.remat(f)(),
    "vmap": lambda f: nnx.vmap(lambda i: f(), out_axes=None)(jnp.arange(2)),
    "scan": lambda f: nnx.scan(f, in_axes=(), out_axes=0, length=1)()[0],
    "cond": lambda f: nnx.cond(True, f, f),
    "switch": lambda f: nnx.switch(0, [f]),
    "while_loop": lambda f: nnx.while_loop(lambda v: v[0] < 1, lambda v: (v[0] + 1, f()), (0, f32(0.0)))[1],
    "fori_loop": lambda f: nnx.fori_loop(0, 1, lambda i, v: f(), f32(0.0)),
}
each = pytest.mark.parametrize("run", UNCACHED.values(), ids=UNCACHED.keys())
each_other = pytest.mark.parametrize("inner", UNCACHED.values(), ids=UNCACHED.keys())


@each
def test_value_is_read_fresh_at_each_call(run):
    cell = Cell()

    def f():
        return cell.w[...] * 2.0

    for w in (1.0, 3.0):
        cell.w[...] = f32(w)
        assert float(run(f)) == 2.0 * w


@each
def test_late_write_reaches_the_variable(run):
    cell = Cell()

    def f():
        before = cell.n[...]
        cell.n[...] += 1.0
        return cell.n[...] + before

    n = cell.n
    assert [float(run(f)) for _ in range(2)] == [1.0, 3.0]
    assert cell.n is n
    assert float(n[...]) == 2.0


@each
def test_captured_object_is_the_same_object_inside(run):
    cell = Cell()
    seen = []

    def f():
        seen.append(cell)
        return cell.w[...]

    run(f)
    assert all(x is cell for x in seen)


@each
def test_globals_partials_and_methods_are_captured_too(run):
    cell = Cell()
    CELL.n[...] = f32(0.0)

    def f(cell, scale):
        CELL.n[...] += 1.0
        return cell(scale) * CELL.w[...]

    assert float(run(functools.partial(f, cell, f32(3.0)))) == 24.0
    assert float(run(functools.partial(cell.loss, f32(3.0)))) == 6.0
    assert float(CELL.n[...]) == 1.0
    assert float(cell.n[...]) == 2.0


@each
@each_other
def test_late_write_leaves_every_level(run, inner):
    cell = Cell()

    def f():
        cell.n[...] = cell.n[...] * 2.0 + 1.0
        return cell.n[...]

    def between():
        y = inner(f)
        cell.n[...] += 10.0
        return y

    assert float(run(between)) == 1.0
    assert float(cell.n[...]) == 11.0


@each
def test_late_write_leaves_a_jitted_function_that_was_given_the_object(run):
    def f(cell, x):
        def step():
            cell.n[...] += x
            return cell.n[...]

        return run(step)

    cell = Cell()
    step = nnx.jit(f)
    assert [float(step(cell, f32(2.0))) for _ in range(2)] == [2.0, 4.0]
    assert float(cell.n[...]) == 4.0


@each
def test_jit_inside_finds_what_it_was_not_given(run):
    cell = Cell()
    assert float(run(lambda: nnx.jit(lambda x: x * cell.w[...])(f32(1.0)))) == 2.0
    hidden = weakref.ref(cell)
    with pytest.raises(CaptureError, match=r"Param\(float32\[\]\)"):
        run(lambda: nnx.jit(lambda x: x * hidden().w[...])(f32(1.0)))
    assert float(run(lambda: nnx.jit(Cell.loss)(cell, f32(3.0)))) == 6.0
    assert float(cell.n[...]) == 1.0


@each
def test_failed_function_leaves_captured_variables_alone(run):
    cell = Cell()

    def f():
        cell.n[...] += 1.0
        raise KeyError("stop")

    with pytest.raises(KeyError):
        run(f)
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}


@each
def test_captured_and_passed_is_one_variable(run):
    cell = Cell()

    def f(passed):
        passed.n[...] += 1.0
        cell.n[...] += 10.0

        def inside():
            cell.n[...] += 100.0
            passed.n[...] += 1000.0
            return passed.n[...]

        return run(inside)

    assert float(nnx.remat(f)(cell)) == 1111.0
    assert float(cell.n[...]) == 1111.0


@pytest.mark.parametrize("lift", [jax.jit, jax.vmap, jax.grad, jax.checkpoint], ids=lambda f: f.__name__)
def test_raw_transforms_read_what_they_capture_and_do_not_write(lift):
    cell = Cell()
    x = jnp.ones(1) if lift is jax.vmap else f32(1.0)
    lift(lambda x: cell.w[...] * x)(x)

    def write(x):
        cell.n[...] = x
        return x

    with pytest.raises(TraceWriteError, match="a raw JAX transform"):
        lift(write)(x)
    assert float(cell.n[...]) == 0.0


@pytest.mark.parametrize("lift", [jax.jit, jax.vmap, jax.grad], ids=lambda f: f.__name__)
def test_variable_that_is_born_under_a_raw_transform_may_be_written_there(lift):
    def f(x):
        cell = Cell()
        cell.n[...] = x
        nnx.remat(cell.loss)(x)
        return cell.n[...] * cell.w[...] + nnx.jit(Cell.loss)(cell, x)

    x = jnp.ones(1) if lift is jax.vmap else f32(1.0)
    out = lift(f)(x)
    assert float(jnp.sum(out)) == (4.0 if lift is jax.grad else 6.0)


def test_jitted_method_of_a_module_that_is_only_read_is_legal_under_raw_transforms():
    class Scene(Cell):
        @nnx.jit
        def render(self, x):
            return self.w[...] * x

    scene = Scene()
    xs = jnp.arange(3.0)
    assert jax.vmap(scene.render)(xs).tolist() == [0.0, 2.0, 4.0]
    assert jax.jit(scene.render)(xs).tolist() == [0.0, 2.0, 4.0]
    assert float(jax.grad(scene.render)(xs[1])) == 2.0
    assert jax.lax.scan(lambda c, x: (c, scene.render(x)), 0, xs)[1].tolist() == [0.0, 2.0, 4.0]


def test_per_lane_value_in_a_captured_variable_is_refused_by_name():
    cell = Cell()
    with pytest.raises(LaneWriteError, match=r"the captured Variable\(float32\[\]\)"):
        nnx.vmap(lambda x: cell.n.set_value(x))(jnp.arange(2.0))
    assert float(cell.n[...]) == 0.0


def test_captured_variable_of_an_outer_lane_has_its_value_of_that_lane():
    def outer(cell, x):
        def inner(y):
            return cell.w[...] * y

        cell.n[...] = nnx.scan(lambda c, y: (c + inner(y), y))(f32(0.0), x)[0]
        return nnx.grad(inner)(f32(1.0))

    stack = cells(3)
    out = nnx.vmap(outer, in_axes=(0, None))(stack, jnp.ones(2))
    assert out.tolist() == [0.0, 1.0, 2.0]
    assert stack.n[...].tolist() == [0.0, 2.0, 4.0]


def test_new_variable_on_a_captured_object_is_refused():
    holder = Empty()

    def f(x):
        holder.new = nnx.Variable(x)
        return x

    with pytest.raises(CapturedChangeError, match=r"attribute 'new' of Empty inside nnx\.remat"):
        nnx.remat(f)(f32(1.0))
    assert vars(holder) == {}
