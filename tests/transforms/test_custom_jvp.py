"""custom_jvp: forward rules over objects, side effects, captures, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import (
    GraphChangeError,
    HiddenGradientError,
    MissingRuleError,
    ResultError,
    TangentError,
)
from tests.transforms.subjects import Cell, Empty, f32, traced, values

XS = jnp.arange(1.0, 4.0)


def ruled(fun, rule, **options):
    """A function with a forward rule."""
    f = nnx.custom_jvp(fun, **options)
    assert f.defjvp(rule) is rule
    return f


def times(cell, x):
    return cell.w[...] * x


def scaled(factor=10.0, fun=times):
    """`times` with a rule that multiplies the derivatives by a factor."""

    def rule(primals, tangents):
        (cell, x), (by_cell, by_x) = primals, tangents
        out = fun(cell, x)
        return out, factor * (by_cell["w"][...] * x + cell.w[...] * by_x)

    return ruled(fun, rule)


def test_equals_jax_over_arrays():
    def fun(x, tree):
        return {"y": jnp.sin(x) * tree["a"], "z": tree["a"] ** 2}

    def rule(primals, tangents):
        (x, tree), (dx, dtree) = primals, tangents
        return fun(x, tree), {"y": 3.0 * dx * tree["a"], "z": dtree["a"] + dx.sum()}

    ours, theirs = nnx.custom_jvp(fun), jax.custom_jvp(fun)
    ours.defjvp(rule)
    theirs.defjvp(rule)
    args, along = (XS, {"a": f32(2.0)}), (XS * 0.5, {"a": f32(-1.0)})
    pairs = [(jax.jvp(f, args, along), f(*args)) for f in (ours, theirs)]
    assert jax.tree.all(jax.tree.map(jnp.allclose, *pairs))

    def loss(f, x, tree):
        out = f(x, tree)
        return out["y"].sum() * out["z"]

    for argnums in (0, 1):
        found, expected = (jax.grad(functools.partial(loss, f), argnums)(*args) for f in (ours, theirs))
        assert jax.tree.all(jax.tree.map(jnp.allclose, found, expected))


def test_tangents_of_objects_arrive_as_states_in_both_modes():
    f = scaled()
    cell = Cell(2.0)
    out, tangent = nnx.jvp(f, (cell, f32(3.0)), ({"w": f32(1.0)}, f32(0.5)))
    assert (float(out), float(tangent)) == (6.0, 40.0)
    grads = nnx.grad(f, argnums=(0, 1))(cell, f32(3.0))
    assert (values(grads[0]), float(grads[1])) == ({("w",): 30.0}, 20.0)


def test_tangent_of_an_object_has_all_its_paths():
    seen = []

    def rule(primals, tangents):
        seen.append({path: type(v) for path, v in nnx.to_flat_state(tangents[0])})
        return primals[0].inner[0].w[...], tangents[0]["inner"][0]["n"][...]

    f = ruled(lambda holder: holder.inner[0].w[...], rule)
    by = nnx.DiffState(0, nnx.Not(nnx.Param))
    grads = nnx.grad(f, argnums=by)(Empty(inner=[Cell()]))
    assert values(grads) == {("inner", 0, "n"): 1.0}
    assert seen[0] == {("inner", 0, "w"): nnx.Param, ("inner", 0, "n"): nnx.Variable}


@pytest.mark.parametrize("form", ["dict", "state", "object"])
def test_tangent_of_an_object_in_the_result(form):
    forms = {"dict": lambda t: {"w": t}, "state": lambda t: nnx.State({"w": nnx.Param(t)}), "object": Cell}

    def fun(x):
        return {"cell": Cell(x, 1.0), "y": [x]}

    f = ruled(fun, lambda p, t: (fun(*p), {"cell": forms[form](7.0 * t[0]), "y": None}))

    def loss(x):
        out = f(x)
        return out["cell"].w[...] + out["y"][0]

    assert float(nnx.grad(loss)(f32(1.0))) == 7.0


def test_argument_in_the_result_has_a_tangent_where_it_was_written():
    def fun(cell, x):
        cell.w[...] = cell.w[...] * x
        return cell

    f = ruled(fun, lambda p, t: (fun(*p), {"w": t[1] * 10.0}))
    cell = Cell(2.0)
    assert f(cell, f32(3.0)) is cell
    assert float(nnx.grad(lambda x: f(Cell(2.0), x).w[...] * 4.0)(f32(3.0))) == 40.0


def test_writes_of_the_function_and_of_the_rule_reach_the_caller_once():
    def fun(cell, x):
        cell.n[...] += 1.0
        return times(cell, x)

    def rule(primals, tangents):
        cell, x = primals
        seen[...] = x
        return times(cell, x), tangents[1]

    seen, cell = nnx.Variable(f32(0.0)), Cell()
    f = ruled(fun, rule)
    f(cell, f32(3.0))
    assert (float(cell.n[...]), float(seen[...])) == (1.0, 0.0)
    nnx.grad(f, argnums=1)(cell, f32(3.0))
    assert (float(cell.n[...]), float(seen[...])) == (1.0, 3.0)


def test_defjvps_as_in_jax():
    def fun(x, y, n):
        return x * y

    def by_x(t, out, x, y, n):
        return 2.0 * t * y

    def by_y(t, out, x, y, n):
        return t * out

    ours, theirs = nnx.custom_jvp(fun), jax.custom_jvp(fun)
    for f in (ours, theirs):
        f.defjvps(by_x, by_y, None)
    args, along = (f32(2.0), f32(3.0), f32(1.0)), (f32(1.0), f32(0.5), f32(9.0))
    assert jax.jvp(ours, args, along) == jax.jvp(theirs, args, along) == (6.0, 9.0)
    assert jax.grad(ours, (0, 1, 2))(*args) == jax.grad(theirs, (0, 1, 2))(*args)


def test_defjvps_over_objects_and_none():
    def fun(cell, x):
        cell.n[...] += 1.0
        return Cell(cell.w[...] * x)

    f = nnx.custom_jvp(fun)
    f.defjvps(lambda t, out, cell, x: {"w": t["w"][...] * out.w[...]}, lambda t, out, cell, x: {"w": t})
    cell = Cell(2.0)
    grads = nnx.grad(lambda cell, x: f(cell, x).w[...], argnums=(0, 1))(cell, f32(3.0))
    assert (values(grads[0]), float(grads[1])) == ({("w",): 6.0}, 1.0)
    assert float(cell.n[...]) == 1.0
    f.defjvps(None, None)
    assert float(nnx.grad(lambda x: f(cell, x).w[...])(f32(3.0))) == 0.0


def test_nondiff_arguments_methods_and_keywords():
    class Model(Cell):
        @nnx.custom_jvp(nondiff_argnums=(1,))
        def act(self, f, x, k=1.0):
            return f(x) * self.w[...] * k

        @act.defjvp
        def rule(f, primals, tangents):
            self, x, k = primals
            return f(x) * self.w[...] * k, 10.0 * tangents[1] * f(x) * self.w[...]

    model = Model(2.0)
    slope = nnx.grad(lambda model, x: model.act(jnp.cos, k=3.0, x=x), argnums=1)
    np.testing.assert_allclose(slope(model, f32(0.5)), 20.0 * np.cos(0.5), rtol=1e-6)
    np.testing.assert_allclose(model.act(jnp.cos, f32(0.5)), 2.0 * np.cos(0.5), rtol=1e-6)
    assert model.act.__name__ == "act"


def test_integers_and_their_float0():
    def rule(primals, tangents):
        (x, n), (dx, dn) = primals, tangents
        assert dn.dtype == jax.dtypes.float0
        return (x * n, n), (10.0 * dx * n, None)

    f = ruled(lambda x, n: (x * n, n), rule)
    assert float(nnx.grad(lambda x: f(x, jnp.asarray(3))[0])(f32(1.0))) == 30.0
    assert float(jax.jit(jax.grad(lambda x: f(x, 3)[0]))(f32(1.0))) == 30.0


@pytest.mark.parametrize("transform", [nnx.jit, nnx.remat], ids=["jit", "remat"])
def test_inside_other_transforms(transform):
    def fun(cell, x):
        cell.n[...] += 1.0
        return times(cell, x)

    cell = Cell(2.0)
    assert values(nnx.grad(transform(scaled(fun=fun)))(cell, f32(3.0))) == {("w",): 30.0}
    assert float(cell.n[...]) == 1.0


def test_inside_loops_lanes_and_raw_jax():
    f = scaled()
    cell = Cell(2.0)
    grads = nnx.grad(lambda cell, x: nnx.fori_loop(0, 2, lambda i, x: f(cell, x), x))(cell, f32(3.0))
    assert values(grads) == {("w",): 660.0}
    lanes = nnx.vmap(nnx.grad(f, argnums=1), in_axes=(None, 0))(cell, XS)
    assert lanes.tolist() == [20.0] * 3
    assert float(jax.jit(jax.grad(lambda x: f(cell, x)))(f32(3.0))) == 20.0


def test_rule_may_call_the_function_and_second_derivatives_go_by_it():
    @nnx.custom_jvp
    def relu(x):
        return jnp.maximum(x, 0.0)

    relu.defjvp(lambda primals, tangents: (relu(*primals), 2.0 * tangents[0] * primals[0]))
    assert float(nnx.grad(relu)(f32(3.0))) == 6.0
    assert float(nnx.grad(nnx.grad(relu))(f32(3.0))) == 2.0
    assert float(nnx.grad(lambda x: jax.jvp(relu, (x,), (f32(0.0),))[0])(f32(3.0))) == 6.0


def test_function_and_rule_are_traced_once_a_call():
    fun, runs = traced(times)
    rule, rule_runs = traced(lambda primals, tangents: (times(*primals), tangents[1]))
    f = ruled(fun, rule)
    f(Cell(), f32(1.0))
    nnx.grad(f, argnums=1)(Cell(), f32(1.0))
    assert (len(runs), len(rule_runs)) == (2, 2)


def hidden():
    def loss(cell, x):
        return ruled(lambda x: times(cell, x), lambda p, t: (times(cell, *p), t[0]))(x)

    nnx.grad(loss)(Cell(), f32(1.0))


def with_tangent(tangent):
    return nnx.jvp(ruled(times, lambda p, t: (times(*p), tangent)), (Cell(), 1.0), (None, 1.0))


TABLE = {
    "captured": (
        hidden,
        HiddenGradientError,
        "nnx.custom_jvp: a derivative is asked for by what hidden.<locals>.loss.<locals>.<lambda> captures",
    ),
    "no rule": (
        lambda: nnx.custom_jvp(times)(Cell(), 1.0),
        MissingRuleError,
        "nnx.custom_jvp: times is called and has no rule. Expected the rule before the first call. Write "
        "`times.defjvp(rule)`.",
    ),
    "no pair": (
        lambda: ruled(times, lambda p, t: t[1])(Cell(), 1.0),
        ResultError,
        "nnx.custom_jvp: the rule returned float32[]. Expected a pair `(out, tangent_out)`.",
    ),
    "other type": (
        lambda: ruled(times, lambda p, t: (XS, t[1]))(Cell(), 1.0),
        GraphChangeError,
        "the function and its rule differ:\n  - the function returns float32[] where the rule returns",
    ),
    "tangent": (
        lambda: with_tangent(XS),
        TangentError,
        "nnx.custom_jvp: the tangents that the rule returned do not fit:\n  - result is float32[], found "
        "float32[3]\n",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_misuse_is_explained(name):
    call, error, text = TABLE[name]
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
