"""vmap: lanes of objects, shared Variables, names of axes, collectives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import AliasError, AxisSizeError, LaneWriteError, PrefixError
from tests.transforms.subjects import Cell, Empty, Tied, cells, f32, traced, values

XS = jnp.arange(3.0)


def test_equals_jax_over_arrays_and_nested_containers():
    def f(x, tree, pair):
        return x * tree["a"] + pair[0], {"sum": pair[1].sum()}

    args = (XS, {"a": XS + 1.0}, (f32(2.0), jnp.ones((3, 4))))
    axes = (0, {"a": 0}, (None, 0))
    ours = nnx.vmap(f, in_axes=axes)(*args)
    theirs = jax.vmap(f, in_axes=axes)(*args)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, ours, theirs))


@pytest.mark.parametrize(("axis", "out"), [(0, 0), (1, 1), (-1, 0), (0, -1), (-2, 2)])
def test_axes_may_stand_anywhere(axis, out):
    x = jnp.arange(24.0).reshape(2, 3, 4)
    ours = nnx.vmap(lambda a: a * 2.0, in_axes=axis, out_axes=out)(x)
    assert jnp.array_equal(ours, jax.vmap(lambda a: a * 2.0, in_axes=axis, out_axes=out)(x))


def test_makes_and_runs_a_stack_of_models():
    keys = jax.random.split(jax.random.key(0), 5)
    models = nnx.vmap(lambda key: nnx.Linear(2, 3, rngs=nnx.Rngs(key)))(keys)
    single = [nnx.Linear(2, 3, rngs=nnx.Rngs(key)) for key in keys]
    assert models.kernel.shape == (5, 2, 3)
    x = jnp.ones((1, 2))
    ys = nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(models, x)
    np.testing.assert_allclose(ys, jnp.stack([m(x) for m in single]), rtol=1e-6)


def test_each_lane_writes_its_own_slice():
    stack = cells(3)
    w = stack.w
    out = nnx.vmap(Cell.loss)(stack, XS)
    assert out.tolist() == [0.0, 1.0, 4.0]
    assert stack.n[...].tolist() == [1.0, 2.0, 3.0]
    assert stack.w is w


def test_written_axis_is_that_of_the_argument():
    holder = Empty(v=nnx.Variable(jnp.zeros((2, 3))))

    def f(holder, x):
        holder.v[...] += x

    nnx.vmap(f, in_axes=(1, 0))(holder, XS)
    assert holder.v[...].tolist() == [[0.0, 1.0, 2.0]] * 2


def test_filters_choose_the_axis_of_each_variable():
    stack = cells(3)
    axes = nnx.StateAxes({nnx.Param: 0, ...: None})
    stack.n.set_value(f32(0.0))

    def f(cell, x):
        cell.n[...] += 1.0
        cell.w[...] += x
        return cell.n[...]

    assert nnx.vmap(f, in_axes=(axes, 0))(stack, XS).tolist() == [1.0] * 3
    assert float(stack.n[...]) == 1.0
    assert stack.w[...].tolist() == [0.0, 2.0, 4.0]


def test_filters_choose_the_axis_of_each_variable_that_comes_out():
    def make(x):
        return Cell(x, 5.0)

    out = nnx.vmap(make, out_axes=nnx.StateAxes({nnx.Param: 0, ...: None}))(XS)
    assert out.w[...].tolist() == [0.0, 1.0, 2.0]
    assert float(out.n[...]) == 5.0


def test_shared_variable_is_written_once():
    cell = Cell()
    nnx.vmap(Cell.loss, in_axes=(None, 0))(cell, XS)
    assert values(cell) == {("w",): 2.0, ("n",): 1.0}


def test_sharing_survives():
    def make(x):
        tied = Tied()
        tied.a[...] *= x
        return tied

    tied = nnx.vmap(make)(XS)
    assert tied.a is tied.b
    assert tied.child.parent is tied
    assert tied.b[...].tolist() == [0.0, 3.0, 6.0]


def test_keyword_arguments_are_mapped_over_axis_zero():
    out = nnx.vmap(lambda x, *, y: x + y, in_axes=0)(XS, y=XS * 10.0)
    assert out.tolist() == [0.0, 11.0, 22.0]


def test_collectives_know_the_axis_name():
    def f(cell, x):
        cell.n[...] = jax.lax.pmean(x, "batch")
        return jax.lax.psum(x, "batch")

    cell = Cell()
    assert nnx.vmap(f, in_axes=(None, 0), axis_name="batch")(cell, XS).tolist() == [3.0] * 3
    assert float(cell.n[...]) == 1.0


def test_batch_norm_shares_its_statistics_over_the_axis():
    norm = nnx.BatchNorm(2, axis_name="batch", rngs=nnx.Rngs(0))
    plain = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (6, 2))
    y = nnx.vmap(lambda norm, x: norm(x), in_axes=(None, 0), axis_name="batch")(norm, x.reshape(3, 2, 2))
    np.testing.assert_allclose(y.reshape(6, 2), plain(x), atol=1e-5)
    np.testing.assert_allclose(norm.mean[...], plain.mean[...], atol=1e-6)


def test_axis_size_alone_says_how_many_lanes():
    made = nnx.vmap(lambda: Cell(1.0), in_axes=(), axis_size=4)()
    assert made.w.shape == (4,)
    out = nnx.vmap(lambda cell: cell.w[...], in_axes=None, axis_size=2)(Cell())
    assert out.tolist() == [2.0, 2.0]


def test_vmap_in_vmap():
    def cell_of(i, j):
        return Cell(i, j)

    grid = nnx.vmap(nnx.vmap(cell_of, in_axes=(None, 0)), in_axes=(0, None))(XS, XS[:2])
    assert grid.w.shape == grid.n.shape == (3, 2)
    out = nnx.vmap(nnx.vmap(Cell.loss, in_axes=(0, None)), in_axes=(0, 0))(grid, XS)
    assert out.tolist() == [[0.0, 0.0], [1.0, 1.0], [4.0, 4.0]]
    assert grid.n[...].tolist() == [[1.0, 2.0]] * 3


def test_vmap_over_grad_gives_a_gradient_for_each_lane():
    stack = cells(3)
    grads = nnx.vmap(nnx.grad(lambda cell, x: cell.w[...] ** 2 * x))(stack, XS)
    assert grads["w"][...].tolist() == [0.0, 2.0, 8.0]


def test_function_is_traced_once():
    f, runs = traced(Cell.loss)
    nnx.vmap(f)(cells(3), XS)
    assert len(runs) == 1


def test_captured_variable_may_be_written_with_one_value_for_all():
    cell = Cell()

    def f(x):
        cell.n[...] += 1.0
        return cell.w[...] * x

    assert nnx.vmap(f)(XS).tolist() == [0.0, 2.0, 4.0]
    assert float(cell.n[...]) == 1.0


def test_captured_variable_that_is_an_argument_has_a_value_in_each_lane():
    stack = cells(3)

    def f(cell):
        stack.n[...] += 1.0
        return cell.n[...] + stack.w[...]

    assert nnx.vmap(f)(stack).tolist() == [1.0, 3.0, 5.0]
    assert stack.n[...].tolist() == [1.0, 2.0, 3.0]


def test_named_axis_is_removed_inside_and_added_outside():
    metadata = {nnx.PARTITION_NAME: "layers"}
    seen = []

    def make(key):
        return nnx.Linear(2, 3, kernel_metadata={"sharding_names": ("in", "out")}, rngs=nnx.Rngs(key))

    def run(layer, x):
        seen.append(layer.kernel.sharding_names)
        return layer(x)

    keys = jax.random.split(jax.random.key(0), 4)
    layers = nnx.vmap(make, transform_metadata=metadata)(keys)
    assert layers.kernel.sharding_names == ("layers", "in", "out")
    nnx.vmap(run, in_axes=(0, None), transform_metadata=metadata)(layers, jnp.ones((1, 2)))
    assert seen == [("in", "out")]
    assert layers.kernel.sharding_names == ("layers", "in", "out")
    moved = nnx.vmap(make, out_axes=-1, transform_metadata=metadata)(keys)
    assert moved.kernel.sharding_names == ("in", "out", "layers")


def test_axis_hooks_run_with_index_and_name():
    log = []
    v = nnx.Variable(
        jnp.zeros((2, 3)),
        on_remove_axis=lambda v, index, name: log.append(("remove", index, name)),
        on_add_axis=lambda v, index, name: log.append(("add", index, name)),
    )
    nnx.vmap(lambda v: v[...].sum(), in_axes=1, transform_metadata={nnx.PARTITION_NAME: "b"})(v)
    assert log == [("remove", 1, "b"), ("add", 1, "b")]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: nnx.vmap(lambda cell, x: setattr(cell, "n", nnx.Param(x)), in_axes=(None, 0))(Cell(), XS),
            LaneWriteError,
            "nnx.vmap: a value that differs from lane to lane goes to what all lanes share: cell.n. Expected",
        ),
        (
            lambda: nnx.vmap(lambda cell, x: cell.n.set_value(x), in_axes=(None, 0))(Cell(), XS),
            LaneWriteError,
            "what all lanes share: cell.n: Variable(float32[]). Expected",
        ),
        (
            lambda: nnx.vmap(lambda x: x, out_axes=None)(XS),
            LaneWriteError,
            "what all lanes share: result with out_axes=None. Expected",
        ),
        (
            lambda: nnx.vmap(lambda a, b: None, in_axes=(0, None))(stack := cells(), stack),
            AliasError,
            "nnx.vmap: inconsistent aliasing: Param(float32[3]) is one Variable, found at a.w with in_axes 0 "
            "and at b.w with None.",
        ),
        (
            lambda: nnx.vmap(lambda cell: cell, out_axes=1)(cells()),
            AliasError,
            "found at cell.w with in_axes/out_axes 0 and at result.w with 1. Expected the same",
        ),
        (
            lambda: nnx.vmap(lambda x, y: x)(XS, jnp.ones(4)),
            AxisSizeError,
            "nnx.vmap: mapped axes must have one size, found:\n  - x has size 3\n  - y has size 4",
        ),
        (
            lambda: nnx.vmap(lambda x: x, axis_size=4)(XS),
            AxisSizeError,
            "found:\n  - x has size 3\n  - the size asked for is 4",
        ),
        (
            lambda: nnx.vmap(lambda cell: cell)(Cell()),
            AxisSizeError,
            "nnx.vmap: every mapped leaf needs the mapped axis:\n  - cell.w is float32[] and has no axis 0",
        ),
        (
            lambda: nnx.vmap(lambda cell: None, in_axes=None)(Cell()),
            AxisSizeError,
            "nnx.vmap: no argument has a mapped axis, so the number of lanes is unknown. Expected an axis in "
            "in_axes, or axis_size=... (length=... for scan)",
        ),
        (
            lambda: nnx.vmap(lambda x, y: x, in_axes=(0,))(XS, XS),
            PrefixError,
            "nnx.vmap: in_axes does not fit the positional arguments: found (0,), expected one entry for "
            "each of the 2 parts of a tuple.",
        ),
        (
            lambda: nnx.vmap(lambda tree: tree["a"], in_axes=({"b": 0},))({"a": XS}),
            PrefixError,
            "nnx.vmap: in_axes does not fit tree: found {'b': 0}, expected a dict with the keys ['a'].",
        ),
        (
            lambda: nnx.vmap(lambda cell: None, in_axes=([0, 0],))(cells()),
            PrefixError,
            "nnx.vmap: in_axes does not fit cell: found [0, 0], expected one lane or a rule for the Cell.",
        ),
    ],
)
def test_misuse_is_explained(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
