"""Programs have no more outputs than is written and returned, and loops carry no more than they write.

The counts are those of the jaxpr; each holds for objects that are passed, captured and bound alike.
"""

import functools
import types

import jax.numpy as jnp
import optax
import pytest

import nnxgraph as nnx
from tests.transforms.subjects import Empty, equations_in, f32

X = jnp.ones((8, 4))


class Frozen(nnx.Module):
    """Many parameters that are only read, and one counter that may be written."""

    def __init__(self, layers=16):
        self.layers = [nnx.Linear(4, 4, rngs=nnx.Rngs(i)) for i in range(layers)]
        self.calls = nnx.Variable(f32(0.0))

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def counted(self, x):
        self.calls[...] += 1.0
        return self(x)


PARAMETERS = 32  # a kernel and a bias for each layer


# A function of (model, x) in each form, as a function of the lift and x.
def passed(f, model):
    return lambda lift, x: lift(f)(model, x)


def captured(f, model):
    return lambda lift, x: lift(lambda x: f(model, x))(x)


def bound(f, model):
    return lambda lift, x: lift(types.MethodType(f, model))(x)


FORMS = {"passed": passed, "captured": captured, "bound": bound}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


def reads(model, x):
    return model(x)


def writes(model, x):
    return model.counted(x)


def over(transform):
    """A transform of branches and loops in the place of a decorator."""
    return lambda f: functools.partial(transform, f)


def cond(f, *args):
    return nnx.cond(args[-1].sum() > 0.0, f, lambda *args: args[-1], *args)


def switch(f, *args):
    return nnx.switch(args[-1].sum().astype(jnp.int32), [f, lambda *args: args[-1], f], *args)


def scan(f, *args):
    *objects, x = args
    axes = (nnx.Carry, *[None] * len(objects))
    body = nnx.scan(lambda x, *objects: f(*objects, x), in_axes=axes, out_axes=nnx.Carry, length=3)
    return body(x, *objects)


def while_loop(f, *args):
    def body(value):
        i, args = value
        return i + 1, (*args[:-1], f(*args))

    return nnx.while_loop(lambda value: value[0] < 3, body, (0, args))[1][-1]


def fori_loop(f, *args):
    return nnx.fori_loop(0, 3, lambda i, args: (*args[:-1], f(*args)), args)[-1]


def jaxpr(f, *args, **options):
    """What `nnx.jit` traces."""
    return nnx.jit(f, **options).trace(*args).jaxpr.jaxpr


def one(f, *args):
    """The one branch or loop in what `nnx.jit` traces."""
    (found,) = [e for e in equations_in(jaxpr(f, *args)) if e.primitive.name in ("cond", "scan", "while")]
    return found


@each_form
@pytest.mark.parametrize("branch", [cond, switch])
@pytest.mark.parametrize(("f", "written"), [(reads, 0), (writes, 1)])
def test_branch_has_the_result_and_what_is_written_as_outputs(form, branch, f, written):
    run = form(f, Frozen())
    equation = one(lambda x: run(over(branch), x), X)
    assert len(equation.outvars) == 1 + written


@each_form
@pytest.mark.parametrize(("f", "written"), [(reads, 0), (writes, 1)])
@pytest.mark.parametrize(("loop", "own"), [(scan, 1), (while_loop, 2), (fori_loop, 2)])
def test_me4_loop_carries_what_it_writes_and_reads_the_rest_as_constants(form, f, written, loop, own):
    run = form(f, Frozen())
    equation = one(lambda x: run(over(loop), x), X)
    assert len(equation.outvars) == own + written  # own: x, and the count of a loop that counts
    assert len(equation.invars) - len(equation.outvars) == PARAMETERS  # nothing is mapped here: the constants


def vmap(f):
    return lambda *args: nnx.vmap(f, in_axes=(*[None] * (len(args) - 1), 0))(*args)


def slope(f):
    """The gradient by x; what is passed or captured is only read."""
    return lambda *args: nnx.grad(lambda *args: f(*args).sum(), argnums=len(args) - 1)(*args)


def nested(f):
    """A rematerialised function in a scan in a cond in a compiled function."""
    return nnx.jit(over(cond)(over(scan)(nnx.remat(f))))


@each_form
@pytest.mark.parametrize(("f", "written"), [(reads, 0), (writes, 1)])
@pytest.mark.parametrize(
    "lift",
    [nnx.jit, nnx.remat, vmap, slope, nested, over(cond), over(scan), over(while_loop)],
    ids=["jit", "remat", "vmap", "grad", "nested", "cond", "scan", "while_loop"],
)
def test_compiled_function_returns_what_is_written_and_its_result(form, f, written, lift):
    run = form(f, Frozen())
    outputs = jaxpr(lambda x: run(lift, x), X).outvars
    assert len(outputs) == 1 + written


class Net(nnx.Module):
    """Two layers with batch statistics, and random masks."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def compile_step(form, model, optimizer):
    if form == "passed":
        return nnx.jit(step), (model, optimizer, X)
    return nnx.jit(lambda x: step(model, optimizer, x)), (X,)


@pytest.mark.parametrize("form", ["passed", "captured"])
@pytest.mark.parametrize("train", [True, False])
def test_training_step_returns_the_written_variables_and_the_loss(form, train):
    model = Net()
    (model.train if train else model.eval)()
    optimizer = nnx.Optimizer(model, optax.adam(f32(1e-3)), wrt=nnx.Param)
    compiled, args = compile_step(form, model, optimizer)
    outputs = compiled.trace(*args).jaxpr.jaxpr.outvars
    before = {v: v.get_raw_value() for _, v in nnx.to_flat_state(nnx.variables((model, optimizer)))}
    compiled(*args)
    changed = [v for v, value in before.items() if v.get_raw_value() is not value]
    parameters, statistics, draws = 6, 2, 1
    adam = 1 + 2 * parameters  # its count, and both moments
    written = parameters + adam + 1 + (statistics + draws if train else 0)  # and the optimizer's step
    assert len(changed) == written
    assert len(outputs) == written + 1


def test_a_step_reads_what_is_frozen_and_returns_none_of_it():
    frozen, model = Frozen(), nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def step(optimizer, frozen, model, x):
        grads = nnx.grad(lambda model: model(frozen(x)).sum())(model)
        optimizer.update(model, grads)

    outputs = jaxpr(step, optimizer, frozen, model, X).outvars
    assert len(outputs) == 3  # a kernel, a bias, the count of steps


def test_new_objects_come_out_with_their_values_and_no_others():
    def build(x):
        return Empty(w=nnx.Param(x * 2.0), frozen=frozen)

    frozen = Frozen()
    assert len(jaxpr(build, X).outvars) == 1
