# SPDX-License-Identifier: Apache-2.0
# pytest tests/upstream/test_op_table.py [-m slow -n 2]
"""OpInfo samples of the ops in op_list.py, eager and compiled, with gradients, against op_table.json.

A few run always; everything (slow) must pass at least what the table records.
"""

from __future__ import annotations

import pytest
import torch
from groups import case_name
from op_list import CLASSES, PINNED, PINNED_DTYPES, PINNED_SAMPLES, infos, runs
from op_table import load, measure, summary

pytestmark = pytest.mark.filterwarnings("ignore")
RECORDED = load()
CASES = {(kind, case_name(op)): op for kind in CLASSES for op in infos(kind)}
PINNED_CASES = [
    (kind, case_name(op), dtype, mode)
    for kind, names in PINNED.items()
    for op in infos(kind, names)
    for dtype, mode in runs(op)
    if not op.variant_test_name and dtype in (*PINNED_DTYPES, torch.int64)
    if dtype in PINNED_DTYPES or not op.dtypes & set(PINNED_DTYPES)
]


@pytest.mark.parametrize(("kind", "name", "dtype", "mode"), PINNED_CASES)
def test_pinned(kind: str, name: str, dtype: torch.dtype, mode: str) -> None:
    row, reasons = measure(kind, CASES[kind, name], dtype, mode, "spyre", PINNED_SAMPLES[mode])
    assert row.good, "\n".join(reasons)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_nothing_got_worse(kind: str, name: str) -> None:
    op = CASES[kind, name]
    for dtype, mode in runs(op):
        recorded = RECORDED.get((name, str(dtype).removeprefix("torch."), mode))
        row, reasons = measure(kind, op, dtype, mode, "spyre")
        if recorded is None:
            assert row.good, "\n".join(reasons)
        else:  # the table may hold more samples than are run now
            for now, then in ((row.forward, recorded.forward), (row.backward, recorded.backward)):
                assert now[0] - now[1] <= then[0] - then[1], reasons
                assert bool(now[0]) == bool(then[0]), f"{now[0]} samples where the table has {then[0]}"


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_recorded_share(mode: str) -> None:
    rows = [row for row in RECORDED.values() if row.mode == mode]
    run = sum(row.forward[0] + row.backward[0] for row in rows)
    passed = sum(row.forward[1] + row.backward[1] for row in rows)
    assert rows and passed >= 0.95 * run, summary(rows)
    assert all(row.good or row.gap for row in rows)
