"""A random nest of transforms gives the value and the side effects of the plain function.

The plain function works on a dict of arrays, without any object: what it means is written down once more,
and gradients of it are those of JAX.
"""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import nnxgraph as nnx
from tests.transforms.subjects import Empty, f32

LEVELS = ("jit", "remat", "grad", "vmap", "scan", "cond", "while")
ROWS = 2


def make():
    """A parameter under two names, a counter in a child, and a row of values for each level."""
    child = Empty(n=nnx.Variable(f32(0.5)))
    model = Empty(w=nnx.Param(f32(0.7)), child=child)
    model.alias = model.w
    for depth in range(3):
        setattr(model, f"row{depth}", nnx.Variable(jnp.linspace(0.1, 0.3, ROWS)))
    return model


def as_dict(model):
    rows = {f"row{depth}": getattr(model, f"row{depth}")[...] for depth in range(3)}
    return {"w": model.w[...], "n": model.child.n[...], **rows}


# What the innermost function does, step by step: on objects, and on a dict.
STEPS = {
    "scale": lambda m, x: m.w.set_value(jnp.sin(m.w[...] * x)),
    "count": lambda m, x: m.child.n.set_value(m.child.n[...] * 0.5 + 1.0),
    "alias": lambda m, x: m.alias.set_value(m.w[...] + m.child.n[...] * 0.25),
    "read": lambda m, x: None,
    "input": lambda m, x: m.child.n.set_value(jnp.cos(m.child.n[...] + x)),
}
PURE = {
    "scale": lambda s, x: s | {"w": jnp.sin(s["w"] * x)},
    "count": lambda s, x: s | {"n": s["n"] * 0.5 + 1.0},
    "alias": lambda s, x: s | {"w": s["w"] + s["n"] * 0.25},
    "read": lambda s, x: s,
    "input": lambda s, x: s | {"n": jnp.cos(s["n"] + x)},
}


def innermost(steps, captured):
    def f(model, x):
        owner = captured or model
        for step in steps:
            STEPS[step](owner, x)
        return x * owner.alias[...] + owner.child.n[...]

    return f


def lift(level, f, row, under_grad):
    """One level of the nest around f, which takes (model, x) and returns a scalar."""
    axes = nnx.StateAxes({nnx.PathContains(row): 0, ...: None})

    def at_row(model):
        own = getattr(model, row)
        own[...] = own[...] * 0.5 + 0.125
        return own[...]

    def grad(model, x):
        grads, y = nnx.grad(lambda m, x: (f(m, x),) * 2, argnums=(0, 1), has_aux=True)(model, x)
        return y + 0.5 * grads[0]["w"][...] + 0.25 * grads[1]

    def vmap(model, x):
        return nnx.vmap(lambda m, x: f(m, x) + at_row(m), in_axes=(axes, None))(model, x).sum()

    def scan(model, x):
        body = nnx.scan(lambda x, m: (0.5 * f(m, x), at_row(m)), in_axes=(nnx.Carry, axes))
        x, ys = body(x, model)
        return x + ys.sum()

    def cond(model, x):
        def other(model, x):
            model.child.n[...] += 0.5
            return x

        return nnx.cond(model.child.n[...] > 0.75, f, other, model, x)

    def loop(model, x):
        if under_grad:  # JAX has no reverse mode for while_loop
            return nnx.fori_loop(0, 2, lambda i, v: (v[0], 0.5 * f(*v)), (model, x))[1]
        init = (0, model, x)
        return nnx.while_loop(lambda v: v[0] < 2, lambda v: (v[0] + 1, v[1], 0.5 * f(v[1], v[2])), init)[2]

    lifted = {"grad": grad, "vmap": vmap, "scan": scan, "cond": cond, "while": loop}
    return lifted[level] if level in lifted else getattr(nnx, level)(f)


def pure(levels, steps, s, x, depth=0):
    """The plain meaning of a nest: (state, value)."""
    if not levels:
        for step in steps:
            s = PURE[step](s, x)
        return s, x * s["w"] + s["n"]
    level, row = levels[0], f"row{depth}"

    def f(s, x):
        return pure(levels[1:], steps, s, x, depth + 1)

    if level == "grad":

        def loss(w, x):
            after, y = f(s | {"w": w}, x)
            return y, (after, y)

        (dw, dx), (after, y) = jax.grad(loss, argnums=(0, 1), has_aux=True)(s["w"], x)
        return after, y + 0.5 * dw + 0.25 * dx
    if level in ("vmap", "scan"):
        s = s | {row: s[row] * 0.5 + 0.125}
        own = s[row].sum()
        if level == "vmap":
            s, y = f(s, x)
            return s, ROWS * y + own
    if level in ("scan", "while"):
        for _ in range(2):
            s, y = f(s, x)
            x = 0.5 * y
        return s, x + (own if level == "scan" else 0.0)
    if level == "cond":
        yes, no = f(s, x), (s | {"n": s["n"] + 0.5}, x)
        return jax.tree.map(lambda a, b: jnp.where(s["n"] > 0.75, a, b), yes, no)
    return f(s, x)


@settings(max_examples=25)
@given(
    levels=st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3),
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    captures=st.booleans(),
)
def test_nest_equals_the_plain_function(levels, steps, captures):
    model = make()
    held = (model.w, model.child, model.child.n)
    f = innermost(steps, model if captures and "jit" not in levels else None)
    for depth in reversed(range(len(levels))):
        f = lift(levels[depth], f, f"row{depth}", "grad" in levels[:depth])
    x = f32(0.6)
    expected_state, expected = pure(levels, steps, as_dict(model), x)
    got = f(model, x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    for name, value in as_dict(model).items():
        np.testing.assert_allclose(value, expected_state[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert (model.w, model.child, model.child.n) == held
    assert model.alias is model.w
