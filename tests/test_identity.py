"""Nothing asks an object of the graph whether it is equal to another, nor for its hash."""

import copy

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx


class Hostile(nnx.Module):
    """A module with a child and a cycle that can neither be compared nor hashed."""

    def __init__(self, depth=1):
        self.w = nnx.Param(jnp.ones(2))
        self.children = [Hostile(depth - 1)] if depth else []
        self.tied = [*self.children]
        self.method = self.__call__
        for child in self.children:
            child.up = self

    def __eq__(self, other):
        raise AssertionError("compared")

    __hash__ = None

    def __call__(self, x):
        return x * self.w[...]


def apply(m, x):
    return m(x)


X, XS = jnp.ones(2), jnp.ones((3, 2))
USES = {
    "split and merge": lambda m: nnx.merge(*nnx.split(m)),
    "state": nnx.state,
    "variables": nnx.variables,
    "update": lambda m: nnx.update(m, nnx.state(m)),
    "clone": nnx.clone,
    "pop": lambda m: nnx.pop(m, nnx.Intermediate),
    "iter_graph": lambda m: list(nnx.iter_graph(m)),
    "iter_modules": lambda m: list(m.iter_modules()),
    "iter_children": lambda m: list(m.iter_children()),
    "recursive_map": lambda m: nnx.recursive_map(lambda path, x: x, m),
    "find_duplicates": nnx.find_duplicates,
    "check_pytree": nnx.check_pytree,
    "is_data": lambda m: nnx.is_data([m]),
    "set_attributes": lambda m: m.set_attributes(tied=m.children),
    "with_attributes": lambda m: nnx.with_attributes(m, tied=[]),
    "capture": lambda m: nnx.capture(m, nnx.Intermediate, method_outputs=nnx.Intermediate)(X),
    "repr": repr,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "tree.map": lambda m: jax.tree.map(lambda x: x, m),
    "list": lambda m: (nnx.List([m]).index(m), m in nnx.List([1, m]), nnx.List([m]).remove(m)),
    "jit": lambda m: nnx.jit(apply)(m, X),
    "jit result": lambda m: nnx.jit(lambda m: m)(m),
    "raw jit": lambda m: jax.jit(apply)(m, X),
    "grad": lambda m: nnx.grad(lambda m: m(X).sum())(m),
    "two arguments": lambda m: nnx.grad(lambda a, b: (a(X) + b(X)).sum(), argnums=(0, 1))(m, Hostile()),
    "captured": lambda m: nnx.grad(lambda x: m(x).sum())(X),
    "vmap": lambda m: nnx.vmap(apply, in_axes=(None, 0))(m, XS),
    "scan": lambda m: nnx.scan(lambda m, x: (m, m(x)))(m, XS),
    "remat": lambda m: nnx.remat(apply)(m, X),
    "cond": lambda m: nnx.cond(True, apply, lambda m, x: x, m, X),
    "while_loop": lambda m: nnx.while_loop(lambda c: c[1][0] < 3, lambda c: (c[0], c[1] + 1), (m, X)),
    "eval_shape": lambda m: nnx.eval_shape(apply, m, X),
}


@pytest.mark.parametrize("name", USES)
def test_objects_are_told_apart_by_identity_alone(name):
    USES[name](Hostile())


def test_object_is_a_static_argument_of_raw_jit_by_identity():
    traces = []
    f = jax.jit(lambda m, x: traces.append(1) or x * m.factor, static_argnums=0)
    a, b = nnx.Dict(factor=2.0), nnx.Dict(factor=2.0)
    assert [float(f(m, 3.0)) for m in (a, a, b, a)] == [6.0] * 4
    assert len(traces) == 2
    assert (hash(a) == hash(a), a == a, a == b) == (True, True, False)  # what is tested


def test_names_that_look_like_ours_are_free_for_the_user():
    class Marked(nnx.Module):
        def __init__(self):
            self._marks = {"a": 1}
            self._items = [nnx.Param(jnp.ones(1))]
            self._frame = "outer"

    twin = nnx.clone(Marked())
    assert vars(twin).keys() == {"_marks", "_items", "_frame"}
    assert twin._marks == {"a": 1}
