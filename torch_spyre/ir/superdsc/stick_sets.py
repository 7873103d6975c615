# SPDX-License-Identifier: Apache-2.0
"""Sets of sticks as runs: a tensor of a million sticks is a handful of them, and rules between ops list no sticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Runs:
    """Disjoint runs [start, end) in ascending order; neighbours that touch are one."""

    starts: np.ndarray
    ends: np.ndarray

    @property
    def empty(self) -> bool:
        return not self.starts.size

    def meets(self, other: Runs) -> bool:
        """Is there a stick in both?"""
        if self.empty or other.empty or self.starts[0] >= other.ends[-1] or other.starts[0] >= self.ends[-1]:
            return False
        # For each run of mine, the first run of the other that ends behind its start.
        place = np.searchsorted(other.ends, self.starts, side="right")
        inside = place < other.starts.size
        return bool((other.starts[place[inside]] < self.ends[inside]).any())

    def minus(self, other: Runs) -> Runs:
        at = np.concatenate([self.starts, self.ends, other.starts, other.ends])
        mine, theirs = self.starts.size, other.starts.size
        steps = np.zeros((2, at.size), dtype=np.int64)
        steps[0, :mine], steps[0, mine : 2 * mine] = 1, -1
        steps[1, 2 * mine : 2 * mine + theirs], steps[1, 2 * mine + theirs :] = 1, -1
        order = np.argsort(at, kind="stable")
        at, depth = at[order], np.cumsum(steps[:, order], axis=1)
        kept = (depth[0, :-1] > 0) & (depth[1, :-1] == 0) & (at[:-1] < at[1:])
        return _joined(at[:-1][kept], at[1:][kept])


def of_box(first: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> Runs:
    """The sticks first + sum of i * stride, each i below its count. Strides are not negative."""
    run, starts = 1, np.array([first], dtype=np.int64)
    for stride, count in sorted((s, n) for s, n in zip(strides, counts, strict=True) if n > 1):
        if stride <= run:  # the copies touch or overlap
            run += (count - 1) * stride if starts.size == 1 else 0
            if starts.size == 1:
                continue
        starts = (starts[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
    if not math.prod(counts):
        return _joined(starts[:0], starts[:0])
    starts = np.sort(starts)
    return _joined(starts, starts + run)


def union(sets: Iterable[Runs]) -> Runs:
    every = list(sets)
    if not every:
        return _joined(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    starts = np.concatenate([s.starts for s in every])
    order = np.argsort(starts, kind="stable")
    return _joined(starts[order], np.concatenate([s.ends for s in every])[order])


def _joined(starts: np.ndarray, ends: np.ndarray) -> Runs:
    """Runs in ascending order of their starts, made disjoint."""
    if starts.size < 2:
        return Runs(starts, ends)
    reach = np.maximum.accumulate(ends)
    first = np.concatenate([[True], starts[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Runs(starts[first], reach[last])
