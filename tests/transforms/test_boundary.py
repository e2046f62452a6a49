"""What crosses a Boundary, in and out: containers, attributes, Variables, and who owns them."""

import dataclasses
import threading
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx
from nnxgraph.errors import InputReturnedError, LeakedVariableError, SharedVariableError, TraceWriteError
from tests.transforms.subjects import Cell, Empty, Tied, f32, only, values


class Pair(typing.NamedTuple):
    first: object
    second: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    first: object
    second: object


# Each in a different way, but all take one function of objects and hand everything back.
LIFTS = {
    "jit": nnx.jit,
    "remat": nnx.remat,
    "grad": lambda f: lambda *a: nnx.grad(lambda t, *a: (t, f(*a)), has_aux=True)(f32(0.0), *a)[1],
    "cond": lambda f: lambda *a: nnx.cond(True, f, f, *a),
    "vmap": lambda f: nnx.vmap(f, in_axes=None, out_axes=None, axis_size=2),
}
each = pytest.mark.parametrize("lift", LIFTS.values(), ids=LIFTS.keys())


@each
def test_containers_and_pytrees_cross_with_their_types(lift):
    def f(pair, record, nothing):
        pair.first.n[...] += 1.0
        return pair, record, nothing, [], {}, ()

    cell = Cell()
    args = (Pair(cell, [f32(1.0), cell]), Record(cell, {"x": cell.w, 3: f32(2.0)}), None)
    pair, record, *rest = lift(f)(*args)
    assert (type(pair), type(record), rest) == (Pair, Record, [None, [], {}, ()])
    assert pair.first is pair.second[1] is record.first is cell
    assert record.second["x"] is cell.w
    assert list(record.second) == ["x", 3]
    assert float(cell.n[...]) == 1.0


@each
def test_python_numbers_cross_as_arrays_of_weak_type(lift):
    assert [complex(x) for x in lift(lambda *a: a)(True, 1, 2.5, 1j)] == [1, 1, 2.5, 1j]


@each
def test_lists_and_dicts_of_an_object_change_in_place(lift):
    def f(holder):
        holder.items.append(nnx.Param(jnp.zeros(1)))
        holder.items[1] = "changed"
        holder.items[2]["z"] = jnp.ones(1)

    holder = Empty(items=[nnx.Param(jnp.ones(2)), "word", {"k": 3}])
    items, inner = holder.items, holder.items[2]
    lift(f)(holder)
    assert holder.items is items
    assert [type(x).__name__ for x in items] == ["Param", "str", "dict", "Param"]
    assert items[1] == "changed"
    assert items[2] is inner
    assert sorted(inner) == ["k", "z"]


@each
def test_cycles_grow(lift):
    def f(a):
        a.b.a.v[...] += 1.0
        a.b.c = Empty(up=a)
        return a.b.c

    a, b = Empty(v=nnx.Variable(f32(0.0))), Empty()
    a.b, b.a = b, a
    made = lift(f)(a)
    assert made is a.b.c
    assert made.up is a
    assert float(a.v[...]) == 1.0


@each
def test_new_object_in_several_places_is_one(lift):
    def f(holder):
        made = Cell()
        holder.x, holder.y = made, [made]
        return made

    holder = Empty()
    assert lift(f)(holder) is holder.x is holder.y[0]


@each
def test_argument_becomes_an_attribute_of_another(lift):
    def f(holder, x, cell):
        holder.x, holder.cell = x, cell

    holder, cell = Empty(), Cell()
    lift(f)(holder, jnp.ones(2), cell)
    assert holder.cell is cell
    assert holder.x.tolist() == [1.0, 1.0]


@each
def test_replaced_variable_is_a_new_one(lift):
    def f(holder):
        holder.w = nnx.Param(holder.w[...] * 2.0)
        return holder.w, holder.old

    holder = Empty(w=nnx.Param(jnp.ones(2)))
    holder.old = old = holder.w
    new, kept = lift(f)(holder)
    assert new is holder.w is not old
    assert kept is holder.old is old
    assert (new[...].tolist(), old[...].tolist()) == ([2.0, 2.0], [1.0, 1.0])


@each
def test_swapped_variables_change_owners(lift):
    def f(a, b):
        a.w, b.w = b.w, a.w

    a, b = Cell(1.0), Cell(2.0)
    held = (a.w, b.w)
    lift(f)(a, b)
    assert (b.w, a.w) == held


@each
def test_variable_that_is_written_and_then_removed_keeps_its_value(lift):
    def f(holder):
        holder.w[...] = holder.w[...] * 5.0
        del holder.w

    holder = Empty(w=nnx.Param(f32(1.0)))
    w = holder.w
    lift(f)(holder)
    assert vars(holder) == {}
    assert float(w[...]) == 5.0


@each
def test_raw_arrays_of_an_object_are_replaced(lift):
    def f(holder):
        holder.a = holder.a + 1.0
        holder.nested[1] = (holder.nested[1][0] * 5.0, 2)

    holder = Empty(a=jnp.ones(2), nested=[jnp.zeros(1), (f32(1.0), 2)])
    lift(f)(holder)
    assert holder.a.tolist() == [2.0, 2.0]
    assert (float(holder.nested[1][0]), holder.nested[1][1]) == (5.0, 2)


@each
def test_numpy_array_that_is_only_read_stays_numpy(lift):
    holder = Empty(a=np.ones(2, np.float32))
    assert lift(lambda holder: holder.a + 1.0)(holder).tolist() == [2.0, 2.0]
    assert type(holder.a) is np.ndarray


@each
def test_static_attributes_metadata_and_class_propagate(lift):
    class Other(Empty):
        pass

    def f(holder):
        holder.count += 1
        holder.rate = None
        holder.sizes.append(3)
        holder.steps = holder.steps + 1
        holder.w.note = "seen"
        holder.__class__ = Other

    holder = Empty(count=0, rate=1.5, w=nnx.Param(f32(1.0)))
    holder.sizes, holder.steps = nnx.static([1, 2]), nnx.data(3)
    lift(f)(holder)
    assert type(holder) is Other
    assert (holder.count, holder.rate, holder.sizes) == (1, None, [1, 2, 3])
    assert (int(holder.steps), holder.w.note) == (4, "seen")


@each
def test_variable_may_change_shape_dtype_and_structure(lift):
    def f(holder):
        holder.shape.set_value(jnp.ones(3))
        holder.dtype.set_value(holder.dtype[...].astype(jnp.bfloat16))
        holder.tree["a"] = holder.tree["a"] * 3.0
        holder.grows.set_value((*holder.grows.get_value(), jnp.ones(2)))

    holder = Empty(
        shape=nnx.Variable(jnp.ones(2)),
        dtype=nnx.Variable(jnp.ones(2)),
        tree=nnx.Variable({"a": jnp.ones(2), "b": (f32(0.0),)}),
        grows=nnx.Variable(()),
    )
    lift(f)(holder)
    assert holder.shape.shape == (3,)
    assert holder.dtype.dtype == jnp.bfloat16
    assert holder.tree["a"].tolist() == [3.0, 3.0]
    assert len(holder.grows.get_value()) == 1


@each
def test_variables_cross_without_an_owner(lift):
    def f(v, holder):
        holder["v"][...] += 1.0
        return v, nnx.Param(v[...])

    v = nnx.Variable(jnp.ones(2))
    same, new = lift(f)(v, {"v": v})
    assert same is v
    assert type(new) is nnx.Param
    assert new[...].tolist() == v[...].tolist() == [2.0, 2.0]


@each
def test_states_and_graphdefs_are_values(lift):
    def f(graphdef, state):
        model = nnx.merge(graphdef, state)
        model.n[...] += 1.0
        return nnx.state(model)

    graphdef, state = nnx.split(Cell())
    out = lift(f)(graphdef, state)
    assert type(out) is nnx.State
    assert (float(out["n"][...]), float(state["n"][...])) == (1.0, 0.0)


@each
@pytest.mark.filterwarnings("ignore::nnxgraph.errors.SharedStreamWarning")  # vmap: the lanes agree
def test_random_streams_count_on(lift):
    rngs, plain = nnx.Rngs(0, dropout=1), nnx.Rngs(0, dropout=1)
    drawn = lift(lambda r: (r.params(), r.dropout(), r.dropout()))(rngs)
    expected = (plain.params(), plain.dropout(), plain.dropout())
    assert list(map(jax.random.bits, drawn)) == list(map(jax.random.bits, expected))
    assert int(rngs.dropout.count[...]) == 2


def test_jit_returns_written_variables_and_results_only():
    def f(model, x):
        model.child.n[...] += 1.0
        model.extra = nnx.Variable(x)
        return x * model.a[...], model.b

    def through(x):
        model = Tied()
        out, _ = nnx.jit(f)(model, x)
        return out, model.child.n[...], model.extra[...]

    # the product, n, and the new Variable: not a, which is read and returned as the object it was
    assert len(only(through, "jit", f32(1.0)).outvars) == 3


def test_graph_updates_off_propagates_values_alone():
    def f(cell):
        cell.n[...] += 1.0
        cell.extra = 1
        cell.w.note = 1

    cell = Cell()
    nnx.jit(f, graph_updates=False)(cell)
    assert float(cell.n[...]) == 1.0
    assert not hasattr(cell, "extra")
    assert not cell.w.has_metadata("note")
    with pytest.raises(InputReturnedError):
        nnx.jit(lambda cell: cell, graph_updates=False)(cell)


def test_tree_mode_refuses_a_shared_object_and_names_both_places():
    tied = Empty(a=nnx.Param(f32(1.0)))
    tied.b = tied.a
    with pytest.raises(SharedVariableError, match=r"nnx\.jit: found one object at model\.a and at model\.b;"):
        nnx.jit(lambda model: None, graph=False)(tied)
    with nnx.set_graph_mode(False), pytest.raises(SharedVariableError):
        nnx.grad(lambda model: model.a[...])(tied)


def test_trees_pass_in_tree_mode():
    cell = Cell()
    assert float(nnx.jit(Cell.loss, graph=False)(cell, f32(3.0))) == 6.0
    assert float(cell.n[...]) == 1.0


def test_variable_that_leaks_is_refused_when_it_is_used():
    kept = []
    nnx.jit(lambda x: kept.append(nnx.Variable(x)))(1.0)
    with pytest.raises(LeakedVariableError, match="was made inside a function under jit"):
        kept[0].get_value()
    with pytest.raises(LeakedVariableError):
        kept[0].set_value(1.0)
    with pytest.raises(LeakedVariableError):
        nnx.remat(lambda: kept[0].get_value())()


def test_write_under_a_raw_transform_is_refused_inside_a_lifted_one():
    def f(cell, x):
        def raw(x):
            cell.n[...] = x
            return x

        return jax.grad(raw)(x)

    cell = Cell()
    with pytest.raises(TraceWriteError, match=r"raw JAX transform \(.*\) is active here inside nnx\.jit"):
        nnx.jit(f)(cell, f32(1.0))
    assert float(cell.n[...]) == 0.0


def test_nothing_is_written_if_one_variable_cannot_be():
    inner, outer = Cell(), Cell()

    def f(x):
        mine = Cell()

        def both(mine, outer):
            mine.n[...] += 1.0
            outer.n[...] += x

        with pytest.raises(TraceWriteError):
            nnx.jit(both)(mine, outer)
        return mine.n[...] * x

    assert jax.vmap(f)(jnp.ones(2)).tolist() == [0.0, 0.0]
    assert values(inner) == values(outer)


def test_threads_train_their_own_models_beside_a_shared_one():
    shared = Cell(3.0)

    @nnx.jit
    def step(cell, shared, x):
        grads = nnx.grad(lambda cell: (cell(x) - shared.w[...]) ** 2)(cell)
        cell.w[...] -= 0.1 * grads["w"][...]

    def train(cell):
        for _ in range(20):
            step(cell, shared, f32(1.0))

    models = [Cell(float(i)) for i in range(8)]
    expected = [Cell(float(i)) for i in range(8)]
    threads = [threading.Thread(target=train, args=(m,)) for m in models]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for m in expected:
        train(m)
    assert [values(m) for m in models] == [values(m) for m in expected]
    assert values(shared) == {("w",): 3.0, ("n",): 0.0}


@each
def test_long_chain_of_objects_needs_no_recursion(lift):
    def f(head):
        head.v[...] += 1.0

    head = Empty(v=nnx.Variable(f32(0.0)))
    last = head
    for _ in range(1500):
        last.next = Empty()
        last = last.next
    last.v = head.v
    lift(f)(head)
    assert float(last.v[...]) == 1.0
    assert values(nnx.grad(lambda head: head.v[...], argnums=nnx.DiffState(0, ...))(head)) == {("v",): 1.0}
