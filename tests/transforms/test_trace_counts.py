"""How often jit runs the user's function: once for each structure, whatever the values."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from tests.transforms.subjects import Cell, Empty, Tied, f32, traced


def count(calls, f=lambda m, *args, **kwargs: None, **options):
    """How often a jitted function runs over some calls, each a tuple of arguments."""
    f, runs = traced(f)
    step = nnx.jit(f, **options)
    for args in calls:
        step(*args)
    return len(runs)


def test_numbers_are_values():
    cell = Cell()
    assert count([(cell, 1.0), (cell, 2.0), (cell, -1.5)]) == 1
    assert count([(cell, 1), (cell, 2), (cell, True)]) == 2  # a bool is another type
    assert count([(cell, np.float32(1)), (cell, f32(2.0))]) == 1


def test_second_equal_instance_and_rebuilt_model_are_the_same_program():
    def build():
        return nnx.Sequential(
            nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.relu, nnx.Dropout(0.5, rngs=nnx.Rngs(1))
        )

    first, second = build(), build()
    assert count([(first,), (second,), (first,), (build(),)], lambda m: m(jnp.ones((1, 2)))) == 1


def test_lambdas_partials_and_configurations_are_compared_by_structure():
    @dataclasses.dataclass
    class Config:
        width: int
        names: list

    def build(rate, width=3):
        model = Empty(f=lambda x: x * rate, g=functools.partial(jnp.sum, axis=0))
        model.config = Config(width, ["a", "b"])
        return model

    assert count([(build(1.0),), (build(1.0),)]) == 1
    assert count([(build(1.0),), (build(2.0),), (build(1.0, 4),)]) == 3


def test_changed_static_attribute_retraces_once():
    cell = Cell()
    f, runs = traced(lambda cell: cell.n.set_value(f32(1.0 if cell.tag == "plain" else 2.0)))
    step = nnx.jit(f)
    seen = []
    for tag in ("plain", "other", "other", "plain"):
        cell.tag = tag
        step(cell)
        seen.append((len(runs), float(cell.n[...])))
    assert seen == [(1, 1.0), (2, 2.0), (2, 2.0), (2, 1.0)]


def test_train_and_eval_are_two_programs():
    model = nnx.Sequential(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    f, runs = traced(lambda m, x: m(x))
    step = nnx.jit(f)
    x = jnp.ones(100)
    step(model, x)
    model.eval()
    assert (step(model, x) == x).all()
    model.train()
    assert not (step(model, x) == x).all()
    assert len(runs) == 2


def test_values_of_variables_are_not_looked_at():
    cell = Cell()
    step_values = [f32(x) for x in (1.0, 2.0, 3.0)]
    f, runs = traced(lambda cell: cell.w[...] * 2.0)
    step = nnx.jit(f)
    for value in step_values:
        cell.w[...] = value
        assert float(step(cell)) == 2.0 * float(value)
    assert len(runs) == 1


def test_shape_dtype_sharing_and_structure_are_looked_at():
    plain, tied = Empty(a=nnx.Param(f32(1.0)), b=nnx.Param(f32(1.0))), Empty(a=nnx.Param(f32(1.0)))
    tied.b = tied.a
    assert count([(plain,), (tied,)]) == 2
    assert count([(plain, jnp.ones(2)), (plain, jnp.ones(3)), (plain, jnp.ones(2))]) == 2
    wide = Empty(a=nnx.Param(jnp.ones(2)), b=nnx.Param(f32(1.0)))
    other = Empty(a=nnx.Variable(f32(1.0)), b=nnx.Param(f32(1.0)))
    noted = Empty(a=nnx.Param(f32(1.0), note=1), b=nnx.Param(f32(1.0)))
    assert count([(plain,), (wide,), (other,), (noted,), (plain,)]) == 4


def test_one_object_in_two_arguments_is_another_program():
    a, b = Cell(), Cell()
    assert count([(a, b), (b, a), (a, a), (b, b)]) == 2


def test_keywords_may_come_in_any_order():
    f, runs = traced(lambda m, *, a, b: a - b)
    step = nnx.jit(f)
    cell = Cell()
    assert float(step(cell, a=1.0, b=2.0)) == -1.0
    assert float(step(cell, b=2.0, a=5.0)) == 3.0
    assert len(runs) == 1


def test_growing_state_settles():
    class Net(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "h", x)
            return x

    f, runs = traced(lambda net, x: (net(x), nnx.pop(net, nnx.Intermediate)))
    step = nnx.jit(f)
    net = Net()
    sown = [step(net, f32(x))[1]["h"].get_value() for x in (1.0, 2.0, 3.0)]
    assert [[float(v) for v in s] for s in sown] == [[1.0], [2.0], [3.0]]
    assert len(runs) == 1


def test_training_step_is_traced_once():
    def step(model, x):
        def loss(model):
            return (model(x) ** 2).mean()

        grads = nnx.grad(loss)(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), grads))

    f, runs = traced(step)
    jitted = nnx.jit(f)
    for seed in range(3):
        model = nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(seed)), nnx.BatchNorm(2, rngs=nnx.Rngs(seed)))
        for _ in range(2):
            jitted(model, jnp.ones((4, 2)))
    assert len(runs) == 1


def test_two_shapes_in_turn_keep_their_own_results():
    @nnx.jit
    def f(holder, x):
        holder.size = x.shape[0]
        holder.last = nnx.Variable(x)

    holder = Empty()
    for size in (2, 3, 2, 3):
        f(holder, jnp.ones(size))
        assert (holder.size, holder.last.shape) == (size, (size,))


def test_jit_inside_jit_and_in_loops_is_traced_once():
    inner, runs = traced(Cell.loss)
    step = nnx.jit(inner)

    @nnx.jit
    def outer(cell, x):
        for _ in range(3):
            x = step(cell, x)
        return nnx.fori_loop(0, 3, lambda i, v: (v[0], step(*v)), (cell, x))[1]

    cell = Cell(1.0)
    assert float(outer(cell, f32(2.0))) == 2.0
    assert float(cell.n[...]) == 6.0
    assert len(runs) == 1


def test_structure_that_a_cached_trace_made_is_new_each_time():
    made = nnx.jit(lambda: Tied())
    one, two = made(), made()
    assert one is not two
    assert one.a is one.b is not two.a


def test_mutable_static_results_are_not_shared():
    @nnx.jit
    def f(holder):
        holder.names = nnx.static(["a"])

    one, two = Empty(), Empty()
    f(one)
    f(two)
    one.names.append("b")
    assert two.names == ["a"]


@pytest.mark.parametrize("name", ["w", "n"])
def test_metadata_change_retraces(name):
    cell = Cell()
    f, runs = traced(lambda cell: None)
    step = nnx.jit(f)
    step(cell)
    getattr(cell, name).set_metadata(frozen=True)
    step(cell)
    step(cell)
    assert len(runs) == 2
