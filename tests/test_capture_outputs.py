"""`capture(..., method_outputs=kind)`: what the calls of modules return."""

import threading

import jax
import pytest

import nnxgraph as nnx
from tests.test_capture import ONE, SOWN, Net, apply, plain


class Tower(nnx.Module):
    """Modules of several kinds: a container, one that inherits its call, one that calls its base."""

    class Base(nnx.Module):
        def __call__(self, x):
            return x + 1

    class Inherits(Base):
        pass

    class Extends(Base):
        def __call__(self, x):
            return 2 * super().__call__(x)

    class Many(nnx.List):
        def __call__(self, x):
            return [layer(x) for layer in self]

    class Named(nnx.Dict):
        def __call__(self, x):
            return {name: layer(x) for name, layer in self.items()}

    def __init__(self):
        self.base = Tower.Base()
        self.many = Tower.Many([Tower.Inherits(), Tower.Extends()])
        self.named = Tower.Named(a=self.base)
        self.silent = nnx.Dict()

    def __call__(self, x):
        return self.named(x), self.many(x)


TOWER = {
    "base": {"__call__": (2.0,)},
    "many": {0: {"__call__": (2.0,)}, 1: {"__call__": (4.0,)}, "__call__": ([2.0, 4.0],)},
    "named": {"__call__": ({"a": 2.0},)},
    "__call__": (({"a": 2.0}, [2.0, 4.0]),),
}


@pytest.mark.parametrize(
    "way",
    [
        lambda t, x, **o: nnx.capture(t, **o)(x),
        lambda t, x, **o: nnx.jit(lambda t, x: nnx.capture(t, **o)(x))(t, x),
        lambda t, x, **o: jax.jit(lambda t, x: nnx.capture(t, **o)(x))(t, x),
        lambda t, x, **o: nnx.capture(apply, **o)(t, x),
        lambda t, x, **o: nnx.capture(nnx.jit(apply), **o)(t, x),
        lambda t, x, **o: nnx.capture(nnx.remat(apply), **o)(t, x),
    ],
)
def test_outputs_of_all_modules_are_recorded(way):
    tower = Tower()
    before = nnx.graphdef(tower)
    for _ in range(2):
        y, state = way(tower, ONE, method_outputs=nnx.Cache)
        assert jax.tree.map(float, y) == ({"a": 2.0}, [2.0, 4.0])
        assert plain(state, nnx.Cache) == TOWER
        assert nnx.graphdef(tower) is before
    assert "__call__" not in vars(Tower.Inherits)
    assert not hasattr(Tower.Base.__call__, "__wrapped__")


def test_outputs_of_several_calls_and_sown_values_stand_side_by_side():
    net = Net()
    _, state = nnx.capture(net, nnx.Intermediate, method_outputs=nnx.Cache)(ONE)
    assert plain(state) == SOWN
    assert plain(state, nnx.Cache) == {
        "layers": {0: {"__call__": (2.0, 8.0)}, 1: {"__call__": (4.0,)}},
        "__call__": (8.0,),
    }


def test_output_that_is_a_variable_is_recorded_by_value():
    class Holds(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(ONE)

        def __call__(self):
            return self.w

    holds = Holds()
    _, state = nnx.capture(holds, method_outputs=nnx.Intermediate)()
    assert isinstance(state["__call__"][0], jax.Array)


def test_calls_of_jitted_methods_are_recorded():
    class Jitted(nnx.Module):
        @nnx.jit
        def __call__(self, x):
            return x + 1

    method = Jitted.__call__
    for _ in range(2):
        _, state = nnx.capture(Jitted(), method_outputs=nnx.Intermediate)(ONE)
        assert plain(state) == {"__call__": (2.0,)}
    assert Jitted.__call__ is method or type(Jitted.__call__) is type(method)


def test_nested_and_concurrent_captures_give_the_classes_back():
    inside, go_on = threading.Event(), threading.Event()

    class Waits(nnx.Module):
        def __call__(self, x, wait=False):
            if wait:
                inside.set()
                go_on.wait(10)
            return x

    method, out = Waits.__call__, []
    waits = Waits()
    forward = nnx.capture(waits, method_outputs=nnx.Intermediate)
    thread = threading.Thread(target=lambda: out.append(forward(ONE, wait=True)))
    thread.start()
    inside.wait(10)
    nested = nnx.capture(lambda m, x: forward(x), method_outputs=nnx.Intermediate)(waits, ONE)
    assert Waits.__call__ is not method
    assert waits(ONE) is ONE
    go_on.set()
    thread.join()
    assert Waits.__call__ is method
    assert [len(state["__call__"].get_value()) for _, state in (*out, nested[0])] == [1, 1]
    assert not nested[1]
