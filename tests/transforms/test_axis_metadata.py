"""Names of axes and axis hooks: vmap and scan with transform_metadata, and transform_metadata by hand."""

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import AliasError, PrefixError
from tests.transforms.subjects import Empty, cells

LAYERS = {nnx.PARTITION_NAME: "layers"}


LOG = []


@pytest.fixture(autouse=True)
def log():
    """What the axis hooks were called with."""
    LOG.clear()
    return LOG


def added(v, index, name):
    LOG.append(("add", index, name))


def removed(v, index, name):
    LOG.append(("remove", index, name))


def logged(value, **metadata):
    """A Variable whose axis hooks write the log."""
    return nnx.Param(value, on_add_axis=added, on_remove_axis=removed, **metadata)


def by_hand(f, in_axes=0, out_axes=0):
    """What vmap does to metadata, without the map."""
    return nnx.transform_metadata(f, in_axes=in_axes, out_axes=out_axes, partition="layers")


def by_vmap(f, in_axes=0, out_axes=0):
    return nnx.vmap(f, in_axes=in_axes, out_axes=out_axes, transform_metadata=LAYERS)


def by_scan(f, in_axes=0, out_axes=0):
    return nnx.scan(f, in_axes=in_axes, out_axes=out_axes, transform_metadata=LAYERS)


each = pytest.mark.parametrize("lift", [by_hand, by_vmap, by_scan])


@each
@pytest.mark.parametrize(
    ("axis", "names", "inside"),
    [
        (0, ("layers", "in", "out"), ("in", "out")),
        (1, ("in", "layers", "out"), ("in", "out")),
        (-1, ("in", "out", "layers"), ("in", "out")),
        (-3, ("layers", "in", "out"), ("in", "out")),
    ],
)
def test_arguments_lose_the_axis_inside_and_get_it_back(lift, axis, names, inside, log):
    seen = []
    v = logged(jnp.ones((2, 2, 2)), sharding_names=names)
    lift(lambda v: seen.append(v.sharding_names) or jnp.zeros(()), in_axes=(axis,))(v)
    assert seen[0] == inside
    assert v.sharding_names == names
    assert log[0] == ("remove", axis, "layers")
    assert ("add", axis, "layers") in log


@pytest.mark.parametrize("lift", [by_hand, by_vmap])
@pytest.mark.parametrize(
    ("axis", "names"),
    [(0, ("layers", "in")), (1, ("in", "layers")), (-1, ("in", "layers")), (-2, ("layers", "in"))],
)
def test_results_gain_the_axis(lift, axis, names, log):
    out = lift(lambda x: logged(x, sharding_names=("in",)), out_axes=axis)(jnp.ones((3, 3)))
    assert out.sharding_names == names
    assert log == [("add", axis, "layers")]


@each
def test_filters_choose_the_axis_and_none_has_no_name(lift, log):
    holder = Empty(
        a=logged(jnp.ones((3, 2)), sharding_names=("layers", "in"), tag="a"),
        b=logged(jnp.ones((2, 3)), sharding_names=("in", "layers"), tag="b"),
        c=logged(jnp.ones(2), sharding_names=("in",), tag="c"),
    )
    axes = nnx.StateAxes({"a": 0, "b": -1, ...: None})

    def f(holder):
        assert {v.sharding_names for v in (holder.a, holder.b, holder.c)} == {("in",)}
        return jnp.zeros(())

    lift(f, in_axes=(axes,))(holder)
    names = [v.sharding_names for v in (holder.a, holder.b, holder.c)]
    assert names == [("layers", "in"), ("in", "layers"), ("in",)]
    assert log[:2] == [("remove", 0, "layers"), ("remove", -1, "layers")]
    assert log[-2:] == [("add", 0, "layers"), ("add", -1, "layers")]


def test_by_hand_values_stay_and_mutations_reach_the_caller():
    stack = cells(3)
    w = stack.w

    @nnx.transform_metadata(in_axes=(0,), out_axes=0, partition="layers")
    def f(stack, *, x):
        """Add."""
        stack.w[...] += x
        stack.new = nnx.Param(stack.w[...], sharding_names=("in",))
        return stack.w[...]

    assert f(stack, x=jnp.ones(3)).tolist() == [1.0, 2.0, 3.0]
    assert stack.w is w
    assert stack.new.sharding_names == ("layers", "in")
    assert (f.__name__, f.__doc__) == ("f", "Add.")
    with pytest.raises(PrefixError, match=r"nnx\.transform_metadata: in_axes does not fit the positional"):
        f(stack, stack, x=jnp.ones(3))


def test_by_hand_inside_raw_vmap_equals_vmap():
    def make(key):
        return nnx.Linear(2, 3, kernel_metadata={"sharding_names": ("in", "out")}, rngs=nnx.Rngs(key))

    keys = jax.random.split(jax.random.key(0), 4)
    ours = nnx.vmap(make, transform_metadata=LAYERS)(keys)
    theirs = jax.vmap(nnx.transform_metadata(make, partition="layers"))(keys)
    assert nnx.graphdef(ours) is nnx.graphdef(theirs)
    assert ours.kernel.sharding_names == ("layers", "in", "out")
    assert jnp.array_equal(ours.kernel[...], theirs.kernel[...])


def test_by_hand_one_variable_with_two_axes_is_refused():
    v = nnx.Param(jnp.ones((2, 2)))
    with pytest.raises(AliasError, match=r"nnx\.transform_metadata: inconsistent aliasing"):
        nnx.transform_metadata(lambda a, b: None, in_axes=(0, 1), partition="layers")(v, v)
