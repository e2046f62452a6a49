"""Flat and nested mappings."""

import pickle

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnxgraph as nnx
from nnxgraph import errors
from nnxgraph.traversals import empty_node, flatten_mapping, flatten_to_sequence, unflatten_mapping

KEYS = st.text("abc", min_size=1, max_size=2)
NESTED = st.dictionaries(
    KEYS, st.recursive(st.integers(), lambda below: st.dictionaries(KEYS, below, max_size=3)), max_size=3
)


@given(NESTED)
def test_unflatten_undoes_flatten(nested):
    assert unflatten_mapping(flatten_mapping(nested, keep_empty_nodes=True)) == nested
    assert unflatten_mapping(flatten_mapping(nested, keep_empty_nodes=True, sep="/"), sep="/") == nested


@given(NESTED)
def test_the_sequence_holds_the_same_leaves(nested):
    assert dict(flatten_to_sequence(nested)) == flatten_mapping(nested)
    assert unflatten_mapping(flatten_to_sequence(nested)) == unflatten_mapping(flatten_mapping(nested))


def test_empty_levels_are_left_out_or_kept():
    nested = {"a": {}, "b": {"c": 1}}
    assert flatten_mapping(nested) == {("b", "c"): 1}
    assert flatten_mapping(nested, keep_empty_nodes=True) == {("a",): empty_node, ("b", "c"): 1}
    assert flatten_mapping({}, keep_empty_nodes=True) == {}


def test_is_leaf_stops_the_descent():
    nested = {"a": {"b": {"c": 1}}}
    stop = {"is_leaf": lambda path, x: path == ("a",)}
    assert flatten_mapping(nested, **stop) == {("a",): {"b": {"c": 1}}}
    assert flatten_to_sequence(nested, **stop) == [(("a",), {"b": {"c": 1}})]


def test_a_state_is_flattened_to_its_variables():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    flat = flatten_mapping(nnx.variables({"layer": model}), sep=".")
    assert flat["layer.kernel"] is model.kernel


def test_keys_that_are_no_strings_are_kept_or_written_out():
    assert flatten_mapping({0: {1: "x"}}) == {(0, 1): "x"}
    assert flatten_mapping({0: {1: "x"}}, sep="/") == {"0/1": "x"}


def test_the_empty_node_is_one_object():
    assert pickle.loads(pickle.dumps(empty_node)) is empty_node
    assert repr(empty_node) == "empty_node"


ADVICE = " Write for example `flatten_mapping({'a': {'b': x}})`, which is `{('a', 'b'): x}`."
TABLE = [
    (
        lambda: flatten_mapping(jnp.ones(2)),
        "traversals.flatten_mapping: found a ArrayImpl. Expected nested mappings.",
    ),
    (
        lambda: flatten_to_sequence([1]),
        "traversals.flatten_to_sequence: found a list. Expected nested mappings.",
    ),
    (
        lambda: unflatten_mapping({"a": 1}),
        "traversals.unflatten_mapping: found the path 'a'. Expected tuples of keys.",
    ),
    (
        lambda: unflatten_mapping({("a",): 1}, sep="/"),
        "traversals.unflatten_mapping: found the path ('a',). Expected strings joined by '/'.",
    ),
    (
        lambda: unflatten_mapping({("a",): 1, ("a", "b"): 2}),
        "traversals.unflatten_mapping: found the path ('a', 'b') through a leaf. Expected paths of leaves.",
    ),
    (
        lambda: unflatten_mapping({("a",): {}, ("a", "b"): 2}),
        "traversals.unflatten_mapping: found the path ('a', 'b') through a leaf. Expected paths of leaves.",
    ),
    (
        lambda: unflatten_mapping([(("a", "b"), 2), (("a",), 1)]),
        "traversals.unflatten_mapping: found ('a',) twice, or above a leaf. Expected paths of leaves.",
    ),
]


@pytest.mark.parametrize(("provoke", "text"), TABLE)
def test_the_text_of_an_error(provoke, text):
    with pytest.raises(errors.PathError) as caught:
        provoke()
    assert str(caught.value) == text + ADVICE
