"""scan equals the Python loop, wherever the state stands; its carry holds what the body writes, no more."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import nnxgraph as nnx
from tests.transforms.subjects import Cell, Empty, Tied, carried, cells, f32, traced, values

Carry = nnx.Carry
XS = jnp.arange(1.0, 5.0)


def visit(model, c, x):
    """One iteration: reads, writes, and changes a shared Variable through one of its names."""
    model.a[...] = model.a[...] * 0.5 + x
    model.child.n[...] += c
    return c * model.child.w[...] + model.b[...], model.b[...] - x


def python_loop(model, c, xs, reverse=False):
    ys = []
    for x in xs[::-1] if reverse else xs:
        c, y = visit(model, c, x)
        ys.append(y)
    return c, jnp.stack(ys[::-1] if reverse else ys)


def in_the_carry(model, c, xs, f=visit, **options):
    def body(pair, x):
        c, y = f(*pair, x)
        return (pair[0], c), y

    (_, c), ys = nnx.scan(body, **options)((model, c), xs)
    return c, ys


def as_a_constant(model, c, xs, **options):
    return nnx.scan(visit, in_axes=(None, Carry, 0), **options)(model, c, xs)


def captured(model, c, xs, **options):
    return nnx.scan(lambda c, x: visit(model, c, x), **options)(c, xs)


def bound(model, c, xs, **options):
    return nnx.scan(functools.partial(visit, model), **options)(c, xs)


def by_keyword(model, c, xs, **options):
    return nnx.scan(lambda c, x, *, model: visit(model, c, x), **options)(c, xs, model=model)


def all_by_keyword(model, c, xs, **options):
    return nnx.scan(lambda x, c, model: visit(model, c, x), in_axes=(0, Carry), **options)(
        model=model, c=c, x=xs
    )


def as_parts(model, c, xs, **options):
    """The shared Variable and the child are arguments of their own, besides the model."""

    def body(child, c, a, x, model):
        a[...] = a[...] * 0.5 + x
        child.n[...] += c
        return child, c * child.w[...] + model.b[...], model.b[...] - x

    axes = {"in_axes": (None, Carry, None, 0, None), "out_axes": (Carry, 0)}
    return nnx.scan(lambda *args: body(*args)[1:], **axes, **options)(model.child, c, model.a, xs, model)


def methods(model, c, xs, **options):
    class Visitor(Tied):
        @nnx.scan(in_axes=(None, Carry, 0), **options)
        def run(self, c, x):
            return visit(self, c, x)

    model.__class__ = Visitor
    return model.run(c, xs)


FORMS = [in_the_carry, as_a_constant, captured, bound, by_keyword, all_by_keyword, as_parts, methods]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)


@forms
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 2}, {"length": 4}], ids=str)
def test_equals_the_python_loop(form, options):
    ours, plain = Tied(), Tied()
    out = form(ours, f32(1.0), XS, **options)
    expected = python_loop(plain, f32(1.0), XS, options.get("reverse", False))
    for a, b in zip(out, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert ours.a is ours.b
    assert ours.child.parent is ours
    assert values(ours) == pytest.approx(values(plain))


@forms
def test_carry_holds_what_the_body_writes(form):
    def run(xs):
        return form(Tied(), f32(1.0), xs)

    assert carried(run, XS) == ["float32[]"] * 3  # c, model.a, model.child.n; not model.child.w


@forms
def test_gradients_are_those_of_the_loop(form):
    def loss(run):
        def inner(w):
            model = Tied()
            model.child.w[...] = w
            return run(model, f32(1.0), XS)[0]

        return nnx.grad(inner)(f32(0.7))

    np.testing.assert_allclose(loss(form), loss(python_loop), rtol=1e-5)


def test_read_only_model_costs_a_loop_nothing():
    model = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    def run(xs):
        return nnx.scan(lambda model, x: (model, model(x)))(model, xs)[1]

    assert carried(run, jnp.ones((4, 5, 3))) == []


@pytest.mark.parametrize("in_axes", [(Carry, 0), (None, 0)], ids=["carried", "constant"])
def test_statistics_alone_are_carried(in_axes):
    def run(xs):
        layers = nnx.Linear(3, 3, rngs=nnx.Rngs(1)), nnx.BatchNorm(3, rngs=nnx.Rngs(0))
        out_axes = (Carry, 0) if in_axes[0] is Carry else 0

        def body(model, x):
            y = model(x)
            return (model, y) if out_axes != 0 else y

        return nnx.scan(body, in_axes=in_axes, out_axes=out_axes)(nnx.Sequential(*layers), xs)[-1]

    assert carried(run, jnp.ones((4, 5, 3))) == ["float32[3]"] * 2  # mean and var, of 6 Variables


def over_carried(f):
    return lambda model, c, xs: in_the_carry(model, c, xs, f)


def over_constant(f):
    return nnx.scan(f, in_axes=(None, Carry, 0))


def over_keyword(f):
    run = nnx.scan(lambda c, x, *, model: f(model, c, x))
    return lambda model, c, xs: run(c, xs, model=model)


@pytest.mark.parametrize("lift", [over_carried, over_constant, over_keyword], ids=lambda f: f.__name__)
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_nested_scans_run_the_body_once(lift, depth):
    ours, plain = Tied(), Tied()
    nested, runs = traced(visit)
    for _ in range(depth):
        nested = lift(nested)
    xs = jnp.arange(float(2**depth))
    c, ys = nested(ours, f32(1.0), xs.reshape((2,) * depth))
    expected = python_loop(plain, f32(1.0), xs)
    np.testing.assert_allclose(c, expected[0], rtol=1e-5)
    np.testing.assert_allclose(ys.ravel(), expected[1], rtol=1e-5)
    assert values(ours) == pytest.approx(values(plain))
    assert len(runs) == 1


@pytest.mark.parametrize("between", [lambda f: f, nnx.remat], ids=["nothing", "remat"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_nested_scans_over_a_capture_run_the_body_once_a_level(depth, between):
    model, plain = Tied(), Tied()
    nested, runs = traced(lambda c, x: visit(model, c, x))
    for _ in range(depth):
        nested = nnx.scan(between(nested))
    xs = jnp.arange(float(2**depth))
    c, ys = nested(f32(1.0), xs.reshape((2,) * depth))
    expected = python_loop(plain, f32(1.0), xs)
    np.testing.assert_allclose(c, expected[0], rtol=1e-5)
    np.testing.assert_allclose(ys.ravel(), expected[1], rtol=1e-5)
    assert values(model) == pytest.approx(values(plain))
    assert len(runs) == depth + 1


def test_inner_loop_may_be_given_what_the_outer_one_captures():
    cell = Cell()

    def outer(c, x):
        cell.n[...] += x
        inner = nnx.scan(lambda cell, y: (cell, cell(y)))
        return c + inner(cell, jnp.ones(2))[1].sum(), cell.n[...]

    c, ns = nnx.scan(outer)(f32(0.0), XS)
    assert (float(c), ns.tolist()) == (16.0, [3.0, 7.0, 12.0, 18.0])
    assert float(cell.n[...]) == 18.0


# What has an axis: one object is as many as there are slices.


def through(x, cell, scale):
    y = cell(x) + scale
    cell.n[...] = cell.n[...] * scale + x
    return y, y - x


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    "axes", [0, -1, nnx.StateAxes({nnx.Param: 0, ...: -1})], ids=["first", "last", "by filter"]
)
def test_stack_of_objects_equals_the_loop_over_them(axes, reverse):
    stack, each = cells(3), [Cell(float(i), float(i)) for i in range(3)]
    options = {"in_axes": (Carry, axes, None), "reverse": reverse}
    out, ys = nnx.scan(through, **options)(f32(1.0), stack, f32(2.0))
    x, expected = f32(1.0), []
    for cell in each[::-1] if reverse else each:
        x, y = through(x, cell, f32(2.0))
        expected.append(y)
    np.testing.assert_allclose(out, x)
    np.testing.assert_allclose(ys, expected[::-1] if reverse else expected)
    assert stack.n[...].tolist() == [float(cell.n[...]) for cell in each]
    assert stack.w[...].tolist() == [float(cell.w[...]) for cell in each]


def test_axes_may_be_a_tree_like_the_object():
    model = Empty(w=nnx.Param(jnp.ones((2, 4))), n=nnx.Variable(f32(0.0)), k=nnx.Variable(f32(2.0)))
    axes = nnx.prefix(model, {nnx.Param: -1, nnx.PathContains("n"): Carry, ...: None})

    def body(model, x):
        model.n[...] += model.w[...].sum() * x
        model.w[...] *= model.k[...]
        return model.n[...]

    ys = nnx.scan(body, in_axes=(axes, 0), out_axes=0)(model, XS)
    np.testing.assert_allclose(ys, jnp.cumsum(2.0 * XS))
    assert model.w[...].tolist() == [[2.0] * 4] * 2


@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 0), (-1, 1), (2, -1), (-3, -2)])
def test_axes_of_state_and_of_results_are_those_of_the_caller(first, last):
    value = jnp.arange(24.0).reshape(2, 3, 4)
    holder = Empty(w=nnx.Param(value))

    def body(c, holder):
        holder.w[...] = holder.w[...] * 2.0
        return c + holder.w[...].sum(), nnx.Param(holder.w[...] + 1.0)

    total, made = nnx.scan(body, in_axes=(Carry, first), out_axes=(Carry, last))(f32(0.0), holder)
    front = jnp.moveaxis(value, first, 0)
    expected, ys = lax.scan(lambda c, w: (c + 2.0 * w.sum(), w * 2.0 + 1.0), f32(0.0), front)
    np.testing.assert_allclose(total, expected)
    np.testing.assert_allclose(holder.w[...], value * 2.0)
    np.testing.assert_allclose(made[...], jnp.moveaxis(ys, 0, last))


def test_carry_by_filter_beside_a_carried_argument():
    axes = nnx.StateAxes({nnx.Param: 0, ...: Carry})
    model = Empty(w=nnx.Param(XS), n=nnx.Variable(f32(0.0)))

    def body(model, c, x):
        model.n[...] += model.w[...] * x
        return c + model.n[...], model.n[...]

    c, ys = nnx.scan(body, in_axes=(axes, Carry, 0))(model, f32(0.0), XS)
    expected = jnp.cumsum(XS * XS)
    np.testing.assert_allclose(ys, expected)
    np.testing.assert_allclose(c, expected.sum())
    assert float(model.n[...]) == 30.0
    assert model.w[...].tolist() == XS.tolist()


# Random streams


def drawn(rngs, count):
    """What the Python loop draws."""
    return [float(rngs.noise.normal(())) for _ in range(count)]


@pytest.mark.parametrize("in_axes", [(Carry, 0), (None, 0)], ids=["carried", "constant"])
def test_stream_in_the_carry_or_the_same_for_all_draws_as_the_loop_does(in_axes):
    ours, plain = nnx.Rngs(noise=0), nnx.Rngs(noise=0)

    def body(rngs, x):
        y = rngs.noise.normal(())
        return (rngs, y) if in_axes[0] is Carry else y

    out = nnx.scan(body, in_axes=in_axes, out_axes=(Carry, 0) if in_axes[0] is Carry else 0)(ours, XS)
    ys = out[1] if isinstance(out, tuple) else out
    np.testing.assert_allclose(ys, drawn(plain, 4), rtol=1e-6)
    assert int(ours.noise.count[...]) == 4


def test_split_stream_draws_from_its_slice():
    rngs = nnx.Rngs(noise=0)
    axes = nnx.StateAxes({nnx.RngState: 0, ...: None})
    run = nnx.scan(lambda rngs: rngs.noise.normal(()), in_axes=(axes,), out_axes=0)
    with nnx.split_rngs(rngs, splits=3):
        keys = rngs.noise.key[...]
        ys = run(rngs)
        assert rngs.noise.count[...].tolist() == [1, 1, 1]
    expected = [jax.random.normal(jax.random.fold_in(key, 0), ()) for key in keys]
    np.testing.assert_allclose(ys, expected, rtol=1e-6)
    assert int(rngs.noise.count[...]) == 1


def test_dropout_in_a_stack_of_layers_draws_per_layer_and_goes_on():
    layers = nnx.split_rngs(splits=3)(nnx.vmap(lambda r: nnx.Dropout(0.5, rngs=r)))(nnx.Rngs(0))
    run = nnx.scan(lambda x, layer: (x, layer(x)), in_axes=(Carry, 0))
    masks = [tuple(row) for _ in range(2) for row in run(jnp.ones(32), layers)[1].tolist()]
    assert len(set(masks)) == 6
    assert layers.rngs.count[...].tolist() == [2, 2, 2]
