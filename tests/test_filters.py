"""Filters say which leaves are meant."""

import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import filterlib

PARAM = nnx.Param(jnp.ones(2), tag="frozen")
STAT = nnx.BatchStat(jnp.ones(2))
PATH = ("encoder", "layers", 0, "kernel")


@pytest.mark.parametrize(
    ("filter", "matches"),
    [
        (nnx.Param, True),
        (nnx.Variable, True),
        (nnx.BatchStat, False),
        ("frozen", True),
        ("free", False),
        (True, True),
        (..., True),
        (False, False),
        (None, False),
        (lambda path, x: path[-1] == "kernel", True),
        ([nnx.BatchStat, "frozen"], True),
        ((nnx.BatchStat, "free"), False),
        (nnx.All(nnx.Param, "frozen"), True),
        (nnx.All(nnx.Param, "free"), False),
        (nnx.Any(nnx.BatchStat, nnx.Param), True),
        (nnx.Not(nnx.Param), False),
        (nnx.OfType(nnx.Param), True),
        (nnx.WithTag("frozen"), True),
        (nnx.PathContains("layers"), True),
        (nnx.PathContains(0), True),
        (nnx.PathContains("layer"), False),
        (nnx.PathContains("layer", exact=False), True),
        (nnx.PathIn(PATH, ("bias",)), True),
        (nnx.PathIn(("bias",)), False),
        (nnx.Everything(), True),
        (nnx.Nothing(), False),
    ],
)
def test_a_filter_matches(filter, matches):
    assert bool(filterlib.to_predicate(filter)(PATH, PARAM)) is matches


@pytest.mark.parametrize(
    "make",
    [
        lambda: nnx.OfType(nnx.Param),
        lambda: nnx.WithTag("a"),
        lambda: nnx.PathContains("a", exact=False),
        lambda: nnx.PathIn(("a",)),
        lambda: nnx.All(nnx.Param, "a"),
        lambda: nnx.Any(nnx.Param, "a"),
        lambda: nnx.Not(nnx.Param),
        nnx.Everything,
        nnx.Nothing,
    ],
)
def test_equal_filters_are_equal_and_hash_alike(make):
    assert make() == make()
    assert hash(make()) == hash(make())
    assert make() != nnx.OfType(nnx.BatchStat)
    assert type(make()).__name__ in repr(make())


def test_the_first_filter_that_matches_takes_the_leaf():
    state = nnx.State({"a": PARAM, "b": STAT})
    frozen, params, rest = nnx.split_state(state, "frozen", nnx.Param, ...)
    assert (list(frozen), list(params), list(rest)) == (["a"], [], ["b"])


def test_filter_state_leaves_out_what_matches_nothing():
    state = nnx.State({"a": PARAM, "b": STAT})
    assert list(nnx.filter_state(state, nnx.BatchStat)) == ["b"]


def test_a_tag_that_is_not_a_string_matches_no_string():
    assert not nnx.WithTag("a")((), nnx.Param(1, tag=["a"]))
