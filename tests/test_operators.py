"""Operators of Variables: the same as on the arrays, in every function of NumPy and JAX that takes them."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnxgraph as nnx

X = np.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
N = np.asarray([[1, 2, 3], [4, 5, 6]], np.int32)
X_BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"]
N_BINARY = ["and_", "or_", "xor", "lshift", "rshift"]
TABLE = [(name, X) for name in X_BINARY] + [(name, N) for name in N_BINARY]


def equal(a, b):
    return np.array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize(("name", "x"), TABLE)
@pytest.mark.parametrize("other", ["variable", "array", "numpy", "number"])
def test_binary_operator_is_that_of_the_array(name, x, other):
    op = getattr(operator, name)
    y = {"number": 2}.get(other, jnp.asarray(x[::-1]))
    v = nnx.Param(jnp.asarray(x))
    right = {"variable": lambda: nnx.Param(y), "numpy": lambda: np.asarray(y)}.get(other, lambda: y)()
    assert equal(op(v, right), op(v[...], y))
    assert equal(op(right, v), op(y, v[...]))


@pytest.mark.parametrize("other", ["variable", "array", "numpy"])
def test_matmul_and_divmod(other):
    v = nnx.Param(jnp.asarray(X))
    y = {"variable": nnx.Param, "array": jnp.asarray, "numpy": np.asarray}[other](jnp.asarray(X.T))
    assert equal(v @ y, X @ X.T)
    assert equal(y @ v, X.T @ X)
    assert all(map(equal, divmod(v, 2.0), divmod(X, np.float32(2))))
    assert all(map(equal, divmod(7.0, v), divmod(np.float32(7), X)))


@pytest.mark.parametrize("name", ["neg", "pos", "abs"])
def test_unary_operator(name):
    op = getattr(operator, name)
    assert equal(op(nnx.Param(jnp.asarray(-X))), op(-X))
    assert equal(~nnx.Param(jnp.asarray(N)), ~N)


@pytest.mark.parametrize(
    ("name", "x"), [(n, x) for n, x in TABLE if n not in ("lt", "le", "gt", "ge", "eq", "ne")]
)
def test_in_place_operator_writes_this_variable(name, x):
    v = alias = nnx.Param(jnp.asarray(x), tag="a")
    v = getattr(operator, f"i{name.rstrip('_')}")(v, 2)
    assert v is alias
    assert v.tag == "a"
    assert equal(alias[...], getattr(operator, name)(jnp.asarray(x), 2))


def test_in_place_matmul_takes_the_new_shape():
    v = nnx.Param(jnp.asarray(X))
    v @= X.T
    assert v.shape == (2, 2)


def test_numpy_array_plus_variable_works_under_a_trace():
    assert equal(jax.jit(lambda v: X + v)(nnx.Param(jnp.asarray(X))), 2 * X)
    assert isinstance(X + nnx.Param(jnp.asarray(X)), jax.Array)


def test_conversions():
    v = nnx.Variable(jnp.asarray(2))
    assert (int(v), float(v), complex(v), bool(v), [10, 20, 30][v], list(range(v))) == (
        2,
        2.0,
        2,
        True,
        30,
        [0, 1],
    )
    assert round(nnx.Param(jnp.float32(1.76))) == 2
    assert len(nnx.Param(jnp.asarray(X))) == 2
    assert [row.tolist() for row in nnx.Param(jnp.asarray(X))] == X.tolist()
    assert 2.0 in nnx.Param(jnp.asarray(X[0]))
    assert 9.0 not in nnx.Param(jnp.asarray(X[0]))


def test_truth_of_many_values_is_refused_as_for_arrays():
    with pytest.raises(ValueError, match="truth value"):
        bool(nnx.Param(jnp.asarray(X)))


def test_comparison_is_elementwise_and_hash_is_identity():
    v, w = nnx.Param(jnp.asarray(X)), nnx.Param(jnp.asarray(X))
    assert (v == w).shape == (2, 3)
    assert not (v != w).any()
    assert hash(v) != hash(w)


def test_numpy_array_of_a_variable_is_the_callers_own():
    v = nnx.Param(jnp.asarray(X))
    a = np.array(v)
    a[0] = 9
    assert equal(v[...], X)
    assert np.asarray(v, dtype=np.int32).dtype == np.int32


def test_variable_of_a_callable_is_called():
    assert nnx.Variable(lambda x, *, y: x + y)(1, y=2) == 3


P = "P"  # stands for a Variable in the tables below

ONE_ARGUMENT = [
    "abs", "sin", "exp", "log", "sum", "mean", "max", "argmax", "sort", "transpose", "ravel", "squeeze",
    "square", "sqrt", "tanh", "isnan", "cumsum", "std", "prod", "any", "all", "negative", "sign", "floor",
    "flip", "zeros_like", "ones_like", "asarray", "array", "triu", "trace", "shape", "ndim", "size", "copy",
    "linalg.norm", "fft.fft",
]  # fmt: skip
SEVERAL = {
    "add": (P, P), "multiply": (X, P), "maximum": (P, X), "power": (P, P), "dot": (P, X.T), "split": (P, 2),
    "matmul": (P, X.T), "where": (X > 2, P, P), "stack": ([P, P],), "concatenate": ([P, X],),
    "einsum": ("ij,kj->ik", P, P), "reshape": (P, (3, 2)), "broadcast_to": (P, (4, 2, 3)), "clip": (P, X, P),
    "array": ([P, P],), "pad": (P, 1), "array_equal": (P, P), "tensordot": (P, X.T, 1),
}  # fmt: skip


def filled(args, make):
    """The arguments with something in the place of each Variable."""
    if isinstance(args, (list, tuple)):
        return [filled(a, make) for a in args]
    return make(X) if isinstance(args, str) and args == P else args


@pytest.mark.parametrize("library", [jnp, np], ids=["jnp", "np"])
@pytest.mark.parametrize("name", [*ONE_ARGUMENT, *SEVERAL])
def test_functions_of_arrays_take_variables(library, name):
    f = operator.attrgetter(name)(library)
    args = SEVERAL.get(name, (P,))
    found = f(*filled(args, lambda x: nnx.Param(jnp.asarray(x))))
    expected = f(*filled(args, lambda x: library.asarray(x)))
    assert jax.tree.all(jax.tree.map(equal, found, expected))


@pytest.mark.parametrize(
    "f",
    [
        jax.nn.softmax,
        jax.nn.gelu,
        jax.scipy.special.logsumexp,
        lambda v: jax.random.categorical(jax.random.key(0), v),
        lambda v: jnp.asarray(X).at[0].set(v[0]),
        lambda v: jax.jit(jnp.sin)(v),
        lambda v: jax.vmap(jnp.sum)(v),
        lambda v: jax.lax.map(jnp.sum, v),
        lambda v: jax.lax.scan(lambda c, x: (c + x.sum(), x), jnp.float32(0), v)[0],
        lambda v: jax.grad(lambda a: (a * a).sum())(v)[...],
        lambda v: jax.device_get(v)[...],
    ],
)
def test_functions_of_jax_take_variables(f):
    assert equal(f(nnx.Param(jnp.asarray(X))), f(jnp.asarray(X)))
