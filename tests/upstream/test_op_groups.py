# SPDX-License-Identifier: Apache-2.0
# pytest tests/upstream/test_op_groups.py [-m slow -n 2]
"""PyTorch's OpInfo samples on spyre and on the CPU: nothing that op_groups.json records as passing may fail.

The classes with "Pinned" run a few ops and samples, the others everything (slow).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from groups import DTYPES, GROUPS, PINNED, PINNED_DTYPES, PINNED_SAMPLES, case_name, infos
from table import load, measure, summary
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_utils import TestCase

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
RECORDED = load()
SHARE = {"views": 0.95, "creation": 0.95, "indexing-copy": 0.85, "rng": 0.95}


def _pinned(group: str) -> Callable[..., None]:
    @ops(infos(group, PINNED[group]), allowed_dtypes=PINNED_DTYPES)
    def test_samples(self: TestCase, device: str, dtype: torch.dtype, op: Any) -> None:
        recorded = RECORDED[case_name(op), str(dtype).removeprefix("torch.")]
        if recorded.gap:
            self.skipTest(recorded.gap)
        row, outcome = measure(group, op, dtype, device, limit=PINNED_SAMPLES)
        self.assertEqual(row.passed, row.samples, "\n".join(outcome.reasons))

    return test_samples


def _whole(group: str) -> Callable[..., None]:
    @ops(infos(group), allowed_dtypes=DTYPES)
    def test_samples(self: TestCase, device: str, dtype: torch.dtype, op: Any) -> None:
        recorded = RECORDED[case_name(op), str(dtype).removeprefix("torch.")]
        row, outcome = measure(group, op, dtype, device)
        self.assertEqual(row.samples, recorded.samples, "python tests/upstream/make_table.py records the new samples")
        self.assertGreaterEqual(row.passed, recorded.passed, "\n".join(outcome.reasons))
        self.assertFalse(recorded.gap and row.good, "the gap is closed: python tests/upstream/make_table.py")

    return test_samples


class TestPinnedViews(TestCase):
    test_samples = _pinned("views")


class TestPinnedCreation(TestCase):
    test_samples = _pinned("creation")


class TestPinnedIndexingCopy(TestCase):
    test_samples = _pinned("indexing-copy")


class TestPinnedRng(TestCase):
    test_samples = _pinned("rng")


class TestViews(TestCase):
    test_samples = _whole("views")


class TestCreation(TestCase):
    test_samples = _whole("creation")


class TestIndexingCopy(TestCase):
    test_samples = _whole("indexing-copy")


class TestRng(TestCase):
    test_samples = _whole("rng")


def _instantiate(generic: type, slow: bool) -> None:
    """The class for spyre, under whichever suffix PyTorch gives it."""
    made: dict[str, Any] = {"__name__": __name__, generic.__name__: generic}
    instantiate_device_type_tests(generic, made, only_for=("spyre",))
    for name, value in made.items():
        if isinstance(value, type):
            globals()[name] = pytest.mark.slow(value) if slow else value
    del globals()[generic.__name__]


for _generic in (TestPinnedViews, TestPinnedCreation, TestPinnedIndexingCopy, TestPinnedRng):
    _instantiate(_generic, slow=False)
for _generic in (TestViews, TestCreation, TestIndexingCopy, TestRng):
    _instantiate(_generic, slow=True)
del _generic


@pytest.mark.parametrize("group", GROUPS)
def test_recorded_share(group: str) -> None:
    """The committed table itself meets the bar, and every gap says why."""
    rows = [row for row in RECORDED.values() if row.group == group]
    assert {row.op for row in rows} == {case_name(op) for op in infos(group)}, "run python tests/upstream/make_table.py"
    assert sum(row.good for row in rows) >= SHARE[group] * len(rows), summary(rows)
    assert all(row.samples for row in rows)
    assert not [row for row in rows if row.good == bool(row.gap)]
