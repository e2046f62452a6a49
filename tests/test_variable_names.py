"""Kinds of Variables by name, and the deprecated name of Variable."""

import subprocess
import sys

import pytest

import nnxgraph as nnx
from nnxgraph import _variable_names as names
from nnxgraph import errors

KNOWN = {
    "params": nnx.Param,
    "batch_stats": nnx.BatchStat,
    "cache": nnx.Cache,
    "intermediates": nnx.Intermediate,
    "perturbations": nnx.Perturbation,
    "RngState": nnx.RngState,
    "RngKey": nnx.RngKey,
    "RngCount": nnx.RngCount,
    "OptState": nnx.OptState,
    "OptArray": nnx.OptArray,
    "OptVariable": nnx.OptVariable,
}


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Tables of our own kinds alone for each test, whatever was registered before; then the old ones."""
    kinds = {name: kind for name, kind in names._kinds.items() if kind.__module__.startswith("nnxgraph.")}
    monkeypatch.setattr(names, "_kinds", kinds)
    monkeypatch.setattr(names, "_names", {kind: name for name, kind in kinds.items()})


@pytest.mark.parametrize("name", KNOWN)
def test_our_kinds_have_names(name):
    assert nnx.variable_type_from_name(name) is KNOWN[name]
    assert nnx.variable_name_from_type(KNOWN[name]) == name


def test_unknown_name_makes_a_kind_if_that_is_asked_for():
    kind = nnx.variable_type_from_name("scales", base=nnx.Param, allow_register=True)
    assert issubclass(kind, nnx.Param)
    assert kind.__name__ == "scales"
    assert nnx.variable_type_from_name("scales") is kind
    assert nnx.variable_type_from_name("scales", allow_register=True) is kind
    assert nnx.variable_name_from_type(kind) == "scales"
    assert nnx.state([kind(1)], nnx.Param)[0][...] == 1


def test_kind_without_a_name_gets_that_of_its_class_if_that_is_asked_for():
    class Scale(nnx.Param):
        pass

    assert nnx.variable_name_from_type(Scale, allow_register=True) == "Scale"
    assert nnx.variable_type_from_name("Scale") is Scale


def test_registering_is_a_function_and_a_decorator():
    @nnx.register_variable_name("scales")
    class Scale(nnx.Param):
        pass

    assert nnx.variable_type_from_name("scales") is Scale
    assert nnx.register_variable_name("scales", Scale) is Scale


def test_overwrite_moves_the_name():
    class Scale(nnx.Param):
        pass

    nnx.register_variable_name("params", Scale, overwrite=True)
    assert nnx.variable_type_from_name("params") is Scale
    with pytest.raises(errors.UnnamedKindError):
        nnx.variable_name_from_type(nnx.Param)
    nnx.register_variable_name("scales", Scale, overwrite=True)
    assert nnx.variable_name_from_type(Scale) == "scales"
    with pytest.raises(errors.UnknownKindNameError):
        nnx.variable_type_from_name("params")


@pytest.mark.parametrize(("name", "kind"), [("params", nnx.Variable), ("weights", nnx.Param)])
def test_refused_registration_changes_nothing(name, kind):
    before = dict(names._kinds), dict(names._names)
    with pytest.raises(errors.KindNameTakenError):
        nnx.register_variable_name(name, kind)
    assert (names._kinds, names._names) == before


@pytest.mark.parametrize("found", [int, nnx.Param(1), "params", None])
def test_what_is_no_kind_is_refused(found):
    with pytest.raises(errors.NotAKindError):
        nnx.register_variable_name("x", found)
    with pytest.raises(errors.NotAKindError):
        nnx.variable_name_from_type(found, allow_register=True)


def test_variable_state_is_variable_and_warns_once():
    code = """
import warnings
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as seen:
    import nnxgraph as nnx
    assert nnx.VariableState is nnx.Variable
    assert isinstance(nnx.Param(1), nnx.VariableState)
    from nnxgraph import VariableState
ours = [w for w in seen if "nnx.VariableState is now nnx.Variable" in str(w.message)]
assert [w.category for w in ours] == [DeprecationWarning], ours
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_front_has_no_other_deprecated_names():
    with pytest.raises(AttributeError, match="module 'nnxgraph' has no attribute 'VariablState'"):
        nnx.VariablState  # noqa: B018  # the access is the test
