"""Random streams that all lanes of a mapped transform share: drawing from one warns."""

import warnings

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import SharedStreamWarning
from tests.transforms.subjects import Empty, f32

XS = jnp.ones((3, 8))
SPLIT = nnx.StateAxes({nnx.RngState: 0, ...: None})
ALIKE = nnx.StateAxes({nnx.RngState: None, ...: None})


def dropout():
    return nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=0))


def lanes_agree(y):
    return bool(jnp.array_equal(y[0], y[1]))


def quietly(f, *args):
    """The result of a call that must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return f(*args)


def test_dropout_in_vmap_with_one_stream_for_all_lanes_warns_and_names_it():
    f = nnx.vmap(lambda drop, x: drop(x), in_axes=(None, 0))
    with pytest.warns(SharedStreamWarning) as caught:
        y = f(dropout(), XS)
    assert lanes_agree(y)
    (warning,) = caught
    assert str(warning.message) == (
        "nnx.vmap: all lanes draw the same keys from random streams that they share:\n"
        "  - drop.rngs, with the tag 'dropout'\n"
        "Expected a key for each lane. Write nnx.split_rngs(rngs, splits=lanes) around the call, with "
        "in_axes=nnx.StateAxes({nnx.RngState: 0, ...: None}); or say that the lanes shall agree, with "
        "nnx.StateAxes({nnx.RngState: None, ...: None})."
    )
    assert warning.filename == __file__


def test_dropout_in_vmap_with_a_stream_for_each_lane():
    drop = dropout()
    f = nnx.split_rngs(splits=3)(nnx.vmap(lambda drop, x: drop(x), in_axes=(SPLIT, 0)))
    assert not lanes_agree(quietly(f, drop, XS))
    assert not lanes_agree(quietly(f, drop, XS))


def by_class(drop, x):
    return nnx.vmap(lambda drop, x: drop(x), in_axes=(ALIKE, 0))(drop, x)


def by_subclass(drop, x):
    axes = nnx.StateAxes({nnx.RngKey: None, nnx.RngCount: None, ...: 0})
    return nnx.vmap(lambda drop, x: drop(x), in_axes=(axes, 0))(drop, x)


def by_tag(drop, x):
    axes = nnx.StateAxes({"dropout": None, ...: 0})
    return nnx.vmap(lambda drop, x: drop(x), in_axes=(axes, 0))(drop, x)


@pytest.mark.parametrize("f", [by_class, by_subclass, by_tag])
def test_axes_that_name_random_streams_say_that_lanes_shall_agree(f):
    assert lanes_agree(quietly(f, dropout(), XS))


def test_axes_that_mean_the_rest_do_not_speak_of_random_streams():
    axes = nnx.StateAxes({nnx.Param: 0, ...: None})
    with pytest.warns(SharedStreamWarning, match=r"model\.drop\.rngs, "):
        nnx.vmap(lambda model, x: model.drop(x), in_axes=(axes, 0))(Empty(drop=dropout()), XS)


def captured(drop):
    return nnx.vmap(lambda x: drop(x))(XS)  # captured, and not bound


def bound(drop):
    return nnx.vmap(drop, in_axes=0)(XS)


def stream(drop):
    rngs = drop.rngs
    return nnx.vmap(lambda x: rngs.normal((8,)))(XS)


@pytest.mark.parametrize("f", [captured, bound, stream])
def test_captured_and_bound_streams_warn(f):
    with pytest.warns(SharedStreamWarning, match="'dropout'"):
        assert lanes_agree(f(dropout()))


@pytest.mark.parametrize(
    "inner",
    [nnx.jit, nnx.remat, lambda f: lambda drop, x: nnx.cond(True, f, f, drop, x), nnx.vmap],
    ids=["jit", "remat", "cond", "vmap"],
)
def test_draw_inside_another_transform_warns(inner):
    axes = {"in_axes": (None, 0)} if inner is nnx.vmap else {}
    f = nnx.vmap(inner(lambda drop, x: drop(x), **axes), in_axes=(None, 0))
    with pytest.warns(SharedStreamWarning, match="'dropout'"):
        assert lanes_agree(f(dropout(), XS[:, None]))


def test_streams_that_are_only_passed_or_made_inside_do_not_warn():
    def f(drop, x):
        drop.rngs.key[...]
        return nnx.Rngs(0).normal(()) * x

    quietly(nnx.vmap(f, in_axes=(None, 0)), dropout(), f32([1.0, 2.0]))


def test_streams_that_are_given_a_new_key_do_not_warn():
    def f(stream, key):
        stream.key[...] = jax.random.key(1)
        stream.count[...] = jnp.zeros((), jnp.uint32)

    quietly(nnx.vmap(f, in_axes=(None, 0)), nnx.RngStream(0, tag="a"), XS)


def test_warning_that_is_an_error_leaves_the_stream_as_it_was():
    drop = dropout()
    with pytest.raises(SharedStreamWarning):
        nnx.vmap(lambda drop, x: drop(x), in_axes=(None, 0))(drop, XS)
    assert int(drop.rngs.count[...]) == 0


def test_lp3_constructor_under_vmap_makes_a_stack_and_says_how_to_split():
    def make(rngs):
        return nnx.Linear(4, 4, rngs=rngs)

    rngs, plain = nnx.Rngs(0), nnx.Rngs(0)
    single = make(plain)
    with pytest.warns(SharedStreamWarning, match=r"nnx\.split_rngs"):
        same = nnx.vmap(axis_size=3, in_axes=None, out_axes=0)(make)(rngs)
    assert same.kernel.shape == (3, 4, 4)
    assert all(jnp.allclose(kernel, single.kernel[...]) for kernel in same.kernel[...])
    assert int(rngs.default.count[...]) == int(plain.default.count[...])
    split = quietly(nnx.split_rngs(splits=3)(nnx.vmap(make)), rngs)
    assert split.kernel.shape == (3, 4, 4)
    assert not jnp.allclose(split.kernel[0], split.kernel[1])


def test_lp5_model_for_one_example_is_mapped_over_a_batch_again_and_again():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 2, (3,), rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.drop(self.conv(x))

    net = Net(nnx.Rngs(0, dropout=1))
    f = nnx.split_rngs(splits=4)(nnx.vmap(lambda net, x: net(x), in_axes=(SPLIT, 0)))
    ys = [quietly(f, net, jnp.ones((4, 5, 1))) for _ in range(2)]  # (lanes, length, features)
    assert [y.shape for y in ys] == [(4, 5, 2)] * 2
    assert not lanes_agree(ys[0])
    assert not jnp.array_equal(*ys)
