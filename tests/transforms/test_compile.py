"""jit, remat, eval_shape: static arguments, donation, recomputation, shapes."""

import functools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import AliasError, CaptureError, DonationError
from tests.transforms.subjects import Cell, Empty, Tied, equations, f32, only, traced, values

XS = jnp.arange(3.0)


def test_module_itself_is_jitted():
    class Counter(nnx.Module):
        def __init__(self):
            self.count = nnx.Variable(jnp.array(0))

        def __call__(self):
            self.count[...] += 1

    counter = Counter()
    step = nnx.jit(counter)
    step()
    step()
    assert int(counter.count[...]) == 2


def test_method_is_jitted_where_it_is_defined_and_where_it_is_bound():
    class Model(Cell):
        @nnx.jit
        def compiled(self, x):
            return self.loss(x)

    model = Model()
    assert float(model.compiled(f32(3.0))) == float(nnx.jit(model.loss)(f32(3.0))) == 6.0
    assert float(Model.compiled(model, f32(3.0))) == 6.0
    assert float(model.n[...]) == 3.0


def test_partial_binds_objects_and_constants():
    def f(times, cell, x):
        return sum([cell.loss(x) for _ in range(times)], f32(0.0))

    cell = Cell()
    assert float(nnx.jit(functools.partial(f, 3))(cell, f32(1.0))) == 6.0
    assert float(nnx.jit(functools.partial(f, 2, cell))(f32(1.0))) == 4.0
    assert float(cell.n[...]) == 5.0
    assert float(nnx.jit(functools.partial(cell.loss, x=f32(3.0)))()) == 6.0
    assert float(cell.n[...]) == 6.0


def test_jit_compiles_for_the_backend_that_is_asked_for():
    f = nnx.jit(lambda cell, x: cell.loss(x), backend="cpu")
    with pytest.warns(DeprecationWarning, match="backend and device argument on jit is deprecated"):
        y = f(Cell(), f32(1.0))
    assert float(y) == 2.0
    device = jax.devices()[1]
    with pytest.warns(DeprecationWarning, match="backend and device"):
        y = nnx.jit(lambda x: x + 1.0, device=device)(XS)
    assert y.devices() == {device}


def test_inner_function_is_named_after_the_users():
    def train_step(x):
        return x

    assert only(nnx.jit(train_step), "jit", 1.0).params["name"] == "train_step"


@pytest.mark.parametrize("options", [{"inline": True}, {"keep_unused": True}], ids=str)
def test_options_reach_jax(options):
    def f(x, y):
        return x + 1.0

    ours, theirs = (lift(f, **options) for lift in (nnx.jit, jax.jit))
    assert [e.primitive for e in equations(ours, XS, XS)] == [e.primitive for e in equations(theirs, XS, XS)]
    texts = [lift(XS, XS) is None or jax.jit(lift).lower(XS, XS).as_text() for lift in (ours, theirs)]
    assert texts[0].count("tensor<3xf32>") == texts[1].count("tensor<3xf32>")


@pytest.mark.parametrize(
    ("static", "by_name"),
    [
        ({"static_argnums": 1}, False),
        ({"static_argnums": 1}, True),
        ({"static_argnums": (-1,)}, False),
        ({"static_argnames": "mode"}, False),
        ({"static_argnames": ("mode",)}, True),
    ],
)
def test_static_argument_may_be_given_either_way(static, by_name):
    def f(cell, mode):
        return cell.loss(f32(len(mode)))

    step = nnx.jit(f, **static)
    assert float(step(Cell(), mode="ab") if by_name else step(Cell(), "ab")) == 4.0


def test_static_argument_of_a_method_counts_without_self():
    class Model(Cell):
        @nnx.jit(static_argnums=1)
        def compiled(self, mode):
            return self.loss(f32(len(mode)))

        def plain(self, mode):
            return self.loss(f32(len(mode)))

    model = Model()
    assert float(model.compiled("abc")) == 6.0
    assert float(nnx.jit(model.plain, static_argnums=0)("abc")) == 6.0
    assert float(nnx.jit(model.plain, static_argnames="mode")("abc")) == 6.0


def test_static_arguments_are_compared_by_structure():
    f, runs = traced(lambda cell, options: cell.loss(f32(options["scale"])))
    step = nnx.jit(f, static_argnums=1)
    for scale in (1.0, 1.0, 2.0, 2):
        step(Cell(), {"scale": scale})
    assert len(runs) == 3  # 2 and 2.0 differ


def test_static_module_is_a_capture_that_cannot_be_followed():
    with pytest.raises(CaptureError):
        nnx.jit(lambda cell: cell.loss(f32(1.0)), static_argnums=0)(Cell())


def test_captures_behind_a_wall_are_refused_with_a_way_out():
    cell = Cell()
    hidden = weakref.ref(cell)

    def writes(x):
        hidden().n[...] = x

    def attaches(other):
        other.cell = hidden()

    with pytest.raises(CaptureError, match=r"writes what it was not given.*:\n  - Variable\(float32"):
        nnx.jit(writes)(1.0)
    with pytest.raises(CaptureError, match=r"reaches what it was not given.*:\n  - Cell"):
        nnx.jit(lambda x: hidden())(1.0)
    with pytest.raises(CaptureError, match=r"reaches what it was not given.*:\n  - Cell"):
        nnx.jit(attaches)(Cell())
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}


def test_donated_variables_come_back_and_their_old_arrays_are_gone():
    cell = Cell()
    snapshot, old = nnx.state(cell), cell.n[...]
    nnx.jit(Cell.loss, donate_argnums=0)(cell, f32(3.0))
    assert values(cell) == {("w",): 2.0, ("n",): 1.0}
    assert old.is_deleted()
    assert snapshot["w"].get_raw_value().is_deleted()
    nnx.jit(Cell.loss, donate_argnums=0)(cell, f32(3.0))
    assert float(cell.n[...]) == 2.0


def test_donation_by_name_keeps_what_is_not_named():
    one, two = Cell(), Cell()
    arrays = one.w[...], two.w[...]
    nnx.jit(lambda one, *, two: one.w[...] + two.w[...], donate_argnames="two")(one, two=two)
    assert [a.is_deleted() for a in arrays] == [False, True]
    assert values(one) == values(two)


def test_donated_array_is_not_returned():
    f = nnx.jit(lambda x, y: x + y, donate_argnums=0)
    assert len(only(lambda x: f(x, XS), "jit", XS).outvars) == 1
    x = jnp.ones(3)
    f(x, XS)
    assert x.is_deleted()


def test_donated_tied_parameter_is_one_buffer():
    tied = Tied()
    nnx.jit(lambda tied: tied.a.set_value(tied.b[...] + 1.0), donate_argnums=0)(tied)
    assert tied.a is tied.b
    assert float(tied.b[...]) == 4.0


def test_array_in_two_donated_places_is_refused_before_anything_is_lost():
    one, two = Cell(), Cell()
    two.w.set_value(one.w[...])
    with pytest.raises(DonationError) as caught:
        nnx.jit(lambda one, two: None, donate_argnums=(0, 1))(one, two)
    assert str(caught.value) == (
        "nnx.jit: one.w is donated, and two.w holds the very same array. Expected an array for each. Write "
        "nnx.clone(model, arrays=True) for one of them, or do not donate it."
    )
    assert values(one) == values(two)


def test_array_that_is_donated_and_read_is_refused():
    cell = Cell()
    with pytest.raises(DonationError, match=r"cell\.w is donated, and x holds the very same array"):
        nnx.jit(lambda x, cell: None, donate_argnums=1)(cell.w[...], cell)


def test_variable_that_is_donated_and_not_is_refused():
    cell = Cell()
    with pytest.raises(AliasError, match=r"found at a\.w with .* donated and at b\.w with None"):
        nnx.jit(lambda a, b: None, donate_argnums=0)(cell, cell)


def test_remat_changes_no_value_no_gradient_and_no_state():
    def make():
        layers = nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(0))
        return nnx.Sequential(*layers, nnx.Dropout(0.5, rngs=nnx.Rngs(1)))

    def loss(net, x):
        return (net(x) ** 2).sum()

    x = jax.random.normal(jax.random.key(2), (4, 3))
    ours, plain = make(), make()
    grads = nnx.grad(lambda net: nnx.remat(loss)(net, x))(ours)
    expected = nnx.grad(lambda net: loss(net, x))(plain)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), grads, expected)
    a, b = nnx.state(ours, nnx.Not(nnx.RngKey)), nnx.state(plain, nnx.Not(nnx.RngKey))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), a, b)
    assert int(ours.layers[2].rngs.count[...]) == 1


def test_remat_recomputes_and_a_policy_stores():
    def saved(policy):
        def f(cell):
            return nnx.remat(lambda cell: jnp.sin(jnp.sin(cell.w[...])), policy=policy)(cell)

        jaxpr = jax.make_jaxpr(lambda w: nnx.grad(f)(Cell(w))["w"][...])(f32(1.0))
        return str(jaxpr).count("cos")

    assert saved(None) == 2
    assert str(jax.make_jaxpr(nnx.grad(nnx.remat(jnp.sin)))(1.0)).count("remat") == 1


def test_remat_takes_static_and_keyword_arguments():
    def f(cell, kind, x, *, scale):
        return cell.loss(x) * scale if kind == "scaled" else cell.loss(x)

    lifted = nnx.remat(f, static_argnums=1)
    grads = nnx.grad(lambda cell: lifted(cell, "scaled", f32(3.0), scale=f32(2.0)))(Cell())
    assert float(grads["w"][...]) == 6.0
    assert float(lifted(Cell(), "plain", f32(3.0), scale=2.0)) == 6.0


def test_remat_of_one_instance_leaves_others_alone():
    one, two = Cell(), Cell()
    lifted = nnx.remat(one.loss)
    assert float(lifted(f32(3.0))) == float(two.loss(f32(3.0))) == 6.0
    assert "remat" not in str(jax.make_jaxpr(lambda x: Cell().loss(x))(1.0))
    assert values(one) == values(two)


def test_remat_may_close_over_outer_values():
    def f(x):
        y = x * 2.0
        return nnx.remat(lambda z: z * y)(x)

    assert float(nnx.grad(f)(f32(3.0))) == 12.0
    assert float(nnx.grad(f)(f32(5.0))) == 20.0


def test_eval_shape_gives_shapes_and_touches_nothing():
    def f(cell, x):
        cell.n[...] += 1.0
        cell.extra = nnx.Param(x)
        return cell, cell.w[...] * x

    cell = Cell()
    shaped, y = nnx.eval_shape(f, cell, XS)
    assert y == jax.ShapeDtypeStruct((3,), jnp.float32)
    assert shaped is not cell
    assert shaped.extra.get_raw_value() == y
    assert shaped.tag == "plain"
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}
    assert not hasattr(cell, "extra")


def test_eval_shape_takes_methods_keywords_captures_and_abstract_objects():
    cell = Cell()
    assert nnx.eval_shape(cell.loss, XS).shape == ()
    assert nnx.eval_shape(lambda *, x: cell.loss(x), x=XS).shape == ()
    assert float(cell.n[...]) == 0.0
    model = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    assert model.kernel.get_raw_value() == jax.ShapeDtypeStruct((2, 3), jnp.float32)
    y = nnx.eval_shape(lambda model, x: model(x), model, jax.ShapeDtypeStruct((5, 2), jnp.float32))
    assert y.shape == (5, 3)


def test_eval_shape_keeps_sharing():
    tied = nnx.eval_shape(Tied)
    assert tied.a is tied.b
    assert tied.child.parent is tied


def test_another_object_in_an_attribute_is_used_by_the_next_call():
    holder = Empty(cell=Cell())

    @nnx.jit
    def read(holder):
        return holder.cell.w[...]

    read(holder)
    holder.cell = Cell(7.0)
    assert float(read(holder)) == 7.0
