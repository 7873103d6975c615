# SPDX-License-Identifier: Apache-2.0
# pytest tests/docs/test_site.py
"""The pages of the site that come from the code, and the turning of links; `make docs` builds all of it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path

import doc_blocks
import pytest

from torch_spyre import errors

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs/site"))

import collect  # noqa: E402
import generated  # noqa: E402


def test_every_error_has_advice() -> None:
    classes = {c.__name__ for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.SpyreError)}
    assert set(generated.ADVICE) == classes - {"SpyreError"}
    index = generated.error_index()
    assert all(f"\n## {name}\n" in index for name in generated.ADVICE)


def test_what_is_public_exists_and_says_what_it_is() -> None:
    for name in generated.PUBLIC:
        module = generated._module(name)
        assert inspect.getdoc(module), name
        for member, thing in generated.members(name):
            assert generated._first_sentence(thing), f"{name}.{member} has no docstring"
    for private, public in generated.PUBLISHED.items():
        assert resolved(private) is not None and resolved(public) is not None
    page = (ROOT / "docs/public-api.md").read_text()
    assert page == generated.public_api(), "python docs/site/generated.py > docs/public-api.md"


def resolved(path: str) -> object:
    package, *names = path.split(".")
    found: object = importlib.import_module(package)
    for name in names:
        found = getattr(found, name)
    return found


def test_programs_of_the_documentation_use_public_names() -> None:
    """Python blocks of README and docs, and the examples."""
    public = {f"{name}.{member}" for name in generated.PUBLIC for member, _ in generated.members(name)}
    packages = {part for name in public for part in parents(name)}
    programs = {str(f.relative_to(ROOT)): f.read_text() for f in sorted((ROOT / "examples").rglob("*.py"))}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in doc_blocks.blocks(page.read_text()):
            if block.kind == "python" or block.file.endswith(".py"):
                programs[f"{page.relative_to(ROOT)}:{block.line}"] = block.code
    used = {(where, name) for where, code in programs.items() for name in names_of(code)}
    assert {u for u in used if u[1] not in public | packages} == set()


def parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def names_of(code: str) -> set[str]:
    """Names of torch_spyre and torch.spyre that a program imports or reaches through these modules."""
    found, modules = set(), {"torch": "torch"}
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch_spyre"):
            found |= {f"{node.module}.{a.name}" for a in node.names}
            modules |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("torch_spyre")}
            modules |= {a.name.split(".")[0]: a.name.split(".")[0] for a in node.names if a.asname is None}
    for node in ast.walk(tree):
        path = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        first, _, rest = path.partition(".")
        whole = f"{modules.get(first, first)}.{rest}"
        if re.fullmatch(r"(torch\.spyre|torch_spyre)(\.\w+)+", whole):
            found.add(whole)
    return found


def test_the_operator_table_has_a_row_for_each_op() -> None:
    rows = [line for line in generated.operator_table().splitlines() if line.startswith("| `")]
    assert len(rows) > 300 and max(map(len, rows)) < 3000
    assert any(row.startswith("| `matmul` ") for row in rows)


@pytest.mark.parametrize(
    ("page", "link", "turned"),
    [
        ("README.md", "docs/ktir.md", "ktir.md"),
        ("docs/index.md", "../README.md#start", "readme.md#start"),
        ("docs/tutorials/run-a-model.md", "../models.md", "../models.md"),
        ("docs/tutorials/run-a-model.md", "../../README.md", "../readme.md"),
        ("docs/ktir.md", "https://mlir.llvm.org", "https://mlir.llvm.org"),
    ],
)
def test_links_are_turned(page: str, link: str, turned: str) -> None:
    assert collect.turned(f"see [it]({link})", ROOT / page) == f"see [it]({turned})"
