"""The mechanism by hand: raw JAX transforms over objects, with splits and merges that know each other."""

import functools
import inspect

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import (
    AliasError,
    ContextError,
    NonExhaustiveError,
    TraceWriteError,
)
from tests.transforms.subjects import Cell, Empty, Tied, cells, f32, traced, values

by_axis = nnx.StateAxes({nnx.Param: 0, ...: None})


def identity(f):
    return f


def vmapped(f):
    return jax.vmap(f, axis_size=2, in_axes=None, out_axes=None)


RAW = [identity, jax.jit, jax.checkpoint, vmapped]
raw_transforms = pytest.mark.parametrize("transform", RAW, ids=lambda t: t.__name__)


def lift(transform, f, **options):
    return nnx.split_inputs(transform(nnx.merge_inputs(f)), **options)


# split_inputs and merge_inputs


@raw_transforms
def test_raw_transform_over_objects_changes_the_callers_own(transform):
    def step(cell, x):
        y = cell(x)
        cell.tag = "seen"
        cell.extra = nnx.Param(y)
        return y, cell, Cell(x)

    cell = Cell()
    y, same, new = lift(transform, step)(cell, f32(3.0))
    assert float(y) == 6.0
    assert same is cell
    assert (cell.tag, float(cell.n[...]), float(cell.extra[...])) == ("seen", 1.0, 6.0)
    assert type(new) is Cell
    assert float(new.w[...]) == 3.0


@raw_transforms
def test_sharing_across_arguments_survives(transform):
    def step(a, b):
        a.w[...] += 1.0
        assert b[0].w is a.w
        assert b[0].child.parent is b[0]
        b[0].other = a
        return b[0].a

    tied, cell = Tied(), Cell()
    tied.w = cell.w
    out = lift(transform, step)(cell, [tied])
    assert float(tied.w[...]) == 3.0
    assert tied.other is cell
    assert out is tied.a is tied.b


def test_in_axes_of_a_raw_vmap_are_by_argument():
    def lane(cell, shared, x):
        cell.n[...] += shared.w[...] * x
        return cell.n[...], shared.w[...]

    axes = (0, None, 0)
    stack, shared = cells(3), Cell(10.0)
    mapped = jax.vmap(nnx.merge_inputs(lane), in_axes=axes, out_axes=(axes, (0, None)))
    ns, w = nnx.split_inputs(mapped, prefix=axes)(stack, shared, jnp.ones(3))
    assert ns.tolist() == stack.n[...].tolist() == [10.0, 11.0, 12.0]
    assert float(w) == 10.0


def test_shared_variable_in_two_axes_is_refused_where_the_axes_are_known():
    stack = cells(2)
    both = Empty(w=stack.w)
    axes = (0, None)
    mapped = jax.vmap(nnx.merge_inputs(lambda a, b: None), in_axes=axes, out_axes=(axes, None))
    nnx.split_inputs(mapped, prefix=(0, 0))(stack, both)
    with pytest.raises(AliasError) as caught:
        nnx.split_inputs(mapped, prefix=axes)(stack, both)
    assert str(caught.value).startswith(
        "nnx.split_inputs: inconsistent aliasing: Param(float32[2]) is one Variable, found at a.w with "
        "prefix 0 and at b.w with None."
    )


def test_retraces_with_structure_alone():
    step, runs = traced(lambda cell, x: cell(x))
    call = lift(jax.jit, step)
    cell = Cell()
    assert [float(call(c, f32(1.0))) for c in (cell, cell, Cell(5.0))] == [2.0, 2.0, 5.0]
    assert float(cell.n[...]) == 2.0
    assert len(runs) == 1
    cell.tag = "other"
    call(cell, f32(1.0))
    assert len(runs) == 2


def test_cached_trace_serves_other_objects_with_new_sharing():
    @functools.partial(lift, jax.jit)
    def tie(a, b):
        a.friend = b
        b.w = a.w

    pairs = [(Cell(i), Cell(-1.0)) for i in (1.0, 2.0)]
    for a, b in pairs:
        tie(a, b)
        assert a.friend is b
        assert b.w is a.w
    assert [float(b.w[...]) for _, b in pairs] == [1.0, 2.0]


def test_keyword_arguments_and_static_ones():
    def step(cell, mode, *, scale):
        cell.n[...] += scale
        return f32(1.0) if mode == "one" else f32(2.0)

    jitted = jax.jit(nnx.merge_inputs(step), static_argnums=1)
    cell = Cell()
    assert float(nnx.split_inputs(jitted)(cell, "one", scale=f32(4.0))) == 1.0
    assert float(nnx.split_inputs(jitted)(cell, "two", scale=f32(4.0))) == 2.0
    assert float(cell.n[...]) == 8.0


def test_both_are_decorators_that_keep_name_and_signature():
    @nnx.split_inputs(ctxtag="mine")
    @jax.jit
    @nnx.merge_inputs(ctxtag="mine")
    def step(cell, x):
        """What it does."""
        return cell(x)

    assert (step.__name__, step.__doc__) == ("step", "What it does.")
    assert list(inspect.signature(step).parameters) == ["cell", "x"]
    assert float(step(Cell(), f32(1.5))) == 3.0


def test_crossing_inside_of_a_crossing_with_the_same_tag():
    inner = lift(jax.jit, lambda cell, x: cell(x))

    def outer(cell, x):
        y = inner(cell, x)
        cell.n[...] *= 10.0
        return inner(cell, y), cell

    cell = Cell()
    y, same = lift(jax.jit, outer)(cell, f32(1.0))
    assert same is cell
    assert (float(y), float(cell.n[...])) == (4.0, 11.0)


def test_raw_transform_inside_of_ours_and_ours_inside_of_it():
    step = lift(jax.checkpoint, lambda cell, x: cell(x))
    cell = Cell()
    grads = nnx.grad(lambda cell: step(cell, f32(3.0)))(cell)
    assert (float(grads["w"][...]), float(cell.n[...])) == (3.0, 1.0)
    nested = lift(jax.jit, lambda cell: nnx.grad(lambda cell: cell(f32(5.0)))(cell)["w"][...])
    assert (float(nested(cell)), float(cell.n[...])) == (5.0, 2.0)


def test_objects_from_outside_of_a_raw_transform_are_refused_since_all_is_written():
    read = lift(jax.jit, lambda cell, x: cell.w[...] * x)
    cell = Cell()
    with pytest.raises(TraceWriteError, match=r"Cannot write .* from another trace level"):
        jax.vmap(lambda x: read(cell, x))(jnp.ones(3))
    assert jax.vmap(lambda x: read(Cell(x), x))(jnp.ones(3)).tolist() == [1.0] * 3
    mapped = nnx.vmap(lambda cell, x: read(cell, x), in_axes=(None, 0))
    assert mapped(cell, jnp.ones(3)).tolist() == [2.0] * 3


def test_exception_leaves_the_objects_and_the_table_as_they_were():
    def fail(cell):
        cell.n[...] += 1.0
        cell.tag = "changed"
        raise RuntimeError

    cell = Cell()
    before = values(cell)
    with pytest.raises(RuntimeError):
        lift(jax.jit, fail)(cell)
    assert (values(cell), cell.tag) == (before, "plain")
    with pytest.raises(ContextError):
        nnx.current_update_context("split_merge_inputs")


# The four steps


def four_steps(transform, f, *nodes):
    """The result of `f` over the nodes, behind a raw transform."""

    @transform
    def pure(parts):
        with nnx.merge_context("tag", inner=True) as ctx:
            twins = [ctx.merge(*part) for part in parts]
        out = f(*twins)
        with nnx.split_context("tag") as ctx:
            assert ctx.is_inner
            return [ctx.split(x) for x in (*twins, out)]

    with nnx.update_context("tag"):
        with nnx.split_context("tag") as ctx:
            assert not ctx.is_inner
            parts = [ctx.split(x) for x in nodes]
        parts = pure(parts)
        with nnx.merge_context("tag", inner=False) as ctx:
            return [ctx.merge(*part) for part in parts]


@raw_transforms
def test_four_steps_bring_back_values_attributes_and_references(transform):
    def change(a, b):
        a.n[...] += b.w[...]
        a.tag = "new"
        a.itself = a
        b.w = a.w
        return nnx.List([b, Cell(7.0)])

    a, b = Cell(1.0), Cell(2.0)
    same_a, same_b, out = four_steps(transform, change, a, b)
    assert (same_a, same_b, out[0]) == (a, b, b)
    assert (float(a.n[...]), a.tag, a.itself is a, b.w is a.w) == (2.0, "new", True, True)
    assert float(out[1].w[...]) == 7.0


def test_four_steps_as_a_decorator():
    @nnx.update_context("tag")
    def step(cell):
        with nnx.split_context("tag") as ctx:
            pure = ctx.split(cell)
        with nnx.merge_context("tag", inner=True) as ctx:
            twin = ctx.merge(*pure)
        twin.n[...] += 1.0
        with nnx.split_context("tag") as ctx:
            pure = ctx.split(twin)
        with nnx.merge_context("tag", inner=False) as ctx:
            return ctx.merge(*pure)

    cell = Cell()
    assert step.__name__ == "step"
    assert step(cell) is step(cell) is cell
    assert float(cell.n[...]) == 2.0


def test_what_is_merged_inside_may_be_a_part_in_any_order():
    def pure(parts):
        with nnx.merge_context("tag", inner=True) as ctx:
            c, b = ctx.merge(*parts[2]), ctx.merge(*parts[1])
        b.n[...] += 1.0
        c.n[...] += 2.0
        with nnx.split_context("tag") as ctx:
            return [ctx.split(b), ctx.split(c)]

    a, b, c = Cell(1.0), Tied().child, Cell(3.0)
    with nnx.update_context("tag"):
        with nnx.split_context("tag") as ctx:
            parts = [ctx.split(x) for x in (a, b, c)]
        out = jax.jit(pure)(parts)
        with nnx.merge_context("tag", inner=False) as ctx:
            assert [ctx.merge(*part) for part in out] == [b, c]
    assert [float(x.n[...]) for x in (a, b, c)] == [0.0, 1.0, 2.0]


def test_split_after_a_failed_trace_is_outside_again():
    def fail(part):
        with nnx.merge_context("tag", inner=True) as ctx:
            ctx.merge(*part)
        raise RuntimeError

    cell = Cell()
    with nnx.update_context("tag"):
        with nnx.split_context("tag") as ctx:
            part = ctx.split(cell)
        with pytest.raises(RuntimeError):
            jax.jit(fail)(part)
        with nnx.split_context("tag") as ctx:
            assert not ctx.is_inner


def test_several_states_by_filter():
    model = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    with nnx.split_context() as ctx:
        graphdef, params, rest = ctx.split(model, nnx.Param, ...)
        with pytest.raises(NonExhaustiveError):
            ctx.split(nnx.BatchNorm(2, rngs=nnx.Rngs(0)), nnx.Param)
    assert (list(params), list(rest)) == (["scale", "bias"], ["mean", "var"])
    with nnx.merge_context() as ctx:
        assert values(ctx.merge(graphdef, params, rest)) == values(model)


def test_flatten_and_unflatten_are_split_and_merge():
    a = Cell()
    b = Empty(inner=a, own=nnx.Param(f32(1.0)))
    with nnx.split_context() as ctx:
        first, second = ctx.flatten(a, nnx.Param, ...), ctx.flatten(b, with_paths=False)
    assert [flat.paths for flat in first[1:]] == [(("w",),), (("n",),)]
    assert type(second[1]) is list
    with nnx.merge_context() as ctx:
        twin, holder = ctx.unflatten(*first), ctx.unflatten(*second)
    assert holder.inner is twin
    assert values(twin) == values(a)


def test_objects_need_not_be_hashable():
    @nnx.dataclass
    class Pair(nnx.Pytree):
        a: nnx.Param

    with nnx.split_context() as ctx:
        pair = Pair(nnx.Param(f32(1.0)))
        assert [len(ctx.split(pair)[1]), len(ctx.split([pair])[1])] == [1, 0]


def test_new_objects_come_out_where_no_object_went_in():
    make = nnx.split_inputs(jax.jit(nnx.merge_inputs(lambda x: Cell(x, 1.0))))
    made = [make(f32(x)) for x in (4.0, 5.0)]
    assert [values(cell) for cell in made] == [{("w",): 4.0, ("n",): 1.0}, {("w",): 5.0, ("n",): 1.0}]
