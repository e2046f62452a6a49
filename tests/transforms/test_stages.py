"""The stages of a compiled function, its export, and the parameters of jit that JAX's has."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from jax import export

import nnxgraph as nnx
from nnxgraph.errors import PrefixError, StageError
from tests.transforms.subjects import Cell, f32, traced, values


def loss(cell, x):
    return cell.loss(x)


def test_a_compiled_stage_does_to_objects_what_the_function_does():
    cell, other = Cell(), Cell(5.0)
    f, runs = traced(loss)
    stage = nnx.jit(f).lower(cell, f32(1.0)).compile()
    assert values(cell) == {("w",): 2.0, ("n",): 0.0}
    assert [float(stage(c, f32(3.0))) for c in (cell, other, cell)] == [6.0, 15.0, 6.0]
    assert [float(c.n[...]) for c in (cell, other)] == [2.0, 1.0]
    assert len(runs) == 1


def test_stages_have_what_those_of_jax_have():
    traced_stage = nnx.jit(loss).trace(Cell(), f32(1.0))
    assert traced_stage.fun_name == "loss"
    assert "mul" in str(traced_stage.jaxpr)
    lowered = traced_stage.lower()
    assert "stablehlo.multiply" in lowered.as_text()
    assert lowered.compiler_ir() is not None
    assert lowered.cost_analysis() is not None
    compiled = lowered.compile()
    assert "HloModule" in compiled.as_text()
    assert compiled.memory_analysis() is not None
    assert [type(stage).__name__ for stage in (traced_stage, lowered, compiled)] == ["Stage"] * 3
    with pytest.raises(AttributeError):
        compiled.no_such_method()


def test_a_stage_reads_captured_state_at_each_call():
    cell = Cell()
    stage = nnx.jit(lambda x: cell.loss(x)).lower(f32(1.0)).compile()
    cell.w[...] = f32(3.0)
    assert float(stage(f32(1.0))) == 3.0
    assert float(cell.n[...]) == 1.0
    cell.tag = "other"
    with pytest.raises(StageError, match="another structure"):
        stage(f32(1.0))


def test_shapes_are_known_without_a_call():
    cell = Cell()
    shape = nnx.jit(lambda cell, x, *, twice: loss(cell, x) * 2, static_argnames="twice").eval_shape(
        cell, f32(1.0), twice=True
    )
    assert (shape.shape, shape.dtype) == ((), jnp.float32)
    assert float(cell.n[...]) == 0.0


def test_stages_take_static_and_keyword_arguments():
    f = nnx.jit(lambda cell, mode, *, x: cell.loss(x) * len(mode), static_argnums=1)
    cell = Cell()
    assert float(f.lower(cell, "ab", x=f32(1.0)).compile()(cell, "ab", x=f32(2.0))) == 8.0


@pytest.mark.parametrize("make", [lambda m: nnx.jit(lambda x: m(x)), lambda m: nnx.jit(m)])
def test_ex1_a_compiled_function_exports(make):
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    x = jnp.ones((4, 2))
    exported = export.export(make(model))(x)
    assert jnp.allclose(exported.call(x), model(x), atol=1e-6)
    assert exported.fun_name


def test_ex1_a_symbolic_batch_exports_through_raw_jit():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    shapes = jax.ShapeDtypeStruct(export.symbolic_shape("batch, 2"), jnp.float32)
    for f in (jax.jit(lambda x: model(x)), nnx.jit(lambda x: model(x))):
        exported = export.export(f)(shapes)
        for batch in (1, 5):
            x = jnp.ones((batch, 2))
            assert jnp.allclose(exported.call(x), model(x), atol=1e-6)


@pytest.mark.filterwarnings("ignore:backend and device:DeprecationWarning")  # of JAX
def test_jt1_backend_and_device_behave_as_in_jax():
    cell = Cell()
    device = jax.devices()[-1]
    assert float(nnx.jit(loss, backend="cpu")(cell, f32(2.0))) == 4.0
    outs = [lift(lambda x: x * 2, device=device)(f32(1.0)) for lift in (nnx.jit, jax.jit)]
    assert [out.devices() for out in outs] == [{device}] * 2
    assert float(cell.n[...]) == 1.0


def test_jt3_a_module_compiles_and_counts():
    class Counter(nnx.Module):
        def __init__(self):
            self.count = nnx.Variable(jnp.array(0))

        def __call__(self):
            self.count[...] += 1

    counter = Counter()
    compiled = nnx.jit(counter)
    compiled()
    compiled()
    assert counter.count.item() == 2


def test_jt5_a_malformed_prefix_of_shardings_is_named():
    with pytest.raises(PrefixError, match="out_shardings does not fit result: found"):
        nnx.jit(lambda x: x, out_shardings=(None,))(f32(1.0))
    with pytest.raises(PrefixError, match="in_shardings or donate_argnums does not fit the positional"):
        nnx.jit(lambda x, y: x, in_shardings=(None,))(f32(1.0), f32(1.0))


def test_compiler_options_reach_the_compiler():
    assert (
        float(nnx.jit(loss, compiler_options={"xla_embed_ir_in_executable": True})(Cell(), f32(1.0))) == 2.0
    )
    with pytest.raises(Exception, match="no_such_option"):
        nnx.jit(loss, compiler_options={"no_such_option": True})(Cell(), f32(1.0))


def test_partial_takes_the_options_of_jit():
    own, options = (
        {k: p.default for k, p in inspect.signature(f).parameters.items() if p.kind is p.KEYWORD_ONLY}
        for f in (nnx.jit_partial, nnx.jit)
    )
    assert own == options


def test_partials_keep_their_first_arguments():
    cell = Cell()
    f, runs = traced(lambda cell, x, *, scale: cell.loss(x) * scale)
    step = nnx.cached_partial(nnx.jit(f), cell)
    assert [float(step(f32(1.0), scale=f32(s))) for s in (1.0, 2.0)] == [2.0, 4.0]
    assert float(nnx.jit_partial(f, cell, static_argnames="scale")(f32(1.0), scale=3.0)) == 6.0
    assert float(cell.n[...]) == 3.0
    assert len(runs) == 2
    cell.tag = "other"
    step(f32(1.0), scale=f32(1.0))
    assert len(runs) == 3


def test_partials_have_modes():
    cell = Cell()
    step = nnx.cached_partial(nnx.jit(lambda cell: setattr(cell, "tag", "new")), cell, graph_updates=False)
    step()
    assert cell.tag == "plain"
    with pytest.raises(nnx.errors.SharedVariableError):
        nnx.cached_partial(nnx.jit(lambda a, b: None), cell, graph=False)(cell)
    assert nnx.set_graph_mode.get_default()


def test_in3_sown_values_are_popped_at_each_call():
    class Sower(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "h", x)
            return x

    def run(model, x):
        model(x)
        return nnx.pop(model, nnx.Intermediate)

    step = nnx.cached_partial(nnx.jit(run), Sower())
    assert [float(step(f32(x))["h"][0]) for x in (1.0, 2.0, 3.0)] == [1.0, 2.0, 3.0]


def test_a_compiled_method_keeps_its_signature_and_binds():
    class Model(Cell):
        @nnx.jit(static_argnames="mode")
        def run(self, x, *, mode: str = "a") -> float:
            """Runs."""
            return self.loss(x) * len(mode)

    model = Model()
    assert float(model.run(f32(1.0), mode="ab")) == 4.0
    assert float(Model.run(model, f32(1.0))) == 2.0
    assert (Model.run.__name__, Model.run.__doc__) == ("run", "Runs.")
    assert list(inspect.signature(Model.run).parameters) == ["self", "x", "mode"]
    assert float(nnx.jit(model.run)(f32(1.0))) == 2.0
    assert float(nnx.grad(model.run)(f32(1.0))) == 2.0


def test_a_cleared_cache_traces_again():
    f, runs = traced(loss)
    step = nnx.jit(f)
    step(Cell(), f32(1.0))
    step.clear_cache()
    step(Cell(), f32(1.0))
    assert len(runs) == 2
