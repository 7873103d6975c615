# SPDX-License-Identifier: Apache-2.0
"""pytest tests/distributed/test_upstream.py: PyTorch's own tests of several ranks against upstream_table.json.

PYTORCH_CHECKOUT names a folder that holds `test/…` of a PyTorch checkout of the installed release; without it only the
table itself is checked. `-m slow` runs every test that the table says passes.
"""

from __future__ import annotations

import os

import pytest
import upstream
from ranks import Ranks

needs_checkout = pytest.mark.skipif(
    "PYTORCH_CHECKOUT" not in os.environ, reason="PyTorch's own tests: PYTORCH_CHECKOUT names no checkout"
)
SAMPLE = (
    "TestWithNCCL::test_all_reduce_single",
    "TestWithNCCL::test_all_to_all_single",
    "DTensorTest::test_from_local",
)


def passing() -> list[upstream.Row]:
    return [row for row in upstream.read() if row.outcome == "pass"]


def check(ranks: Ranks, rows: list[upstream.Row]) -> None:
    root = os.environ["PYTORCH_CHECKOUT"]
    found = (upstream.measure(ranks, root, row.file, (*row.test.split("::"), row.ranks)) for row in rows)
    assert not [row for row in found if row.outcome != "pass"]


def test_every_row_that_does_not_pass_has_a_reason() -> None:
    rows = upstream.read()
    assert {row.outcome for row in rows} <= {"pass", "gap", "not applicable", "skip"}
    assert not [row for row in rows if row.outcome != "pass" and not row.reason]


@needs_checkout
def test_a_sample(ranks: Ranks) -> None:
    rows = [row for row in passing() if row.test in SAMPLE]
    assert len(rows) == len(SAMPLE)
    check(ranks, rows)


@needs_checkout
@pytest.mark.slow
def test_the_whole_table(ranks: Ranks) -> None:
    check(ranks, passing())
