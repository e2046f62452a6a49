"""scan over models: state by filter, sown values, statistics, gradients, nests, and what the loop carries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import GraphChangeError
from tests.transforms.subjects import Cell, cells, f32, values

Carry = nnx.Carry
XS = jnp.arange(1.0, 5.0)


def net():
    layers = nnx.Linear(3, 3, rngs=nnx.Rngs(1)), nnx.BatchNorm(3, momentum=0.5, rngs=nnx.Rngs(0))
    return nnx.Sequential(*layers)


FRAMES = jax.random.normal(jax.random.key(0), (4, 5, 3))


@pytest.mark.parametrize(
    ("in_axes", "out_axes", "body"),
    [
        ((Carry, 0), (Carry, 0), lambda net, x: (net, net(x))),
        ((nnx.StateAxes({nnx.BatchStat: Carry, ...: None}), 0), 0, lambda net, x: net(x)),
        ((None, 0), 0, lambda net, x: net(x)),
    ],
    ids=["all carried", "statistics carried", "nothing said"],
)
def test_lp9_batch_norm_over_time_updates_its_statistics_at_each_step(in_axes, out_axes, body):
    ours, plain = net(), net()
    out = nnx.scan(body, in_axes=in_axes, out_axes=out_axes)(ours, FRAMES)
    ys = out[1] if isinstance(out, tuple) else out
    np.testing.assert_allclose(ys, jnp.stack([plain(x) for x in FRAMES]), atol=1e-5)
    np.testing.assert_allclose(ours.layers[1].mean[...], plain.layers[1].mean[...], atol=1e-6)
    np.testing.assert_allclose(ours.layers[1].var[...], plain.layers[1].var[...], atol=1e-6)


def test_filters_choose_what_is_sliced_carried_and_the_same():
    class Total(nnx.Variable):
        pass

    class Layers(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.arange(1.0, 4.0))
            self.total = Total(f32(0.0))
            self.scale = nnx.Variable(f32(2.0))

    axes = nnx.StateAxes({nnx.Param: 0, Total: Carry, ...: None})

    @nnx.scan(in_axes=(axes,), out_axes=0)
    def run(layers):
        layers.total[...] += layers.w[...] * layers.scale[...]
        layers.w[...] *= 2.0
        return layers.total[...]

    layers = Layers()
    assert run(layers).tolist() == [2.0, 6.0, 12.0]
    assert float(layers.total[...]) == 12.0
    assert layers.w[...].tolist() == [2.0, 4.0, 6.0]


class Point(nnx.Pytree):
    """A value that a step makes anew."""

    def __init__(self, y):
        self.y = nnx.Variable(y)


class Recorder(nnx.Module):
    """Sows what it computes."""

    def __init__(self):
        self.w = nnx.Param(f32(2.0))

    def step(self, point, x):
        h = point.y[...] * self.w[...] + x
        self.sow(nnx.Intermediate, "h", h)
        return Point(h), h


def test_lp1_sown_values_are_stacked_while_the_carry_is_rebuilt():
    axes = nnx.StateAxes({nnx.Intermediate: 0, ...: None})
    model = Recorder()
    run = nnx.scan(lambda point, model, x: model.step(point, x), in_axes=(Carry, axes, 0))
    point, ys = run(Point(f32(1.0)), model, XS[:3])
    assert type(point) is Point
    assert float(point.y[...]) == 19.0
    (sown,) = nnx.pop(model, nnx.Intermediate)["h"].get_value()
    assert sown.tolist() == ys.tolist() == [3.0, 8.0, 19.0]


def test_sown_values_of_a_stack_are_stacked():
    def f(x, cell):
        return cell.record(x + cell.w[...])

    stack = cells(3)
    out = nnx.scan(f, in_axes=(Carry, 0), out_axes=Carry)(f32(1.0), stack)
    (sown,) = stack.h.get_value()
    assert sown.tolist() == [1.0, 2.0, 4.0]
    assert float(out) == 4.0


def test_sowing_into_what_is_carried_is_explained():
    with pytest.raises(GraphChangeError, match="- cell has a new attribute 'h'"):
        nnx.scan(lambda cell, x: (cell, cell.record(x)))(Cell(), XS)


def test_gradients_flow_through_the_state():
    def loss(cell, xs):
        def step(cell, x):
            cell.n[...] = cell.n[...] * cell.w[...] + x
            return cell, cell.n[...]

        return nnx.scan(step)(cell, xs)[1].sum()

    def plain(w):
        n, total = 0.0, 0.0
        for x in XS:
            n = n * w + x
            total += n
        return total

    cell = Cell(0.5)
    np.testing.assert_allclose(nnx.grad(loss)(cell, XS)["w"][...], jax.grad(plain)(0.5), rtol=1e-6)
    np.testing.assert_allclose(cell.n[...], 6.125)


def test_training_steps_run_in_a_scan():
    def step(cell, x):
        grads = nnx.grad(lambda cell: (cell.w[...] - x) ** 2)(cell)
        cell.w[...] -= 0.25 * grads["w"][...]
        return cell, cell.w[...]

    cell = Cell(0.0)
    _, ws = nnx.scan(step)(cell, jnp.ones(3))
    assert ws.tolist() == [0.5, 0.75, 0.875]
    assert float(cell.w[...]) == 0.875


@pytest.mark.parametrize("lift", [lambda f: f, nnx.jit, nnx.remat], ids=["plain", "jit", "remat"])
def test_scan_in_scan(lift):
    def inner(cell, x):
        cell.n[...] += x
        return cell, cell.n[...]

    cell = Cell()
    out, ys = nnx.scan(lambda cell, xs: lift(nnx.scan(inner))(cell, xs))(cell, jnp.ones((2, 3)))
    assert out is cell
    assert ys.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert float(cell.n[...]) == 6.0


def test_scan_in_vmap_and_vmap_in_scan():
    def step(cell, x):
        cell.n[...] += x
        return cell, cell.n[...]

    stack = cells(2)
    out, ys = nnx.vmap(nnx.scan(step), in_axes=(0, None))(stack, jnp.ones(3))
    assert out is stack
    assert ys.tolist() == [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]
    out, ys = nnx.scan(lambda stack, x: nnx.vmap(step, in_axes=(0, None))(stack, x))(stack, jnp.ones(2))
    assert out is stack
    assert ys.tolist() == [[4.0, 5.0], [5.0, 6.0]]


def test_cond_in_scan_and_scan_in_cond():
    def up(cell):
        cell.n[...] += 1.0

    def down(cell):
        cell.n[...] -= 10.0

    def step(cell, x):
        nnx.cond(x > 2.5, up, down, cell)
        return cell, cell.n[...]

    cell = Cell()
    assert nnx.scan(step)(cell, XS)[1].tolist() == [-10.0, -20.0, -19.0, -18.0]
    run = nnx.scan(step)
    out = nnx.cond(cell.n[...] < 0.0, lambda c: run(c, XS)[1], lambda c: XS * 0.0, cell)
    assert out.tolist() == [-28.0, -38.0, -37.0, -36.0]


def test_collectives_run_inside_a_scan_inside_vmap():
    def total(xs):
        return nnx.scan(lambda c, x: (c + jax.lax.psum(x, "batch"), c))(f32(0.0), xs)[0]

    assert nnx.vmap(total, axis_name="batch")(jnp.ones((3, 2))).tolist() == [6.0] * 3


def test_dropout_draws_anew_at_each_step():
    dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    plain = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    ys = nnx.scan(lambda d, x: (d, d(x)))(dropout, jnp.ones((3, 8)))[1]
    assert jnp.array_equal(ys, jnp.stack([plain(x) for x in jnp.ones((3, 8))]))
    assert len({tuple(row) for row in ys.tolist()}) == 3


def test_streams_split_for_a_scan_draw_per_slice():
    @nnx.split_rngs(splits=3)
    @nnx.scan(in_axes=(Carry, 0), out_axes=(Carry, 0))
    def draw(c, rngs):
        return c, rngs.normal(())

    rngs = nnx.Rngs(0)
    _, ys = draw(0, rngs)
    assert len(set(ys.tolist())) == 3
    assert rngs.default.key.shape == ()


def test_state_of_a_scan_under_jit_is_that_of_the_loop():
    stack, plain = cells(3), cells(3)
    f = nnx.scan(lambda x, cell: (cell.loss(x), cell.n[...]), in_axes=(Carry, 0))
    jitted = nnx.jit(f)
    for _ in range(2):
        ours, theirs = jitted(f32(1.0), stack), f(f32(1.0), plain)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, ours, theirs))
    assert values(stack) == values(plain)


@pytest.mark.parametrize("jit", [lambda f: f, nnx.jit])
def test_state_axes_that_carry_may_stand_in_a_container(jit):
    cell = Cell(jnp.arange(3.0))
    axes = nnx.StateAxes({nnx.Param: 0, ...: nnx.Carry})

    @jit
    @nnx.scan(in_axes=({"cell": axes, "x": 0}, (None,)), out_axes=0)
    def run(inputs, scale):
        cell = inputs["cell"]
        cell.n[...] += cell.w[...] * inputs["x"]
        return cell.n[...] * scale[0]

    assert run({"cell": cell, "x": jnp.ones(3)}, (2.0,)).tolist() == [0.0, 2.0, 6.0]
    assert float(cell.n[...]) == 3.0
