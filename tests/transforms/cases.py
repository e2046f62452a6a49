"""Every transform once: how to lift a function so that it does what the plain function does.

`lift(f)` takes and returns what `f` does, having run it once under the transform. Where a transform cannot,
the case names the error that says so; a law asserts that error, and skips nothing.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import nnxgraph as nnx
from nnxgraph.errors import AliasError, GraphChangeError
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
    def lifted(*args, **kwargs):
        out = nnx.scan(f, in_axes=(None,) * len(args), out_axes=0, length=1)(*args, **kwargs)
        return jax.tree.map(lambda y: y[0], out)

    return lifted


def _scan_carry(f):
    def lifted(*args):
        def body(carry):
            return carry[0], f(*carry[0])

        return nnx.scan(body, in_axes=nnx.Carry, out_axes=nnx.Carry, length=1)((args, f32(0.0)))[1]

    return lifted


def _while(f):
    def lifted(*args):
        def body(value):
            i, args, _ = value
            return i + 1, args, f(*args)

        return nnx.while_loop(lambda value: value[0] < 1, body, (0, args, f32(0.0)))[2]

    return lifted


def _fori(f):
    def lifted(*args):
        def body(i, value):
            return value[0], f(*value[0])

        return nnx.fori_loop(0, 1, body, (args, f32(0.0)))[1]

    return lifted


def _cond(f):
    return lambda *args: nnx.cond(True, f, f, *args)


def _switch(f):
    return lambda *args: nnx.switch(jnp.asarray(5), [f], *args)


# A loop carries an array here, so that an object in its place is refused.
LOOP = {
    "keywords": False,
    "structure": GraphChangeError,
    "objects": GraphChangeError,
    "returned": GraphChangeError,
}
LANES = {"in_axes": (None, 0), "out_axes": 0}

CASES = (
    Case("jit", nnx.jit, nnx.jit, cached=True),
    Case("remat", nnx.remat, nnx.remat),
    Case("grad", _grad, nnx.grad),
    Case("value_and_grad", _value_and_grad, nnx.value_and_grad),
    Case("vmap", _vmap, nnx.vmap, LANES),
    Case("cond", _cond, traces=2, keywords=False),
    Case("switch", _switch, keywords=False),
    Case("scan", _scan, nnx.scan, LANES, structure=GraphChangeError, returned=AliasError),
    Case("scan with a carry", _scan_carry, **LOOP),
    Case("while_loop", _while, **LOOP),
    Case("fori_loop", _fori, **LOOP),
)
DECORATORS = tuple(case for case in CASES if case.wrapper is not None)
# value_and_grad is grad, and is not tried twice.
NESTING = tuple(case for case in CASES if case.name != "value_and_grad")
PAIRS = tuple((outer, inner) for outer in NESTING for inner in NESTING)
