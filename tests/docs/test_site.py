# SPDX-License-Identifier: Apache-2.0
# pytest tests/docs/test_site.py
"""The pages of the site that come from the code, and the turning of links; `make docs` builds all of it."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

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
        assert generated.members(module), name


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
