"""custom_vjp: rules in JAX's signature over objects, side effects, captures, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import nnxgraph as nnx
from tests.transforms.subjects import Cell, Empty, Tied, f32, traced, values

XS = jnp.arange(1.0, 4.0)


def ruled(fun, fwd, bwd, **options):
    """A function with a reverse rule."""
    f = nnx.custom_vjp(fun, **options)
    f.defvjp(fwd, bwd)
    return f


def times(cell, x):
    return cell.w[...] * x


def scaled(factor=10.0, form=lambda g: {"w": g}):
    """`times` with a rule that multiplies the derivatives by a factor, and one form of the cotangent."""

    def bwd(residuals, g):
        cell, x = residuals
        return form(factor * g * x), factor * g * cell.w[...]

    return ruled(times, lambda cell, x: (times(cell, x), (cell, x)), bwd)


@pytest.mark.parametrize("lift", [lambda f: f, nnx.jit, lambda f: nnx.grad(lambda x: f(x).sum())])
def test_runs_under_shard_map(lift):
    square = ruled(lambda x: x * x, lambda x: (x * x, x), lambda x, g: (5.0 * g * x,))
    mesh = jax.make_mesh((1,), ("data",))
    specs = {"mesh": mesh, "in_specs": P("data"), "out_specs": P("data")}
    expected = lift(square)(XS)
    assert jnp.array_equal(lift(nnx.shard_map(square, **specs))(XS), expected)
    assert jnp.array_equal(nnx.shard_map(lift(square), **specs)(XS), expected)


def test_equals_jax_over_arrays():
    def fun(x, tree):
        return {"y": jnp.sin(x) * tree["a"], "z": tree["a"] ** 2}

    def fwd(x, tree):
        return fun(x, tree), (x, tree)

    def bwd(residuals, g):
        x, _ = residuals
        return 2 * g["y"] * jnp.cos(x), {"a": g["z"] + (g["y"] * x).sum()}

    theirs = jax.custom_vjp(fun)
    theirs.defvjp(fwd, bwd)
    ours = ruled(fun, fwd, bwd)
    args = (XS, {"a": f32(2.0)})
    assert jax.tree.all(jax.tree.map(jnp.allclose, ours(*args), theirs(*args)))

    def loss(f, x, tree):
        out = f(x, tree)
        return out["y"].sum() * out["z"]

    for argnums in (0, 1):
        found, expected = (jax.grad(functools.partial(loss, f), argnums)(*args) for f in (ours, theirs))
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        assert jax.tree.all(jax.tree.map(jnp.allclose, found, expected))


def test_ad1_rule_in_the_signature_of_jax_agrees_with_autodiff():
    def fun(m):
        return jnp.sin(m.x[...]) * m.y[...]

    def bwd(residuals, g):
        x, y = residuals
        return ({"x": g * jnp.cos(x) * y, "y": g * jnp.sin(x)},)

    model = Empty(x=nnx.Param(f32(0.5)), y=nnx.Param(f32(3.0)))
    f = ruled(fun, lambda m: (fun(m), (m.x[...], m.y[...])), bwd)
    ours, theirs = nnx.value_and_grad(f)(model), nnx.value_and_grad(fun)(model)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)


FORMS = {
    "pure dict": lambda g: {"w": g},
    "dict of Variables": lambda g: {"w": nnx.Param(g)},
    "state": lambda g: nnx.State({"w": nnx.Param(g)}),
    "object": lambda g: Cell(g, 7.0),
    "list form": lambda g: nnx.to_flat_state({"w": g}),
}


@pytest.mark.parametrize("form", FORMS)
def test_ad1_cotangent_of_an_object_in_each_form(form):
    f = scaled(form=FORMS[form])
    grads = nnx.grad(f, argnums=(0, 1))(Cell(2.0), f32(3.0))
    assert values(grads[0]) == {("w",): 30.0}
    assert float(grads[1]) == 20.0


def test_none_and_missing_paths_are_zero():
    for form in (lambda g: None, lambda g: {}, lambda g: {"w": None}):
        grads = nnx.grad(scaled(form=form), argnums=(0, 1))(Cell(2.0), f32(3.0))
        assert (values(grads[0]), float(grads[1])) == ({("w",): 0.0}, 20.0)


def test_cotangents_of_nested_objects_containers_and_variables_of_any_kind():
    def fun(parts, v):
        return parts[0].inner["c"].w[...] * parts[1] * v[...] * parts[0].inner["c"].n[...]

    def bwd(r, g):
        return [{"inner": {"c": {"w": 2.0 * g, "n": 3.0 * g}}}, None], 5.0 * g

    f = ruled(fun, lambda parts, v: (fun(parts, v), None), bwd)
    args = ([Empty(inner={"c": Cell(2.0, 4.0)}), f32(3.0)], nnx.BatchStat(f32(1.0)))
    by = (nnx.DiffState(0, ...), 1)
    grads = nnx.grad(f, argnums=by)(*args)
    assert values(grads[0][0]) == {("inner", "c", "w"): 2.0, ("inner", "c", "n"): 3.0}
    assert (float(grads[0][1]), float(grads[1][...])) == (0.0, 5.0)


def test_residuals_may_hold_objects_with_sharing():
    def fwd(tied):
        return tied.a[...] * tied.b[...], {"tied": [tied, tied.child], "new": Cell(7.0)}

    def bwd(residuals, g):
        tied, child = residuals["tied"]
        assert tied.a is tied.b
        assert tied.child is child
        assert child.parent is tied
        return ({"b": g * tied.a[...] * residuals["new"].w[...]},)

    f = ruled(lambda tied: tied.a[...] * tied.b[...], fwd, bwd)
    assert values(nnx.grad(f)(Tied())) == {("a",): 21.0, ("child", "w"): 0.0}


def test_cotangent_has_the_structure_of_the_result():
    seen = []

    def fun(x):
        return {"cell": Cell(x, 2.0 * x), "y": (x, None)}

    def bwd(residuals, g):
        seen.append(g)
        return (g["cell"]["w"][...] + 10.0 * g["cell"]["n"][...] + 100.0 * g["y"][0],)

    f = ruled(fun, lambda x: (fun(x), None), bwd)

    def loss(x):
        out = f(x)
        return out["cell"].w[...] + 2.0 * out["cell"].n[...] + 3.0 * out["y"][0]

    assert float(nnx.grad(loss)(f32(1.0))) == 321.0
    assert type(seen[0]["cell"]) is nnx.State
    assert type(seen[0]["cell"]["w"]) is nnx.Param
    assert seen[0]["y"][1] is None


def test_argument_in_the_result_is_itself_and_has_a_cotangent_where_it_was_written():
    def fun(cell, x):
        cell.w[...] = cell.w[...] * x
        return cell

    def bwd(residuals, g):
        assert list(g) == ["w"]
        return {"w": 10.0 * g["w"][...]}, None

    f = ruled(fun, lambda cell, x: (fun(cell, x), None), bwd)
    cell = Cell(2.0)
    assert f(cell, f32(3.0)) is cell
    assert float(cell.w[...]) == 6.0

    def loss(cell, x):
        return f(cell, x).w[...] * 4.0

    assert values(nnx.grad(loss)(Cell(2.0), f32(3.0))) == {("w",): 40.0}


@pytest.mark.parametrize("differentiated", [False, True])
def test_ad7_statistics_that_only_fwd_records(differentiated):
    class Quantised(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(f32(2.0))
            self.stats = nnx.BatchStat(f32(0.0))

        @nnx.custom_vjp
        def __call__(self, x):
            return jnp.round(self.w[...] * x)

        def forward(self, x):
            self.stats[...] = jnp.max(x)
            return jnp.round(self.w[...] * x), (self, x)

        def backward(residuals, g):
            self, x = residuals
            return {"w": (g * x).sum()}, g * self.w[...]

        __call__.defvjp(forward, backward)

    model = Quantised()
    stats = model.stats
    if differentiated:
        grads = nnx.grad(lambda m, x: m(x).sum())(model, XS * 0.3)
        np.testing.assert_allclose(grads["w"][...], 1.8, rtol=1e-6)
    else:
        assert model(XS * 0.3).tolist() == [1.0, 1.0, 2.0]
    assert model.stats is stats
    np.testing.assert_allclose(model.stats[...], 0.9 if differentiated else 0.0, rtol=1e-6)


def test_function_and_fwd_may_write_different_variables():
    def fun(cell, x):
        cell.n[...] += 1.0
        return times(cell, x)

    def fwd(cell, x):
        seen[...] = x
        return times(cell, x), (cell, x)

    seen, cell = nnx.Variable(f32(0.0)), Cell()
    f = ruled(fun, fwd, lambda r, g: ({"w": g * r[1]}, None))
    f(cell, f32(3.0))
    assert (float(cell.n[...]), float(seen[...])) == (1.0, 0.0)
    nnx.grad(f)(cell, f32(3.0))
    assert (float(cell.n[...]), float(seen[...])) == (1.0, 3.0)


def test_what_is_written_carries_no_derivative():
    def fun(cell, x):
        cell.n[...] = x
        return x

    f = ruled(fun, lambda cell, x: (fun(cell, x), None), lambda r, g: (None, g))

    def loss(cell, x):
        return f(cell, x) + cell.n[...] * 100.0

    cell = Cell()
    assert float(nnx.grad(loss, argnums=1)(cell, f32(3.0))) == 1.0
    assert float(cell.n[...]) == 3.0


def test_structure_changes_and_new_objects_come_out():
    def fun(holder, x):
        holder.new = nnx.Param(x)
        holder.tag = "changed"
        return Cell(x, 1.0)

    def loss(holder, x):
        made = f(holder, x)
        return made.w[...], made

    f = ruled(fun, lambda holder, x: (fun(holder, x), None), lambda r, g: (None, g["w"][...] * 7.0))
    holder = Empty(tag="plain")
    slope, made = nnx.grad(loss, argnums=1, has_aux=True)(holder, f32(4.0))
    assert (float(slope), holder.tag, float(holder.new[...])) == (7.0, "changed", 4.0)
    assert values(made) == {("w",): 4.0, ("n",): 1.0}


def test_nondiff_arguments_as_in_jax():
    def fun(act, cell, n, x):
        return act(x) * n * cell.w[...]

    def fwd(act, cell, n, x):
        return fun(act, cell, n, x), x

    def bwd(act, n, x, g):
        assert type(n) is int
        return {"w": g * n}, g * act(x) * 100.0

    f = ruled(fun, fwd, bwd, nondiff_argnums=(0, 2))
    named = ruled(fun, fwd, bwd, nondiff_argnames=("act", "n"))
    for transform in (lambda f: f, nnx.jit, nnx.remat):
        loss = transform(lambda cell, x: f(jnp.sin, cell, 3, x) + named(jnp.sin, cell, n=3, x=x))
        grads = nnx.grad(loss, argnums=(0, 1))(Cell(2.0), f32(0.5))
        assert values(grads[0]) == {("w",): 6.0}
        np.testing.assert_allclose(grads[1], 200.0 * np.sin(0.5), rtol=1e-6)


def test_object_in_nondiff_arguments_is_written_and_reaches_bwd():
    def fun(cell, x):
        cell.n[...] += 1.0
        return times(cell, x)

    f = ruled(
        fun,
        lambda cell, x: (fun(cell, x), None),
        lambda cell, r, g: (g * cell.w[...] * cell.n[...],),
        nondiff_argnums=0,
    )
    cell = Cell(2.0, 4.0)
    assert float(nnx.grad(lambda x, cell: f(cell, x))(f32(3.0), cell)) == 10.0
    assert float(cell.n[...]) == 5.0


def test_keyword_arguments_and_defaults_are_resolved_to_positions():
    def fun(x, y, z=None, k=2.0):
        return x * y * k

    f = ruled(fun, lambda x, y, z, k: (x * y * k, None), lambda r, g: (g, 2 * g, None, 3 * g))
    assert [float(c) for c in jax.grad(lambda x, y: f(y=y, x=x), (0, 1))(1.0, 1.0)] == [1.0, 2.0]
    assert float(nnx.grad(lambda k: f(1.0, 1.0, k=k))(1.0)) == 3.0
    assert float(nnx.grad(f)(x=f32(1.0), y=f32(1.0))) == 1.0


def test_bound_function_and_rules():
    class Model(Cell):
        def fwd(self, x):
            self.n[...] += 1.0
            return self.w[...] * x, None

        def bwd(self, residuals, g):
            return (g * self.w[...] * self.n[...],)

    model = Model(2.0)
    f = ruled(model, model.fwd, model.bwd)
    assert float(nnx.grad(f)(f32(3.0))) == 2.0
    slope = nnx.grad(lambda model, x: ruled(model, model.fwd, model.bwd)(x), argnums=1)
    assert float(slope(model, f32(3.0))) == 4.0
    assert float(model.n[...]) == 2.0


NESTS = {
    "jit": (nnx.jit, 1.0),
    "remat": (nnx.remat, 1.0),
    "cond": (lambda f: lambda cell, x: nnx.cond(True, f, f, cell, x), 1.0),
    "fori_loop": (lambda f: lambda cell, x: nnx.fori_loop(0, 2, lambda i, x: f(cell, x), x) / 2.0, 2.0),
    "scan": (lambda f: lambda cell, x: nnx.scan(f, in_axes=(None, 0), out_axes=0)(cell, x[None]).sum(), 1.0),
    "vmap": (lambda f: lambda cell, x: nnx.vmap(f, in_axes=(None, 0))(cell, x[None]).sum(), 1.0),
}


@pytest.mark.parametrize("nest", NESTS)
def test_inside_other_transforms(nest):
    def fun(cell, x):
        cell.n[...] += 1.0
        return times(cell, x)

    def bwd(residuals, g):
        cell, x = residuals
        return {"w": 10.0 * g * x}, g * cell.w[...]

    transform, count = NESTS[nest]
    f = transform(ruled(fun, lambda cell, x: (fun(cell, x), (cell, x)), bwd))
    cell = Cell(2.0)
    expected = 60.0 if nest == "fori_loop" else 30.0
    assert values(nnx.grad(f)(cell, f32(3.0))) == {("w",): expected}
    assert float(cell.n[...]) == count


def test_under_raw_jax():
    f = scaled()
    graphdef, state = nnx.split(Cell(2.0))

    def loss(state, x):
        return f(nnx.merge(graphdef, state), x)

    for transform in (lambda f: f, jax.jit):
        assert values(jax.grad(transform(loss))(state, f32(3.0)))[("w",)] == 30.0
        assert values(transform(jax.grad(loss))(state, f32(3.0)))[("w",)] == 30.0
    lanes = jax.vmap(jax.grad(loss, 1), (None, 0))(state, XS)
    assert lanes.tolist() == [20.0] * 3


def test_second_derivatives_go_by_the_rule():
    @nnx.custom_vjp
    def cube(x):
        return x**3

    def bwd(x, g):
        return (g * 3.0 * square(x),)

    square = ruled(lambda x: x**2, lambda x: (x**2, x), lambda x, g: (g * 100.0,))
    cube.defvjp(lambda x: (cube(x), x), bwd)
    assert float(nnx.grad(cube)(f32(2.0))) == 12.0
    assert float(nnx.grad(nnx.grad(cube))(f32(2.0))) == 300.0


def test_fwd_may_call_the_function_and_is_differentiated_by_its_rule():
    def straight(f):
        f.defvjp(lambda x: (f(x), None), lambda residuals, g: (g,))
        return f

    def slope_of_forward(f):
        def forward(x):
            return jax.vjp(f, x)[0]

        return forward

    ours, theirs = (straight(t(lambda x: jnp.round(x))) for t in (nnx.custom_vjp, jax.custom_vjp))
    for transform in (jax.grad, lambda f: jax.grad(jax.grad(lambda x: f(x) * x**2)), jax.jit):
        found, expected = (transform(slope_of_forward(f))(f32(2.2)) for f in (ours, theirs))
        assert float(found) == float(expected)


def test_captured_variables_and_arrays_are_read():
    cell, table = Cell(2.0), jnp.asarray(5.0)

    def fun(x):
        cell.n[...] += 1.0
        return cell.w[...] * x * table

    f = ruled(fun, lambda x: (fun(x), cell.w[...]), lambda w, g: (g * w * table,))
    assert float(nnx.grad(f)(f32(3.0))) == 10.0
    assert float(nnx.jit(lambda cell, x: f(x))(cell, f32(3.0))) == 30.0

    @jax.jit
    def inner(table, x):
        g = ruled(lambda x: x * table, lambda x: (x * table, None), lambda r, g: (g * 7.0,))
        return jax.grad(lambda x: jax.jit(g)(x))(x)

    assert float(inner(table, f32(1.0))) == 7.0
    assert float(cell.n[...]) == 2.0


def test_function_and_fwd_are_traced_once_a_call():
    fun, runs = traced(times)
    fwd, rule_runs = traced(lambda cell, x: (times(cell, x), None))
    f = ruled(fun, fwd, lambda r, g: (None, g))
    f(Cell(), f32(1.0))
    nnx.grad(f, argnums=1)(Cell(), f32(1.0))
    assert (len(runs), len(rule_runs)) == (2, 2)


def test_decorated_with_options_keeps_name_and_doc():
    @nnx.custom_vjp(nondiff_argnums=(0,))
    def power(n: int, x: float) -> float:
        """The n-th power."""
        return x**n

    power.defvjp(lambda n, x: (x**n, x), lambda n, x, g: (g * 10.0,))
    assert (power.__name__, power.__doc__) == ("power", "The n-th power.")
    assert float(nnx.grad(lambda x: power(3, x))(f32(2.0))) == 10.0


def test_functions_with_equal_rules_are_equal_as_static_attributes():
    def model(slope):
        f = ruled(lambda x: x**2, lambda x: (x**2, x), lambda x, g: (slope * g,))
        return Empty(act=f)

    step, runs = traced(lambda model, x: nnx.grad(model.act)(x))
    step = nnx.jit(step)
    assert [float(step(model(slope), 3.0)) for slope in (2.0, 2.0, 5.0)] == [2.0, 2.0, 5.0]
    assert len(runs) == 2
