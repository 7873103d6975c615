# SPDX-License-Identifier: Apache-2.0
"""pytest tests/distributed/test_sequences.py: random collectives over random groups, asynchronous or not, against the
model, bit for bit. `-m slow` draws 500 sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import DTYPES, MOVING, OPS, REDUCING, ROOTED, VIEWS, Case, combines, difference, finish, start
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import Ranks

SHAPES = [(), (1,), (0,), (7,), (65,), (3, 67), (2, 3, 5), (40_000,)]
WORLD = 4


@dataclass(frozen=True)
class Step:
    """A call of some group. `waits` says after how many further calls its result is looked at."""

    case: Case
    group: int
    waits: int


@st.composite
def steps(draw: Any, sizes: list[int]) -> Step:
    group = draw(st.integers(0, len(sizes) - 1))
    kind = draw(st.sampled_from((*REDUCING, *MOVING)))
    dtype = draw(st.sampled_from(DTYPES))
    op = draw(st.sampled_from([op for op in OPS if combines(op, dtype)])) if kind in REDUCING else "SUM"
    root = draw(st.integers(0, sizes[group] - 1)) if kind in ROOTED else 0
    shape = draw(st.sampled_from(SHAPES[1:] if kind == "all_to_all_single" else SHAPES))
    views = tuple(draw(st.lists(st.sampled_from(VIEWS), min_size=1, max_size=3)))
    waits = draw(st.integers(0, 3))
    case = Case(kind, dtype, shape, op, root, views, async_op=waits > 0, seed=draw(st.integers(0, 99)))
    return Step(case, group, waits)


@st.composite
def sequences(draw: Any) -> tuple[list[list[int]], list[Step]]:
    some = st.lists(st.integers(0, WORLD - 1), min_size=1, unique=True).map(sorted)
    members = [list(range(WORLD)), *draw(st.lists(some, max_size=3))]
    return members, draw(st.lists(steps([len(m) for m in members]), min_size=1, max_size=8))


def follow(members: list[list[int]], sequence: list[Step]) -> list[list[torch.Tensor] | None]:
    """One rank's part: the calls of its groups in order, each result when its time has come."""
    groups = [dist.new_group(m) for m in members]
    rank, found = dist.get_rank(), [None] * len(sequence)
    under_way: dict[int, Any] = {}
    for i, step in enumerate(sequence):
        if rank in members[step.group]:
            under_way[i] = start(step.case, groups[step.group])
        for j in [j for j in under_way if j + sequence[j].waits <= i]:
            found[j] = finish(under_way.pop(j))
    for j, begun in under_way.items():
        found[j] = finish(begun)
    for group, m in zip(groups, members, strict=True):
        if rank in m:
            dist.barrier(group)
            dist.destroy_process_group(group)
    return found


def check(ranks: Ranks, drawn: tuple[list[list[int]], list[Step]], links: str) -> None:
    members, sequence = drawn
    by_rank = ranks.run(WORLD, follow, members, sequence, links=links)
    for i, step in enumerate(sequence):
        here = members[step.group]
        assert difference(step.case, len(here), [by_rank[r][i] for r in here]) == "", here


@settings(max_examples=12, derandomize=True, suppress_health_check=list(HealthCheck))
@given(drawn=sequences())
def test_some_sequences(ranks: Ranks, drawn: Any) -> None:
    check(ranks, drawn, "auto")


@pytest.mark.slow
@pytest.mark.parametrize(("links", "count"), [("auto", 400), ("tcp", 100)])
def test_sequences(ranks: Ranks, links: str, count: int) -> None:
    @settings(max_examples=count, suppress_health_check=list(HealthCheck))
    @given(drawn=sequences())
    def run(drawn: Any) -> None:
        check(ranks, drawn, links)

    run()
