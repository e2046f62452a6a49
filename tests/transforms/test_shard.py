"""shard_map on eight devices, over meshes with axes of both types."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import nnxgraph as nnx
from nnxgraph.errors import AliasError, LaneWriteError, PrefixError, ShardSpecError, SharedStreamWarning
from tests.transforms.subjects import Cell, Empty, Tied, only, traced, values

XS = jnp.arange(8.0)


def mesh_of(kind, shape=(8,), names=("data",)):
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names))


MESH = mesh_of(AxisType.Auto)
BOTH = (P(), P("data"))
GRID = mesh_of(AxisType.Auto, (4, 2), ("data", "model"))

both_types = pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
outer = pytest.mark.parametrize("outer", [lambda f: f, nnx.jit], ids=["eager", "jit"])


def total(cell, x):
    """Each device's share of the input, and a sum over all of them on a replicated Variable."""
    cell.n[...] += jax.lax.psum(x.sum(), "data")
    return cell.w[...] * x


@both_types
@outer
def test_sh1_psum_over_eight_devices_writes_state_back(kind, outer):
    cell = Cell()
    n = cell.n
    f = outer(nnx.shard_map(total, mesh=mesh_of(kind), in_specs=BOTH, out_specs=P("data")))
    for calls in (1, 2):
        assert f(cell, XS).tolist() == (XS * 2.0).tolist()
        assert values(cell) == {("w",): 2.0, ("n",): 28.0 * calls}
    assert cell.n is n


@both_types
def test_equals_jax_on_split_state(kind):
    mesh = mesh_of(kind)
    model, x = nnx.Linear(4, 3, rngs=nnx.Rngs(0)), jax.random.normal(jax.random.key(1), (16, 4))

    def loss(model, x):
        return jax.lax.pmean((model(x) ** 2).mean(), "data")

    def pure(state, x):
        return loss(nnx.merge(graphdef, state), x)

    graphdef, state = nnx.split(model)
    specs = {"mesh": mesh, "in_specs": (P(), P("data")), "out_specs": P()}
    placed = jax.device_put(x, jax.NamedSharding(mesh, P("data")))
    expected = jax.jit(jax.shard_map(pure, **specs))(state, placed)
    ours = nnx.jit(nnx.shard_map(loss, **specs))(model, x)
    assert jnp.allclose(ours, expected)


def test_gradients_cross_shard_map():
    model, x = nnx.Linear(4, 3, rngs=nnx.Rngs(0)), jax.random.normal(jax.random.key(1), (16, 4))

    @nnx.shard_map(mesh=MESH, in_specs=BOTH, out_specs=P())
    def loss(model, x):
        return jax.lax.pmean((model(x) ** 2).mean(), "data")

    ours = nnx.grad(loss)(model, x)
    plain = nnx.grad(lambda model, x: (model(x) ** 2).mean())(model, x)
    assert jnp.allclose(ours["kernel"][...], plain["kernel"][...], atol=1e-6)


def test_filters_choose_the_spec_of_each_variable():
    cell = Cell()
    cell.n.set_value(jnp.zeros(8))
    specs = nnx.StateSharding({nnx.Param: P(), ...: P("data")})

    def f(cell, x):
        assert (cell.w.shape, cell.n.shape) == ((), (1,))
        cell.n[...] += x
        cell.w[...] += 1.0
        return jax.lax.psum(x.sum(), "data")

    out = nnx.shard_map(f, mesh=MESH, in_specs=(specs, P("data")), out_specs=P())(cell, XS)
    assert float(out) == 28.0
    assert float(cell.w[...]) == 3.0
    assert cell.n[...].tolist() == XS.tolist()


def test_bare_spec_is_that_of_a_whole_object():
    holder = Empty(a=nnx.Param(XS), b=nnx.Variable(jnp.ones((8, 2))), raw=XS * 2.0)
    out = nnx.shard_map(
        lambda h: h.a[...] + h.b[:, 0] + h.raw, mesh=MESH, in_specs=P("data"), out_specs=P("data")
    )(holder)
    assert out.tolist() == (XS * 3.0 + 1.0).tolist()


def test_two_axes_and_axes_together():
    x = jnp.arange(32.0).reshape(8, 4)

    def f(x, y):
        assert (x.shape, y.shape) == ((2, 2), (1, 4))
        return jax.lax.psum(x.sum(), ("data", "model")), y * 2.0

    specs = {"in_specs": (P("data", "model"), P(("data", "model"))), "out_specs": (P(), P(("data", "model")))}
    ours = nnx.shard_map(f, mesh=GRID, **specs)(x, x)
    theirs = jax.shard_map(f, mesh=GRID, **specs)(x, x)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, ours, theirs))


def test_only_the_named_axes_are_mapped():
    def f(x):
        return jax.lax.psum(x, "data")

    options = {"mesh": GRID, "in_specs": P("data"), "out_specs": P(), "axis_names": {"data"}}
    assert (
        jax.jit(nnx.shard_map(f, **options))(XS).tolist() == jax.jit(jax.shard_map(f, **options))(XS).tolist()
    )


def test_mesh_may_come_from_the_context():
    with jax.set_mesh(MESH):
        out = nnx.shard_map(lambda x: jax.lax.psum(x, "data"), in_specs=P("data"), out_specs=P())(XS)
    assert out.tolist() == [28.0]


def test_shard_map_inside_another_takes_the_axes_that_are_left():
    def inner(cell, x):
        assert x.shape == (2, 2)
        cell.n[...] += jax.lax.psum(x.sum(), "model")
        return x * 2.0

    def outer(cell, x):
        assert x.shape == (2, 4)
        specs = {"in_specs": (P(), P(None, "model")), "out_specs": P(None, "model")}
        y = nnx.shard_map(inner, **specs, axis_names={"model"})(cell, x)
        cell.n[...] = jax.lax.psum(cell.n[...], "data")
        return y

    cell, x = Cell(), jnp.arange(32.0).reshape(8, 4)
    mapped = nnx.shard_map(outer, mesh=GRID, in_specs=BOTH, out_specs=P("data"), axis_names={"data"})
    assert nnx.jit(mapped)(cell, x).tolist() == (x * 2.0).tolist()
    assert float(cell.n[...]) == float(x.sum())


def test_captured_and_bound_objects_are_whole_on_each_device():
    cell = Cell()
    f = nnx.shard_map(lambda x: total(cell, x), mesh=MESH, in_specs=P("data"), out_specs=P("data"))
    assert f(XS).tolist() == (XS * 2.0).tolist()
    nnx.shard_map(cell.__call__, mesh=MESH, in_specs=P("data"), out_specs=P("data"))(XS)
    assert float(cell.n[...]) == 29.0


def test_new_objects_and_changed_attributes_come_out():
    def f(holder, x):
        holder.new = nnx.Param(jax.lax.psum(x, "data"))
        holder.tag = "changed"
        return Cell(x.sum(), x), Tied()

    holder = Empty(tag="plain")
    specs = nnx.StateSharding({nnx.Param: P(), ...: P("data")})
    options = {"mesh": MESH, "in_specs": (P(), P("data")), "out_specs": (specs, P())}
    with pytest.raises(LaneWriteError, match=r"result\[0\]\.w with out_specs=P\(\)"):
        nnx.shard_map(f, **options)(holder, XS)
    assert vars(holder) == {"tag": "plain"}
    made, tied = nnx.shard_map(lambda h, x: (f(h, x)[1], f(h, x)[1]), **options | {"out_specs": P()})(
        holder, XS
    )
    assert made.a is made.b
    assert tied.child.parent is tied
    assert (holder.tag, float(holder.new[0])) == ("changed", 28.0)


def test_keyword_arguments_are_whole_on_each_device():
    f = nnx.shard_map(lambda x, *, cell: cell(x), mesh=MESH, in_specs=P("data"), out_specs=P("data"))
    cell = Cell()
    assert f(XS, cell=cell).tolist() == (XS * 2.0).tolist()
    assert float(cell.n[...]) == 1.0


def test_decorates_functions_and_methods():
    class Net(Cell):
        @nnx.shard_map(mesh=MESH, in_specs=BOTH, out_specs=P("data"))
        def forward(self, x):
            """All devices."""
            return total(self, x)

    net = Net()
    assert net.forward(XS).tolist() == (XS * 2.0).tolist()
    assert float(net.n[...]) == 28.0
    assert (Net.forward.__name__, Net.forward.__doc__) == ("forward", "All devices.")


def test_unchanged_variables_are_no_outputs_and_the_function_is_traced_once():
    f, runs = traced(lambda cell, x: cell.w[...] * x)
    mapped = nnx.shard_map(f, mesh=MESH, in_specs=BOTH, out_specs=P("data"))
    equation = only(lambda x: mapped(Cell(), x), "shard_map", XS)
    assert (len(equation.outvars), len(runs)) == (1, 1)


def test_unchecked_shards_write_what_the_first_device_has():
    cell = Cell()
    nnx.shard_map(
        lambda cell, x: cell.n.set_value(x[0]),
        mesh=MESH,
        in_specs=BOTH,
        out_specs=P(),
        check_vma=False,
    )(cell, XS + 1.0)
    assert float(cell.n[...]) == 1.0


def test_stream_that_is_whole_on_each_device_warns():
    drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    f = nnx.shard_map(nnx.Dropout.__call__, mesh=MESH, in_specs=BOTH, out_specs=P("data"))
    with pytest.warns(SharedStreamWarning, match=r"nnx\.shard_map: all lanes .*\n.* self\.rngs"):
        y = f(drop, jnp.ones((8, 16)))
    assert bool((y == y[:1]).all())


def test_stream_of_each_device_by_its_place():
    @nnx.shard_map(mesh=MESH, in_specs=BOTH, out_specs=P("data"))
    def f(key, x):
        rngs = nnx.Rngs(jax.random.fold_in(key, jax.lax.axis_index("data")))
        return nnx.Dropout(0.5, rngs=rngs)(x)

    y = f(jax.random.key(0), jnp.ones((8, 16)))
    assert not bool((y == y[:1]).all())


def run(f, *args, **specs):
    return nnx.shard_map(f, mesh=MESH, **specs)(*args)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: run(lambda c, x: c.n.set_value(x[0]), Cell(), XS, in_specs=BOTH, out_specs=P()),
            LaneWriteError,
            "nnx.shard_map: a value that differs from lane to lane goes to what all lanes share: c.n: "
            "Variable(float32[]). Expected one value for all. Give it an axis, as in "
            "in_specs=nnx.StateSharding({nnx.BatchStat: P('data'), ...: P()}), or reduce",
        ),
        (
            lambda: run(lambda x: {"y": x}, XS, in_specs=P("data"), out_specs=P()),
            LaneWriteError,
            "share: result.y with out_specs=P(). Expected",
        ),
        (
            lambda: run(lambda model: None, Empty(w=nnx.Param(XS[:7])), in_specs=P("data"), out_specs=P()),
            ShardSpecError,
            "nnx.shard_map: in_specs has P('data') for model.w, which is float32[7]. Expected a multiple of "
            "8 for its dimension 0, of size 7.",
        ),
        (
            lambda: run(lambda cell, x: x, Cell(), XS, in_specs=P("data"), out_specs=P()),
            ShardSpecError,
            "in_specs has P('data') for cell.w, which is float32[]. Expected a spec with at most 0 entries.",
        ),
        (
            lambda: run(lambda x: x, XS, in_specs=P("z"), out_specs=P()),
            ShardSpecError,
            "in_specs has P('z') for x, of which the mesh does not map each axis. Expected axes among "
            "'data'.",
        ),
        (
            lambda: run(lambda x: x, XS, in_specs=P(), out_specs=(P(None, "z"))),
            ShardSpecError,
            "out_specs has P(None, 'z'), of which the mesh does not map each axis. Expected axes among "
            "'data'.",
        ),
        (
            lambda: run(lambda x: x.sum(), XS, in_specs=P(), out_specs=P("data")),
            ShardSpecError,
            "out_specs has P('data') for result, which is float32[]. Expected a spec with at most 0 entries.",
        ),
        (
            lambda: run(lambda x: x, XS, in_specs=0, out_specs=P()),
            ShardSpecError,
            "in_specs has 0 for x, which is no spec. Expected a PartitionSpec.",
        ),
        (
            lambda: run(lambda a, b: None, h := Empty(w=nnx.Param(XS)), h, in_specs=BOTH, out_specs=P()),
            AliasError,
            "found at a.w with in_specs P() and at b.w with P('data',)",
        ),
        (
            lambda: run(lambda x, y: x, XS, XS, in_specs=(P(),), out_specs=P()),
            PrefixError,
            "nnx.shard_map: in_specs does not fit the positional arguments",
        ),
    ],
)
def test_misuse_is_explained(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


def test_error_writes_nothing():
    cell = Cell()

    def f(cell, x):
        cell.w[...] += 1.0
        cell.n[...] = x[0]

    with pytest.raises(LaneWriteError):
        run(f, cell, XS, in_specs=BOTH, out_specs=P())
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}
