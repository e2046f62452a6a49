"""What while_loop, fori_loop and scan share: the body runs once, and the state is what it changes."""

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import GraphChangeError
from tests.transforms.subjects import Cell, Empty, Tied, f32, only, traced

# Each runs a body `(model, x) -> x` some times, and returns the last x.
LOOPS = {
    "while_loop": lambda body, model, x: nnx.while_loop(
        lambda v: v[0] < 3, lambda v: (v[0] + 1, v[1], body(v[1], v[2])), (0, model, x)
    )[2],
    "fori_loop": lambda body, model, x: nnx.fori_loop(
        0, jnp.asarray(3), lambda i, v: (v[0], body(*v)), (model, x)
    )[1],
    "scan": lambda body, model, x: nnx.scan(
        lambda v: (v[0], body(*v)), in_axes=nnx.Carry, out_axes=nnx.Carry, length=3
    )((model, x))[1],
}
each = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())


def state_of(loop, body):
    """How many arrays the loop hands on, without the counters that JAX adds."""

    def f(x):
        return loop(body, Tied(), x)

    name = "scan" if loop is LOOPS["scan"] else "while"
    counters = {"scan": 0, "fori_loop": 2, "while_loop": 1}[next(k for k in LOOPS if LOOPS[k] is loop)]
    return len(only(f, name, f32(1.0)).outvars) - counters


def read(model, x):
    return x * model.a[...] + model.child.w[...]


def count(model, x):
    model.child.n[...] += 1.0
    return read(model, x)


def alias(model, x):
    model.b[...] += 1.0
    return count(model, x)


def rewrite(model, x):
    model.a[...] = model.b[...]
    return x * 2.0


def ignore(model, x):
    return x


@each
@pytest.mark.parametrize(
    ("body", "size"),
    [(ignore, 0), (rewrite, 1), (read, 1), (count, 2), (alias, 3)],
    ids=["ignore", "rewrite", "read", "count", "alias"],
)
def test_state_is_what_the_body_changes(loop, body, size):
    assert state_of(loop, body) == size


@each
def test_body_runs_once_at_any_depth(loop):
    innermost, runs = traced(count)

    def body(model, x):
        return loop(innermost, model, x)

    tied = Tied()
    loop(body, tied, f32(1.0))
    assert len(runs) == 1
    assert float(tied.child.n[...]) == 9.0


@each
def test_equals_the_python_loop(loop):
    ours, plain = Tied(), Tied()
    got = loop(alias, ours, f32(1.0))
    expected = f32(1.0)
    for _ in range(3):
        expected = alias(plain, expected)
    assert float(got) == float(expected)
    assert float(ours.a[...]) == float(plain.a[...]) == 6.0


@each
def test_body_runs_again_where_a_weak_type_settles(loop):
    body, runs = traced(lambda model, x: x + jnp.ones(()))
    assert loop(body, Cell(), 0.0).dtype == jnp.float32
    assert len(runs) == 2


@each
def test_captured_variable_that_is_written_joins_the_state(loop):
    cell, other = Cell(), Cell()

    def body(model, x):
        cell.n[...] += other.w[...]
        return x

    loop(body, Cell(), f32(1.0))
    assert float(cell.n[...]) == 6.0


@each
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: setattr(m, "extra", 1), "has a new attribute 'extra'"),
        (lambda m: setattr(m, "tag", "b"), ": attribute 'tag' was 'plain' and is 'b'"),
        (lambda m: delattr(m, "tag"), "has lost the attribute 'tag'"),
        (lambda m: setattr(m, "w", m.n), ": attribute 'w' was an object and is an object of the arguments"),
        (lambda m: m.w.set_metadata(note=1), ".w has other metadata"),
    ],
)
def test_body_that_changes_the_graph_is_refused(loop, change, text):
    with pytest.raises(GraphChangeError) as caught:
        loop(lambda m, x: (change(m), x)[1], Cell(), f32(1.0))
    assert "the body leaves another graph than it found:" in str(caught.value)
    assert text in str(caught.value)


@each
def test_object_at_two_places_must_stay_one(loop):
    class Point(nnx.Pytree):
        def __init__(self, y):
            self.y = nnx.Variable(y)

    def body(model, pair):
        return [Point(pair[0].y[...]), Point(pair[1].y[...])]

    point = Point(f32(1.0))
    with pytest.raises(GraphChangeError, match="was one object at two places and is two objects"):
        loop(body, Cell(), [point, point])


@each
def test_array_attributes_are_handed_on(loop):
    def body(model, x):
        model.a = model.a + 1.0
        return x + model.a

    holder = Empty(a=f32(0.0))
    assert float(loop(body, holder, f32(0.0))) == 6.0
    assert float(holder.a) == 3.0


@each
def test_variable_holding_a_tree_is_handed_on(loop):
    def body(model, x):
        model.v["n"] = model.v["n"] + 1
        return x + model.v["w"]

    holder = Empty(v=nnx.Variable({"n": jnp.asarray(0), "w": f32(2.0)}))
    assert float(loop(body, holder, f32(0.0))) == 6.0
    assert jax.tree.map(int, holder.v.get_value()) == {"n": 3, "w": 2}
