"""Every public name is documented to the contract that CONTRIBUTING.rst states.

A public function or class of ours has a summary, one entry in Args for each parameter, Returns if
it returns anything, and an example that tests/test_doctests.py runs. An error and a method have a
summary. What is the same object as in JAX is documented there.
"""

import configparser
import inspect
import re
from types import FunctionType, ModuleType

import jax
import jax.numpy as jnp
import pytest

import nnxgraph as nnx
from nnxgraph import errors
from tests.source import ROOT

# A name may be passed on from one of these, as the same object.
JAX_NAMESPACES = (jax, jax.lax, jax.nn, jax.nn.initializers, jnp, jax.random, jax.tree_util)

# Where the entries of a section end: at the next line with this indentation.
HEADING = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Examples?|Notes?|References?):$")
ENTRY = re.compile(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:")
RETURNS_NOTHING = (None, "None", "NoReturn", "Never")


def passed_on(public: object) -> bool:
    """Whether an object is JAX's own."""
    names = (getattr(public, "__name__", ""),)
    return any(getattr(space, name, None) is public for space in JAX_NAMESPACES for name in names)


def is_error(public: object) -> bool:
    """Whether an object is an exception class."""
    return inspect.isclass(public) and issubclass(public, BaseException)


def is_described(public: object) -> bool:
    """Whether the contract asks for sections: a function or a class, no constant and no alias."""
    return inspect.isclass(public) or inspect.isroutine(public) or hasattr(public, "__wrapped__")


PUBLIC = {name: getattr(nnx, name, None) for name in nnx.__all__}
OURS = {
    name: public
    for name, public in PUBLIC.items()
    if is_described(public) and not passed_on(public) and not is_error(public)
}
ERRORS = {name: public for name, public in vars(errors).items() if is_error(public)}

public_names = pytest.mark.parametrize("name", PUBLIC)
our_names = pytest.mark.parametrize("name", OURS)


def doc_of(public: object) -> str:
    """The docstring that stands at the object itself, not at a base class."""
    own = vars(public) if inspect.isclass(public) else {"__doc__": getattr(public, "__doc__", None)}
    return inspect.cleandoc(own.get("__doc__") or "")


def sections(doc: str) -> dict[str, list[str]]:
    """The lines under each heading of a docstring."""
    found: dict[str, list[str]] = {}
    under: list[str] = []
    for line in doc.splitlines():
        if match := HEADING.match(line):
            under = found.setdefault(match[1], [])
        else:
            under.append(line)
    return found


def documented_parameters(doc: str) -> set[str]:
    """The parameters that have an entry, without their stars."""
    found = sections(doc)
    lines = found.get("Args", []) + found.get("Attributes", [])
    entries = [match[1] for line in lines if (match := ENTRY.match(line))]
    return {name.strip(" *") for entry in entries for name in entry.split(",")}


def parameters(public: object) -> list[str]:
    """The parameters that a caller gives; none for a class without an `__init__` of its own."""
    if inspect.isclass(public):
        makers = [vars(public)[m] for m in ("__init__", "__new__") if m in vars(public)]
        if not makers or passes_on(makers[0]):
            return []
        return [name for name in list(inspect.signature(makers[0]).parameters)[1:] if name[0] != "_"]
    return [name for name in inspect.signature(public).parameters if name[0] != "_"]


def passes_on(maker: object) -> bool:
    """Whether a function takes any arguments, since another one knows them."""
    _, *rest = inspect.signature(maker).parameters.values()
    return [p.kind for p in rest] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]


def fault_of_summary(doc: str) -> str | None:
    """What is wrong with the first line of a docstring."""
    first, *rest = doc.splitlines() or [""]
    if not first:
        return "has no docstring"
    if not first.endswith((".", "?", "!", ":")) or (rest and rest[0]):
        return f"wants a summary of one line that ends with a period, then a blank line: {first!r}"
    return None


@public_names
def test_public_name_exists_and_is_documented(name):
    assert hasattr(nnx, name)
    if not is_described(PUBLIC[name]) and not isinstance(PUBLIC[name], ModuleType):
        return  # a constant or an alias: its value says what it is
    assert inspect.getdoc(PUBLIC[name])


def test_no_public_name_is_listed_twice():
    assert len(set(nnx.__all__)) == len(nnx.__all__)


def test_what_is_public_is_listed():
    missing = [name for name in vars(nnx) if not name.startswith("_") and name not in PUBLIC]
    own_modules = [m for m in missing if isinstance(getattr(nnx, m), ModuleType)]
    assert not set(missing) - set(own_modules)


def test_version_is_that_of_setup_cfg():
    if nnx.__version__ == "0+unknown":
        pytest.skip("the package is not installed")
    packaging = configparser.ConfigParser()
    packaging.read(ROOT / "setup.cfg")
    assert nnx.__version__ == packaging["metadata"]["version"]


@our_names
def test_summary(name):
    fault = fault_of_summary(doc_of(OURS[name]))
    assert fault is None, f"{name} {fault}"


@our_names
def test_every_parameter_has_an_entry(name):
    missing = set(parameters(OURS[name])) - documented_parameters(doc_of(OURS[name]))
    assert not missing, f"under Args: of {name}"


@our_names
def test_what_is_returned_is_documented(name):
    public = OURS[name]
    if inspect.isclass(public):
        return
    annotation = inspect.signature(public).return_annotation
    assert annotation is not inspect.Signature.empty, f"annotate what {name} returns"
    returns = {"Returns", "Yields"} & sections(doc_of(public)).keys()
    assert returns or annotation in RETURNS_NOTHING, f"{name} wants a section Returns:"


@our_names
def test_example(name):
    assert ">>> " in doc_of(OURS[name]), f"{name} wants an example"


def methods(public: type) -> list[str]:
    """The public methods and properties that a class of ours defines itself."""
    kinds = (FunctionType, property, staticmethod, classmethod)
    own = [name for name, value in vars(public).items() if isinstance(value, kinds)]
    return [name for name in own if not name.startswith("_")]


@pytest.mark.parametrize("name", [n for n, public in OURS.items() if inspect.isclass(public)])
def test_methods_have_a_summary(name):
    # An override without a docstring means what its base says.
    docs = {m: inspect.getdoc(getattr(OURS[name], m)) or "" for m in methods(OURS[name])}
    faults = {method: fault_of_summary(doc) for method, doc in docs.items()}
    assert not {method: fault for method, fault in faults.items() if fault}


@pytest.mark.parametrize("name", ERRORS)
def test_error_is_public_and_documented(name):
    fault = fault_of_summary(doc_of(ERRORS[name]))
    assert not name.startswith("_")
    assert ERRORS[name].__module__.startswith(errors.__name__)
    assert fault is None, f"{name} {fault}"


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_private_path_does_not_show(name):
    """What users read in a traceback or a pickle is a name that they can import."""
    public = PUBLIC[name]
    if inspect.isclass(public) and not passed_on(public):
        assert public.__name__ == name or public.__name__ in PUBLIC
