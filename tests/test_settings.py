"""Defaults of a thread, set at once or for a while."""

import threading

import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph._settings import Mode, current_mode
from nnxgraph.errors import SharedVariableError

SETTINGS = [nnx.set_graph_mode, nnx.set_graph_updates]
each = pytest.mark.parametrize("setting", SETTINGS)


@pytest.fixture(autouse=True)
def defaults():
    """Every test starts with the defaults, and leaves them."""
    with nnx.set_graph_mode(True), nnx.set_graph_updates(True):
        yield


class Tied(nnx.Module):
    def __init__(self):
        self.a = nnx.Param(jnp.ones(1))
        self.b = [self.a]


@each
def test_setting_holds_until_it_is_set_again(setting):
    setting(False)
    assert setting.get_default() is False
    assert setting.get_stack()[-1] is False
    setting(True)
    assert setting.get_default() is True


@each
def test_setting_of_a_while_is_undone_also_after_an_exception(setting):
    with setting(False), setting(True):
        assert setting.get_default() is True
    assert setting.get_default() is True
    with pytest.raises(ZeroDivisionError), setting(False):
        raise ZeroDivisionError
    assert setting.get_default() is True


@each
def test_setting_belongs_to_its_thread(setting):
    seen = []
    with setting(False):
        thread = threading.Thread(target=lambda: seen.append(setting.get_default()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_settings_do_not_touch_each_other():
    with nnx.set_graph_updates(False):
        assert nnx.set_graph_mode.get_default() is True
        assert current_mode(None, None) == Mode(True, False)


@pytest.mark.parametrize(
    ("graph", "updates", "expected"),
    [(None, None, Mode(True, True)), (False, None, Mode(False, False)), (False, True, Mode(False, False)),
     (True, False, Mode(True, False)), (None, False, Mode(True, False))],
)  # fmt: skip
def test_arguments_overrule_the_settings(graph, updates, expected):
    assert current_mode(graph, updates) == expected


CALLS = {
    "split": nnx.split,
    "state": nnx.state,
    "variables": nnx.variables,
    "graphdef": nnx.graphdef,
    "clone": nnx.clone,
    "iter_graph": lambda m, **k: list(nnx.iter_graph(m, **k)),
    "recursive_map": lambda m, **k: nnx.recursive_map(lambda p, x: x, m, **k),
}


@pytest.mark.parametrize("name", CALLS)
def test_shared_variables_are_refused_in_tree_mode(name):
    CALLS[name](Tied())
    with pytest.raises(SharedVariableError, match=rf"{name}: .*\.a.* and .*\.b\[0\]"):
        CALLS[name](Tied(), graph=False)
    with nnx.set_graph_mode(False):
        with pytest.raises(SharedVariableError):
            CALLS[name](Tied())
        CALLS[name](Tied(), graph=True)


def test_cycles_are_refused_in_tree_mode():
    class Ring(nnx.Module):
        pass

    ring = Ring()
    ring.next = ring
    with pytest.raises(SharedVariableError):
        nnx.split(ring, graph=False)
