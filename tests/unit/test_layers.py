# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_layers.py
"""The layers of docs/architecture.md hold: no import goes up, lazy ones included, and each lazy one says why it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "torch_spyre"
MARK = "# late: "


@dataclass(frozen=True)
class Import:
    source: str  # modules, without the name of the package
    target: str
    line: int
    lazy: bool
    marked: bool

    def __str__(self) -> str:
        return f"{self.source or '__init__'}:{self.line} imports {self.target or '__init__'}"


@cache
def layers() -> dict[str, int]:
    """Names in the block under "Layers" of the page, lowest first; each line is a layer, names on a line are equals."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    found = re.search(r"^## Layers\n.*?^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return {
        name: height for height, line in enumerate(found[1].splitlines()) for name in line.partition("#")[0].split()
    }


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_of(file): file for file in PACKAGE.rglob("*.py") if "csrc" not in file.parts}


def known(name: str) -> str:
    """The module that holds a dotted name; the compiled extensions are the base's."""
    if name.split(".")[0] in ("_C", "_card"):
        return "constants"
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for module, file in sorted(modules().items()) for found in imports_of(module, file.read_text()))


def imports_of(module: str, text: str) -> Iterator[Import]:
    lines = text.splitlines()

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for child in ast.iter_child_nodes(node):
            for name in names(child):
                marked = MARK in lines[child.lineno - 1]
                yield Import(module, known(name), child.lineno, lazy, marked)
            yield from walk(child, lazy)

    yield from walk(ast.parse(text), False)


def names(node: ast.AST) -> list[str]:
    """What a statement, or a call of `import_module`, imports of this package; "" is the package itself."""
    if isinstance(node, ast.Import):
        full = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide what they import"
        full = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__", "modules.get")):
        full = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    else:
        return []
    return [name.partition(".")[2] for name in full if name.split(".")[0] == "torch_spyre"]


def layer(module: str) -> int:
    """The height of the longest part of a module's name that the page lists."""
    name = module or "__init__"
    while name not in layers():
        assert "." in name, f"docs/architecture.md lists no layer for {module}"
        name = name.rpartition(".")[0]
    return layers()[name]


def test_every_module_has_a_layer_and_every_layer_a_module() -> None:
    for module in modules():
        layer(module)
    assert not [name for name in layers() if known(name) != name and name != "__init__"]


def test_no_import_goes_up() -> None:
    top = layers()["__init__"]
    wrong = [
        str(found)
        for found in imports()
        if layer(found.target) > layer(found.source) and not (layer(found.target) == top and names_the_version(found))
    ]
    assert not wrong


def test_serving_stands_above() -> None:
    """`spyre_inference` imports this package, which knows it by name only, to start it."""
    for module, file in modules().items():
        tree = ast.parse(file.read_text())
        found = [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        assert not [line for line in found if "spyre_inference" in line], module


def names_the_version(found: Import) -> bool:
    """`from torch_spyre import __version__` asks for no more than a constant."""
    line = modules()[found.source].read_text().splitlines()[found.line - 1]
    return "__version__" in line


def test_packages_form_no_cycle() -> None:
    """Equals of one layer may import each other, but not in a circle."""
    edges: dict[str, set[str]] = {}
    for found in imports():
        source, target = (m.split(".")[0] for m in (found.source, found.target))
        if source and target and source != target:
            edges.setdefault(source, set()).add(target)
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in sorted(edges.get(name, ())):
                visit(other, (*path, name))
            done.add(name)

    for name in sorted(edges):
        visit(name, ())


def test_lazy_imports_say_why() -> None:
    unmarked = [str(found) for found in imports() if found.lazy and not found.marked]
    assert not unmarked, f"put {MARK}<why> behind the import, or import at the top: {unmarked}"


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("from torch_spyre.ops import eager", True),
        ("def f():\n    from torch_spyre.ops import eager", True),
        ("import sys\nx = sys.modules.get('torch_spyre.ops.eager')", True),
        ("from torch_spyre.errors import SpyreError", False),
    ],
)
def test_the_check_sees_edges(text: str, wrong: bool) -> None:
    found = list(imports_of("backend.compile", text))
    assert any(layer(f.target) > layer("backend.compile") for f in found) is wrong


def test_no_folder_is_a_heap() -> None:
    """At most about twenty files side by side."""
    sizes = {folder: len(list(folder.glob("*.py"))) for folder in PACKAGE.rglob("*") if folder.is_dir()}
    assert not {str(f.relative_to(PACKAGE)): n for f, n in sizes.items() if n > 22}


def test_a_file_name_means_one_thing() -> None:
    """A name that stands in several folders means the same in each."""
    same = {"__init__.py", "cli.py", "hints.py", "report.py", "streams.py", "order.py", "compile.py", "driver.py"}
    found = [file.name for file in modules().values() if file.name not in same]
    assert sorted(name for name in set(found) if found.count(name) > 1) == []
