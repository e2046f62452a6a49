"""remat, checkify, eval_shape, make_jaxpr."""

import functools
import weakref

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify

import nnxgraph as nnx
from nnxgraph.errors import CapturedChangeError
from tests.transforms.subjects import Cell, Empty, Tied, equations, f32, only, traced, values


def run(jaxpr, *args):
    """What a jaxpr computes from the arrays of its arguments."""
    return jax.extend.core.jaxpr_as_fun(jaxpr)(*jax.tree.leaves(args))


def scaled(cell, x, *, s):
    """A function with an argument that can only be given by name."""
    cell.n[...] += 1.0
    return jnp.sin(cell.w[...] * x) * s


# remat


def test_ad5_keyword_arguments_cross_remat_and_are_differentiated():
    cell = Cell()
    grads = nnx.grad(lambda cell, x: nnx.remat(scaled)(cell, x, s=2.0))(cell, f32(3.0))
    plain = jax.grad(lambda w: jnp.sin(w * 3.0) * 2.0)(f32(2.0))
    assert jnp.allclose(grads["w"][...], plain)
    assert float(cell.n[...]) == 1.0


@pytest.mark.parametrize(
    ("static", "call"),
    [
        ({"static_argnums": 2}, lambda f: f(f32(2.0), f32(3.0), "double")),
        ({"static_argnums": (-1,)}, lambda f: f(f32(2.0), f32(3.0), "double")),
        ({"static_argnums": (2,)}, lambda f: f(f32(2.0), f32(3.0), mode="double")),
        ({"static_argnames": "mode"}, lambda f: f(f32(2.0), f32(3.0), mode="double")),
        ({"static_argnames": ("mode",)}, lambda f: f(f32(2.0), f32(3.0), "double")),
    ],
    ids=["position", "from the end", "position by name", "name", "name by position"],
)
def test_remat_takes_static_arguments_by_position_and_name(static, call):
    def f(x, y, mode):
        return x * y * (2.0 if mode == "double" else 1.0)

    assert float(call(nnx.remat(f, **static))) == 12.0


@pytest.mark.parametrize("prevent", [True, False, (False, True), (True, False)], ids=str)
def test_remat_prevents_cse_as_jax_does(prevent):
    def f(x, y):
        return jnp.sin(x) * y

    def by_shape(g):
        equation = only(g, "remat2", f32(1.0), jnp.ones(2))
        found = equation.params["prevent_cse"]
        each = found if isinstance(found, tuple) else [found] * 2
        return dict(zip((v.aval.shape for v in equation.invars), each, strict=True))

    assert by_shape(nnx.remat(f, prevent_cse=prevent)) == by_shape(jax.checkpoint(f, prevent_cse=prevent))


def test_remat_stores_what_the_policy_says():
    def f(x):
        return jnp.sin(jnp.dot(x, x))

    policies = (None, jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.everything_saveable)
    ours, theirs = (
        [len(equations(jax.grad(lift(f, policy=p)), jnp.ones(3))) for p in policies]
        for lift in (nnx.remat, jax.checkpoint)
    )
    assert ours == theirs
    assert len(set(ours)) > 1


def test_ad3_remat_of_one_instance_changes_no_values_and_no_other_instance():
    one, other = nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.Linear(2, 2, rngs=nnx.Rngs(1))
    x = jnp.ones((1, 2))
    before = (one(x), other(x))
    recomputed = nnx.remat(one)
    assert jnp.array_equal(recomputed(x), before[0])
    assert jnp.array_equal(one(x), before[0])
    assert jnp.array_equal(other(x), before[1])
    names = [[e.primitive.name for e in equations(f, x)] for f in (recomputed, one, other)]
    assert ["remat2" in found for found in names] == [True, False, False]


def test_ad3_remat_of_one_class_changes_no_other_class():
    class Recomputed(Cell):
        @nnx.remat
        def __call__(self, x):
            return super().__call__(x)

    cells = Recomputed(3.0), Cell(3.0)
    assert [float(c(f32(2.0))) for c in cells] == [6.0, 6.0]
    assert values(cells[0]) == values(cells[1])


def test_checkpoint_is_remat():
    assert nnx.checkpoint is nnx.remat


# checkify


def checked_root(cell, x):
    checkify.check(x >= 0, "negative: {x}", x=x)
    cell.n[...] += 1.0
    return jnp.sqrt(x)


@pytest.mark.parametrize("outer", [lambda f: f, nnx.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(("x", "error"), [(4.0, None), (-4.0, "negative: -4.0")])
def test_checkify_returns_the_error_and_the_result_of_jax(outer, x, error):
    cell = Cell()
    found, out = outer(nnx.checkify(checked_root))(cell, f32(x))
    theirs, expected = checkify.checkify(lambda x: checked_root(Cell(), x))(f32(x))
    assert jnp.array_equal(out, expected, equal_nan=True)
    assert float(cell.n[...]) == 1.0
    assert (found.get() is None) == (theirs.get() is None) == (error is None)
    if error:
        with pytest.raises(checkify.JaxRuntimeError, match=error):
            found.throw()


def test_checkify_checks_what_it_is_asked_for():
    def f(x):
        return jnp.log(x)

    assert nnx.checkify(f)(f32(-1.0))[0].get() is None
    assert "nan" in nnx.checkify(f, checkify.float_checks)(f32(-1.0))[0].get()
    assert "nan" in nnx.checkify(f, errors=checkify.nan_checks)(f32(-1.0))[0].get()


def test_checkify_decorates_functions_and_methods():
    @nnx.checkify(errors=checkify.div_checks)
    def half(x, *, by):
        """Divide."""
        return x / by

    class Root(Cell):
        @nnx.checkify
        def root(self, x):
            return checked_root(self, x)

    assert (half.__name__, half.__doc__) == ("half", "Divide.")
    assert "division by zero" in half(f32(1.0), by=f32(0.0))[0].get()
    cell = Root()
    error, out = cell.root(f32(9.0))
    assert (error.get(), float(out), float(cell.n[...])) == (None, 3.0, 1.0)


def test_checkify_writes_captured_variables_and_gives_new_objects():
    cell = Cell()

    def f(x):
        cell.n[...] += x
        return Cell(x)

    error, made = nnx.checkify(f)(f32(5.0))
    assert error.get() is None
    assert float(cell.n[...]) == float(made.w[...]) == 5.0


# eval_shape


def abstract(shape=()):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda cell: nnx.eval_shape(Cell.__call__, cell, abstract((3,))),
        lambda cell: nnx.eval_shape(cell.__call__, abstract((3,))),
        lambda cell: nnx.eval_shape(cell, abstract((3,))),
        lambda cell: nnx.eval_shape(cell, x=jnp.ones(3)),
        lambda cell: nnx.eval_shape(lambda x: cell(x), abstract((3,))),
        lambda cell: nnx.eval_shape(functools.partial(Cell.__call__, cell), jnp.ones(3)),
    ],
    ids=["function", "method", "module", "keyword", "captured", "partial"],
)
def test_eval_shape_leaves_the_objects_of_the_caller_alone(call):
    cell = Cell()
    shape = call(cell)
    assert (shape.shape, shape.dtype) == ((3,), jnp.float32)
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}


def test_eval_shape_takes_objects_that_hold_shapes():
    def make():
        return Tied()

    shapes = nnx.eval_shape(make)
    assert isinstance(shapes.a[...], jax.ShapeDtypeStruct)
    again = nnx.eval_shape(lambda tied: (tied, tied.child(tied.a)), shapes)
    assert again[0].a is again[0].b
    assert again[0].child.parent is again[0]
    assert again[0] is not shapes
    assert again[1].shape == ()


def test_eval_shape_changes_no_attributes_of_arguments():
    def f(holder, x):
        holder.tag = "changed"
        holder.new = nnx.Param(x)
        return holder

    holder = Empty(tag="plain")
    out = nnx.eval_shape(f, holder, jnp.ones(2))
    assert vars(holder) == {"tag": "plain"}
    assert (out.tag, out.new.shape) == ("changed", (2,))


# make_jaxpr


def test_jaxpr_computes_the_function_of_the_leaves_of_the_arguments():
    net = Empty(items=[jnp.ones(2), nnx.Param(f32(3.0))], cell=Cell())

    def f(x, net, *, y):
        return x * net.items[0] + net.items[1][...] + net.cell.w[...] * y["b"], y["a"]

    args, y = (f32(5.0), net), {"a": jnp.zeros(3), "b": f32(7.0)}
    out = run(nnx.make_jaxpr(f)(*args, y=y), *args, y)
    expected = jax.tree.leaves(f(*args, y=y))
    assert all(map(jnp.array_equal, out, expected))


def test_jaxpr_gives_what_is_written_and_then_the_results():
    cell = Cell()
    jaxpr = nnx.make_jaxpr(Cell.loss)(cell, f32(5.0))
    assert [float(x) for x in run(jaxpr, cell, f32(5.0))] == [1.0, 10.0]
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}


def test_jaxpr_of_bound_and_captured_objects():
    cell = Cell()
    bound = nnx.make_jaxpr(cell.loss)(f32(5.0))
    assert [float(x) for x in run(bound, cell, f32(5.0))] == [1.0, 10.0]
    nnx.make_jaxpr(lambda x: cell.loss(x))(f32(5.0))
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}


def test_jaxpr_of_an_argument_that_is_captured_too():
    tied = Tied()

    def f(tree, x):
        tied.child.n[...] += x
        return tied.a[...] * tree["t"].b[...] * x

    jaxpr = nnx.make_jaxpr(f)({"t": tied}, f32(5.0))
    twice = jax.tree.map(lambda x: 2.0 * x, tied)
    assert [float(x) for x in run(jaxpr, twice, f32(5.0))] == [5.0, 180.0]


@pytest.mark.parametrize(
    "evaluate",
    [nnx.eval_shape, lambda f, x: nnx.make_jaxpr(f, return_shape=True)(x)[1]],
    ids=["eval_shape", "make_jaxpr"],
)
def test_captured_objects_stay_as_they_are(evaluate):
    holder = Empty(tag="plain", cell=Cell())

    def f(x):
        holder.tag = "changed"
        holder.new = nnx.Param(x)
        holder.cell.n[...] += 1.0
        holder.cell.w.set_metadata(note=1)
        return holder, holder.new

    out, new = evaluate(f, f32(1.0))
    assert list(vars(holder)) == ["tag", "cell"]
    assert holder.tag == "plain"
    assert not holder.cell.w.has_metadata("note")
    assert values(holder.cell) == {("w",): 2.0, ("n",): 0.0}
    assert (out.tag, out.new is new) == ("changed", True)
    assert isinstance(out.cell.n[...], jax.ShapeDtypeStruct)


def test_objects_that_cannot_be_found_beforehand_are_not_changed():
    found = []

    def f(x):
        found[0]().tag = "changed"

    holder = Empty(tag="plain")
    found.append(weakref.ref(holder))
    with pytest.raises(CapturedChangeError, match=r"inside nnx\.eval_shape"):
        nnx.eval_shape(f, 1.0)
    assert holder.tag == "plain"


def test_jaxpr_with_static_arguments_axes_and_shapes():
    def f(x, mode):
        made = Cell(jax.lax.psum(x, "batch"))
        return (made, x) if mode == "both" else made

    f, runs = traced(f)
    make = nnx.make_jaxpr(f, static_argnums=1, axis_env=[("batch", 4)], return_shape=True)
    jaxpr, (made, x) = make(jnp.ones(2), "both")
    assert "psum" in str(jaxpr)
    assert (type(made), made.w.shape, x.shape) == (Cell, (2,), (2,))
    assert len(runs) == 1


def test_shapes_of_a_jaxpr_hold_arguments_in_copies():
    cell = Cell()

    def f(cell, x):
        cell.w[...] *= 2.0
        return cell, {"same": cell}

    _, (out, tree) = nnx.make_jaxpr(f, return_shape=True)(cell, f32(1.0))
    assert out is tree["same"]
    assert out is not cell
    assert isinstance(out.w[...], jax.ShapeDtypeStruct)
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}


def test_jaxpr_of_abstract_objects():
    shapes = nnx.eval_shape(Cell)
    jaxpr = nnx.make_jaxpr(Cell.loss)(shapes, abstract((3,)))
    assert [float(x) for x in run(jaxpr, f32(2.0), f32(0.0), jnp.ones(3))] == [1.0, 6.0]
