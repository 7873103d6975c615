# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_stick_sets.py: sets of sticks as runs do what sets of numbers do."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from torch_spyre.ir.superdsc import stick_sets
from torch_spyre.ir.superdsc.stick_sets import Runs

Box = tuple[int, list[tuple[int, int]]]
BOXES = st.tuples(st.integers(0, 30), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), max_size=3))


def runs(box: Box) -> Runs:
    first, dims = box
    return stick_sets.of_box(first, tuple(n for n, _ in dims), tuple(s for _, s in dims))


def listed(box: Box) -> set[int]:
    first, dims = box
    return {first + sum(steps) for steps in itertools.product(*([i * s for i in range(n)] for n, s in dims))}


def members(runs: Runs) -> set[int]:
    pairs = list(zip(runs.starts.tolist(), runs.ends.tolist(), strict=True))
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(pairs)), "runs touch or are out of order"
    return {stick for start, end in pairs for stick in range(start, end)}


@given(BOXES)
def test_a_box(box: Box) -> None:
    assert members(runs(box)) == listed(box)


@given(st.lists(BOXES, max_size=4), st.lists(BOXES, max_size=4))
def test_sets(ones: list[Box], others: list[Box]) -> None:
    a, b = (stick_sets.union(runs(box) for box in boxes) for boxes in (ones, others))
    want_a, want_b = ({n for box in boxes for n in listed(box)} for boxes in (ones, others))
    assert members(a) == want_a
    assert a.meets(b) == bool(want_a & want_b) == b.meets(a)
    assert members(a.minus(b)) == want_a - want_b


def test_a_weight_is_one_run() -> None:
    whole = stick_sets.union(stick_sets.of_box(core * 25_600, (64, 400), (400, 1)) for core in range(32))
    assert len(whole.starts) == 1 and whole.ends[0] == 819_200
