"""The rules of CONTRIBUTING.rst that can be read from the source."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source import PACKAGE_FILES, ROOT, TEST_FILES, name_of, parsed

LONGEST_FILE = 500
LONGEST_FUNCTION = 40

# Where a test may ask for the standard promotion rules: these call optax.
MAY_BE_RELAXED = (
    *("tests/training/", "tests/demo/", "tests/end_to_end/", "tests/test_end_to_end"),
    "tests/test_benchmarks",
)
RUNS_EXAMPLES = ("tests/conftest.py", "tests/test_doctests.py", "tests/test_house_rules.py")

# A comment that silences a checker, and one that says which check and why.
IGNORE = re.compile(r"#\s*(type:\s*ignore|noqa)")
REASONED = re.compile(r"# (type: ignore\[[\w, -]+\]|noqa: [A-Z]+\d+(, [A-Z]+\d+)*)  # \S")

Function = ast.FunctionDef | ast.AsyncFunctionDef

of_package = pytest.mark.parametrize("path", PACKAGE_FILES, ids=name_of)
of_tests = pytest.mark.parametrize("path", TEST_FILES, ids=name_of)
of_both = pytest.mark.parametrize("path", PACKAGE_FILES + TEST_FILES, ids=name_of)


def lines_of_body(function: Function) -> int:
    """The lines of a function that hold code: no signature, docstring, comment or blank line."""
    body = function.body[ast.get_docstring(function) is not None :]
    nodes = [node for statement in body for node in ast.walk(statement)]
    return len({node.lineno for node in nodes if hasattr(node, "lineno")})


def is_overload(function: Function) -> bool:
    """Whether a function is one signature of several, with no body of its own."""
    return any(ast.unparse(d).endswith("overload") for d in function.decorator_list)


def classes() -> dict[str, ast.ClassDef]:
    """The classes of the package, by name."""
    nodes = [node for path in PACKAGE_FILES for node in ast.walk(parsed(path))]
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


CLASSES = classes()


def inherited(owner: ast.ClassDef, seen: frozenset[str] = frozenset()) -> set[str]:
    """The methods that the bases of a class define: an override means what they mean."""
    names = {ast.unparse(base).split("[")[0].split(".")[-1] for base in owner.bases} - seen
    bases = [CLASSES[name] for name in names if name in CLASSES]
    own = {n.name for base in bases for n in base.body if isinstance(n, Function)}
    return own.union(*(inherited(base, seen | names) for base in bases))


def documentable(
    body: list[ast.stmt], owner: ast.ClassDef | None = None
) -> Iterator[Function | ast.ClassDef]:
    """What wants a docstring: no dunder method, no override, no function inside a function."""
    known = inherited(owner) if owner else set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node
            yield from documentable(node.body, node)
        elif isinstance(node, Function) and not (
            node.name.startswith("__") or node.name in known or is_overload(node)
        ):
            yield node


@of_both
def test_file_is_short(path):
    lines = path.read_text("utf-8").count("\n")
    assert lines <= LONGEST_FILE, "split it by the questions it answers"


@of_both
def test_functions_are_short(path):
    functions = [n for n in ast.walk(parsed(path)) if isinstance(n, Function)]
    long = {f.name: lines_of_body(f) for f in functions if lines_of_body(f) > LONGEST_FUNCTION}
    assert not long


@of_package
def test_everything_is_documented(path):
    tree = parsed(path)
    bare = [f"line {n.lineno}: {n.name}" for n in documentable(tree.body) if not doc_of(n)]
    assert ast.get_docstring(tree), "the module says in its docstring what it is for"
    assert not bare, "one line each, saying what it means:\n" + "\n".join(bare)


def doc_of(node: Function | ast.ClassDef) -> str | None:
    """The docstring; a property setter needs none beside the one of its getter."""
    setter = any(ast.unparse(d).endswith((".setter", ".deleter")) for d in node.decorator_list)
    return "stands at the getter" if setter else ast.get_docstring(node)


@of_both
def test_an_ignore_has_its_code_and_reason(path):
    comments = comments_of(path)
    bare = [line for line, text in comments if IGNORE.match(text) and not REASONED.match(text)]
    assert not bare, f"lines {bare}: write `# type: ignore[code]  # why`"


def comments_of(path: Path) -> list[tuple[int, str]]:
    """The comments of a file, each with its line."""
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    return [(t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT]


@of_tests
def test_relaxed_promotion_stays_where_optax_is_called(path):
    name = name_of(path)
    if name.startswith(MAY_BE_RELAXED) or name in RUNS_EXAMPLES:
        return
    assert "relaxed" not in path.read_text("utf-8")


@of_tests
def test_tests_are_plain_functions(path):
    classes = [n.name for n in parsed(path).body if isinstance(n, ast.ClassDef)]
    assert not [name for name in classes if name.startswith("Test")]


@of_tests
def test_folder_of_tests_mirrors_the_package(path):
    folder = path.parent.relative_to(ROOT / "tests")
    beside = ("", ".", "benchmarks", "end_to_end")
    assert str(folder) in beside or (ROOT / "nnxgraph" / folder).is_dir()


def test_top_level_holds_what_was_agreed():
    agreed = {"setup.cfg", "setup.py", "README.rst", "CHANGELOG.rst", "CONTRIBUTING.rst", "LICENSE",
              "Makefile", "nnxgraph", "tests", "notebooks"}  # fmt: skip
    left_by_tools = {"build", "dist", "htmlcov", "nnxgraph.egg-info", "__pycache__"}
    found = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")}
    assert found - left_by_tools <= agreed
