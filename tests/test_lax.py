"""Variables where `jax.lax` expects arrays, and as indices: eager, captured by a trace, passed to one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import nnxgraph as nnx

X = np.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
U = X / 10  # in (0, 1)
N = np.asarray([[1, 2, 3], [4, 5, 6]], np.int32)
C = (X + 1j * X).astype(np.complex64)
S = np.asarray([[2.0, 1.0], [1.0, 3.0]], np.float32)
IMAGE = X[None, None]
FILTER = S[None, None]
ROW, ONE, ZERO = np.asarray([[1]], np.int32), np.int32(1), np.int32(0)
GATHER = lax.GatherDimensionNumbers((1,), (0,), (0,))
SCATTER = lax.ScatterDimensionNumbers((1,), (0,), (0,))


class Mine(nnx.Variable):
    """A kind of the user's own."""


UNARY = {
    "abs sin cos tan sinh cosh tanh asinh exp exp2 expm1 log log1p sqrt rsqrt cbrt square neg sign floor "
    "ceil round is_finite logistic reciprocal erf erfc lgamma digamma bessel_i0e bessel_i1e cumsum "
    "stop_gradient cumprod cummax cummin cumlogsumexp sort optimization_barrier": X,
    "asin acos atan atanh erf_inv": U,
    "bitwise_not population_count clz": N,
    "real imag conj": C,
    "linalg.cholesky linalg.qr linalg.svd linalg.eigh linalg.lu linalg.eig linalg.hessenberg": S,
}
BINARY = {
    "add sub mul div rem pow max min atan2 nextafter eq ne lt le gt ge igamma complex": X,
    "bitwise_and bitwise_or bitwise_xor shift_left shift_right_logical shift_right_arithmetic": N,
}
# What `p` is called with is passed as a Variable.
SEVERAL = {
    "zeta": lambda p: lax.zeta(p(X + 1), p(X)),
    "betainc": lambda p: lax.betainc(p(X), X, p(U)),
    "acosh": lambda p: lax.acosh(p(X)),
    "integer_pow": lambda p: lax.integer_pow(p(X), 3),
    "clamp": lambda p: lax.clamp(p(np.float32(2)), p(X), p(np.float32(4))),
    "clamp by numbers": lambda p: lax.clamp(2.0, p(X), 4.0),
    "select": lambda p: lax.select(p(X > 2), p(X), X),
    "select_n": lambda p: lax.select_n(p(N % 2), p(X), -X),
    "broadcast": lambda p: lax.broadcast(p(X), (2,)),
    "broadcast_in_dim": lambda p: lax.broadcast_in_dim(p(X), (4, 2, 3), (1, 2)),
    "broadcast_to_rank": lambda p: lax.broadcast_to_rank(p(X), 3),
    "reshape": lambda p: lax.reshape(p(X), (3, 2)),
    "collapse": lambda p: lax.collapse(p(X), 0, 2),
    "squeeze": lambda p: lax.squeeze(p(X[None]), (0,)),
    "expand_dims": lambda p: lax.expand_dims(p(X), (0,)),
    "transpose": lambda p: lax.transpose(p(X), (1, 0)),
    "rev": lambda p: lax.rev(p(X), (0,)),
    "concatenate": lambda p: lax.concatenate([p(X), X, p(X)], 0),
    "pad": lambda p: lax.pad(p(X), p(np.float32(0)), [(1, 1, 0), (0, 0, 0)]),
    "split": lambda p: lax.split(p(X), (1, 2), 1),
    "full_like": lambda p: lax.full_like(p(X), 3),
    "convert_element_type": lambda p: lax.convert_element_type(p(X), jnp.int32),
    "bitcast_convert_type": lambda p: lax.bitcast_convert_type(p(X), jnp.int32),
    "reduce_precision": lambda p: lax.reduce_precision(p(X), 5, 2),
    "dot": lambda p: lax.dot(p(X), X.T),
    "dot_general": lambda p: lax.dot_general(X, p(X), (((1,), (1,)), ((), ()))),
    "batch_matmul": lambda p: lax.batch_matmul(p(X[None]), p(X.T[None])),
    "ragged_dot": lambda p: lax.ragged_dot(p(X), p(np.ones((2, 3, 2), np.float32)), p(N[0, [0, 0]])),
    "conv": lambda p: lax.conv(IMAGE, p(FILTER), (1, 1), "SAME"),
    "conv_general_dilated": lambda p: lax.conv_general_dilated(p(IMAGE), p(FILTER), (1, 1), "SAME"),
    "conv_transpose": lambda p: lax.conv_transpose(p(S[None]), p(X.T[:2, :, None]), (1,), "SAME"),
    "conv_patches": lambda p: lax.conv_general_dilated_patches(p(IMAGE), (2, 2), (1, 1), "SAME"),
    "slice": lambda p: lax.slice(p(X), (0, 1), (2, 3)),
    "slice_in_dim": lambda p: lax.slice_in_dim(p(X), 0, 1),
    "index_in_dim": lambda p: lax.index_in_dim(p(X), 0),
    "dynamic_slice": lambda p: lax.dynamic_slice(p(X), (p(ONE), p(ZERO)), (1, 2)),
    "dynamic_slice by one": lambda p: lax.dynamic_slice(X, (p(ONE), 1), (1, 2)),
    "dynamic_slice by a vector": lambda p: lax.dynamic_slice(X, p(N[0, :2]), (1, 2)),
    "dynamic_slice_in_dim": lambda p: lax.dynamic_slice_in_dim(p(X), p(ONE), 1),
    "dynamic_index_in_dim": lambda p: lax.dynamic_index_in_dim(X, p(ONE)),
    "dynamic_update_slice": lambda p: lax.dynamic_update_slice(p(X), p(X[:1]), (p(ONE), p(ZERO))),
    "dynamic_update_slice_in_dim": lambda p: lax.dynamic_update_slice_in_dim(X, p(X[:1]), p(ONE), 0),
    "dynamic_update_index_in_dim": lambda p: lax.dynamic_update_index_in_dim(p(X), X[0], p(ONE), 0),
    "gather": lambda p: lax.gather(p(X), p(ROW), GATHER, (1, 3)),
    "scatter": lambda p: lax.scatter(p(X), p(ROW), p(X[:1]), SCATTER),
    "scatter_add": lambda p: lax.scatter_add(X, p(ROW), p(X[:1]), SCATTER),
    "index_take": lambda p: lax.index_take(p(X), [p(N[0, :1])], (0,)),
    "argmax": lambda p: lax.argmax(p(X), 1, jnp.int32),
    "argmin": lambda p: lax.argmin(p(X), 1, jnp.int32),
    "reduce": lambda p: lax.reduce(p(X), p(np.float32(0)), lax.add, (0,)),
    "reduce_sum": lambda p: lax.reduce_sum(p(X), (0,)),
    "reduce_max": lambda p: lax.reduce_max(p(X), (0,)),
    "reduce_and": lambda p: lax.reduce_and(p(X > 2), (0,)),
    "top_k": lambda p: lax.top_k(p(X), 2),
    "approx_max_k": lambda p: lax.approx_max_k(p(X), 2),
    "sort of several": lambda p: lax.sort((p(X), X), num_keys=2),
    "sort_key_val": lambda p: lax.sort_key_val(p(X), p(N)),
    "fft": lambda p: lax.fft(p(C), "FFT", (3,)),
    "triangular_solve": lambda p: lax.linalg.triangular_solve(p(S), p(S)),
    "rng_bit_generator": lambda p: lax.rng_bit_generator(p(np.arange(4, dtype=np.uint32)), (2,)),
    "cond": lambda p: lax.cond(p(np.bool_(1)), lambda x: x + 1, lambda x: x - 1, p(X)),
    "switch": lambda p: lax.switch(p(ONE), [lambda x: x + 1, lax.sin], X),
    "while_loop": lambda p: (lambda v: lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x + v, X))(p(X)),
    "fori_loop": lambda p: (lambda v: lax.fori_loop(0, 3, lambda i, x: lax.mul(v, x), X))(p(X)),
    "fori_loop to a Variable": lambda p: lax.fori_loop(0, p(N[0, 2]), lambda i, x: x * 2, X),
    "scan": lambda p: (lambda v: lax.scan(lambda c, x: (lax.add(c, v), x), X, X)[0])(p(X)),
    "scan over a Variable": lambda p: lax.scan(lambda c, x: (lax.add(c, x), lax.sin(x)), X[0], p(X)),
    "map": lambda p: lax.map(lambda x: lax.sin(x), p(X)),
    "associative_scan": lambda p: lax.associative_scan(lax.add, p(X)),
}  # fmt: skip
INDICES = {
    "row": lambda p: jnp.asarray(X)[p(ONE)],
    "element": lambda p: jnp.asarray(X)[p(ONE), p(ZERO)],
    "row and slice": lambda p: jnp.asarray(X)[p(ONE), :2],
    "after an ellipsis": lambda p: jnp.asarray(X)[..., p(ONE)],
    "rows": lambda p: jnp.asarray(X)[p(N[0, :1])],
    "with a new axis": lambda p: jnp.asarray(X)[None, p(ONE)],
    "of a Variable": lambda p: p(X)[p(ONE)],
    "at set": lambda p: jnp.asarray(X).at[p(ONE)].set(p(X[0])),
    "at add": lambda p: jnp.asarray(X).at[p(ONE), p(ZERO)].add(p(np.float32(2))),
    "at get": lambda p: jnp.asarray(X).at[p(N[0])].get(mode="clip"),
    "take": lambda p: jnp.take(p(X), p(ONE), axis=0),
    "take_along_axis": lambda p: jnp.take_along_axis(p(X), p(N % 2), axis=0),
}
EAGER_INDICES = {
    "mask": lambda p: jnp.asarray(X)[p(X > 2)],
    "at set by a mask": lambda p: jnp.asarray(X).at[p(X > 2)].set(0.0),
    "slice": lambda p: jnp.asarray(X)[p(ZERO) : p(ONE)],
    "numpy row": lambda p: X[p(ONE)],
    "numpy element": lambda p: X[p(ONE), p(ZERO)],
    "numpy rows": lambda p: X[p(N[0, :1])],
    "numpy mask": lambda p: X[p(X > 2)],
    "numpy slice": lambda p: X[p(ZERO) : p(ONE)],
    "list": lambda p: [1, 2, 3][p(ONE)],
    "range": lambda p: list(range(p(N[0, 2]))),
}


def named(name):
    """A function of jax.lax by its name, with a dot where it stands in a module of it."""
    return getattr(lax.linalg, name[7:]) if name.startswith("linalg.") else getattr(lax, name)


def table():
    """Name and function of all rows."""
    for names, x in UNARY.items():
        for name in names.split():
            f = named(name)
            yield name, lambda p, f=f, x=x: f(p(x))
    for names, x in BINARY.items():
        for name in names.split():
            f = named(name)
            yield name, lambda p, f=f, x=x: (f(p(x), p(x)), f(x, p(x)), f(p(x), x))
    yield from SEVERAL.items()
    yield from INDICES.items()


def eager(f, kind):
    return f(lambda x: kind(jnp.asarray(x)))


def in_turn(made):
    """A stand-in for `p` that hands out Variables one after the other."""
    rest = iter(made)
    return lambda x: next(rest)


def made_for(f, kind):
    """The Variables that a row asks for, in the order in which it does."""
    made = []
    f(lambda x: made.append(kind(jnp.asarray(x))) or made[-1])
    return made


def captured(f, kind):
    made = made_for(f, kind)
    return jax.jit(lambda: f(in_turn(made)))()


def passed(f, kind, jit=jax.jit):
    return jit(lambda made: f(in_turn(made)))(made_for(f, kind))


def assert_same(found, expected):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    for x, y in zip(found, expected, strict=True):
        assert jnp.asarray(x).dtype == jnp.asarray(y).dtype
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-5)


def test_table_is_long():
    assert len(list(table())) > 120


@pytest.mark.parametrize("way", [eager, passed])
@pytest.mark.parametrize(("name", "f"), [pytest.param(*row, id=row[0]) for row in table()])
def test_va1_lax_functions_and_indices_take_variables(name, f, way):
    kind = Mine if way is eager else nnx.Param
    assert_same(way(f, kind), f(jnp.asarray))


@pytest.mark.parametrize("name", SEVERAL | INDICES)
def test_va1_lax_functions_and_indices_take_variables_that_a_trace_captures(name):
    f = (SEVERAL | INDICES)[name]
    assert_same(captured(f, Mine), f(jnp.asarray))


@pytest.mark.parametrize("name", ["dynamic_slice", "split", "scatter", "cond", "scan", *INDICES])
def test_va1_lax_functions_and_indices_take_variables_in_nnx_jit(name):
    f = (SEVERAL | INDICES)[name]
    assert_same(passed(f, nnx.Param, nnx.jit), f(jnp.asarray))


@pytest.mark.parametrize("name", EAGER_INDICES)
def test_va1_masks_slices_and_indices_of_numpy_and_lists_are_variables_in_eager_code(name):
    f = EAGER_INDICES[name]
    assert_same(eager(f, Mine), f(jnp.asarray))


def test_gradients_flow_through_variables_in_lax_functions():
    g = jax.grad(lambda v: lax.dot(lax.sin(v), X.T).sum())(nnx.Param(jnp.asarray(X)))
    expected = jax.grad(lambda x: lax.dot(lax.sin(x), X.T).sum())(jnp.asarray(X))
    assert type(g) is nnx.Param
    assert_same(g, expected)
    assert_same(jax.vmap(lax.sin)(nnx.Param(jnp.asarray(X))), lax.sin(X))


def test_variable_that_jax_jit_closes_over_has_the_value_of_its_trace():
    v = nnx.Param(jnp.asarray(X))
    assert_same(jax.jit(lambda: lax.sin(v))(), jnp.sin(X))
    v[...] = 0.0
    assert_same(jax.jit(lambda: lax.sin(v))(), jnp.zeros_like(X))


def test_captured_variable_in_a_lax_function_is_noticed():
    v, i = nnx.Param(jnp.asarray(X)), nnx.Variable(ONE)
    sine, item = nnx.jit(lambda: lax.sin(v)), nnx.jit(lambda: jnp.asarray(X)[i])
    assert_same(sine(), lax.sin(X))
    assert_same(item(), X[int(ONE)])
    v[...], i[...] = v * 2, i * 0
    assert_same(sine(), lax.sin(X * 2))
    assert_same(item(), X[0])


def test_hooks_run_on_what_lax_reads():
    v = nnx.Param(jnp.asarray(X), on_get_value=lambda v, x: x * 2)
    assert_same(lax.sin(v), jnp.sin(X * 2))
    assert_same(jnp.asarray(X)[nnx.Param(ONE, on_get_value=lambda v, x: x - 1)], X[0])


def test_variable_stays_a_pytree_for_functions_of_trees():
    v = nnx.Param(jnp.asarray(X))
    assert type(jax.tree.map(jnp.sin, v)) is nnx.Param
    assert [type(x) for x in jax.tree.leaves([v, 1])] == [type(v[...]), int]
    assert type(jax.jit(lambda v: v)(v)) is nnx.Param
    assert type(jax.eval_shape(lambda v: v, v)) is nnx.Param
    assert jax.make_jaxpr(lambda v: lax.sin(v))(v).jaxpr.invars[0].aval.shape == (2, 3)
    assert not isinstance(v, jax.Array)


def test_lax_functions_that_take_trees_see_a_variable_as_a_tree():
    v = nnx.Param(jnp.asarray(X))
    assert type(lax.stop_gradient(v)) is type(lax.optimization_barrier(v)) is nnx.Param
    with pytest.raises(ValueError, match="same tree structure"):
        lax.reduce_window(v, 0.0, lax.add, (1, 2), (1, 1), "VALID")
    with pytest.raises(ValueError, match="same tree structure"):
        lax.reduce(v, np.float32(0), lax.add, (0,))
    with pytest.raises(TypeError, match="pytree"):
        lax.while_loop(lambda x: nnx.Variable(x.sum() < 0), lambda x: x, X)


def test_value_that_is_a_tree_is_no_array_for_lax():
    with pytest.raises(TypeError, match="Error interpreting argument to sin"):
        lax.sin(nnx.Param({"a": jnp.asarray(X)}))
    with pytest.raises(TypeError, match="not a valid JAX type"):
        jax.typeof(nnx.Param({"a": jnp.asarray(X)}))


def test_type_of_a_variable_is_that_of_its_value():
    assert jax.typeof(nnx.Param(jnp.asarray(X))) == jax.typeof(jnp.asarray(X))
    assert jax.typeof(nnx.Param(jax.ShapeDtypeStruct((2,), jnp.float32))).shape == (2,)
