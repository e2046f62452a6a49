"""Every transform once: how to lift a function so that it does what the plain function does.

`lift(f)` takes and returns what `f` does, having run it once under the transform. Where a transform cannot,
the case names the error that says so; a law asserts that error, and skips nothing.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import nnxgraph as nnx
from nnxgraph.errors import AliasError, GraphChangeError, NestedMeshError
from tests.transforms.subjects import f32


@dataclasses.dataclass(frozen=True)
class Case:
    """One transform."""

    name: str
    lift: Callable[[Callable[..., Any]], Callable[..., Any]]
    wrapper: Callable[..., Any] | None = None  # the transform itself, where it is a decorator
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # for `(cell, array) -> scalar`
    traces: int = 1  # how often one call runs the function
    cached: bool = False  # whether a second call does not run it again
    kept: bool = False  # whether a second eager call does not run it again
    settles: bool = False  # whether results lie on a mesh: one more trace outside, as in JAX
    keywords: bool = True  # whether the lifted function takes keyword arguments
    captures: type[Exception] | None = None  # what a function raises that reaches a Variable by itself
    structure: type[Exception] | None = None  # what a change of attributes raises
    objects: type[Exception] | None = None  # what a new object as the result raises
    returned: type[Exception] | None = None  # what an argument as the result raises

    def __str__(self) -> str:
        return self.name


def _is(x, number):
    """Whether an array has a value, as far as one can see."""
    return isinstance(x, jax.core.Tracer) or float(x) == number


def _jit_partial(f):
    return lambda *args, **kwargs: nnx.jit_partial(f, *args[:1])(*args[1:], **kwargs)


def _cached_partial(f):
    jitted = nnx.jit(f)
    return lambda *args, **kwargs: nnx.cached_partial(jitted, *args[:1])(*args[1:], **kwargs)


def _untouched(inspect):
    """What looks at a function and runs it for no one, beside a call of the function."""

    def lift(f):
        def lifted(*args, **kwargs):
            inspect(f)(*args, **kwargs)
            return f(*args, **kwargs)

        return lifted

    return lift


def _eval_shape(f):
    return functools.partial(nnx.eval_shape, f)


def _grad(f):
    def lifted(*args, **kwargs):
        def loss(t, *args, **kwargs):
            return t * t, f(*args, **kwargs)

        slope, out = nnx.grad(loss, has_aux=True)(f32(1.5), *args, **kwargs)
        assert _is(slope, 3.0)
        return out

    return lifted


def _value_and_grad(f):
    def lifted(*args, **kwargs):
        def loss(t, *args, **kwargs):
            return t * t, f(*args, **kwargs)

        (value, out), slope = nnx.value_and_grad(loss, has_aux=True)(f32(2.0), *args, **kwargs)
        assert _is(value, 4.0)
        assert _is(slope, 4.0)
        return out

    return lifted


def _vmap(f):
    def lifted(*args, **kwargs):
        def lane(i, args, kwargs):
            return f(*args, **kwargs)

        return nnx.vmap(lane, in_axes=(0, None, None), out_axes=None)(jnp.arange(2), args, kwargs)

    return lifted


def _scan(f):
    lifts = {n: nnx.scan(f, in_axes=(None,) * n, out_axes=0, length=1) for n in range(4)}

    def lifted(*args, **kwargs):
        return jax.tree.map(lambda y: y[0], lifts[len(args)](*args, **kwargs))

    return lifted


def _scan_carry(f):
    def body(carry):
        return carry[0], f(*carry[0])

    scanned = nnx.scan(body, in_axes=nnx.Carry, out_axes=nnx.Carry, length=1)
    return lambda *args: scanned((args, f32(0.0)))[1]


def _while(f):
    def body(value):
        i, args, _ = value
        return i + 1, args, f(*args)

    def test(value):
        return value[0] < 1

    return lambda *args: nnx.while_loop(test, body, (0, args, f32(0.0)))[2]


def _fori(f):
    def body(i, value):
        return value[0], f(*value[0])

    return lambda *args: nnx.fori_loop(0, 1, body, (args, f32(0.0)))[1]


def _cond(f):
    return lambda *args: nnx.cond(True, f, f, *args)


def _switch(f):
    return lambda *args: nnx.switch(jnp.asarray(5), [f], *args)


def _square(f):
    """A scalar that is differentiated, beside the function's result."""

    def loss(t, *args, **kwargs):
        return t * t, f(*args, **kwargs)

    return loss


def _vjp(f):
    def lifted(*args, **kwargs):
        value, vjp_fn, out = nnx.vjp(_square(f), has_aux=True)(f32(1.5), *args, **kwargs)
        assert _is(vjp_fn(jnp.ones_like(value))[0], 3.0)
        return out

    return lifted


def _linearize(f):
    def lifted(*args, **kwargs):
        _, f_jvp, out = nnx.linearize(_square(f), has_aux=True)(f32(1.5), *args, **kwargs)
        assert _is(f_jvp(f32(1.0), *[None] * len(args)), 3.0)
        return out

    return lifted


def _jvp(f):
    def lifted(*args, **kwargs):
        along = (f32(1.0), *[None] * len(args))
        _, slope, out = nnx.jvp(_square(f), has_aux=True)((f32(1.5), *args), along, **kwargs)
        assert _is(slope, 3.0)
        return out

    return lifted


def _jacobian(transform, expected):
    def lift(f):
        def lifted(*args, **kwargs):
            slope, out = transform(_square(f), has_aux=True)(f32(1.5), *args, **kwargs)
            assert _is(slope, expected)
            return out

        return lifted

    return lift


def _custom_vjp(f):
    def lifted(*args):
        ruled = nnx.custom_vjp(lambda args: f(*args))
        ruled.defvjp(
            lambda args: (f(*args), args), lambda args, g: nnx.vjp(lambda args: f(*args), args)[1](g)
        )
        return ruled(args)

    return lifted


def _custom_jvp(f):
    def lifted(*args):
        def one(args):
            out = f(*args)
            return (out, None) if _is_array(out) else (f32(0.0), out)

        def rule(primals, tangents):
            value, slope, out = nnx.jvp(one, primals, _params(tangents), has_aux=True)
            return (value, slope) if out is None else (out, None)

        ruled = nnx.custom_jvp(lambda args: f(*args))
        ruled.defjvp(rule)
        return ruled(args)

    return lifted


def _is_array(x):
    return isinstance(x, jax.Array)


def _params(tangents):
    """The tangents by what `jvp` differentiates by."""
    (parts,) = tangents
    return (tuple(nnx.filter_state(t, nnx.Param) if isinstance(t, nnx.State) else t for t in parts),)


def _shard_map(f):
    return nnx.shard_map(f, mesh=MESH, in_specs=P(), out_specs=P())


def _pmap(f):
    mapped = nnx.pmap(lambda i, args, kwargs: f(*args, **kwargs), in_axes=(0, None, None), out_axes=None)
    return lambda *args, **kwargs: mapped(jnp.arange(2), args, kwargs)


def _checkify(f):
    return lambda *args, **kwargs: nnx.checkify(f)(*args, **kwargs)[1]


def _transform_metadata(f):
    return nnx.transform_metadata(f, in_axes=None, out_axes=None, partition="lanes")


# A loop carries an array here, so that an object in its place is refused.
LOOP = {
    "kept": True,
    "keywords": False,
    "structure": GraphChangeError,
    "objects": GraphChangeError,
    "returned": GraphChangeError,
}
MESH = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
SPECS = {"mesh": MESH, "in_specs": P(), "out_specs": P()}
LANES = {"in_axes": (None, 0), "out_axes": 0}

CASES = (
    Case("jit", nnx.jit, nnx.jit, cached=True),
    Case("jit_partial", _jit_partial),
    Case("cached_partial", _cached_partial, cached=True),
    Case("remat", nnx.remat, nnx.remat),
    Case("checkpoint", nnx.checkpoint, nnx.checkpoint),
    Case("grad", _grad, nnx.grad),
    Case("value_and_grad", _value_and_grad, nnx.value_and_grad),
    Case("vmap", _vmap, nnx.vmap, LANES),
    Case("cond", _cond, traces=2, kept=True, keywords=False),
    Case("switch", _switch, kept=True, keywords=False),
    Case("scan", _scan, nnx.scan, LANES, kept=True, structure=GraphChangeError, returned=AliasError),
    Case("scan with a carry", _scan_carry, **LOOP),
    Case("while_loop", _while, **LOOP),
    Case("fori_loop", _fori, **LOOP),
    Case("vjp", _vjp, nnx.vjp),
    Case("jvp", _jvp),
    Case("linearize", _linearize, nnx.linearize),
    Case("jacfwd", _jacobian(nnx.jacfwd, 3.0), nnx.jacfwd),
    Case("jacrev", _jacobian(nnx.jacrev, 3.0), nnx.jacrev),
    Case("hessian", _jacobian(nnx.hessian, 2.0), nnx.hessian),
    Case("custom_vjp", _custom_vjp, traces=2, keywords=False),
    Case("custom_jvp", _custom_jvp, traces=2, keywords=False),
    Case("shard_map", _shard_map, nnx.shard_map, SPECS, settles=True),
    Case("pmap", _pmap, nnx.pmap, {"in_axes": (None, 0)}, cached=True),
    Case("eval_shape", _untouched(_eval_shape), traces=2),
    Case("make_jaxpr", _untouched(nnx.make_jaxpr), traces=2),
    Case("checkify", _checkify, nnx.checkify),
    Case(
        "transform_metadata",
        _transform_metadata,
        nnx.transform_metadata,
        {"in_axes": None, "out_axes": None, "partition": "lanes"},
    ),
)
# Those with a form of their own, and the tests that are theirs.
ELSEWHERE = {"associative_scan": "test_associative_scan.py"}
DECORATORS = tuple(case for case in CASES if case.wrapper is not None)
NESTING = tuple(case for case in CASES if case.name != "checkpoint")  # which is remat
PAIRS = tuple((outer, inner) for outer in NESTING for inner in NESTING)
# Pairs that cannot be, with the error that says so.
IMPOSSIBLE = {
    (outer, inner): NestedMeshError for outer in ("shard_map", "pmap") for inner in ("shard_map", "pmap")
}
