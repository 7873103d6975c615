# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_buckets.py
"""The table of capacities: what compiled graphs, eager ops and prompts round their sizes up to."""

from __future__ import annotations

import pytest

from torch_spyre.buckets import CACHE_ROWS, KERNEL_SIZES, PROMPT_ROWS, TABLE, Steps
from torch_spyre.errors import InvalidArgument

EXPECTED = [
    (KERNEL_SIZES, [16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048]),
    (PROMPT_ROWS, [16, 64, 128, 256, 512]),
    (CACHE_ROWS, [128, 256, 512, 768, 1024, 1536, 2048]),
]


@pytest.mark.parametrize(("steps", "capacities"), EXPECTED, ids=[s.kind for s, _ in EXPECTED])
def test_every_size_gets_the_smallest_capacity_that_holds_it(steps: Steps, capacities: list[int]) -> None:
    for n in range(capacities[-1] + 1):
        assert steps.capacity(n) == next(c for c in capacities if c >= n), n


@pytest.mark.parametrize(("steps", "capacities"), EXPECTED, ids=[s.kind for s, _ in EXPECTED])
def test_the_smallest_size_of_a_capacity(steps: Steps, capacities: list[int]) -> None:
    assert [steps.least_size(c) for c in capacities] == [1, *(c + 1 for c in capacities[:-1])]


def test_rows_are_capacities_of_kernels_too() -> None:
    """A padded prompt or a cache has then no room that a kernel of varying sizes would add again."""
    for _, capacities in EXPECTED:
        assert [KERNEL_SIZES.capacity(c) for c in capacities] == capacities


def test_the_table_is_complete() -> None:
    assert TABLE == tuple(steps for steps, _ in EXPECTED) and all(steps.reason for steps in TABLE)


def test_a_size_beyond_the_largest_capacity_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="513 rows of a prompt do not fit into the largest capacity, 512"):
        PROMPT_ROWS.capacity(513)
