"""The protocols of Python and of arrays on Variables, hooks in their order, and values that are no arrays."""

import dataclasses
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx

A = np.asarray([1.25, 2.75, 3.5], np.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    """A registered pytree."""

    a: jax.Array
    b: jax.Array


class Mine(nnx.Param[jax.Array]):
    """A kind of the user's own."""


def vector():
    return Mine(jnp.asarray(A))


def scalar():
    return Mine(jnp.asarray(1.76, jnp.float32))


PROTOCOLS = {
    "jnp.asarray": (vector, jnp.asarray),
    "np.asarray": (vector, np.asarray),
    "np.asarray as another dtype": (vector, lambda x: np.asarray(x, dtype=np.float64)),
    "np.array copied": (vector, lambda x: np.array(x, copy=True)),
    "jnp.from_dlpack": (vector, jnp.from_dlpack),
    "np.from_dlpack": (vector, np.from_dlpack),
    "__dlpack_device__": (vector, lambda x: x.__dlpack_device__()),
    "__array_namespace__": (vector, lambda x: x.__array_namespace__()),
    "round": (scalar, round),
    "round to digits": (scalar, lambda x: round(x, 1)),
    "round of many": (vector, lambda x: round(x, 1)),
    "bool": (scalar, bool),
    "int": (scalar, int),
    "float": (scalar, float),
    "complex": (scalar, complex),
    "index": (lambda: nnx.Variable(jnp.asarray(3)), operator.index),
    "format": (scalar, lambda x: f"{x:.2f} {x:>9.1e}"),
    "math": (scalar, math.sqrt),
    "len": (vector, len),
    "iter": (vector, list),
    "reversed": (vector, lambda x: list(reversed(x))),
    "contains": (vector, lambda x: (2.75 in x, 9.0 in x)),
    "sorted": (vector, lambda x: sorted(x, reverse=True)),
    "sum": (vector, sum),
    "max": (vector, max),
    "unpacking": (vector, lambda x: (lambda a, b, c: (c, b, a))(*x)),
    "divmod": (vector, lambda x: divmod(x, 2.0)),
    "ufunc with numpy on the left": (vector, lambda x: np.add(A, x)),
    "numpy array on the left": (vector, lambda x: A * x),
    "numpy scalar on the left": (vector, lambda x: A[0] * x),
    "numpy array on the left of a comparison": (vector, lambda x: x < A),
    "tolist": (vector, lambda x: x.tolist()),
    "methods of the array": (vector, lambda x: (x.sum(), x.T, x.at[0].set(1.0), x.astype(jnp.int32))),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_va1_protocol_does_what_it_does_for_the_array(name):
    make, f = PROTOCOLS[name]
    found, expected = f(make()), f(make()[...])
    assert type(found) is type(expected)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.all(x == y)


def test_array_namespace_of_an_unknown_version_is_refused_as_for_arrays():
    with pytest.raises(ValueError, match="is not available"):
        vector().__array_namespace__(api_version="1999.12")


def test_in_place_numpy_takes_a_variable_on_the_right():
    a = np.ones(3, np.float32)
    a += vector()
    assert a.tolist() == (A + 1).tolist()


@pytest.mark.parametrize("jit", [lambda f: f, nnx.jit], ids=["eager", "nnx.jit"])
@pytest.mark.parametrize(
    "op",
    [
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.itruediv,
        operator.ifloordiv,
        operator.imod,
        operator.ipow,
    ],
)
def test_in_place_operator_updates_the_one_variable_that_all_hold(op, jit):
    def f(holders):
        op(holders["a"], 2.0)

    v = vector()
    holders = {"a": v, "b": [v]}
    jit(f)(holders)
    assert holders["a"] is holders["b"][0] is v
    np.testing.assert_allclose(v[...], op(jnp.asarray(A), 2.0), rtol=1e-6)


INDICES = {
    "int": 1,
    "negative": -1,
    "slice": slice(0, 2),
    "tuple": (slice(None), 1),
    "Variable": nnx.Variable(1),
    "tuple with a Variable": (nnx.Variable(1), 0),
    "slice of Variables": slice(nnx.Variable(0), nnx.Variable(1)),
    "array": jnp.asarray([0, 1]),
    "mask": np.asarray([True, False]),
    "None": None,
    "all": ...,
}
PLAIN = INDICES | {"Variable": 1, "tuple with a Variable": (1, 0), "slice of Variables": slice(0, 1)}


@pytest.mark.parametrize("name", INDICES)
def test_value_is_read_and_set_at_an_index(name):
    x = jnp.arange(6.0).reshape(2, 3)
    v, w = nnx.Param(x), nnx.Param(x)
    assert np.array_equal(v.get_value(index=INDICES[name]), x[PLAIN[name]])
    assert np.array_equal(v[INDICES[name]], x[PLAIN[name]])
    v.set_value(7.0, index=INDICES[name])
    w[INDICES[name]] = 7.0
    assert np.array_equal(v[...], x.at[PLAIN[name]].set(7.0))
    assert np.array_equal(w[...], v[...])


def test_value_is_read_and_set_at_a_traced_index():
    def f(v, i, j):
        v[i] = v[j] * 2
        v[j, ...] = nnx.Variable(jnp.asarray(0.0, jnp.float32))

    v = vector()
    nnx.jit(f)(v, jnp.asarray(0), nnx.Variable(jnp.asarray(1)))
    assert v[...].tolist() == [5.5, 0.0, 3.5]


@pytest.mark.parametrize("hook", ["on_create_value", "on_set_value", "on_get_value"])
def test_hooks_run_in_order_that_of_the_class_first(hook):
    seen = []

    def noted(name):
        return lambda variable, value: seen.append((name, type(variable))) or value

    kind = type("Hooked", (nnx.Param,), {hook: noted("class")})
    init = nnx.with_metadata(lambda: jnp.ones(2), **{hook: (noted("first"), noted("second"))})
    v = kind(init())
    v.set_value(v.get_value())
    assert seen == [("class", kind), ("first", kind), ("second", kind)]
    v.set_raw_value(v.get_raw_value())
    assert v.raw_value is v.get_raw_value()
    assert len(seen) == 3


@pytest.mark.parametrize("hook", ["on_add_axis", "on_remove_axis"])
def test_hooks_of_axes_run_in_order_that_of_the_class_first(hook):
    seen = []

    def noted(name):
        return lambda variable, index, axis: seen.append((name, index, axis))

    kind = type("Hooked", (nnx.Param,), {hook: noted("class")})
    init = nnx.with_metadata(lambda: jnp.ones(2), **{hook: [noted("first"), noted("second")]})
    getattr(kind(init()), hook.removeprefix("on_"))(1, "layers")
    assert seen == [("class", 1, "layers"), ("first", 1, "layers"), ("second", 1, "layers")]


@pytest.mark.parametrize(
    "value",
    [{"a": A, "b": A}, (A, A), [A, {"c": A}], Pair(A, A)],
    ids=["dict", "tuple", "list", "dataclass"],
)
def test_value_that_is_a_tree_is_read_set_and_mapped(value):
    v = nnx.Variable(jax.tree.map(jnp.asarray, value), tag="t")
    doubled = jax.tree.map(lambda x: x * 2, v)
    assert (type(doubled), doubled.tag, type(doubled[...])) == (nnx.Variable, "t", type(value))
    nnx.jit(lambda v: v.set_value(jax.tree.map(lambda x: x + 1, v[...])))(v)
    for x in jax.tree.leaves(nnx.state([v])):
        assert np.array_equal(x, A + 1)
    with pytest.raises(TypeError, match="unsupported operand"):
        v -= 1


def test_in_place_operators_of_containers_are_those_of_python():
    v = alias = nnx.Variable({"a": 1})
    v |= {"b": 2}
    w = nnx.Variable((1,))
    w += (2,)
    assert v is alias
    assert (alias[...], w[...], "a" in v, len(v), list(v)) == ({"a": 1, "b": 2}, (1, 2), True, 2, ["a", "b"])


def test_shapes_without_values_are_constructed_described_and_filled():
    v = nnx.Param(jax.ShapeDtypeStruct((2,), jnp.float32))
    assert (v.shape, v.dtype, v.ndim, v.size) == ((2,), jnp.float32, 1, 2)
    assert "float32[2]" in repr(v)
    assert jax.eval_shape(lambda v: v * 2, v).shape == (2,)
    assert v.replace(jnp.ones(3)).shape == (3,)
    assert nnx.clone(v).get_value() == v.get_value()
    v.set_value(jnp.zeros(2, jnp.float32))
    assert v[...].tolist() == [0.0, 0.0]


def test_generic_kinds_are_the_kinds_themselves():
    assert type(nnx.Param[jax.Array](jnp.ones(1))) is nnx.Param
    assert not nnx.Param[jax.Array](jnp.ones(1)).get_metadata()
    assert type(vector()) is Mine
    assert jax.tree.structure(nnx.Param[jax.Array](1)) == jax.tree.structure(nnx.Param(1))


def test_metadata_is_updated_from_a_state_and_made_from_it():
    v, w = nnx.Param(jnp.ones(1), a=1), nnx.Param(jnp.zeros(2), b=2)
    v.update_from_state(w.to_state(a=3))
    assert (v.shape, v.get_metadata()) == ((2,), {"b": 2, "a": 3})
    made = nnx.Param.from_metadata(jnp.ones(1), {"c": 4})
    assert (type(made), made.get_metadata()) == (nnx.Param, {"c": 4})
    assert v.copy(a=5).a == 5
    assert v.a == 3


@pytest.mark.parametrize(
    "value", [nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Rngs(0), nnx.List([1]), nnx.Dict(a=1)], ids=type
)
def test_variable_of_an_object_is_refused(value):
    with pytest.raises(nnx.errors.ModuleInVariableError):
        nnx.Variable(value)
    with pytest.raises(nnx.errors.ModuleInVariableError):
        nnx.Param(nnx.VariableMetadata(value))
