"""Laws that hold for every transform of `cases.CASES`, and for every one inside every other."""

import gc
import inspect
import weakref

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import _frame
from tests.transforms.cases import CASES, DECORATORS, ELSEWHERE, IMPOSSIBLE, PAIRS
from tests.transforms.subjects import Cell, Empty, Tied, f32, traced, values

HOME = "nnxgraph.transforms."
# What stands beside the transforms: prefixes, stages, and the mechanism by hand (test_manual.py).
NO_TRANSFORMS = {
    "Carry",
    "DiffState",
    "MergeContext",
    "NodeStates",
    "SplitContext",
    "Stage",
    "StateAxes",
    "StateSharding",
    "UpdateContext",
    "current_update_context",
    "from_tree",
    "merge_context",
    "merge_inputs",
    "prefix",
    "split_context",
    "split_inputs",
    "to_tree",
    "update_context",
}
each = pytest.mark.parametrize("case", CASES, ids=str)
each_decorator = pytest.mark.parametrize("case", DECORATORS, ids=str)
each_pair = pytest.mark.parametrize(("outer", "inner"), PAIRS, ids=str)


def raising(error):
    """A context that asserts the error, or that there is none."""
    return pytest.raises(error) if error is not None else _Nothing()


class _Nothing:
    def __enter__(self):
        return None

    def __exit__(self, *error):
        return None


def test_every_transform_is_a_case():
    names = {name for name in nnx.__all__ if getattr(getattr(nnx, name), "__module__", "").startswith(HOME)}
    listed = {case.name for case in CASES} | ELSEWHERE.keys() | NO_TRANSFORMS
    assert names - listed == set()


@each
def test_arrays_give_what_the_plain_function_gives(case):
    def f(x, tree):
        return jnp.sin(x) * tree["a"][0] + tree["b"]

    args = (f32(0.3), {"a": [f32(2.0)], "b": f32(-1.0)})
    assert jnp.allclose(case.lift(f)(*args), f(*args))


@each
def test_mutation_reaches_the_caller(case):
    cell, plain = Cell(), Cell()
    out = case.lift(lambda cell, x: cell.loss(x))(cell, f32(5.0))
    assert float(out) == float(plain.loss(f32(5.0))) == 10.0
    assert values(cell) == values(plain) == {("w",): 2.0, ("n",): 1.0}


@each
def test_variables_keep_their_identity(case):
    cell = Cell()
    before = (cell.w, cell.n)
    case.lift(lambda cell, x: cell.loss(x))(cell, f32(5.0))
    assert cell.w is before[0]
    assert cell.n is before[1]


@each
def test_sharing_is_seen_inside_and_kept_outside(case):
    def f(tied, child):
        assert tied.a is tied.b
        assert child is tied.child
        assert child.parent is tied
        tied.a[...] += 1.0
        child.n[...] += 2.0
        return tied.b[...] + child.n[...]

    tied = Tied()
    a = tied.a
    assert float(case.lift(f)(tied, tied.child)) == 6.0
    assert tied.a is tied.b is a
    assert tied.child.parent is tied
    assert float(tied.b[...]) == 4.0


@each
def test_one_object_in_two_arguments_is_one_object_inside(case):
    def f(one, two):
        assert one is two
        one.n[...] += 1.0
        two.n[...] += 1.0
        return one.n[...]

    cell = Cell()
    assert float(case.lift(f)(cell, cell)) == 2.0
    assert float(cell.n[...]) == 2.0


@each
def test_new_objects_come_out(case):
    with raising(case.objects):
        made = case.lift(lambda x: Cell(x, 1.0))(f32(4.0))
        assert type(made) is Cell
        assert made.tag == "plain"
        assert values(made) == {("w",): 4.0, ("n",): 1.0}


@each
def test_argument_comes_out_as_itself(case):
    cell = Cell()
    with raising(case.returned):
        assert case.lift(lambda cell: cell)(cell) is cell


@each
def test_structure_changes_propagate_or_are_refused(case):
    def f(holder, x):
        holder.new = nnx.Param(x)
        holder.items.append(x)
        holder.tag = "changed"
        del holder.old
        return x

    holder = Empty(items=[], tag="plain", old=nnx.Param(f32(1.0)))
    items = holder.items
    with raising(case.structure):
        case.lift(f)(holder, f32(3.0))
        assert list(vars(holder)) == ["items", "tag", "new"]
        assert (float(holder.new[...]), holder.tag) == (3.0, "changed")
        assert holder.items is items
        assert [float(x) for x in items] == [3.0]
    if case.structure:
        assert list(vars(holder)) == ["items", "tag", "old"]
        assert holder.items == []


@each
def test_exception_leaves_everything_as_it_was(case):
    class Oops(Exception):
        pass

    def f(holder, x):
        holder.cell.n[...] += x
        holder.cell.w.set_metadata(note=1)
        holder.cell = Cell()
        holder.extra = x
        raise Oops

    holder = Empty(cell=Cell())
    cell = holder.cell
    with pytest.raises(Oops):
        case.lift(f)(holder, f32(3.0))
    assert _frame.thread.frame is None
    assert list(vars(holder)) == ["cell"]
    assert holder.cell is cell
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}
    assert not cell.w.has_metadata("note")
    cell.n[...] = f32(7.0)
    assert float(cell.n[...]) == 7.0


@each
def test_keyword_arguments_are_lifted(case):
    def f(cell, *, x, scale=1.0):
        return cell.loss(x * scale)

    cell = Cell()
    if case.keywords:
        assert float(case.lift(f)(cell, x=f32(2.0), scale=f32(3.0))) == 12.0
        assert float(cell.n[...]) == 1.0
    else:
        with pytest.raises(TypeError):
            case.lift(f)(cell, x=f32(2.0))


@each
def test_passed_bound_and_captured_forms_agree(case):
    cells = Cell(), Cell(), Cell()
    x = f32(2.0)
    assert float(case.lift(lambda cell, x: cell.loss(x))(cells[0], x)) == 4.0
    assert float(case.lift(cells[1].loss)(x)) == 4.0
    with raising(case.captures):
        assert float(case.lift(lambda x: cells[2].loss(x))(x)) == 4.0
    assert [float(c.n[...]) for c in cells] == [1.0, 1.0, 0.0 if case.captures else 1.0]


@each
def test_callable_object_is_lifted(case):
    cell = Cell()
    assert float(case.lift(cell)(f32(2.0))) == 4.0
    assert float(cell.n[...]) == 1.0


@each
def test_read_only_call_is_legal_under_raw_jax(case):
    cell = Cell()
    lifted = case.lift(lambda cell, x: cell.w[...] * x)
    xs = jnp.arange(3.0)
    assert jax.jit(lambda x: lifted(cell, x))(xs[2]) == 4.0
    assert jax.vmap(lambda x: lifted(cell, x))(xs).tolist() == [0.0, 2.0, 4.0]
    if case.name != "while_loop":  # JAX itself has no reverse mode for it
        assert jax.grad(lambda x: lifted(cell, x))(xs[2]) == 2.0


@each
def test_objects_die_after_the_call(case):
    lifted = case.lift(lambda cell, x: cell.loss(x))
    cell = Cell()
    died = [weakref.ref(cell), weakref.ref(cell.w)]
    lifted(cell, f32(1.0))
    del cell
    gc.collect()
    assert [ref() for ref in died] == [None, None]


@each
def test_repeated_calls_trace_only_where_nothing_is_cached(case):
    f, runs = traced(lambda cell, x: cell.loss(x))
    lifted = case.lift(f)
    cell = Cell()
    for x in (1.0, 2.0, 3.0):
        lifted(cell, f32(x))
    assert len(runs) == case.traces * (1 if case.cached or case.kept else 3)
    assert float(cell.n[...]) == 3.0


@each_decorator
def test_name_doc_and_signature_are_kept(case):
    def step(cell: Cell, x: float = 1.0) -> float:
        """One step."""
        return cell.loss(x)

    lifted = case.wrapper(step, **case.options)
    assert lifted.__name__ == "step"
    assert lifted.__doc__ == "One step."
    assert lifted.__wrapped__ is step
    assert inspect.signature(lifted) == inspect.signature(step)


@each_decorator
def test_bare_called_and_decorating_forms_agree(case):
    wrapper, options = case.wrapper, case.options

    @wrapper(**options)
    def decorated(cell, x):
        return cell.loss(x)

    class Model(Cell):
        method = wrapper(Cell.loss, **options)

    xs = jnp.ones(3)
    called = wrapper(lambda cell, x: cell.loss(x), **options)
    results = [called(Cell(), xs), decorated(Cell(), xs), Model().method(xs)]
    results.append(wrapper(f=Cell.loss, **options)(Cell(), xs) if wrapper is not nnx.jit else results[0])
    leaves = [jax.tree.map(jnp.asarray, jax.tree.leaves(r)) for r in results]
    assert all(jax.tree.all(jax.tree.map(jnp.array_equal, leaves[0], other)) for other in leaves)
    if not options:

        @wrapper
        def bare(cell, x):
            return cell.loss(x)

        assert jax.tree.all(jax.tree.map(jnp.array_equal, jax.tree.leaves(bare(Cell(), xs)), leaves[0]))


def step(tied, x):
    """Writes through a shared Variable and through a cycle."""
    assert tied.a is tied.b
    assert tied.child.parent is tied
    tied.a[...] += x
    tied.child.n[...] = tied.child.n[...] * 2.0 + 1.0
    return tied.b[...] * tied.child.n[...]


@each_pair
def test_one_transform_inside_another(outer, inner):
    f, runs = traced(step)
    lifted = outer.lift(inner.lift(f))
    tied, plain = Tied(), Tied()
    held = (tied.a, tied.child, tied.child.n)
    impossible = IMPOSSIBLE.get((outer.name, inner.name))
    if impossible is not None:
        with pytest.raises(impossible):
            lifted(tied, f32(1.0))
        assert values(tied) == values(plain)
        return
    once = outer.cached or outer.kept
    counts = []
    for x in (f32(1.0), f32(0.5), f32(0.25)):
        assert float(lifted(tied, x)) == float(step(plain, x))
        counts.append(len(runs))
    assert values(tied) == values(plain)
    assert (tied.a, tied.child, tied.child.n) == held
    assert tied.a is tied.b is held[0]
    assert tied.child is held[1]
    assert tied.child.n is held[2]
    first = (1 if inner.cached else outer.traces) * inner.traces
    settled = 2 if once and inner.settles else 1
    assert (
        counts == [first, settled * first, settled * first]
        if once or inner.cached
        else [first, 2 * first, 3 * first]
    )


@each_pair
def test_one_transform_inside_another_over_what_is_captured(outer, inner):
    tied, plain = Tied(), Tied()
    held = (tied.a, tied.child, tied.child.n)
    lifted = outer.lift(inner.lift(lambda x: step(tied, x)))
    impossible = IMPOSSIBLE.get((outer.name, inner.name))
    if impossible is not None:
        with pytest.raises(impossible):
            lifted(f32(1.0))
    else:
        assert float(lifted(f32(1.0))) == float(step(plain, f32(1.0)))
    assert values(tied) == values(plain)
    assert (tied.a, tied.child, tied.child.n) == held
