"""Small objects that the transforms are tried on, and a way to count how often a function is traced."""

import functools

import jax
import jax.numpy as jnp

import nnxgraph as nnx


def f32(x):
    """An array that is not weakly typed."""
    return jnp.asarray(x, jnp.float32)


class Cell(nnx.Module):
    """A parameter, a counter, a static attribute."""

    def __init__(self, w=2.0, n=0.0):
        self.w = nnx.Param(f32(w))
        self.n = nnx.Variable(f32(n))
        self.tag = "plain"

    def __call__(self, x):
        self.n[...] += 1.0
        return self.w[...] * x

    def loss(self, x):
        """A scalar, with a count of the calls."""
        return self(x).sum()

    def record(self, x):
        """A new attribute at each call."""
        self.sow(nnx.Intermediate, "h", x)
        return x


class Tied(nnx.Module):
    """Two names for one parameter, and a reference back from a child."""

    def __init__(self):
        self.a = nnx.Param(f32(3.0))
        self.b = self.a
        self.child = Cell()
        self.child.parent = self


class Empty(nnx.Module):
    """Whatever the test puts in."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


def traced(f):
    """The function, with a list that gets an entry each time its Python code runs."""
    runs = []

    @functools.wraps(f)
    def counting(*args, **kwargs):
        runs.append(None)
        return f(*args, **kwargs)

    return counting, runs


def values(x):
    """The values of a graph by path, as numbers to compare."""
    return {
        path: jax.tree.map(lambda a: a.tolist(), v.get_value()) for path, v in nnx.to_flat_state(nnx.state(x))
    }


def cells(count=3):
    """`count` cells as one, w and n from 0 up."""
    return nnx.vmap(lambda i: Cell(i, i))(jnp.arange(count, dtype=jnp.float32))


def equations(f, *args):
    """The equations of a function's jaxpr, those of nested jaxprs too."""
    return equations_in(jax.make_jaxpr(f)(*args).jaxpr)


def equations_in(jaxpr):
    """The equations of a jaxpr, those of nested jaxprs too."""
    found = []

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            found.append(equation)
            for sub in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
                if _is_jaxpr(sub):
                    visit(getattr(sub, "jaxpr", sub))

    visit(jaxpr)
    return found


def _is_jaxpr(x):
    return hasattr(x, "eqns") or hasattr(x, "jaxpr")


def only(f, primitive, *args):
    """The one equation of a primitive in a function's jaxpr."""
    (found,) = [e for e in equations(f, *args) if e.primitive.name == primitive]
    return found


def carried(f, *args):
    """The types of what the one scan in a function carries: its results that are not stacked."""
    scan = only(f, "scan", *args)
    inner = scan.params["jaxpr"].out_avals
    pairs = zip(scan.outvars, inner, strict=True)
    return sorted(a.str_short() for v, a in pairs if v.aval.shape == a.shape)
