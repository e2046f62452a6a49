"""The exact text of each error and warning of mapped transforms, provoked as a user would."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import nnxgraph as nnx
from nnxgraph import errors
from nnxgraph.errors import _mapped
from tests.provoked import check_error
from tests.transforms.subjects import Cell

XS = jnp.arange(3.0)


def draws_from_a_shared_stream():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nnx.vmap(lambda rngs, x: rngs.noise(), in_axes=(None, 0))(nnx.Rngs(noise=0), XS)


MESH = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


def writes_beside_the_pair():
    cell = Cell()

    def add(a, b):
        cell.n[...] += 1.0
        return a + b

    nnx.associative_scan(add, XS)


def sharded(f):
    return nnx.shard_map(f, mesh=MESH, in_specs=P(), out_specs=P())


TABLE = [
    (
        errors.NestedMeshError,
        lambda: sharded(nnx.pmap(lambda x: x))(XS),
        "nnx.pmap: found a map over devices inside another one, whose axes are 'data'. Expected one map over "
        "devices. Write nnx.vmap inside; or give the outer shard_map some axis_names, and the inner one the "
        "others and no mesh.",
    ),
    (
        errors.SideEffectError,
        writes_beside_the_pair,
        "nnx.associative_scan: the function writes_beside_the_pair.<locals>.add writes Variables that are "
        "not in its arguments:\n"
        "  - Variable(float32[])\n"
        "It runs on many pairs at once, in no order. Expected a function without side effects. Write the "
        "value into what it returns, or use nnx.scan.",
    ),
    (
        errors.ShardSpecError,
        lambda: nnx.shard_map(lambda x: x, mesh=MESH, in_specs=P("data"), out_specs=P())(XS),
        "nnx.shard_map: in_specs has P('data') for x, which is float32[3]. Expected a multiple of 8 for its "
        "dimension 0, of size 3. Write P(), with P = jax.sharding.PartitionSpec, for what every device gets "
        "whole.",
    ),
    (
        errors.LaneWriteError,
        lambda: nnx.shard_map(lambda x: x, mesh=MESH, in_specs=P("data"), out_specs=P())(jnp.arange(8.0)),
        "nnx.shard_map: a value that differs from lane to lane goes to what all lanes share: result with "
        "out_specs=P(). Expected one value for all. Give it an axis, as in in_specs="
        "nnx.StateSharding({nnx.BatchStat: P('data'), ...: P()}), or reduce it over the lanes first.",
    ),
    (
        errors.SharedStreamWarning,
        draws_from_a_shared_stream,
        "nnx.vmap: all lanes draw the same keys from random streams that they share:\n"
        "  - rngs.noise, with the tag 'noise'\n"
        "Expected a key for each lane. Write nnx.split_rngs(rngs, splits=lanes) around the call, with "
        "in_axes=nnx.StateAxes({nnx.RngState: 0, ...: None}); or say that the lanes shall agree, with "
        "nnx.StateAxes({nnx.RngState: None, ...: None}).",
    ),
]


@pytest.mark.parametrize(("error", "provoke", "text"), TABLE)
def test_the_text_of_an_error_also_after_a_pickle(error, provoke, text):
    check_error(error, provoke, text)


@pytest.mark.parametrize("inner", [sharded, nnx.pmap], ids=["shard_map", "pmap"])
@pytest.mark.parametrize("outer", [sharded, nnx.pmap], ids=["shard_map", "pmap"])
def test_map_over_devices_inside_another_is_refused(outer, inner):
    with pytest.raises(errors.NestedMeshError, match="found a map over devices inside another one"):
        outer(lambda x: inner(lambda y: y)(x))(XS)


def test_every_error_of_mapped_transforms_is_in_the_table():
    defined = {x for x in vars(_mapped).values() if isinstance(x, type) and x.__module__ == _mapped.__name__}
    assert defined - {error for error, _, _ in TABLE} == set()
