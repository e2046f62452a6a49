"""Bound methods and partials that hold objects are a part of the graph, as containers are."""

import copy
import functools
import pickle

import cloudpickle
import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph.errors import FixedContainerError, StaticArrayError


class Net(nnx.Module):
    """Keeps its own methods as attributes, as models do that choose an implementation."""

    def __init__(self, w=2.0):
        self.w = nnx.Param(jnp.asarray(w))
        self.method = self.scale
        self.partial = functools.partial(self.scale, by=3.0)
        self.methods = {"a": [self.scale]}

    def scale(self, x=1.0, *, by=1.0):
        return x * self.w[...] * by


class Holder(nnx.Module):
    """Keeps a method of another module."""

    def __init__(self):
        other = Net()
        other.method = other.partial = other.methods = None
        self.f = other.scale
        self.g = functools.partial(jnp.multiply, jnp.asarray(2.0))


COPIES = {
    "merge": lambda m: nnx.merge(*nnx.split(m)),
    "clone": nnx.clone,
    "tree.map": lambda m: jax.tree.map(lambda x: x, m),
    "raw jit": lambda m: jax.jit(lambda m: m)(m),
    "recursive_map": lambda m: nnx.recursive_map(
        lambda p, x: nnx.clone(x) if isinstance(x, nnx.Param) else x, m
    ),
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "cloudpickle": lambda m: cloudpickle.loads(cloudpickle.dumps(m)),
    "pickle of parts": lambda m: nnx.merge(*pickle.loads(pickle.dumps(nnx.split(m)))),
}
each = pytest.mark.parametrize("way", COPIES)


@each
def test_methods_of_a_copy_are_bound_to_the_copy(way):
    net = Net()
    twin = COPIES[way](net)
    assert nnx.graphdef(twin) is nnx.graphdef(net)
    twin.w[...] = 5.0
    assert [float(f()) for f in (twin.method, twin.partial, twin.methods["a"][0])] == [5.0, 15.0, 5.0]
    assert float(net.method()) == 2.0


@each
def test_method_of_another_object_brings_the_object_along(way):
    twin = COPIES[way](Holder())
    assert nnx.to_flat_state(nnx.state(twin)).paths == (("f", "__self__", "w"), ("g", "args", 0))
    assert (float(twin.f(3.0)), float(twin.g(4.0))) == (6.0, 8.0)


@pytest.mark.parametrize("use", [lambda m: m.method(), lambda m: m.methods["a"][0]()])
def test_gradients_flow_through_methods_that_are_attributes(use):
    assert float(jax.grad(use)(Net()).w[...]) == 1.0
    assert float(nnx.grad(use)(Net())["w"][...]) == 1.0
    assert float(nnx.jit(use)(Net())) == 2.0


def test_writes_through_a_method_reach_the_object():
    class Counter(nnx.Module):
        def __init__(self):
            self.n = nnx.Variable(jnp.asarray(0))
            self.step = self.count

        def count(self):
            self.n[...] = self.n[...] + 1

    counter = Counter()
    step = counter.step
    nnx.jit(lambda m: m.step())(counter)
    counter.step()
    assert int(counter.n[...]) == 2
    assert counter.step == step


def test_callables_without_data_stay_static():
    class Plain:
        def f(self):
            return 1

    net = nnx.Dict(a=functools.partial(jnp.sum, axis=0), b=Plain().f, c=[].append)
    assert not nnx.state(net)
    assert not nnx.is_data(net.a)
    assert nnx.clone(net).a is net.a
    assert nnx.graphdef(nnx.Dict(a=functools.partial(jnp.sum, axis=0))) is nnx.graphdef(
        nnx.Dict(a=functools.partial(jnp.sum, axis=0))
    )


def test_graphs_differ_by_the_function():
    class Two(nnx.Module):
        def f(self):
            return 1

        def g(self):
            return 2

    def made(name, *args):
        net = Two()
        net.h = getattr(net, name)
        net.p = functools.partial(net.f, *args)
        return nnx.graphdef(net)

    assert made("f") is made("f")
    assert len({made("f"), made("g"), made("f", 1), made("f", True)}) == 4


def test_method_with_data_cannot_be_static():
    with pytest.raises(StaticArrayError):
        nnx.Dict()["f"] = nnx.static(Net().scale)


def test_method_keeps_hold_of_its_variable():
    v = nnx.Intermediate(jnp.ones(1))
    with pytest.raises(FixedContainerError, match=r"\.read\.__self__: it stands in a BoundMethod"):
        nnx.pop(nnx.Dict(read=v.get_value), nnx.Intermediate)


def test_walks_enter_callables():
    holder = Holder()
    paths = [path for path, x in nnx.iter_graph(holder) if isinstance(x, (Net, nnx.Param))]
    assert paths == [("f", "__self__", "w"), ("f", "__self__")]
    holder.tied = holder.f.__self__
    assert nnx.find_duplicates(holder) == [[("f", "__self__"), ("tied",)]]
