"""cond, switch, while_loop and fori_loop over objects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import nnxgraph as nnx
from nnxgraph.errors import BranchError, GraphChangeError, PredicateError
from tests.transforms.subjects import Cell, Empty, Tied, cells, f32, only, traced, values


def up(cell, k=1.0):
    cell.n[...] += k
    return cell.n[...]


def down(cell, k=1.0):
    cell.w[...] -= k
    return cell.w[...]


def nothing(cell, k=1.0):
    return cell.n[...]


@pytest.mark.parametrize(
    "scalar",
    [bool, int, float, np.bool_, np.int32, jnp.asarray, jnp.float32, lambda p: nnx.Variable(jnp.asarray(p))],
)
def test_cond_takes_any_scalar(scalar):
    cell = Cell()
    assert float(nnx.cond(scalar(True), up, down, cell, 3.0)) == 3.0
    assert float(nnx.cond(scalar(False), up, down, cell, 3.0)) == -1.0
    assert values(cell) == {("w",): -1.0, ("n",): 3.0}


def test_switch_picks_and_clamps():
    cell = Cell()
    for index in (0, 1, 2, 7, -5):
        nnx.switch(index, [up, nothing, down], cell)
    nnx.switch(nnx.Variable(jnp.asarray(0)), [up, down], cell)
    assert values(cell) == {("w",): 0.0, ("n",): 3.0}
    assert nnx.jit(lambda i, x: nnx.switch(i, [lambda x: x, lambda x: x * 2.0], x))(1, 3.0) == 6.0


def test_both_branches_may_write_what_they_like():
    cell = Cell()

    def both(cell):
        cell.w[...] += 1.0
        cell.n[...] += 1.0

    nnx.cond(True, both, lambda cell: None, cell)
    nnx.cond(False, both, lambda cell: cell.n.set_value(f32(9.0)), cell)
    assert values(cell) == {("w",): 3.0, ("n",): 9.0}


def test_branches_return_what_any_of_them_writes_and_no_more():
    def outputs(true, false):
        def f(x):
            return nnx.cond(x > 0, true, false, Tied(), x)

        return len(only(f, "cond", f32(1.0)).outvars)

    def read(tied, x):
        return tied.a[...] * x

    def write(tied, x):
        tied.a[...] = x * 2.0
        return x * 3.0

    def write_child(tied, x):
        tied.child.n[...] = x * 4.0
        return x * 5.0

    assert outputs(read, read) == 1
    assert outputs(read, write) == 2
    assert outputs(write_child, write) == 3


def test_each_branch_is_traced_once():
    true, runs = traced(up)
    false, others = traced(down)
    nnx.cond(True, true, false, Cell())
    assert (len(runs), len(others)) == (1, 1)


def test_predicate_may_be_a_value_of_a_lane():
    stack = cells(3)
    stack.n.set_value(jnp.zeros(3))

    def f(cell, p):
        nnx.cond(p, lambda c: c.n.set_value(c.n[...] + 10.0), lambda c: c.n.set_value(c.n[...] - 1.0), cell)

    nnx.vmap(f)(stack, jnp.array([True, False, True]))
    assert stack.n[...].tolist() == [10.0, -1.0, 10.0]


def test_gradient_of_the_branch_that_runs():
    def f(cell, x):
        return nnx.cond(x > 0, lambda c, x: c.w[...] * x, lambda c, x: c.w[...] ** 2, cell, x)

    assert values(nnx.grad(f)(Cell(2.0), f32(5.0))) == {("w",): 5.0}
    assert values(nnx.grad(f)(Cell(2.0), f32(-5.0))) == {("w",): 4.0}


def test_branches_may_add_the_same_attribute_and_make_the_same_object():
    def make(holder, x):
        holder.made = Cell(x)
        return holder.made

    holder = Empty()
    out = nnx.cond(True, make, lambda holder, x: make(holder, -x), holder, f32(3.0))
    assert out is holder.made
    assert float(out.w[...]) == 3.0


def test_methods_of_two_objects_are_branches():
    one, two = Cell(1.0), Cell(2.0)
    assert float(nnx.cond(False, one.loss, two.loss, f32(3.0))) == 6.0
    assert [float(c.n[...]) for c in (one, two)] == [0.0, 1.0]
    nnx.cond(True, one.record, one.record, f32(5.0))
    assert [float(h) for h in one.h.get_value()] == [5.0]


def test_captured_variables_are_read_and_written():
    cell = Cell()

    def f():
        cell.n[...] += cell.w[...]

    nnx.cond(True, f, lambda: None)
    nnx.switch(0, [f])
    assert nnx.while_loop(lambda i: cell.n[...] < 7.0, lambda i: (f(), i + 1)[1], 0) == 2
    nnx.fori_loop(0, 2, lambda i, v: f(), None)
    assert float(cell.n[...]) == 12.0


def test_weakly_typed_branches_join_as_in_jax():
    ours, theirs = (m.cond(True, lambda x: 1.0, lambda x: x, f32(2.0)) for m in (nnx, lax))
    assert (ours.dtype, ours.weak_type) == (theirs.dtype, theirs.weak_type)


def test_while_loop_updates_its_objects_in_place():
    def body(value):
        cell, i = value
        cell.n[...] += 2.0
        return cell, i + 1

    cell = Cell()
    out, i = nnx.while_loop(lambda value: value[1] < 5, body, (cell, jnp.asarray(0)))
    assert out is cell
    assert (int(i), float(cell.n[...])) == (5, 10.0)
    out, i = nnx.while_loop(lambda value: value[0].n[...] < 0.0, body, (cell, 7))
    assert (out, i) == (cell, 7)
    assert float(cell.n[...]) == 10.0


def test_fori_loop_updates_its_objects_in_place():
    def body(i, value):
        cell, total = value
        cell.n[...] += 1.0
        return cell, total + i

    cell = Cell()
    out, total = nnx.fori_loop(2, 5, body, (cell, 0))
    assert out is cell
    assert (int(total), float(cell.n[...])) == (9, 3.0)
    assert int(nnx.fori_loop(jnp.asarray(1), nnx.Variable(jnp.asarray(4)), lambda i, x: x + i, 0)) == 6
    assert int(nnx.jit(lambda n: nnx.fori_loop(0, n, lambda i, x: x + i, 0))(4)) == 6
    assert int(nnx.fori_loop(0, 4, lambda i, x: x + i, jnp.zeros((), jnp.int8), unroll=2)) == 6


def test_fori_loop_with_known_bounds_has_a_gradient():
    def f(cell, x):
        def body(i, value):
            cell, x = value
            cell.n[...] += x
            return cell, x * cell.w[...]

        cell, y = nnx.fori_loop(0, 3, body, (cell, x))
        return y + cell.n[...]

    cell = Cell(2.0)
    # y = 8 x, n = x + 2 x + 4 x; by w: 3 w**2 x, and x + 2 w x
    grads, gx = nnx.grad(f, argnums=(0, 1))(cell, f32(3.0))
    assert values(grads) == {("w",): 51.0}
    assert float(gx) == 15.0
    assert float(cell.n[...]) == 21.0


def test_gradient_accumulation_carries_gradients_loss_and_model():
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    xs = jax.random.normal(jax.random.key(0), (4, 8, 2))

    @nnx.jit
    def accumulate(model, xs):
        def body(i, value):
            grads, total, model = value
            loss, new = nnx.value_and_grad(lambda m: (m(xs[i]) ** 2).mean())(model)
            return jax.tree.map(jnp.add, grads, new), total + loss, model

        zeros = jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param))
        return nnx.fori_loop(0, 4, body, (zeros, f32(0.0), model))

    grads, total, same = accumulate(model, xs)
    assert same is model
    loss, expected = nnx.value_and_grad(lambda m: sum((m(x) ** 2).mean() for x in xs))(model)
    np.testing.assert_allclose(total, loss, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), grads, expected)


def test_methods_of_an_object_are_a_loop():
    class Model(Cell):
        def goes_on(self, x):
            return self.n[...] < 3.0

        def step(self, x):
            self.n[...] += 1.0
            return x * self.w[...]

        def indexed(self, i, x):
            return self.step(x)

    model = Model()
    assert float(nnx.while_loop(model.goes_on, model.step, f32(1.0))) == 8.0
    assert float(nnx.fori_loop(0, 2, model.indexed, f32(1.0))) == 4.0
    assert float(model.n[...]) == 5.0


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: nnx.cond(jnp.ones(1), up, down, Cell()),
            PredicateError,
            "nnx.cond: pred is float32[1]. Expected a scalar.",
        ),
        (lambda: nnx.cond("yes", up, down), PredicateError, "nnx.cond: pred is 'yes'. Expected a scalar."),
        (
            lambda: nnx.cond(True, up, 3),
            PredicateError,
            "nnx.cond: false_fun is 3. Expected a function of the operands.",
        ),
        (
            lambda: nnx.switch(1.0, [up]),
            PredicateError,
            "nnx.switch: index is float32[]. Expected an integer scalar.",
        ),
        (
            lambda: nnx.switch(0, []),
            BranchError,
            "nnx.switch: branches is empty. Expected at least one function of the operands.",
        ),
        (
            lambda: nnx.while_loop(lambda x: x, lambda x: x, 3),
            PredicateError,
            "nnx.while_loop: the result of cond_fun is int32[]. Expected a bool scalar.",
        ),
        (
            lambda: nnx.while_loop(lambda cell: up(cell) < 3, lambda cell: cell, Cell()),
            PredicateError,
            "nnx.while_loop: cond_fun is a function that writes. Expected one that only reads.",
        ),
        (
            lambda: nnx.fori_loop(0, 1.5, lambda i, x: x, 0),
            PredicateError,
            "nnx.fori_loop: upper is float32[]. Expected an integer scalar.",
        ),
        (
            lambda: nnx.cond(True, lambda c: setattr(c, "extra", 1), lambda c: None, Cell()),
            GraphChangeError,
            "nnx.cond: the branches differ:\n  - true_fun: c has a new attribute 'extra'\nExpected all "
            "branches to leave the same graph and to return results of the same type.",
        ),
        (
            lambda: nnx.switch(0, [lambda c: None, lambda c: setattr(c, "tag", "b")], Cell()),
            GraphChangeError,
            "nnx.switch: the branches differ:\n  - branches[1]: c: attribute 'tag' was 'plain' and is 'b'",
        ),
        (
            lambda: nnx.switch(0, [lambda c: delattr(c, "tag"), lambda c: None], Cell()),
            GraphChangeError,
            "  - branches[0]: c has lost the attribute 'tag'",
        ),
        (
            lambda: nnx.cond(True, lambda x: x, lambda x: x.astype(jnp.int32), jnp.ones(2)),
            GraphChangeError,
            "  - false_fun returns int32[2] where true_fun returns float32[2]",
        ),
        (
            lambda: nnx.cond(True, lambda x: (x, x), lambda x: x, 1.0),
            GraphChangeError,
            "  - false_fun returns an array, true_fun returns a tuple with 2 entries",
        ),
        (
            lambda: nnx.cond(True, lambda: Cell(), lambda: Empty()),
            GraphChangeError,
            "  - false_fun returns an object, true_fun returns another object",
        ),
        (
            lambda: nnx.cond(True, lambda c: c.n.set_value(jnp.ones(2)), lambda c: None, Cell()),
            GraphChangeError,
            "  - true_fun makes float32[] a float32[2]\nExpected a Variable to have the same shape and dtype",
        ),
        (
            lambda: nnx.while_loop(lambda c: True, lambda c: Empty(), Cell()),
            GraphChangeError,
            "nnx.while_loop: the body leaves another graph than it found:\n  - c was a Cell with the "
            "attributes w, n, tag and is a Empty with the attributes (none)",
        ),
        (
            lambda: nnx.fori_loop(0, 3, lambda i, cell: (cell, i), Cell()),
            GraphChangeError,
            "  - cell was an object and is a tuple with 2 entries",
        ),
        (
            lambda: nnx.fori_loop(0, 3, lambda i, x: jnp.stack([x, x]), jnp.ones(2)),
            GraphChangeError,
            "  - x comes in as float32[2] and goes out as float32[2,2]",
        ),
    ],
)
def test_misuse_is_explained(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
