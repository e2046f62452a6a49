"""grad and value_and_grad: what is differentiated by, and what comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import (
    AliasError,
    ArgnumsError,
    LossError,
    NotDifferentiableError,
    ReduceAxesError,
    ResultError,
)
from tests.transforms.subjects import Cell, Empty, Tied, f32, values

XS = jnp.arange(1.0, 4.0)


def product(cell, x):
    return cell.w[...] * x


def test_equals_jax_over_arrays():
    def f(x, tree, k):
        return jnp.sin(x) * tree["a"] + tree["b"][0] ** 2 * k

    args = (f32(0.3), {"a": f32(2.0), "b": [f32(1.5)]}, f32(3.0))
    for argnums in (0, 1, -1, (0, 1), (2,), (1, 0, 2)):
        ours = nnx.value_and_grad(f, argnums=argnums)(*args)
        theirs = jax.value_and_grad(f, argnums=argnums)(*args)
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        assert jax.tree.all(jax.tree.map(jnp.allclose, ours, theirs))


def test_params_of_an_object_by_default():
    grads = nnx.grad(Cell.loss)(Cell(), f32(3.0))
    assert type(grads) is nnx.State
    assert values(grads) == {("w",): 3.0}
    assert type(grads["w"]) is nnx.Param


def test_all_leaves_of_bare_variables_and_arrays():
    v = nnx.Variable(f32(2.0))
    grads = nnx.grad(lambda d: d["v"][...] * d["x"])({"v": v, "x": f32(5.0)})
    assert (type(grads["v"]), float(grads["v"][...]), float(grads["x"])) == (nnx.Variable, 5.0, 2.0)


def test_containers_keep_their_shape():
    pair = (Cell(2.0), [Cell(3.0), f32(4.0)])
    grads = nnx.grad(lambda p: p[0].w[...] * p[1][0].w[...] * p[1][1])(pair)
    assert values(grads[0]) == {("w",): 12.0}
    assert values(grads[1][0]) == {("w",): 8.0}
    assert float(grads[1][1]) == 6.0


def test_several_arguments_in_the_order_asked_for():
    def f(cell, x, other):
        return cell.w[...] * x * other.w[...]

    gx, gcell = nnx.grad(f, argnums=(1, 0))(Cell(2.0), f32(5.0), Cell(3.0))
    assert float(gx) == 6.0
    assert values(gcell) == {("w",): 15.0}


def test_filter_chooses_the_leaves():
    def f(cell, x):
        return cell.w[...] * cell.n[...] * x

    by = nnx.DiffState(0, nnx.Variable)
    assert values(nnx.grad(f, argnums=by)(Cell(2.0, 3.0), f32(1.0))) == {("w",): 3.0, ("n",): 2.0}
    only_n = nnx.DiffState(0, nnx.PathContains("n"))
    grads, gx = nnx.grad(f, argnums=(only_n, 1))(Cell(2.0, 3.0), f32(5.0))
    assert values(grads) == {("n",): 10.0}
    assert float(gx) == 6.0
    assert values(nnx.grad(f, argnums=nnx.DiffState(0, nnx.BatchStat))(Cell(), f32(1.0))) == {}


def test_diff_state_is_a_value():
    one, same = nnx.DiffState(0, nnx.Param), nnx.DiffState(0, nnx.Param)
    assert one == same
    assert hash(one) == hash(same)
    assert one != nnx.DiffState(1, nnx.Param)
    assert one.map_prefix(("w",), nnx.Param(1.0)) is True
    assert repr(nnx.DiffState(1, "tag")) == "DiffState(1, 'tag')"


def test_shared_parameter_has_one_gradient_at_its_first_path():
    def f(model):
        return model.a[...] * model.b[...]

    assert values(nnx.grad(f)(Tied())) == {("a",): 6.0, ("child", "w"): 0.0}


def test_gradient_reaches_nested_objects_lists_and_raw_arrays():
    holder = Empty(layers=[Cell(2.0), {"x": Cell(3.0)}], table=f32(4.0))

    def f(holder):
        return holder.layers[0].w[...] * holder.layers[1]["x"].w[...] * holder.table

    assert values(nnx.grad(f)(holder)) == {("layers", 0, "w"): 12.0, ("layers", 1, "x", "w"): 8.0}
    everything = nnx.grad(f, argnums=nnx.DiffState(0, ...))(holder)
    assert float(everything["table"]) == 6.0


def test_value_aux_and_writes():
    cell = Cell()

    def f(cell, x):
        return cell.loss(x), {"seen": cell.n[...], "cell": cell}

    (value, aux), grads = nnx.value_and_grad(f, has_aux=True)(cell, f32(3.0))
    assert (float(value), float(aux["seen"])) == (6.0, 1.0)
    assert aux["cell"] is cell
    assert values(grads) == {("w",): 3.0}
    grads, aux = nnx.grad(f, has_aux=True)(cell, f32(3.0))
    assert float(aux["seen"]) == float(cell.n[...]) == 2.0


def test_write_happens_once_and_its_gradient_flows():
    def f(cell, x):
        cell.w[...] = cell.w[...] * x
        return cell.w[...] ** 2

    cell = Cell(2.0)
    grads = nnx.grad(f)(cell, f32(3.0))
    assert values(grads) == {("w",): 36.0}
    assert float(cell.w[...]) == 6.0


def test_keyword_arguments():
    assert values(nnx.grad(lambda *, m, x: product(m, x))(m=Cell(), x=f32(3.0))) == {("w",): 3.0}
    assert values(nnx.grad(product)(cell=Cell(), x=f32(3.0))) == {("w",): 3.0}
    assert float(nnx.grad(product, argnums=1)(Cell(), x=f32(3.0))) == 2.0
    assert values(nnx.grad(product)(Cell(), x=f32(3.0))) == {("w",): 3.0}


def test_argnums_of_a_method_count_without_self():
    cell = Cell()
    assert nnx.grad(cell.loss)(XS).tolist() == [2.0] * 3
    assert float(cell.n[...]) == 1.0


def test_decorated_method_takes_self_as_its_first_argument():
    class Model(Cell):
        @nnx.value_and_grad
        def step(self, x):
            return self.loss(x)

    model = Model()
    value, grads = model.step(XS)
    assert float(value) == 12.0
    assert values(grads) == {("w",): 6.0}
    assert float(model.n[...]) == 1.0


def test_object_that_is_bound_and_passed_is_one():
    class Model(Cell):
        def times(self, other):
            return self.w[...] * other.w[...]

    model = Model(3.0)
    assert values(nnx.grad(model.times)(model)) == {("w",): 6.0}
    assert values(nnx.grad(model.times)(Model(5.0))) == {("w",): 3.0}


def test_object_that_is_captured_and_passed_is_one():
    cell = Cell(3.0)

    def f(passed):
        cell.n[...] += 1.0
        passed.n[...] += 1.0
        return cell.w[...] * passed.w[...] * cell.n[...]

    assert values(nnx.grad(f)(cell)) == {("w",): 12.0}
    assert float(cell.n[...]) == 2.0


def test_captured_variable_is_read_and_written_but_not_differentiated():
    cell = Cell()

    def f(x):
        cell.n[...] += 1.0
        return cell.w[...] * x

    assert float(nnx.grad(f)(f32(3.0))) == 2.0
    assert float(cell.n[...]) == 1.0


def test_grad_of_grad():
    def f(cell, x):
        return cell.w[...] ** 3 * x

    def slope(cell, x):
        return nnx.grad(f)(cell, x)["w"][...]

    assert values(nnx.grad(slope)(Cell(2.0), f32(5.0))) == {("w",): 60.0}


def test_layers_agree_with_raw_jax():
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(4, 1, rngs=nnx.Rngs(1)))
    x = jax.random.normal(jax.random.key(2), (5, 3))
    graphdef, params = nnx.split(model)
    theirs = jax.grad(lambda p: (nnx.merge(graphdef, p)(x) ** 2).sum())(params)
    ours = nnx.grad(lambda m: (m(x) ** 2).sum())(model)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)


def test_perturbation_gets_the_gradient_of_an_intermediate():
    class Net(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(f32(2.0))
            self.h = nnx.Perturbation(f32(0.0))

        def __call__(self, x):
            return self.perturb("h", x * self.w[...]) ** 2

    by = nnx.DiffState(0, (nnx.Param, nnx.Perturbation))
    grads = nnx.grad(lambda net, x: net(x), argnums=by)(Net(), f32(3.0))
    assert values(grads) == {("w",): 36.0, ("h",): 12.0}


def test_holomorphic_and_integer_gradients_as_in_jax():
    z = jnp.asarray(1.0 + 2.0j)
    assert nnx.grad(lambda z: z * z, holomorphic=True)(z) == 2.0 * z
    g = nnx.grad(lambda n: n.astype(jnp.float32) * 2.0, allow_int=True)(jnp.asarray(3))
    assert g.dtype == jax.dtypes.float0


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: nnx.grad(lambda x: x)(XS),
            LossError,
            "nnx.grad: the function returned float32[3]. Expected a real scalar loss. Write `loss.mean()` or "
            "`loss.sum()`.",
        ),
        (
            lambda: nnx.grad(lambda x: (x, x))(1.0),
            LossError,
            "Expected a real scalar loss. Write has_aux=True to return `(loss, aux)`.",
        ),
        (
            lambda: nnx.value_and_grad(lambda x: x, has_aux=True)(1.0),
            LossError,
            "nnx.value_and_grad: the function returned float32[]. Expected a real scalar loss. Write `return "
            "loss, aux`, or has_aux=False.",
        ),
        (
            lambda: nnx.grad(lambda x: x.astype(jnp.int32))(f32(1.0)),
            LossError,
            "returned int32[]. Expected a real scalar loss. Write `loss.astype(jnp.float32)`, or "
            "holomorphic=True.",
        ),
        (
            lambda: nnx.grad(lambda cell: 1.0)(Empty(inner=[nnx.Param(jnp.ones(2, jnp.int32))])),
            NotDifferentiableError,
            "nnx.grad: cannot differentiate by leaves that are not floating point:\n  - cell.inner[0]: "
            "int32[2]\nExpected floats. Choose with argnums=nnx.DiffState(0, filter), or set allow_int=True.",
        ),
        (
            lambda: nnx.grad(lambda n: 1.0)(1),
            NotDifferentiableError,
            "nnx.grad: cannot differentiate by leaves that are not floating point:\n  - n: ",
        ),
        (
            lambda: nnx.grad(lambda a, b: a.w[...])(cell := Cell(), cell),
            AliasError,
            "nnx.grad: inconsistent aliasing: Param(float32[]) is one Variable, found at a.w with argnums "
            "'differentiated' and at b.w with 'not differentiated'.",
        ),
        (
            lambda: nnx.grad(lambda x: x, argnums=2)(1.0),
            ArgnumsError,
            "nnx.grad: found argnums=2 in a call with 1 positional arguments. Expected the position of an",
        ),
        (
            lambda: nnx.grad(lambda x: x, argnums="x")(1.0),
            ArgnumsError,
            "nnx.grad: found argnums='x' in a call with 1 positional arguments. Expected the position of an",
        ),
        (
            lambda: nnx.grad(lambda z: z.real, holomorphic=True)(1.0j),
            ResultError,
            "nnx.grad: the function returned float32[]. Expected a complex scalar with holomorphic=True.",
        ),
        (
            lambda: nnx.grad(lambda x: x, holomorphic=True)(1.0),
            NotDifferentiableError,
            "nnx.grad: cannot differentiate by leaves that are not complex:\n  - x: ",
        ),
        (
            lambda: nnx.grad(lambda x: x, reduce_axes=("batch",)),
            ReduceAxesError,
            "nnx.grad: found reduce_axes=('batch',). Expected (), since JAX has no such option any more.",
        ),
    ],
)
def test_misuse_is_explained(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
