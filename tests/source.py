"""The project's own files, read and not imported: what the tests of the house rules look at."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nnxgraph"
PACKAGE_FILES = tuple(sorted(PACKAGE.rglob("*.py")))
TEST_FILES = tuple(sorted((ROOT / "tests").rglob("*.py")))


def name_of(path: Path) -> str:
    """The path from the root of the project: the id of a parametrized test."""
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def module_name(path: Path) -> str:
    """The dotted name of a file inside the package: `nnxgraph.graph._walk`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
