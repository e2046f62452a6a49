"""in_shardings, out_shardings and StateSharding on eight devices."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import nnxgraph as nnx
from nnxgraph.errors import AliasError, PrefixError
from tests.transforms.subjects import Cell

XS = jnp.arange(8.0)


@pytest.fixture
def mesh():
    return jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


@pytest.fixture
def split(mesh):
    return NamedSharding(mesh, P("data"))


@pytest.fixture
def whole(mesh):
    return NamedSharding(mesh, P())


def linear():
    return nnx.Linear(8, 8, rngs=nnx.Rngs(0))


def test_arguments_and_results_get_their_shardings(split, whole):
    f = nnx.jit(lambda model, x: model(x), in_shardings=(whole, split), out_shardings=split)
    model, x = linear(), jnp.ones((8, 8))
    y = f(model, x)
    assert y.sharding.is_equivalent_to(split, y.ndim)
    assert jnp.allclose(y, model(x), atol=1e-5)


def test_one_sharding_holds_for_everything_and_a_container_for_its_parts(split, whole):
    f = nnx.jit(lambda x: {"a": x, "b": x.sum()}, in_shardings=split, out_shardings={"a": split, "b": whole})
    out = f(XS)
    assert out["a"].sharding.is_equivalent_to(split, 1)
    assert out["b"].sharding.is_fully_replicated


def test_filters_choose_the_sharding_of_each_variable(split, whole):
    shardings = nnx.StateSharding({nnx.PathContains("kernel"): split, ...: whole})

    def write(model):
        model.kernel[...] *= 2.0
        model.bias[...] += 1.0

    model = linear()
    nnx.jit(write, in_shardings=(shardings,))(model)
    made = nnx.jit(linear, out_shardings=shardings)()
    for m in (model, made):
        assert m.kernel[...].sharding.is_equivalent_to(split, 2)
        assert m.bias[...].sharding.is_fully_replicated


def test_written_variable_keeps_the_sharding_of_its_argument(split, whole):
    def step(model, x):
        model.kernel[...] += x.sum()

    model = linear()
    f = nnx.jit(step, in_shardings=(split, whole))
    f(model, XS)
    f(model, XS)
    assert model.kernel[...].sharding.is_equivalent_to(split, 2)


def test_donation_and_sharding_go_together(split):
    model = linear()
    f = nnx.jit(lambda m: m.bias.set_value(m.bias[...] + 1.0), in_shardings=split, donate_argnums=0)
    f(model)
    old = model.kernel[...]
    f(model)
    assert old.is_deleted()
    assert model.bias[...].tolist() == [2.0] * 8
    assert model.kernel[...].sharding.is_equivalent_to(split, 2)


def test_one_variable_in_two_shardings_is_refused(split, whole):
    model = linear()
    with pytest.raises(
        AliasError, match=r"Param\(.*\) is one Variable, found at a\.kernel with in_shardings"
    ):
        nnx.jit(lambda a, b: None, in_shardings=(split, whole))(model, model)


def test_wrong_prefix_names_the_parameter_and_what_it_should_be():
    with pytest.raises(PrefixError) as caught:
        nnx.jit(lambda x: x, out_shardings=(None,))(XS)
    assert str(caught.value) == (
        "nnx.jit: out_shardings does not fit result: found (None,), expected one lane for a leaf. Write "
        "out_shardings as one value for everything, or as a container shaped like the arguments."
    )
    with pytest.raises(PrefixError, match=r"does not fit the positional arguments: found \(None, None\), "):
        nnx.jit(lambda x: x, in_shardings=(None, None))(XS)
    with pytest.raises(
        PrefixError, match=r"out_shardings does not fit result: .* one lane or a rule for the"
    ):
        nnx.jit(lambda: Cell(), out_shardings=({"w": None},))()
