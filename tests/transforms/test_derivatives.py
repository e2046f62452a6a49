"""vjp, jvp, linearize: what is differentiated by, what users may write, what comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import ReduceAxesError, ResultError, TangentError
from tests.transforms.subjects import Cell, Empty, Tied, f32, values

XS = jnp.arange(1.0, 4.0)
FLOAT0 = jax.dtypes.float0


def close(a, b):
    """Whether two pytrees have one structure and close leaves."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return jax.tree.all(jax.tree.map(lambda x, y: jnp.allclose(x, y, rtol=1e-5), a, b))


def model_and_input():
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(4, 2, rngs=nnx.Rngs(1)))
    return model, jax.random.normal(jax.random.key(2), (5, 3))


def arrays(x, tree):
    return {"sin": jnp.sin(x) * tree["a"], "sum": [tree["b"][0] ** 2 * x.sum()]}


ARRAYS = (XS, {"a": f32(2.0), "b": [f32(1.5)]})
ALONG = (XS * 0.1, {"a": f32(1.0), "b": [f32(-1.0)]})


def test_vjp_equals_jax_over_arrays():
    out, vjp_fn = nnx.vjp(arrays, *ARRAYS)
    expected, their_fn = jax.vjp(arrays, *ARRAYS)
    assert close(out, expected)
    cotangent = jax.tree.map(lambda x: x * 0.5, expected)
    assert close(vjp_fn(cotangent), their_fn(cotangent))


def test_jvp_equals_jax_over_arrays():
    assert close(nnx.jvp(arrays, ARRAYS, ALONG), jax.jvp(arrays, ARRAYS, ALONG))
    assert close(nnx.jvp(arrays, list(ARRAYS), list(ALONG)), jax.jvp(arrays, ARRAYS, ALONG))


def test_linearize_equals_jax_over_arrays():
    out, f_jvp = nnx.linearize(arrays, *ARRAYS)
    expected, their_fn = jax.linearize(arrays, *ARRAYS)
    assert close(out, expected)
    assert close(f_jvp(*ALONG), their_fn(*ALONG))


def test_vjp_of_a_model_equals_jax_on_split_state():
    model, x = model_and_input()
    graphdef, params = nnx.split(model)
    y, vjp_fn = nnx.vjp(lambda m, x: m(x), model, x)
    expected, their_fn = jax.vjp(lambda p, x: nnx.merge(graphdef, p)(x), params, x)
    assert close(y, expected)
    ours, theirs = vjp_fn(jnp.cos(y)), their_fn(jnp.cos(y))
    assert type(ours[0]) is nnx.State
    assert close(ours, theirs)


@pytest.mark.parametrize("form", ["state", "nested dict", "pure dict", "object", "flat state"])
def test_tangent_of_an_object_in_each_form_equals_jax_on_split_state(form):
    model, x = model_and_input()
    graphdef, params = nnx.split(model)
    along = jax.tree.map(jnp.cos, params)
    forms = {
        "state": along,
        "nested dict": dict(along),
        "pure dict": nnx.to_pure_dict(along),
        "object": nnx.merge(graphdef, along),
        "flat state": nnx.to_flat_state(along),
    }
    dx = jnp.sin(x)
    ours = nnx.jvp(lambda m, x: m(x), (model, x), (forms[form], dx))
    theirs = jax.jvp(lambda p, x: nnx.merge(graphdef, p)(x), (params, x), (along, dx))
    assert close(ours, theirs)
    _, f_jvp = nnx.linearize(lambda m, x: m(x), model, x)
    assert close(f_jvp(forms[form], dx), theirs[1])


def test_missing_paths_and_none_are_zero():
    def f(pair, x):
        return pair[0].w[...] * pair[1].w[...] * x

    pair = [Cell(2.0), Cell(3.0)]
    assert float(nnx.jvp(f, (pair, f32(5.0)), ([{"w": f32(1.0)}, {}], None))[1]) == 15.0
    assert float(nnx.jvp(f, (pair, f32(5.0)), (None, f32(1.0)))[1]) == 6.0
    assert float(nnx.linearize(f, pair, f32(5.0))[1]([None, {"w": 1.0}], 0.0)) == 10.0


def test_shared_parameter_has_one_cotangent_and_takes_a_tangent_at_any_path():
    def f(tied):
        return tied.a[...] * tied.b[...]

    (cotangent,) = nnx.vjp(f, Tied())[1](f32(1.0))
    assert values(cotangent) == {("a",): 6.0, ("child", "w"): 0.0}
    for name in ("a", "b"):
        assert float(nnx.jvp(f, (Tied(),), ({name: f32(1.0)},))[1]) == 6.0
    with pytest.raises(TangentError, match=r"tied\.b is a shared Variable and is given twice"):
        nnx.jvp(f, (Tied(),), ({"a": f32(1.0), "b": f32(1.0)},))


def test_variables_that_are_no_parameters_are_not_differentiated_by():
    def f(cell):
        return cell.w[...] * cell.n[...]

    assert values(nnx.vjp(f, Cell(2.0, 3.0))[1](f32(1.0))[0]) == {("w",): 3.0}
    assert float(nnx.jvp(f, (Cell(2.0, 3.0),), (Cell(1.0, 7.0),))[1]) == 3.0


def test_integers_have_float0_as_in_jax():
    def f(x, n):
        return x * n["count"]

    primals = (XS, {"count": jnp.asarray(3)})
    ours, theirs = nnx.vjp(f, *primals)[1](XS), jax.vjp(f, *primals)[1](XS)
    assert close(ours[0], theirs[0])
    assert ours[1]["count"].dtype == theirs[1]["count"].dtype == FLOAT0
    along = (XS, {"count": np.zeros((), FLOAT0)})
    assert close(nnx.jvp(f, primals, along), jax.jvp(f, primals, along))
    assert close(nnx.jvp(f, primals, (XS, None)), jax.jvp(f, primals, along))


def test_keys_have_float0_as_in_jax():
    def f(key, x):
        return x * jax.random.normal(key, (3,))

    primals = (jax.random.key(0), XS)
    ours, theirs = nnx.vjp(f, *primals)[1](XS), jax.vjp(f, *primals)[1](XS)
    assert ours[0].dtype == theirs[0].dtype == FLOAT0
    assert close(ours[1], theirs[1])


def test_variables_in_the_result_count_as_their_values():
    out, vjp_fn = nnx.vjp(lambda cell, x: {"w": cell.w, "y": [cell.w * x]}, Cell(2.0), f32(3.0))
    assert out == {"w": 2.0, "y": [6.0]}
    assert values(vjp_fn({"w": f32(1.0), "y": None})[0]) == {("w",): 1.0}
    assert values(vjp_fn({"y": [nnx.Param(f32(1.0))], "w": f32(0.0)})[0]) == {("w",): 3.0}


def test_variable_of_a_pytree():
    holder = Empty(p=nnx.Param({"a": f32(2.0), "b": f32(3.0)}))

    def f(holder):
        return holder.p["a"] * holder.p["b"]

    (by_holder,) = nnx.vjp(f, holder)[1](f32(1.0))
    assert by_holder["p"].get_value() == {"a": 3.0, "b": 2.0}
    for along in ({"p": {"a": f32(1.0), "b": f32(0.0)}}, nnx.State({"p": {"a": f32(1.0), "b": f32(0.0)}})):
        assert float(nnx.jvp(f, (holder,), (along,))[1]) == 3.0


@pytest.mark.parametrize("transform", ["vjp", "jvp", "linearize"])
def test_what_is_written_reaches_the_caller_once_and_objects_come_out_in_aux(transform):
    def f(cell, x):
        cell.n[...] += 1.0
        cell.seen = x
        return cell.w[...] * x, {"cell": cell, "new": Cell(x, 7.0)}

    cell, x = Cell(), f32(3.0)
    if transform == "jvp":
        out, derivative, aux = nnx.jvp(f, (cell, x), ({}, f32(1.0)), has_aux=True)
    else:
        out, derivative, aux = getattr(nnx, transform)(f, cell, x, has_aux=True)
        derivative = derivative(f32(1.0))[1] if transform == "vjp" else derivative({}, f32(1.0))
    assert (float(out), float(derivative)) == (6.0, 2.0)
    assert float(cell.n[...]) == 1.0
    assert float(cell.seen) == 3.0
    assert aux["cell"] is cell
    assert values(aux["new"]) == {("w",): 3.0, ("n",): 7.0}


def test_derivatives_may_be_asked_for_more_than_once_and_write_nothing():
    cell = Cell()
    _, vjp_fn = nnx.vjp(Cell.loss, cell, XS)
    assert [float(vjp_fn(f32(c))[0]["w"][...]) for c in (1.0, 2.0)] == [6.0, 12.0]
    assert float(cell.n[...]) == 1.0


def test_ad5_keyword_arguments_are_lifted_and_not_differentiated_by():
    def f(cell, x, *, other, scale=1.0):
        other.n[...] += 1.0
        return cell.w[...] * x * other.w[...] * scale

    cell, other = Cell(2.0), Cell(3.0)
    out, vjp_fn = nnx.vjp(f)(cell, f32(5.0), other=other, scale=f32(2.0))
    assert float(out) == 60.0
    by_cell, by_x = vjp_fn(f32(1.0))
    assert (values(by_cell), float(by_x)) == ({("w",): 30.0}, 12.0)
    along = ((cell, f32(5.0)), (None, f32(1.0)))
    assert float(nnx.jvp(f)(*along, other=other)[1]) == 6.0
    assert float(nnx.linearize(f)(cell, f32(5.0), other=other)[1](None, f32(1.0))) == 6.0
    assert float(other.n[...]) == 3.0


def test_decorators_of_functions_and_methods():
    class Model(Cell):
        @nnx.vjp
        def pull(self, x):
            return self.loss(x)

        @nnx.jvp(has_aux=True)
        def push(self, x):
            return self.w[...] * x, self.n[...]

        @nnx.linearize
        def linear(self, x):
            return self(x)

    model = Model(2.0)
    _, vjp_fn = model.pull(f32(3.0))
    assert [jax.tree.leaves(c) for c in vjp_fn(f32(1.0))] == [[3.0], [2.0]]
    assert model.push((f32(3.0),), (f32(1.0),)) == (6.0, 2.0, 1.0)
    assert Model.push((model, f32(3.0)), ({"w": f32(1.0)}, None)) == (6.0, 3.0, 1.0)
    assert float(model.linear(f32(3.0))[1]({"w": f32(1.0)}, None)) == 3.0
    assert model.pull.__name__ == "pull"


def test_primals_count_without_what_is_bound():
    cell = Cell(2.0)
    assert [float(c) for c in nnx.vjp(cell.loss, f32(3.0))[1](f32(1.0))] == [2.0]
    assert float(nnx.jvp(cell, (f32(3.0),), (f32(1.0),))[1]) == 2.0
    assert float(cell.n[...]) == 2.0


def test_functions_that_come_back_are_pytrees_that_leave_jit():
    cell = Cell(2.0)
    _, vjp_fn = nnx.jit(lambda cell, x: nnx.vjp(Cell.loss, cell, x))(cell, XS)
    assert values(vjp_fn(f32(1.0))[0]) == {("w",): 6.0}
    _, f_jvp = nnx.jit(lambda cell, x: nnx.linearize(Cell.loss, cell, x))(cell, XS)
    assert float(jax.jit(lambda f, t: f({"w": t}, None))(f_jvp, f32(1.0))) == 6.0
    assert float(cell.n[...]) == 2.0


def test_derivatives_of_derivatives():
    def f(cell, x):
        return cell.w[...] ** 3 * x

    def slope(cell, x):
        return nnx.vjp(f, cell, x)[1](f32(1.0))[0]["w"][...]

    assert float(nnx.jvp(slope, (Cell(2.0), f32(5.0)), ({"w": f32(1.0)}, None))[1]) == 60.0
    assert values(nnx.grad(slope)(Cell(2.0), f32(5.0))) == {("w",): 60.0}


TABLE = [
    (
        lambda: nnx.vjp(lambda cell: [cell], Cell()),
        ResultError,
        "nnx.vjp: result[0] is a Cell. Expected arrays and Variables. Write has_aux=True to return `(out, "
        "aux)` with the rest in aux.",
    ),
    (
        lambda: nnx.linearize(lambda x: x, XS, has_aux=True),
        ResultError,
        "nnx.linearize: the function returned float32[3]. Expected a pair `(out, aux)`. Write `return out, "
        "aux`, or has_aux=False.",
    ),
    (
        lambda: nnx.jvp(lambda x: "word", (XS,), (XS,)),
        ResultError,
        "nnx.jvp: result is 'word'. Expected arrays and Variables. Write has_aux=True to return `(out, "
        "aux)` with the rest in aux.",
    ),
    (
        lambda: nnx.jvp(lambda a, b: b, (Cell(), [XS]), ({"v": 1.0, "n": 1.0, "w": XS}, [XS, XS])),
        TangentError,
        "nnx.jvp: tangents do not fit:\n  - a.v is not a path of the object\n  - a.n is not differentiated "
        "by\n  - a.w is float32[], found float32[3]\n  - b is a list with 1 entry, found a list with 2 "
        "entries\nExpected the structure, shapes and dtypes of what they belong to; for an object a State, a "
        "nested dict of paths, or such an object, in which paths may be missing. Write None for zero.",
    ),
    (
        lambda: nnx.vjp(lambda x: {"y": x}, XS)[1]({"y": XS.astype(jnp.float16)}),
        TangentError,
        "nnx.vjp: cotangents do not fit:\n  - result.y is float32[3], found float16[3]\n",
    ),
    (
        lambda: nnx.linearize(lambda x: x, XS)[1](),
        TangentError,
        "nnx.linearize: tangents do not fit:\n  - there are 0 for 1 primals\n",
    ),
    (
        lambda: nnx.jvp(lambda x: x, (XS,)),
        TangentError,
        "nnx.jvp: primals and tangents do not fit:\n  - found no tangents where a tuple of primals and one "
        "of tangents belong\n",
    ),
    (
        lambda: nnx.jvp(lambda x: x, XS, XS),
        TangentError,
        "  - found float32[3] and float32[3] where a tuple of primals and one of tangents belong\n",
    ),
    (
        lambda: nnx.vjp(lambda x: x, XS, reduce_axes=("batch",)),
        ReduceAxesError,
        "nnx.vjp: found reduce_axes=('batch',). Expected (), since JAX has no such option any more.",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), TABLE, ids=range(len(TABLE)))
def test_misuse_is_explained(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


def test_misuse_leaves_the_objects_as_they_were():
    cell = Cell()
    with pytest.raises(ResultError):
        nnx.vjp(lambda cell, x: (cell.loss(x), cell), cell, XS)
    with pytest.raises(TangentError):
        nnx.jvp(Cell.loss, (cell, XS), ({"other": f32(1.0)}, XS))
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}


def test_jvp_does_no_work_for_what_has_no_tangent():
    f = nnx.custom_vjp(lambda x: x)  # JAX has no forward mode for it
    f.defvjp(lambda x: (x, None), lambda residuals, g: (g,))
    cell = Cell(2.0)
    assert nnx.jvp(lambda cell, x: f(cell.w[...]) * x, (cell, f32(3.0)), (None, f32(1.0))) == (6.0, 2.0)
    assert nnx.jvp(lambda cell, x: f(cell.w[...]) * x, (cell, f32(3.0)), (None, None)) == (6.0, 0.0)


@pytest.mark.parametrize("name", ["nested", "tied", "layers"])
def test_forward_and_reverse_mode_are_adjoint(name):
    layers, x = model_and_input()
    subjects = {
        "nested": (Empty(a=[Cell(2.0), {"b": Cell(3.0)}]), lambda m: m.a[0].w[...] * m.a[1]["b"].w[...] ** 2),
        "tied": (Tied(), lambda m: m.a[...] * m.b[...] + m.child.w[...]),
        "layers": (layers, lambda m: m(x)),
    }
    model, f = subjects[name]
    out, vjp_fn = nnx.vjp(f, model)
    (shape,) = vjp_fn(jnp.ones_like(out))
    along = jax.tree.map(lambda w: jnp.cos(w + 1.0), shape)
    weights = jnp.sin(out + 2.0)
    forward = (nnx.jvp(f, (model,), (along,))[1] * weights).sum()
    (back,) = vjp_fn(weights)
    reverse = sum(jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), along, back)))
    np.testing.assert_allclose(forward, reverse, rtol=1e-5)
