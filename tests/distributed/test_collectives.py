# SPDX-License-Identifier: Apache-2.0
"""pytest tests/distributed/test_collectives.py: every collective, op, dtype and form of tensors against a model, bit
for bit, on 2 to 8 ranks, over shared memory and TCP."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import DTYPES, MOVING, OPS, REDUCING, ROOTED, VIEWS, Case, combines, difference, execute
from ranks import Ranks

SHAPES = ((), (1,), (0,), (65,), (3, 67), (2, 0, 3), (5, 4, 33), (2, 1, 2, 1, 3, 1, 2, 1, 2), (130, 64))


def check(ranks: Ranks, n: int, cases: list[Case], **world: Any) -> None:
    by_rank = ranks.run(n, execute, cases, **world)
    faults = [difference(case, n, [held[i] for held in by_rank]) for i, case in enumerate(cases)]
    faults = [fault for fault in faults if fault]
    assert not faults, f"{len(faults)} of {len(cases)} cases:\n" + "\n".join(faults[:20])


def roots(kind: str, n: int) -> list[int]:
    return [0, n - 1] if kind in ROOTED else [0]


@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", REDUCING)
def test_every_reduction_of_every_dtype(ranks: Ranks, kind: str, n: int) -> None:
    cases = [
        Case(kind, dtype, (3, 70), op, root, seed=n)
        for dtype in DTYPES
        for op in OPS
        if combines(op, dtype)
        for root in roots(kind, n)
    ]
    check(ranks, n, cases)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", MOVING)
def test_every_move_of_every_dtype(ranks: Ranks, kind: str, n: int) -> None:
    cases = [Case(kind, dtype, (3, 70), root=root, seed=n) for dtype in DTYPES for root in roots(kind, n)]
    check(ranks, n, cases)


@pytest.mark.parametrize("links", ["auto", "tcp"])
@pytest.mark.parametrize("kind", [*REDUCING, *MOVING])
def test_any_view_and_size(ranks: Ranks, kind: str, links: str) -> None:
    """Each rank holds its tensors in a form of its own; what lies around a view stays as it is."""
    cases = [
        Case(kind, dtype, shape, root=root, views=VIEWS[i % 5 :] + VIEWS[: i % 5], async_op=i % 2 == 1, seed=i)
        for i, shape in enumerate(SHAPES)
        for dtype in (torch.float16, torch.int64, torch.bool)
        for root in roots(kind, 3)[-1:]
        if shape or kind != "all_to_all_single"
    ]
    check(ranks, 3, cases, links=links)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("links", ["auto", "tcp"])
def test_more_than_travels_with_a_letter(ranks: Ranks, links: str, n: int) -> None:
    """Sizes around the limit, and far above what a ring holds."""
    sizes = (32767, 32768, 32769, 700_001)
    kinds = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
    cases = [Case(kind, torch.float16, (size,), seed=size) for kind in kinds for size in sizes]
    check(ranks, n, cases, links=links)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_tcp_gives_the_same_bits(ranks: Ranks, n: int) -> None:
    """The model says what shared memory gives (above); TCP gives the same."""
    cases = [
        Case(kind, dtype, (3, 70), op, seed=n)
        for dtype in (torch.float16, torch.float32, torch.int8)
        for kind in REDUCING
        for op in ("SUM", "AVG", "PRODUCT")
    ]
    check(ranks, n, cases + [Case(kind, torch.bfloat16, (65,), seed=n) for kind in MOVING], links="tcp")


def test_values_at_the_edges_of_the_format(ranks: Ranks) -> None:
    """NaN, infinity, sums that leave fp16 and sums that round: as the card's own add has it."""
    results = ranks.run(3, add_edges)
    for got in results[1:]:
        assert [str(v) for v in got] == [str(v) for v in results[0]]


def add_edges() -> list[float]:
    nan, inf = float("nan"), float("inf")
    rows = (
        [nan, inf, 60000.0, 1.0, -0.0, inf],
        [1.0, 1.0, 60000.0, 2.0**-9, -0.0, -inf],
        [1.0, 1.0, -60000.0, 2.0**-9, -0.0, 1.0],
    )
    alone = [torch.tensor(row, dtype=torch.float16).to("spyre") for row in rows]
    together = alone[dist.get_rank()].clone()
    dist.all_reduce(together)
    want = (alone[0] + alone[1]) + alone[2]
    assert torch.equal(together.cpu().view(torch.int16), want.cpu().view(torch.int16)), (together, want)
    return together.cpu().tolist()
