"""Views: other objects over the same Variables, with other modes."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given

import nnxgraph as nnx
from nnxgraph.errors import SharedVariableError, UnknownAttributesError, UnknownViewArgumentsError
from tests.strategies import GRAPHS, reachable, same


class Block(nnx.Module):
    """Layers with a mode each, in a plain container, one of them shared."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(2, 2, rngs=rngs)
        self.layers = [nnx.Dropout(0.5, rngs=rngs), {"norm": nnx.BatchNorm(2, rngs=rngs)}]
        self.attention = nnx.MultiHeadAttention(1, 2, rngs=rngs)
        self.again = self.layers[0]

    def __call__(self, x):
        return self.layers[0](self.layers[1]["norm"](self.linear(x)))


def block():
    return Block(nnx.Rngs(0))


def modes(m):
    return (m.layers[0].deterministic, m.layers[1]["norm"].use_running_average, m.attention.deterministic)


def test_view_sets_modes_and_leaves_the_original_alone():
    model = block()
    before = nnx.graphdef(model)
    twin = nnx.view(model, deterministic=True, use_running_average=True)
    assert modes(twin) == (True, True, True)
    assert modes(model) == (False, False, None)
    assert nnx.graphdef(model) is before
    assert twin is not model
    assert type(twin) is Block


WAYS = {
    "view": lambda m: nnx.view(m, deterministic=True),
    "with_attributes": lambda m: nnx.with_attributes(m, deterministic=True),
}
each = pytest.mark.parametrize("way", WAYS)


@each
def test_variables_are_the_same_and_sharing_is_kept(way):
    model = block()
    twin = WAYS[way](model)
    ours, theirs = nnx.variables(model), nnx.variables(twin)
    pairs = zip(nnx.to_flat_state(ours), nnx.to_flat_state(theirs), strict=True)
    assert all(a == b and v is w for (a, v), (b, w) in pairs)
    assert twin.again is twin.layers[0]
    assert twin.again is not model.again
    assert twin.layers is not model.layers


@each
def test_writes_through_variables_are_seen_on_both_sides(way):
    model = block()
    twin = WAYS[way](model)
    nnx.jit(lambda m, x: m(x))(twin, jnp.ones((4, 2)))
    norm = model.layers[1]["norm"]
    assert norm.mean[...].tolist() == twin.layers[1]["norm"].mean[...].tolist() != [0.0, 0.0]
    model.linear.bias[...] += 1.0
    assert twin.linear.bias[...].tolist() == [1.0, 1.0]


def test_new_attributes_of_a_view_stay_there():
    model = block()
    twin = nnx.view(model, decode=True, batch_size=3, max_length=5)
    assert twin.attention.cached_key.shape == (3, 5, 1, 2)
    assert twin.attention.decode
    assert not nnx.state(model, nnx.Cache)
    assert model.attention.decode is not True


def test_module_takes_the_arguments_that_it_knows():
    seen = []

    class First(nnx.Module):
        def set_view(self, a=None, *, b=None):
            seen.append(("first", a, b))

    class Second(nnx.Module):
        def set_view(self, b, c=3):
            seen.append(("second", b, c))

    class Third(nnx.Module):
        def set_view(self, **kwargs):
            seen.append(("third", kwargs))

    class Plain(nnx.Pytree):
        def set_view(self, c):
            seen.append(("plain", c))

    nnx.view([First(), Second(), Plain()], a=1)
    nnx.view([First(), Second(), Plain()], b=2)
    nnx.view([First(), Second(), Plain()], c=2, raise_if_not_found=False, only=Plain)
    nnx.view([First(), Third()], z=1)
    nnx.view([First(), Third()])
    assert seen == [
        ("first", 1, None),
        ("first", None, 2),
        ("second", 2, 3),
        ("plain", 2),
        ("third", {"z": 1}),
    ]


ONLY = {
    "type": (nnx.Dropout, (True, None)),
    "path": (nnx.PathContains("attention"), (False, True)),
    "not": (nnx.Not(nnx.Dropout), (False, True)),
    "function": (lambda path, m: path == ("layers", 0), (True, None)),
    "everything": (..., (True, True)),
    "list": ([nnx.Dropout, nnx.MultiHeadAttention], (True, True)),
}


@each
@pytest.mark.parametrize("name", ONLY)
def test_only_some_modules_are_set(way, name):
    only, expected = ONLY[name]
    make = nnx.view if way == "view" else nnx.with_attributes
    twin = make(block(), only=only, deterministic=True)
    assert (twin.layers[0].deterministic, twin.attention.deterministic) == expected


@pytest.mark.parametrize(
    ("make", "error"),
    [(nnx.view, UnknownViewArgumentsError), (nnx.with_attributes, UnknownAttributesError)],
)
def test_misspelt_mode_names_close_matches(make, error):
    model = block()
    with pytest.raises(error, match=r"'determinstic'.* Did you mean 'deterministic'\?"):
        make(model, determinstic=True)
    with pytest.raises(error):
        make(model, only=nnx.Linear, deterministic=True)
    twin = make(model, determinstic=True, deterministic=True, raise_if_not_found=False)
    assert twin.layers[0].deterministic
    assert not hasattr(twin.layers[0], "determinstic")


@each
def test_tree_mode_refuses_shared_objects(way):
    make = nnx.view if way == "view" else nnx.with_attributes
    with pytest.raises(SharedVariableError):
        make(block(), graph=False, deterministic=True)


def test_with_attributes_sets_any_attribute():
    model = block()
    twin = nnx.with_attributes(model, rate=0.1, momentum=0.5)
    assert (twin.layers[0].rate, twin.layers[1]["norm"].momentum) == (0.1, 0.5)
    assert model.layers[0].rate == 0.5


def test_views_are_made_inside_transforms():
    model, x = block(), jnp.ones((4, 2))
    expected = nnx.view(model, deterministic=True, use_running_average=True)(x)
    for jit in (nnx.jit, jax.jit):
        forward = jit(lambda m, x: nnx.view(m, deterministic=True, use_running_average=True)(x))
        assert jnp.allclose(forward(model, x), expected)
    assert modes(model) == (False, False, None)


def test_gradients_through_a_view_reach_the_variables():
    model, x = block(), jnp.ones((4, 2))

    def loss(m):
        return nnx.view(m, deterministic=True, use_running_average=True)(x).sum()

    assert float(nnx.grad(loss)(model)["linear"]["bias"][...][0]) != 0.0


def test_view_info_lists_modules_parameters_and_their_meaning():
    class Told(nnx.Module):
        def set_view(self, mode: str = "a", *rest: int, depth=3, **others: int) -> None:
            """Sets.

            Args:
                mode (str): What to do,
                    in two lines.
                depth: How deep.
            """

    text = nnx.view_info(nnx.Dict(told=Told(), drop=[nnx.Dropout(0.5)], lin=nnx.Dict()))
    assert text == inspect.cleandoc("""
        .told: Told
          mode: str = 'a'
            What to do,
            in two lines.
          depth=3
            How deep.
          **others: int
        .drop[0]: Dropout
          deterministic: bool | None = None
            Whether the layer is off.
    """)
    assert nnx.view_info(Told()).startswith("the root: Told\n")


def test_view_info_takes_filters_and_may_find_nothing():
    model = block()
    assert ".layers[0]" not in nnx.view_info(model, only=nnx.BatchNorm)
    assert nnx.view_info(model, only=nnx.Linear) == "No module has a method set_view."
    for name in ("deterministic", "use_running_average", "decode", "batch_size", "max_length"):
        assert name in nnx.view_info(model)
    with pytest.raises(SharedVariableError):
        nnx.view_info(model, graph=False)


@given(GRAPHS)
def test_view_is_the_same_graph_of_other_objects_over_the_same_variables(graph):
    for twin in (nnx.view(graph), nnx.with_attributes(graph)):
        assert same(graph, twin)
        there = {id(x) for x in reachable(twin).values() if isinstance(x, nnx.Variable)}
        here = reachable(graph)
        assert there == {i for i, x in here.items() if isinstance(x, nnx.Variable)}
        assert not (here.keys() & reachable(twin).keys()) - there
