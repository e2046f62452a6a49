"""scan: axes, carries and slices; what a body may do, and what it may not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import nnxgraph as nnx
from nnxgraph.errors import (
    AliasError,
    ArgumentTypeError,
    AxisSizeError,
    GraphChangeError,
    PredicateError,
    PrefixError,
    ScanAxesError,
)
from tests.transforms.subjects import Cell, Empty, cells, f32, traced

Carry = nnx.Carry
XS = jnp.arange(1.0, 5.0)


def same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 3}, {"unroll": True}], ids=str)
def test_equals_jax_over_arrays(options):
    def f(carry, x):
        return {"a": carry["a"] * 2.0 + x["x"], "n": carry["n"] + 1}, (carry["a"], x["x"] ** 2)

    init, xs = {"a": f32(1.0), "n": jnp.asarray(0)}, {"x": XS}
    same(nnx.scan(f, **options)(init, xs), lax.scan(f, init, xs, **options))


def test_carry_may_stand_anywhere():
    ys, total = nnx.scan(lambda x, c: (c, c + x), in_axes=(0, Carry), out_axes=(0, Carry))(XS, f32(0.0))
    assert float(total) == 10.0
    assert ys.tolist() == [0.0, 1.0, 3.0, 6.0]
    out = nnx.scan(lambda c, x: (x, {"c": c}, c + x), out_axes=(0, {"c": 0}, Carry))(f32(0.0), XS)
    assert out[0].tolist() == XS.tolist()
    assert out[1]["c"].tolist() == [0.0, 1.0, 3.0, 6.0]
    assert float(out[2]) == 10.0


@pytest.mark.parametrize("axes", [(0, 0), (1, 1), (-1, 0), (-2, -1), (2, 2)])
def test_several_and_negative_axes(axes):
    x = jnp.arange(24.0).reshape(2, 3, 4)
    first, last = axes
    f = nnx.scan(lambda c, x, y: (c + x.sum(), x * y), in_axes=(Carry, first, 0), out_axes=(Carry, last))
    n = x.shape[first]
    total, ys = f(f32(0.0), x, jnp.arange(float(n)))
    np.testing.assert_allclose(total, x.sum())
    scale = jnp.moveaxis(jnp.arange(float(n)).reshape(n, 1, 1), 0, first)
    np.testing.assert_allclose(jnp.moveaxis(ys, last, 0), jnp.moveaxis(x * scale, first, 0))


def test_no_carry():
    same(nnx.scan(lambda x: x * 2.0, in_axes=0, out_axes=0)(XS), XS * 2.0)
    a, b = nnx.scan(lambda x, k: (x, x * k), in_axes=(0, None), out_axes=(0, 0))(XS, f32(3.0))
    same((a, b), (XS, XS * 3.0))


def test_only_a_carry():
    double = nnx.scan(lambda c: c * 2.0, in_axes=Carry, out_axes=Carry, length=3)
    assert float(double(f32(1.0))) == 8.0


def test_length_alone_says_how_often():
    cell = Cell()
    assert nnx.scan(lambda cell: cell.loss(f32(1.0)) + cell.n[...], in_axes=None, out_axes=0, length=3)(
        cell
    ).tolist() == [3.0, 4.0, 5.0]
    assert float(cell.n[...]) == 3.0
    assert nnx.scan(lambda: 1.5, in_axes=(), out_axes=0, length=2)().tolist() == [1.5, 1.5]


def test_no_iterations():
    total, ys = nnx.scan(lambda c, x: (c + x, c))(f32(7.0), jnp.ones((0,)))
    assert (float(total), ys.shape) == (7.0, (0,))


def test_keyword_arguments_are_the_same_in_each_iteration():
    def f(cell, x, *, scale):
        cell.n[...] += x * scale
        return cell, scale

    cell = Cell()
    out, ys = nnx.scan(f)(cell, XS, scale=f32(2.0))
    assert out is cell
    assert float(cell.n[...]) == 20.0
    assert ys.tolist() == [2.0] * 4


def test_ad5_arguments_with_axes_may_be_given_by_keyword():
    same(nnx.scan(lambda c, x: (c + x, c))(f32(0.0), x=XS), lax.scan(lambda c, x: (c + x, c), f32(0.0), XS))
    same(nnx.scan(lambda c, x: (c + x, c))(x=XS, c=f32(0.0)), lax.scan(lambda c, x: (c + x, c), f32(0.0), XS))
    with pytest.raises(PrefixError, match="in_axes does not fit the positional arguments"):
        nnx.scan(lambda c, x: (c, x))(c=f32(0.0))


def test_lp12_error_says_what_lax_scan_calls_the_parts():
    with pytest.raises(ScanAxesError) as caught:
        nnx.scan(lambda c, x: (c, x), in_axes=(Carry, 0), out_axes=0)
    assert "Of jax.lax.scan, the carry is what has nnx.Carry in in_axes and out_axes" in str(caught.value)
    doc = nnx.scan.__doc__ or ""
    assert [word for word in ("`init`, `carry`", "`xs`", "`ys`", "closed-over") if word not in doc] == []


def test_weakly_typed_carry_takes_the_type_that_the_body_gives_it():
    def f(c, x):
        return c + x, c

    same(nnx.scan(f)(0.0, XS), lax.scan(f, 0.0, XS))
    same(nnx.scan(f)(0, jnp.arange(3)), lax.scan(f, 0, jnp.arange(3)))
    with jax.numpy_dtype_promotion("standard"):
        same(nnx.scan(f)(0, XS), lax.scan(f, 0.0, XS))
    weak = jnp.full((3,), 1.0)
    same(nnx.scan(lambda c, x: (x, c))(1.0, weak), lax.scan(lambda c, x: (x, c), 1.0, weak))
    same(nnx.scan(lambda c, x: (c * 2, x))(jnp.int8(1), weak), (jnp.int8(8), weak))


def test_random_keys_are_carried_and_sliced():
    def f(key, x):
        key, sub = jax.random.split(key)
        return key, jax.random.normal(sub) + jax.random.normal(x)

    keys = jax.random.split(jax.random.key(0), 3)
    (_, ours), (_, theirs) = nnx.scan(f)(jax.random.key(1), keys), lax.scan(f, jax.random.key(1), keys)
    assert jnp.array_equal(ours, theirs)


def test_carried_object_is_the_callers():
    def f(cell, x):
        cell.n[...] += x
        return cell, cell.n[...]

    cell = Cell()
    out, ys = nnx.scan(f)(cell, XS)
    assert out is cell
    assert ys.tolist() == [1.0, 3.0, 6.0, 10.0]
    assert float(cell.n[...]) == 10.0


def test_value_like_object_may_be_rebuilt_in_the_carry():
    class Point(nnx.Pytree):
        def __init__(self, y, name="p"):
            self.y = nnx.Variable(y)
            self.name = name

    point = Point(f32(1.0))
    out, ys = nnx.scan(lambda p, x: (Point(p.y[...] * x), p.y[...]))(point, XS)
    assert type(out) is Point
    assert (float(out.y[...]), out.name) == (24.0, "p")
    assert ys.tolist() == [1.0, 1.0, 2.0, 6.0]


def test_layers_that_vmap_made_run_one_after_the_other():
    stack = cells(3)
    w = stack.w

    def f(x, cell):
        cell.n[...] += x
        return x + cell.w[...]

    out = nnx.scan(f, in_axes=(Carry, 0), out_axes=Carry)(f32(1.0), stack)
    assert float(out) == 4.0
    assert stack.n[...].tolist() == [1.0, 2.0, 4.0]
    assert stack.w is w


def test_mapped_object_may_be_returned_in_its_own_axis():
    stack = cells(3)
    out = nnx.scan(lambda cell: cell, in_axes=0, out_axes=0)(stack)
    assert out is stack
    with pytest.raises(
        AliasError, match=r"found at cell\.w with in_axes/out_axes 0 and at result\[0\]\.w with 1"
    ):
        nnx.scan(lambda cell: (cell, 1.0), in_axes=0, out_axes=(1, 0))(stack)


def test_new_objects_are_stacked():
    made = nnx.scan(lambda x: Cell(x, 1.0), in_axes=0, out_axes=0)(XS)
    assert type(made) is Cell
    assert made.w[...].tolist() == XS.tolist()
    assert made.n.shape == (4,)


def test_broadcast_variable_that_is_written_is_handed_on():
    def f(cell, x):
        cell.n[...] = cell.n[...] * 2.0 + x
        return cell.n[...]

    cell = Cell()
    ys = nnx.scan(f, in_axes=(None, 0), out_axes=0)(cell, XS)
    assert ys.tolist() == [1.0, 4.0, 11.0, 26.0]
    assert float(cell.n[...]) == 26.0


def test_captured_variable_that_is_written_is_handed_on():
    cell = Cell()

    def f(c, x):
        cell.n[...] += x
        return c * cell.w[...], cell.n[...]

    total, ys = nnx.scan(f)(f32(1.0), XS)
    assert (float(total), ys.tolist()) == (16.0, [1.0, 3.0, 6.0, 10.0])
    assert float(cell.n[...]) == 10.0


def test_object_that_is_carried_and_captured_is_one():
    cell = Cell()

    def f(carried, x):
        cell.n[...] += x
        carried.n[...] += 1.0
        return carried, cell.n[...]

    _, ys = nnx.scan(f)(cell, XS)
    assert ys.tolist() == [2.0, 5.0, 9.0, 14.0]


def test_bound_method_is_scanned():
    class Model(Cell):
        def step(self, c, x):
            self.n[...] += x
            return c + self.w[...], self.n[...]

    model = Model()
    total, ys = nnx.scan(model.step)(f32(0.0), XS)
    assert (float(total), ys.tolist()) == (8.0, [1.0, 3.0, 6.0, 10.0])
    assert float(model.n[...]) == 10.0


def test_body_is_traced_once():
    f, runs = traced(lambda cell, x: (cell, cell.loss(x)))
    nnx.scan(f)(Cell(), XS)
    assert len(runs) == 1


def test_list_attribute_of_a_mapped_object_may_grow():
    def f(c, cell):
        cell.seen = [c]
        return c + 1.0

    stack = cells(3)
    nnx.scan(f, in_axes=(Carry, 0), out_axes=Carry)(f32(0.0), stack)
    assert [x.tolist() for x in stack.seen] == [[0.0, 1.0, 2.0]]


def test_named_axis_is_removed_inside_and_added_outside():
    metadata = {nnx.PARTITION_NAME: "layers"}
    seen = []
    holder = Empty(w=nnx.Param(jnp.ones((3, 2)), sharding_names=("layers", "in")))

    def f(x, holder):
        seen.append(holder.w.sharding_names)
        return x * holder.w[...].sum(), nnx.Param(holder.w[...], sharding_names=("in",))

    scanned = nnx.scan(f, in_axes=(Carry, 0), out_axes=(Carry, 0), transform_metadata=metadata)
    x, made = scanned(f32(1.0), holder)
    assert float(x) == 8.0
    assert seen == [("in",)]
    assert holder.w.sharding_names == made.sharding_names == ("layers", "in")


def one_more(cell, x):
    cell.extra = 1
    return cell, x


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: nnx.scan(lambda c, x: c, in_axes=(Carry, 0), out_axes=0),
            ScanAxesError,
            "nnx.scan: in_axes has nnx.Carry and out_axes has not. Expected it in both or in none. ",
        ),
        (
            lambda: nnx.scan(lambda x: x, in_axes=0),
            ScanAxesError,
            "out_axes has nnx.Carry and in_axes has not",
        ),
        (
            lambda: nnx.scan(lambda a, b: a, in_axes=(Carry, Carry)),
            ScanAxesError,
            "nnx.scan: in_axes has 2 entries nnx.Carry. Expected at most one.",
        ),
        (
            lambda: nnx.scan(lambda a: a, in_axes=((Carry, 0),)),
            ScanAxesError,
            "nnx.scan: in_axes has nnx.Carry inside a container. Expected it at the top level.",
        ),
        (
            lambda: nnx.scan(lambda c, x: (c, x), out_axes=(Carry, None)),
            ScanAxesError,
            "out_axes has None or a carried result. Expected an axis for each result, or nnx.Carry.",
        ),
        (
            lambda: nnx.scan(lambda c, x: (c, x), in_axes=(Carry, "first")),
            ScanAxesError,
            "nnx.scan: in_axes has 'first'. Expected an int, None or nnx.Carry. Of jax.lax.scan, the carry",
        ),
        (
            lambda: nnx.scan(lambda x, c: (c, c, {"y": x}), in_axes=(0, Carry), out_axes=(Carry, 0, -3))(
                XS, f32(0.0)
            ),
            ScanAxesError,
            "nnx.scan: result[2].y is float32[] in one iteration, and out_axes -3. Expected an axis that the "
            "stack of all 1 dimensions has.",
        ),
        (
            lambda: nnx.scan(lambda c: c, in_axes=Carry, out_axes=Carry, length=2.0),
            PredicateError,
            "nnx.scan: length is 2.0. Expected an int, 0 or more.",
        ),
        (
            lambda: nnx.scan(lambda c, x: c)(f32(0.0), XS),
            ScanAxesError,
            "nnx.scan: the function returned float32[], and out_axes has 2 entries. Expected a tuple with "
            "one value for each entry of out_axes.",
        ),
        (
            lambda: nnx.scan(one_more)(Cell(), XS),
            GraphChangeError,
            "nnx.scan: the body leaves another graph than it found:\n  - cell has a new attribute 'extra'\n"
            "Expected every iteration to leave the graph that it found. Make objects and attributes before "
            "the loop, return what is new as an output, and return the carried objects themselves.",
        ),
        (
            lambda: nnx.scan(lambda c, x: (c, setattr(c, "n", nnx.Variable(x))))(Cell(), XS),
            GraphChangeError,
            "- c: attribute 'n' is another object than before\n",
        ),
        (
            lambda: nnx.scan(lambda c, x: (c, setattr(c, "layers", [1, x])))(Empty(layers=[1, 2]), XS),
            GraphChangeError,
            "- c: attribute 'layers' is a list with 2 entries as before, with other contents\n",
        ),
        (
            lambda: nnx.scan(lambda c, x: (c.n, x))(Cell(), XS),
            GraphChangeError,
            "another graph than it found:\n  - c is another object of the arguments than before",
        ),
        (
            lambda: nnx.scan(lambda c, x: (Empty(), x))(Cell(), XS),
            GraphChangeError,
            "- c was a Cell with the attributes w, n, tag and is a Empty with the attributes (none)",
        ),
        (
            lambda: nnx.scan(lambda c, x: ((c, c), x))(f32(0.0), XS),
            GraphChangeError,
            "- c was an array and is a tuple with 2 entries",
        ),
        (
            lambda: nnx.scan(lambda c, x: (jnp.ones(2), x))(f32(0.0), XS),
            GraphChangeError,
            "nnx.scan: the body changes the type of what it carries:\n  - c comes in as float32[] and goes "
            "out as float32[2]\nExpected the same shape and dtype in every iteration. Cast the initial "
            "value, or the result.",
        ),
        (
            lambda: nnx.scan(lambda cell, x: (cell, cell.n.set_value(jnp.ones(2))))(Cell(), XS),
            GraphChangeError,
            "- cell.n comes in as float32[] and goes out as float32[2]",
        ),
        (
            lambda: nnx.scan(lambda c, x, y: (c, x))(f32(0.0), XS, jnp.ones(3)),
            PrefixError,
            "nnx.scan: in_axes does not fit the positional arguments: found (nnx.Carry, 0), expected one "
            "entry for each of the 3 parts of a tuple.",
        ),
        (
            lambda: nnx.scan(lambda x, c: (x, x, c, ["word"]), in_axes=(0, Carry), out_axes=(0, 0, Carry, 0))(
                XS, f32(0.0)
            ),
            ArgumentTypeError,
            "nnx.scan: result[3][0] is 'word'.",
        ),
        (
            lambda: nnx.scan(lambda c, x, y: (c, x), in_axes=(Carry, 0, 0))(f32(0.0), XS, jnp.ones(3)),
            AxisSizeError,
            "nnx.scan: mapped axes must have one size, found:\n  - x has size 4\n  - y has size 3",
        ),
        (
            lambda: nnx.scan(lambda c: c, in_axes=Carry, out_axes=Carry)(f32(0.0)),
            AxisSizeError,
            "nnx.scan: no argument has a mapped axis, so the number of lanes is unknown. Expected an axis in "
            "in_axes, or axis_size=... (length=... for scan)",
        ),
    ],
)
def test_misuse_is_explained(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
