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
from xml.etree import ElementTree

import doc_blocks
import pytest

from torch_spyre import constants, errors
from torch_spyre.backend.program import isa
from torch_spyre.ir.superdsc import bundle_mlir
from torch_spyre.patches import applied

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs/site"), str(ROOT / "docs/pictures")]

import collect  # noqa: E402
import draw  # noqa: E402
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


def test_every_error_is_in_the_questions() -> None:
    """docs/faq.md has a heading for each class, and says there what to do."""
    page = (ROOT / "docs/faq.md").read_text()
    headings = set(re.findall(r"^## (\w+)$", page, re.M))
    assert set(generated.ADVICE) <= headings
    for name in generated.ADVICE:
        text = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert len(text.split()) > 15, f"{name} says what to do"


def test_the_checklist_has_the_numbers_of_the_machine() -> None:
    page = (ROOT / "docs/constraints.md").read_text()
    for number in (
        f"at most {constants.CORES} cores work",
        f"at most {constants.MAX_SPAN_BYTES >> 20} MiB of a tensor",
        f"takes at most {constants.LX_BYTES >> 20} MiB",
        f"at most {constants.SEGMENT_BYTES >> 30} GiB, padded",
        f"at most {constants.DATA_SEGMENTS * constants.SEGMENT_BYTES >> 30} GiB",
        f"at most {isa.MAX_DIMS} dims, a gather or scatter at most {isa.MAX_INDICES} index tensors",
        f"at most {bundle_mlir.MAX_EXECUTIONS} files",
    ):
        assert number in page, number


def test_the_pictures_show_the_plans_of_this_compiler() -> None:
    for name, text in draw.pictures().items():
        assert (draw.FOLDER / name).read_text() == text, "python docs/pictures/draw.py"
        assert ElementTree.fromstring(text).tag.endswith("svg")


def test_the_backend_guide_names_every_change_to_pytorch() -> None:
    page = (ROOT / "docs/write-a-backend.md").read_text()
    named = set(re.findall(r"^\| `(\w+\.\w+)` \|", page.partition("## 6.")[2].partition("## 7.")[0], re.M))
    made = set(re.findall(r"^    (\w+\.\w+)\(\)$", inspect.getsource(applied), re.M))
    assert named == made and len(made) > 15
    files = set(re.findall(r"`((?:csrc|ops|_inductor|device|decompositions)/[\w./]+)`", page))
    assert {f for f in files if not (ROOT / "torch_spyre" / f).exists()} == set()
