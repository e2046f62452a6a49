"""associative_scan over arrays, objects and States."""

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import GraphChangeError, SideEffectError
from tests.transforms.subjects import Cell, Empty, Tied, cells, values

XS = jnp.arange(1.0, 6.0)
both_ways = pytest.mark.parametrize("reverse", [False, True])


class Affine(nnx.Module):
    """x -> a x + b."""

    def __init__(self, a, b):
        self.a = nnx.Param(a)
        self.b = nnx.Param(b)

    def after(self, first):
        return Affine(self.a * first.a, self.a * first.b + self.b)


def compose(first, second):
    return second.after(first)


def compose_arrays(first, second):
    return second[0] * first[0], second[0] * first[1] + second[1]


@both_ways
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_equals_jax_over_arrays_and_containers(reverse, axis):
    x = jax.random.normal(jax.random.key(0), (4, 3))
    ours = nnx.associative_scan(compose_arrays, (x, x + 1.0), reverse, axis)
    theirs = jax.lax.associative_scan(compose_arrays, (x, x + 1.0), reverse, axis % 2)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, ours, theirs))


@both_ways
@pytest.mark.parametrize("outer", [lambda f: f, nnx.jit], ids=["eager", "jit"])
def test_objects_are_elements(reverse, outer):
    elems = Affine(XS, XS * 2.0)
    out = outer(lambda elems: nnx.associative_scan(compose, elems, reverse=reverse))(elems)
    a, b = jax.lax.associative_scan(compose_arrays, (XS, XS * 2.0), reverse)
    assert type(out) is Affine
    assert out is not elems
    assert out.a is not elems.a
    assert jnp.array_equal(out.a[...], a)
    assert jnp.array_equal(out.b[...], b)
    assert elems.a[...].tolist() == XS.tolist()


def test_states_raw_arrays_and_shared_variables_are_elements():
    state = nnx.state(Affine(XS, XS))
    out = nnx.associative_scan(lambda s, t: jax.tree.map(jnp.add, s, t), state)
    assert type(out) is nnx.State
    assert out["a"][...].tolist() == jnp.cumsum(XS).tolist()
    tied = nnx.vmap(lambda x: Tied(), out_axes=0)(XS)
    out = nnx.associative_scan(lambda s, t: jax.tree.map(jnp.add, s, t), Empty(tied=tied, raw=XS))
    assert out.tied.a is out.tied.b
    assert out.tied.child.parent is out.tied
    assert out.tied.a[...].tolist() == (3.0 * XS).tolist()
    assert out.raw.tolist() == jnp.cumsum(XS).tolist()


def test_elements_may_be_changed_in_place():
    def f(a, b):
        b.w[...] += a.w
        return b

    stack = cells(4)
    assert nnx.associative_scan(f, stack).w[...].tolist() == [0.0, 1.0, 3.0, 6.0]
    assert stack.w[...].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_captured_variables_are_read_and_not_written():
    cell = Cell(2.0)
    out = nnx.associative_scan(lambda a, b: a + b * cell.w[...] / 2.0, XS)
    assert out.tolist() == jnp.cumsum(XS).tolist()

    def f(a, b):
        cell.n[...] += 1.0
        return a + b

    with pytest.raises(SideEffectError, match=r"writes Variables that are not in its arguments"):
        nnx.associative_scan(f, XS)
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}


def test_methods_are_functions_of_two_elements():
    class Adder(Cell):
        def add(self, a, b):
            return a + b * self.w[...]

    assert nnx.associative_scan(Adder(1.0).add, XS).tolist() == jnp.cumsum(XS).tolist()


def test_gradients_go_through():
    def last(elems):
        return nnx.associative_scan(compose, elems).a[-1]

    grads = nnx.grad(last)(Affine(XS, XS))
    assert jnp.allclose(grads["a"][...], jax.grad(lambda x: jnp.prod(x))(XS))


@pytest.mark.parametrize(
    ("f", "difference"),
    [
        (lambda a, b: (a, b), "the result was an object and is a tuple with 2 entries"),
        (lambda a, b: Cell(), "the result was a Affine with the attributes a, b and is a Cell with"),
    ],
    ids=["container", "class"],
)
def test_result_of_another_structure_is_refused(f, difference):
    with pytest.raises(GraphChangeError) as caught:
        nnx.associative_scan(f, Affine(XS, XS))
    assert "nnx.associative_scan: the function returns another structure than that" in str(caught.value)
    assert difference in str(caught.value)
