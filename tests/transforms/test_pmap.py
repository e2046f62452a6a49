"""pmap on eight devices: vmap's behaviour, compiled once."""

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import AliasError, AxisSizeError, LaneWriteError, PrefixError, SharedStreamWarning
from tests.transforms.subjects import Cell, Empty, Tied, cells, f32, traced, values

XS = jnp.arange(3.0)
AXES = nnx.StateAxes({nnx.Param: 0, ...: None})


def test_equals_jax_over_arrays_and_nested_containers():
    def f(x, tree, pair):
        return x * tree["a"] + pair[0], {"sum": pair[1].sum()}

    args = (XS, {"a": XS + 1.0}, (f32(2.0), jnp.ones((4, 3))))
    axes = {"in_axes": (0, {"a": 0}, (None, 1)), "out_axes": (0, {"sum": 0})}
    ours, theirs = (lift(f, **axes)(*args) for lift in (nnx.pmap, jax.pmap))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, ours, theirs))


@pytest.mark.parametrize(("axis", "out"), [(0, 0), (1, 1), (-1, 0), (0, -1)])
def test_axes_may_stand_anywhere(axis, out):
    x = jnp.arange(24.0).reshape(2, 3, 4)
    ours = nnx.pmap(lambda a: a * 2.0, in_axes=axis, out_axes=out)(x)
    assert jnp.array_equal(ours, jax.vmap(lambda a: a * 2.0, in_axes=axis, out_axes=out)(x))


def test_makes_runs_and_writes_a_stack_of_objects():
    stack = nnx.pmap(lambda x: Cell(x, x))(XS)
    w = stack.w
    assert nnx.pmap(Cell.loss)(stack, XS).tolist() == [0.0, 1.0, 4.0]
    assert stack.n[...].tolist() == [1.0, 2.0, 3.0]
    assert stack.w is w


def test_filters_choose_the_axis_of_each_variable():
    stack = cells(3)
    stack.n.set_value(f32(0.0))

    def f(cell, x):
        cell.n[...] += jax.lax.psum(x, "i")
        cell.w[...] += x
        return cell.n[...]

    assert nnx.pmap(f, in_axes=(AXES, 0), axis_name="i")(stack, XS).tolist() == [3.0] * 3
    assert float(stack.n[...]) == 3.0
    assert stack.w[...].tolist() == [0.0, 2.0, 4.0]


def test_data_parallel_gradients_equal_those_of_the_whole_batch():
    model, x = nnx.Linear(2, 1, rngs=nnx.Rngs(0)), jax.random.normal(jax.random.key(0), (8, 4, 2))
    expected = nnx.grad(lambda model: (model(x) ** 2).mean())(model)["kernel"][...]

    @nnx.pmap(in_axes=(None, 0), out_axes=None, axis_name="batch")
    def step(model, x):
        grads = nnx.grad(lambda model: (model(x) ** 2).mean())(model)
        grads = jax.lax.pmean(grads, "batch")
        model.kernel[...] -= grads["kernel"]
        return grads["kernel"][...]

    before = model.kernel[...]
    assert jnp.allclose(step(model, x), expected, atol=1e-6)
    assert jnp.allclose(model.kernel[...], before - expected, atol=1e-6)


def test_function_is_traced_once():
    f, runs = traced(lambda cell, x: cell.loss(x))
    mapped = nnx.pmap(f, in_axes=(None, 0))
    cell = Cell()
    assert [mapped(cell, XS + i).tolist() for i in (0.0, 1.0)] == [[0.0, 2.0, 4.0], [2.0, 4.0, 6.0]]
    assert len(runs) == 1
    assert values(cell) == {("w",): 2.0, ("n",): 2.0}
    mapped(Tied().child, XS)
    assert len(runs) == 2  # another structure


def test_captured_bound_and_keyword_objects():
    cell = Cell()
    assert nnx.pmap(lambda x: cell(x))(XS).tolist() == [0.0, 2.0, 4.0]  # captured
    assert nnx.pmap(cell.__call__)(XS).tolist() == [0.0, 2.0, 4.0]
    assert float(cell.n[...]) == 2.0
    assert nnx.pmap(lambda x, *, cell: cell(x))(XS, cell=cells()).tolist() == [0.0, 1.0, 4.0]


def test_static_arguments_and_number_of_lanes():
    f = nnx.pmap(lambda x, mode: x * (2.0 if mode == "double" else 1.0), static_broadcasted_argnums=1)
    assert f(XS, "double").tolist() == [0.0, 2.0, 4.0]
    assert nnx.pmap(lambda: Cell(), axis_size=4)().w.shape == (4,)  # a function


def test_donated_arguments_get_new_arrays():
    stack = nnx.pmap(lambda x: Cell(x, x))(XS)
    before = stack.w[...]

    def f(cell, x):
        cell.w[...] += x

    nnx.pmap(f, donate_argnums=0)(stack, XS)
    assert before.is_deleted()
    assert stack.w[...].tolist() == [0.0, 2.0, 4.0]


def test_devices_are_those_given():
    y = nnx.pmap(lambda x: x + 1.0, devices=jax.devices()[4:7])(XS)
    assert y.devices() == set(jax.devices()[4:7])


def test_sharing_names_of_axes_and_attributes():
    def make(x):
        tied = Tied()
        tied.a[...] *= x
        tied.new = nnx.Param(jnp.ones(2) * x, sharding_names=("in",))
        return tied

    tied = nnx.pmap(make, transform_metadata={nnx.PARTITION_NAME: "layers"})(XS)
    assert tied.a is tied.b
    assert tied.child.parent is tied
    assert tied.new.sharding_names == ("layers", "in")
    holder = Empty(w=nnx.Param(XS))
    nnx.pmap(lambda h: setattr(h, "twice", nnx.Param(h.w * 2.0)))(holder)
    assert holder.twice[...].tolist() == [0.0, 2.0, 4.0]


def test_decorates_methods_and_keeps_the_name():
    class Net(Cell):
        @nnx.pmap(in_axes=(None, 0))
        def forward(self, x):
            """All lanes."""
            return self(x)

    assert Net().forward(XS).tolist() == [0.0, 2.0, 4.0]
    assert (Net.forward.__name__, Net.forward.__doc__) == ("forward", "All lanes.")


def test_shared_stream_warns_when_the_function_is_compiled():
    drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    f = nnx.pmap(nnx.Dropout.__call__, in_axes=(None, 0))
    with pytest.warns(SharedStreamWarning, match=r"nnx\.pmap: all lanes .*\n.* self\.rngs") as caught:
        y = f(drop, jnp.ones((3, 16)))
    assert caught[0].filename == __file__
    assert bool((y == y[:1]).all())
    split = nnx.StateAxes({nnx.RngState: 0, ...: None})
    y = nnx.split_rngs(splits=3)(nnx.pmap(nnx.Dropout.__call__, in_axes=(split, 0)))(drop, jnp.ones((3, 16)))
    assert not bool((y == y[:1]).all())


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: nnx.pmap(lambda cell, x: cell.n.set_value(x), in_axes=(None, 0))(Cell(), XS),
            LaneWriteError,
            "nnx.pmap: a value that differs from lane to lane goes to what all lanes share: cell.n: "
            "Variable(float32[]). Expected",
        ),
        (
            lambda: nnx.pmap(lambda x: x, out_axes=None)(XS),
            LaneWriteError,
            "what all lanes share: result with out_axes=None. Expected",
        ),
        (
            lambda: nnx.pmap(lambda x: jax.lax.axis_index("i"), out_axes=None, axis_name="i")(XS),
            LaneWriteError,
            "what all lanes share: result with out_axes=None. Expected",
        ),
        (
            lambda: nnx.pmap(lambda a, b: None, in_axes=(0, None))(stack := cells(), stack),
            AliasError,
            "nnx.pmap: inconsistent aliasing: Param(float32[3]) is one Variable, found at a.w with in_axes 0",
        ),
        (
            lambda: nnx.pmap(lambda x, y: x)(XS, jnp.ones(4)),
            AxisSizeError,
            "nnx.pmap: mapped axes must have one size, found:\n  - x has size 3\n  - y has size 4",
        ),
        (
            lambda: nnx.pmap(lambda x: x)(jnp.ones(9)),
            AxisSizeError,
            "nnx.pmap: found 9 lanes. Expected at most 8, a device each",
        ),
        (
            lambda: nnx.pmap(lambda x, y: x, in_axes=(0,))(XS, XS),
            PrefixError,
            "nnx.pmap: in_axes does not fit the positional arguments",
        ),
    ],
)
def test_misuse_is_explained(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
