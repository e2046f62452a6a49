"""A random nest of transforms gives the value and the side effects of the plain function.

The plain function works on a dict of arrays, without any object: what it means is written down once more,
and gradients of it are those of JAX.
"""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import nnxgraph as nnx
from tests.transforms.subjects import Empty, f32

ROWS = 2
MESH = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
DIFFERENTIATED = {"grad", "vjp", "jvp"}
FORMS = ("passed", "captured", "bound", "passed and captured")


def fresh():
    """A parameter under two names, a counter in a child, and a row of values for each level."""
    child = Empty(n=nnx.Variable(f32(0.5)))
    model = Empty(w=nnx.Param(f32(0.7)), child=child)
    model.alias = model.w
    rows = Empty(**{f"row{depth}": nnx.Variable(jnp.linspace(0.1, 0.3, ROWS)) for depth in range(3)})
    return model, rows


def as_dict(model, rows):
    return {"w": model.w[...], "n": model.child.n[...]} | {k: v[...] for k, v in vars(rows).items()}


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


class Nest:
    """The transforms of a nest around its innermost function, over one model in one form.

    A function of the nest takes `(*objects, x)`, where `objects` is `(model,)` if the model is passed.
    """

    def __init__(self, model, rows, levels, steps, form):
        self.model, self.rows, self.levels = model, rows, levels
        self.steps, self.form = steps, form
        self.passed = form.startswith("passed")

    def build(self):
        """The whole nest, as a function of x."""
        f = self.in_form(self.innermost)
        for depth in reversed(range(len(self.levels))):
            f = self.in_form(self.lift(depth, f))
        return lambda x: f(*self.objects(), x)

    def objects(self):
        return (self.model,) if self.passed else ()

    def in_form(self, f):
        """A function of (model, x) in the form of the nest."""
        if self.passed:
            return f
        if self.form == "bound":
            return types.MethodType(f, self.model)
        return lambda x: f(self.model, x)

    def innermost(self, model, x):
        owner = self.model if self.form == "passed and captured" else model
        for step in self.steps:
            STEPS[step](owner, x)
        return x * owner.alias[...] + owner.child.n[...]

    def lift(self, depth, f):
        """One level around f, as a function of (model, x)."""
        level = getattr(self, self.levels[depth].replace(" ", "_"), None)

        def lifted(model, x):
            args = (model, x) if self.passed else (x,)
            if level is None:
                return getattr(nnx, self.levels[depth])(f)(*args)
            return level(f, args, depth)

        return lifted

    def own_row(self, rows, depth):
        """What a level does with the row that is its own, of which its body sees one element."""
        own = getattr(rows, f"row{depth}")
        own[...] = own[...] * 0.5 + 0.125
        return own[...]

    def axes(self, depth):
        return nnx.StateAxes({nnx.PathContains(f"row{depth}"): 0, ...: None})

    def grad(self, f, args, depth):
        nums = tuple(range(len(args)))
        grads, y = nnx.grad(lambda *args: (f(*args),) * 2, argnums=nums, has_aux=True)(*args)
        return self.with_slopes(y, grads)

    def vjp(self, f, args, depth):
        y, pull = nnx.vjp(f, *args)
        return self.with_slopes(y, pull(f32(1.0)))

    def with_slopes(self, y, grads):
        by_w = 0.5 * grads[0]["w"][...] if self.passed else 0.0
        return y + by_w + 0.25 * grads[-1]

    def jvp(self, f, args, depth):
        by_w = ({"w": f32(2.0)},) if self.passed else ()
        y, slope = nnx.jvp(f, args, (*by_w, f32(1.0)))
        return y + 0.25 * slope

    def custom_vjp(self, f, args, depth):
        ruled = nnx.custom_vjp(f)
        ruled.defvjp(lambda *args: nnx.vjp(f, *args), lambda pull, g: pull(g))
        return ruled(*args)

    def checkify(self, f, args, depth):
        error, y = nnx.checkify(f)(*args)
        assert error.get() is None if not isinstance(y, jax.core.Tracer) else True
        return y

    def vmap(self, f, args, depth):
        def lane(rows, *args):
            return f(*args) + self.own_row(rows, depth)

        axes = (self.axes(depth), *[None] * len(args))
        return nnx.vmap(lane, in_axes=axes)(self.rows, *args).sum()

    def scan(self, f, args, depth):
        def body(x, rows, *objects):
            return 0.5 * f(*objects, x), self.own_row(rows, depth)

        *objects, x = args
        axes = (nnx.Carry, self.axes(depth), *[None] * len(objects))
        x, ys = nnx.scan(body, in_axes=axes)(x, self.rows, *objects)
        return x + ys.sum()

    def shard_map(self, f, args, depth):
        def shard(rows, *args):
            return f(*args) + jax.lax.psum(self.own_row(rows, depth).sum(), "data")

        specs = nnx.StateSharding({nnx.PathContains(f"row{depth}"): P("data"), ...: P()})
        in_specs = (specs, *[P()] * len(args))
        return nnx.shard_map(shard, mesh=MESH, in_specs=in_specs, out_specs=P())(self.rows, *args)

    def other(self, *args):
        model = args[0] if self.passed else self.model
        model.child.n[...] += 0.5
        return args[-1]

    def cond(self, f, args, depth):
        model = args[0] if self.passed else self.model
        return nnx.cond(model.child.n[...] > 0.75, f, self.other, *args)

    def switch(self, f, args, depth):
        model = args[0] if self.passed else self.model
        index = 2 * (model.child.n[...] > 0.75).astype(jnp.int32)
        return nnx.switch(index, [self.other, lambda *args: 2.0 * args[-1], f], *args)

    def while_loop(self, f, args, depth):
        def body(value):
            i, args = value
            return i + 1, (*args[:-1], 0.5 * f(*args))

        return nnx.while_loop(lambda value: value[0] < 2, body, (0, args))[1][-1]

    def fori_loop(self, f, args, depth):
        return nnx.fori_loop(0, 2, lambda i, args: (*args[:-1], 0.5 * f(*args)), args)[-1]


def pure(levels, steps, passed, s, x, depth=0):
    """The plain meaning of a nest: (state, value)."""
    if not levels:
        for step in steps:
            s = PURE[step](s, x)
        return s, x * s["w"] + s["n"]
    level, row = levels[0], f"row{depth}"

    def f(s, x):
        return pure(levels[1:], steps, passed, s, x, depth + 1)

    if level in DIFFERENTIATED:
        return derived(level, f, passed, s, x)
    if level in ("cond", "switch"):
        after, y = f(s, x)
        no = s | {"n": s["n"] + 0.5}
        taken = s["n"] > 0.75
        both = {k: v if v is no[k] else jnp.where(taken, v, no[k]) for k, v in after.items()}
        return both, jnp.where(taken, y, x)
    own = 0.0
    if level in ("vmap", "scan", "shard_map"):
        s = s | {row: s[row] * 0.5 + 0.125}
        own = s[row].sum()
    if level in ("scan", "while_loop", "fori_loop"):
        for _ in range(2):
            s, y = f(s, x)
            x = 0.5 * y
        return s, x + own
    after, y = f(s, x)
    if level == "custom_vjp":  # what is written carries no derivative
        after = {k: v if v is s[k] else jax.lax.stop_gradient(v) for k, v in after.items()}
    return after, (ROWS * y if level == "vmap" else y) + own


def derived(level, f, passed, s, x):
    """The plain meaning of a level that differentiates by w, if it is passed, and by x."""

    def loss(w, x):
        after, y = f(s | {"w": w}, x)
        return y, (after, y)

    (dw, dx), (after, y) = jax.grad(loss, argnums=(0, 1), has_aux=True)(s["w"], x)
    return after, y + 0.25 * dx + (0.5 * dw if passed else 0.0)


def can_be(levels, form):
    """Whether JAX and the form have such a nest."""
    under = [set(levels[:depth]) for depth in range(len(levels))]
    pairs = list(zip(levels, under, strict=True))
    return not (
        # reverse mode needs to know how often a loop runs
        any(level == "while_loop" and above & DIFFERENTIATED for level, above in pairs)
        # a rule for reverse mode has no forward mode, and no derivative by what is captured
        or any(
            level == "custom_vjp" and (above & {"jvp"} or (above & DIFFERENTIATED and form != "passed"))
            for level, above in pairs
        )
        # a device is mapped over once
        or levels.count("shard_map") > 1
    )


LEVELS = (
    *("jit", "remat", "grad", "vjp", "jvp", "custom_vjp", "checkify", "vmap", "scan", "shard_map"),
    *("cond", "switch", "while_loop", "fori_loop"),
)


def check(levels, steps, form):
    model, rows = fresh()
    held = (model.w, model.child, model.child.n, *vars(rows).values())
    x = f32(0.6)
    expected_state, expected = pure(levels, steps, form.startswith("passed"), as_dict(model, rows), x)
    got = Nest(model, rows, levels, steps, form).build()(x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    for name, value in as_dict(model, rows).items():
        np.testing.assert_allclose(value, expected_state[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert (model.w, model.child, model.child.n, *vars(rows).values()) == held
    assert model.alias is model.w


@settings(max_examples=60)
@given(
    levels=st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3),
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    form=st.sampled_from(FORMS),
)
def test_nest_equals_the_plain_function(levels, steps, form):
    assume(can_be(levels, form))
    check(levels, steps, form)


@pytest.mark.parametrize(
    ("levels", "form"),
    [
        (["vjp", "jit"], "passed and captured"),
        (["vmap", "jit", "cond"], "passed and captured"),
        (["jvp", "switch"], "bound"),
        (["jit", "vmap"], "captured"),
    ],
    ids=str,
)
def test_captured_model_and_what_an_outer_function_made_of_it_are_one(levels, form):
    check(levels, ["count", "scale"], form)
