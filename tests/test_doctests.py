"""Every example in a docstring and in README.rst runs, and gives what it says."""

import doctest
import importlib
import inspect
import io
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

import jax
import jax.numpy as jnp
import optax
import pytest

import nnxgraph as nnx
from tests.source import ROOT

# What an example in a docstring may use without importing it.
NAMESPACE = {"nnx": nnx, "jax": jax, "jnp": jnp, "optax": optax}
CALLS_OPTAX = ("nnxgraph.training", "nnxgraph.demo")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules() -> Iterator[ModuleType]:
    """Every module of the package, imported, but for the programs among them."""
    yield nnx
    for found in pkgutil.walk_packages(nnx.__path__, "nnxgraph."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def made_from_tables() -> Iterator[tuple[str, object]]:
    """Public names and their attributes, which a search by source does not always reach."""
    for name in nnx.__all__:
        public = getattr(nnx, name)
        yield f"nnxgraph.{name}", public
        if inspect.isclass(public):
            for attribute, value in vars(public).items():
                yield f"nnxgraph.{name}.{attribute}", value


def examples() -> list[doctest.DocTest]:
    """One doctest for each docstring of ours that has examples."""
    finder, parser = doctest.DocTestFinder(), doctest.DocTestParser()
    found = [test for module in modules() for test in finder.find(module) if test.examples]
    texts = {test.docstring for test in found}
    for name, value in made_from_tables():
        text = getattr(value, "__doc__", None)
        ours = str(getattr(value, "__module__", "")).startswith("nnxgraph")
        if ours and isinstance(text, str) and ">>>" in text and text not in texts:
            texts.add(text)
            found.append(parser.get_doctest(text, {}, name, None, None))
    return found


def parameters() -> list[object]:
    """The doctests, those that call optax marked so."""
    return [
        pytest.param(
            test,
            id=test.name,
            marks=[pytest.mark.relaxed] if test.name.startswith(CALLS_OPTAX) else [],
        )
        for test in sorted(examples(), key=lambda test: test.name)
    ]


def run(test: doctest.DocTest, namespace: dict[str, object]) -> None:
    """Run one doctest, and fail with what doctest says about it."""
    test.globs = {**namespace, "__name__": "__main__"}
    report = io.StringIO()
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.write)
    assert result.attempted == len(test.examples) > 0, "an example is skipped"
    assert not result.failed, report.getvalue()


@pytest.mark.parametrize("test", parameters())
def test_example_of_docstring(test):
    run(test, NAMESPACE)


@pytest.mark.relaxed
@pytest.mark.parametrize(("name", "namespace"), [("README.rst", {}), ("CONTRIBUTING.rst", NAMESPACE)])
def test_examples_of_document(name, namespace):
    # In a block of code, the quotes behind an example end its docstring: they are no output.
    text = re.sub(r'^ +"""$', "", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, name, str(ROOT / name), 0)
    run(test, namespace)
