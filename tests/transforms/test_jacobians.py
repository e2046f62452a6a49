"""jacfwd, jacrev, hessian: structures and numbers as in JAX, on split state."""

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import ArgnumsError, NotDifferentiableError, ResultError
from tests.transforms.subjects import Cell, Empty, Tied, f32, values

XS = jnp.arange(1.0, 4.0)
NAMES = ("jacfwd", "jacrev", "hessian")
each = pytest.mark.parametrize("name", NAMES)


def close(a, b):
    """Whether two pytrees have one structure and close leaves."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return jax.tree.all(jax.tree.map(lambda x, y: jnp.allclose(x, y, rtol=1e-5, atol=1e-6), a, b))


def plain(x):
    """A pytree in which States are dicts of arrays, whose order JAX knows."""
    if isinstance(x, nnx.State):
        return {k: plain(x[k]) for k in x}
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(map(plain, x))
    return x.get_value() if isinstance(x, nnx.Variable) else x


def arrays(x, tree, y):
    return {"p": jnp.sin(x) * tree["a"] * y, "q": [(tree["b"][0] ** 2 * x).sum()]}


@each
@pytest.mark.parametrize("argnums", [0, 1, -1, (0,), (1, 0), (2, 0, 1)], ids=str)
def test_equals_jax_over_arrays(name, argnums):
    args = (XS, {"a": f32(2.0), "b": [f32(1.5)]}, f32(3.0))
    ours = getattr(nnx, name)(arrays, argnums=argnums)(*args)
    assert close(ours, getattr(jax, name)(arrays, argnums=argnums)(*args))


@each
def test_of_a_model_equals_jax_on_split_state(name):
    model, x = nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jnp.array([0.5, -1.0])
    graphdef, params = nnx.split(model)

    def theirs(p, x):
        return {"y": jnp.tanh(nnx.merge(graphdef, nnx.State(p))(x)), "s": jnp.sum(x)}

    def ours(m, x):
        return {"y": jnp.tanh(m(x)), "s": jnp.sum(x)}

    for argnums in (0, (0, 1), (1, 0)):
        expected = getattr(jax, name)(theirs, argnums=argnums)(nnx.to_pure_dict(params), x)
        assert close(plain(getattr(nnx, name)(ours, argnums=argnums)(model, x)), expected)


def test_hessian_of_objects_is_nested_by_path_twice():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    h = nnx.hessian(lambda m, x: (m(x) ** 2).sum())(model, jnp.ones(2))
    assert type(h) is type(h["kernel"]) is nnx.State
    assert type(h["kernel"]["bias"]) is nnx.Param
    shapes = {"kernel": (2, 3), "bias": (3,)}
    assert {(a, b): h[a][b].shape for a in h for b in h[a]} == {
        (a, b): shapes[a] + shapes[b] for a in shapes for b in shapes
    }
    vector = nnx.hessian(lambda m, x: m(x) ** 2)(model, jnp.ones(2))
    assert vector["kernel"]["bias"].shape == (3, 2, 3, 3)


def test_hessian_of_nested_objects_and_a_variable_of_a_pytree():
    holder = Empty(inner=[Cell(2.0)], p=nnx.Param({"a": f32(3.0)}))

    def f(holder):
        return holder.inner[0].w[...] ** 2 * holder.p["a"] ** 2

    h = nnx.hessian(f)(holder)
    assert float(h["inner"][0]["w"]["inner"][0]["w"][...]) == 18.0
    assert float(h["inner"][0]["w"]["p"]["a"]) == 24.0
    assert float(h["p"]["a"]["p"]["a"]) == 8.0


@each
def test_diff_state_chooses_the_leaves(name):
    by = nnx.DiffState(0, nnx.Not(nnx.Param))
    out = getattr(nnx, name)(lambda cell, x: cell.w[...] * cell.n[...] ** 2 * x, argnums=by)(
        Cell(2.0, 3.0), XS
    )
    assert list(out) == ["n"]
    found = out["n"]["n"] if name == "hessian" else out["n"]
    assert found[...].tolist() == [{"hessian": 4.0}.get(name, 12.0) * x for x in (1.0, 2.0, 3.0)]


@each
def test_what_is_written_reaches_the_caller_once_and_objects_come_out_in_aux(name):
    def f(cell, x):
        cell.n[...] += x[0]
        cell.seen = cell.w[...] * 2.0
        return cell.w[...] ** 2 * x, {"cell": cell, "new": Cell(x, 7.0)}

    cell = Cell()
    out, aux = getattr(nnx, name)(f, has_aux=True)(cell, XS)
    assert (out["w"]["w"] if name == "hessian" else out["w"]).shape == (3,)
    assert float(cell.n[...]) == 1.0
    assert float(cell.seen) == 4.0
    assert aux["cell"] is cell
    assert values(aux["new"]) == {("w",): [1.0, 2.0, 3.0], ("n",): 7.0}


@each
def test_shared_parameter_is_one(name):
    out = getattr(nnx, name)(lambda tied: tied.a[...] * tied.b[...])(Tied())
    flat = nnx.to_flat_state(out["a"] if name == "hessian" else out)
    assert {path: float(v[...]) for path, v in flat} == {
        ("a",): 2.0 if name == "hessian" else 6.0,
        ("child", "w"): 0.0,
    }


@each
def test_ad5_keyword_arguments_bound_methods_and_decorators(name):
    transform = getattr(nnx, name)

    class Model(Cell):
        @transform(argnums=1)
        def slope(self, x, *, scale):
            self.n[...] += 1.0
            return self.w[...] * x**2 * scale

        def plain(self, x):
            self.n[...] += 1.0
            return self.w[...] * x**2 * 3.0

    model = Model(2.0)
    expected = 12.0 if name == "hessian" else 60.0
    assert float(model.slope(f32(5.0), scale=f32(3.0))) == expected
    assert float(transform(model.plain)(f32(5.0))) == expected
    assert float(transform(Model.plain, 1)(model, x=f32(5.0))) == expected
    assert float(model.n[...]) == 3.0
    assert model.slope.__name__ == "slope"


@each
def test_object_without_parameters_has_an_empty_derivative(name):
    out = getattr(nnx, name)(lambda cell, x: {"y": x * 2.0})(Empty(tag=1), XS)
    assert plain(out) == {"y": {}}


@each
def test_holomorphic_as_in_jax(name):
    z = jnp.asarray([1.0 + 2.0j, 0.5j])
    ours = getattr(nnx, name)(lambda z: z**3, holomorphic=True)(z)
    assert close(ours, getattr(jax, name)(lambda z: z**3, holomorphic=True)(z))


def test_integers_by_jacrev_as_in_jax():
    def f(n):
        return n.astype(jnp.float32) * XS

    ours = nnx.jacrev(f, allow_int=True)(jnp.asarray(3))
    theirs = jax.jacrev(f, allow_int=True)(jnp.asarray(3))
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


@each
def test_inside_jit_and_of_loops(name):
    def f(cell, x):
        return nnx.fori_loop(0, 3, lambda i, y: y * cell.w[...], x)

    compiled = nnx.jit(getattr(nnx, name)(f))(Cell(2.0), f32(5.0))
    found = compiled["w"]["w"] if name == "hessian" else compiled["w"]
    assert float(found[...]) == 60.0


LEAVES = "cannot differentiate by leaves that are not"
TABLE = [
    (
        lambda: nnx.jacfwd(lambda x: x)(Empty(w=nnx.Param(jnp.arange(2)))),
        NotDifferentiableError,
        f"nnx.jacfwd: {LEAVES} real floating point:\n  - x.w: int32[2]\nExpected floats. Choose with "
        "argnums=nnx.DiffState(0, filter), or use nnx.jvp.",
    ),
    (
        lambda: nnx.hessian(lambda x: x, holomorphic=True)(XS),
        NotDifferentiableError,
        f"nnx.hessian: {LEAVES} complex:\n  - x: float32[3]\nExpected complex numbers. Leave out "
        "holomorphic=True.",
    ),
    (
        lambda: nnx.jacrev(lambda n: n * 1.0)(3),
        NotDifferentiableError,
        "allow_int=True",
    ),
    (
        lambda: nnx.jacrev(lambda x: x.astype(jnp.int32))(XS),
        ResultError,
        "nnx.jacrev: the function returned int32[3]. Expected real floating point arrays. Convert them, or "
        "see holomorphic.",
    ),
    (
        lambda: nnx.jacfwd(lambda z: abs(z), holomorphic=True)(1.0j),
        ResultError,
        "nnx.jacfwd: the function returned float32[]. Expected complex arrays.",
    ),
    (
        lambda: nnx.jacfwd(lambda cell: cell)(Cell()),
        ResultError,
        "nnx.jacfwd: result is a Cell. Expected arrays and Variables.",
    ),
    (
        lambda: nnx.hessian(lambda x: x, argnums=(0, 1))(1.0),
        ArgnumsError,
        "nnx.hessian: found argnums=1 in a call with 1 positional arguments.",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), TABLE, ids=range(len(TABLE)))
def test_misuse_is_explained(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
