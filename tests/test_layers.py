"""Imports go down the layer table, stand at the top of the file, and form no cycle.

The imports are read from the source, so a faulty module is found without being run.
"""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.source import PACKAGE, PACKAGE_FILES, ROOT, module_name, name_of, parsed

# A module or package directly under nnxgraph stands in one layer, with all that is in it.
LAYERS = (
    ("errors", "_typing", "_repr", "_settings", "_trees", "_printing", "_jax"),
    (
        *("_filters", "filterlib", "_static", "_origins", "_frame", "_sharding"),
        *("_operators", "_spec", "_values", "_variable", "_variable_names"),
        *("_state", "_state_functions"),
    ),
    ("graph",),
    (
        *("_pytree", "_pytree_jax", "_dataclass", "_foreign", "_recorder", "_module", "_capture", "_views"),
        *("_containers", "_rngs", "_rng_helpers", "_partitioning"),
    ),
    ("transforms",),
    ("nn", "training"),
    ("_summary", "_display", "traversals", "compat", "demo"),
    ("",),  # nnxgraph/__init__.py
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}

# Beside the table: (importer, imported) that may not be although both are in one layer.
NEVER = (("training", "nn"),)

# The demo is a program of a user: it may import the front, which nothing below may.
USERS_OF_THE_FRONT = ("demo",)

# The modules that users may name; all others are private, `_name.py`.
PUBLIC = (
    *("errors", "filterlib", "traversals", "compat"),
    *("nn.initializers", "training.metrics"),
)
PUBLIC_PACKAGES = ("", "errors", "graph", "transforms", "nn", "training", "demo")

# Names under these are JAX's own affair, and so is every `_name` of a package that we call.
PRIVATE = ("jax.interpreters", "jax.experimental.hijax", "jaxlib")
FOREIGN = ("jax", "jaxlib", "numpy", "optax", "rich")
MAY_TOUCH_PRIVATE_JAX = "nnxgraph._jax"

PACKAGES = [path for path in PACKAGE_FILES if path.name == "__init__.py"]

of_files = pytest.mark.parametrize("path", PACKAGE_FILES, ids=name_of)
of_packages = pytest.mark.parametrize("path", PACKAGES, ids=name_of)


class Import(NamedTuple):
    """One imported module or name: its full dotted name, the line, and where it stands."""

    target: str
    line: int
    for_types: bool
    at_top: bool


def is_type_checking(node: ast.AST) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def is_optional(node: ast.AST) -> bool:
    """Whether a statement is `try: import ... except ImportError:`."""
    return isinstance(node, ast.Try) and all(
        handler.type is not None and "Import" in ast.unparse(handler.type) for handler in node.handlers
    )


def base_of(node: ast.ImportFrom, importer: str, is_package: bool) -> str:
    """The dotted name of what a `from ... import` reads, relative ones made absolute."""
    if not node.level:
        return node.module or ""
    parts = importer.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def targets_of(node: ast.AST, importer: str, is_package: bool) -> list[str]:
    """What an import statement imports, as full dotted names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = base_of(node, importer, is_package)
        return [f"{base}.{alias.name}" for alias in node.names]
    return []


def imports_of(tree: ast.Module, importer: str, is_package: bool) -> Iterator[Import]:
    """Every import of a file, wherever it stands."""
    blocks = [(statement, True, False) for statement in tree.body]
    for node, at_top, for_types in blocks:  # grows while it is read: breadth first
        for target in targets_of(node, importer, is_package):
            yield Import(target, node.lineno, for_types, at_top)
        inside = at_top and (is_type_checking(node) or is_optional(node))
        children = [c for c in ast.walk(node) if isinstance(c, ast.Import | ast.ImportFrom)]
        blocks += [(c, inside, is_type_checking(node)) for c in children if c is not node]


def imports(path: Path) -> list[Import]:
    """Every import of a file of the package."""
    return list(imports_of(parsed(path), module_name(path), path.name == "__init__.py"))


MODULES = frozenset(map(module_name, PACKAGE_FILES))


def module_of(target: str) -> str | None:
    """The module of ours that a dotted name is, or is defined in; None for a foreign one."""
    if target.split(".")[0] != "nnxgraph":
        return None
    return target if target in MODULES else target.rpartition(".")[0]


def part_of(module: str) -> str:
    """What the table calls a module: its first name under nnxgraph, or "" for the front."""
    return module.split(".")[1] if "." in module else ""


def fault_of_import(importer: str, imported: str) -> str | None:
    """Why a module may not import another, or None if it may."""
    above, below = part_of(importer), part_of(imported)
    if (above, below) in NEVER:
        return f"{above} never imports {below}"
    if not below and above in USERS_OF_THE_FRONT:
        return None
    if LAYER[above] < LAYER[below]:
        return f"{above} is in layer {LAYER[above]}, {below or '__init__'} in layer {LAYER[below]}"
    return None


@of_files
def test_module_has_a_layer(path):
    part = part_of(module_name(path))
    assert part in LAYER, f"give {part} a layer, in LAYERS here and in CONTRIBUTING.rst"


@pytest.mark.parametrize("name", [name for name in LAYER if name])
def test_layer_is_in_the_contributors_table(name):
    assert f"``{name}``" in (ROOT / "CONTRIBUTING.rst").read_text("utf-8")


def test_modules_of_the_transforms_are_in_the_contributors_table():
    text = (ROOT / "CONTRIBUTING.rst").read_text("utf-8")
    rows = re.findall(r"^``(_\w+)``  ", text, re.MULTILINE)
    modules = [path.stem for path in (ROOT / "nnxgraph/transforms").glob("_*.py") if path.stem != "__init__"]
    assert sorted(rows) == sorted(modules)


@of_files
def test_imports_go_down(path):
    importer = module_name(path)
    faults = [
        f"line {found.line}: {fault}"
        for found in imports(path)
        if (imported := module_of(found.target)) is not None
        and (fault := fault_of_import(importer, imported)) is not None
    ]
    assert not faults, "\n".join(faults)


@of_files
def test_imports_stand_at_the_top(path):
    faults = [f"line {i.line}: {i.target}" for i in imports(path) if not i.at_top]
    if module_name(path) == MAY_TOUCH_PRIVATE_JAX:
        faults = []  # its fallbacks depend on the version
    assert not faults, "move to the top of the file:\n" + "\n".join(faults)


def test_imports_form_no_cycle():
    graph = {
        module_name(path): {
            module
            for found in imports(path)
            if not found.for_types and (module := module_of(found.target)) is not None
        }
        for path in PACKAGE_FILES
    }
    for module in graph:
        if part_of(module) in USERS_OF_THE_FRONT:
            graph[module] -= {"nnxgraph"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("imports go round: " + " -> ".join(reversed(error.args[1])))


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` of an attribute chain over a name; None for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)) is not None:
        return f"{base}.{node.attr}"
    return None


def is_private(name: str) -> bool:
    """Whether a dotted name is an internal one of a package that we call."""
    parts = name.split(".")
    internal = any(p.startswith("_") and not p.startswith("__") for p in parts)
    below = any(name == p or name.startswith(p + ".") for p in PRIVATE)
    return parts[0] in FOREIGN and (internal or below)


def bindings(tree: ast.Module, path: Path) -> Iterator[tuple[int, str, str]]:
    """The line, the local name and the full dotted name of each import of a file."""
    for node in ast.walk(tree):
        targets = targets_of(node, module_name(path), path.name == "__init__.py")
        for target, alias in zip(targets, getattr(node, "names", ()), strict=False):
            if isinstance(node, ast.Import) and not alias.asname:
                yield node.lineno, target.split(".")[0], target.split(".")[0]
            yield node.lineno, alias.asname or alias.name, target


def names_used(tree: ast.Module, path: Path) -> Iterator[tuple[int, str]]:
    """Every foreign dotted name that a file imports, or reads through an import."""
    full = {}
    for line, local, target in bindings(tree, path):
        full[local] = target
        yield line, target
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := dotted(node)) is not None:
            head, _, rest = name.partition(".")
            yield node.lineno, f"{full.get(head, head)}.{rest}"


@of_files
def test_private_names_of_jax_stay_in_one_module(path):
    used = names_used(parsed(path), path)
    found = sorted({f"line {line}: {name}" for line, name in used if is_private(name)})
    assert module_name(path) == MAY_TOUCH_PRIVATE_JAX or not found, "\n".join(found)


@of_files
def test_module_is_private_unless_listed(path):
    name = module_name(path).removeprefix("nnxgraph").removeprefix(".")
    if path.name == "__init__.py":
        assert name in PUBLIC_PACKAGES
    else:
        # Inside the demo nothing is an interface: it is run as a whole.
        assert path.stem.startswith("_") or name in PUBLIC or part_of(module_name(path)) == "demo"


@of_packages
def test_package_reexports_under_the_same_name(path):
    ours = [
        (alias, node.lineno)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and node.level and node.module
        for alias in node.names
    ]
    faults = [f"line {line}: {a.name}" for a, line in ours if a.asname != a.name]
    assert not faults, "write `X as X`:\n" + "\n".join(faults)


def test_front_has_no_logic():
    statements = ast.walk(parsed(PACKAGE / "__init__.py"))
    logic = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.With, ast.Lambda)
    found = [f"line {s.lineno}" for s in statements if isinstance(s, logic)]
    assert not found, found
