# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_graph_fuzz.py
"""Random graphs, eager and compiled: each op against the CPU in float64, the fused graph against the unfused by bits.

`python tests/compiler/graph_fuzz.py shrink <seed>` makes a failing one small.
"""

from __future__ import annotations

import pytest
import torch
from graph_fuzz_build import WIDE, draw_program
from graph_fuzz_check import check
from graph_fuzz_oracle import Call, Mismatch

CHUNK = 10
SEEDS = 2000
SAMPLE = 60
SHORT = 6  # statements that a program of the sample has at most


def fails(seeds: list[int]) -> list[str]:
    found = []
    for seed in seeds:
        try:
            check(draw_program(seed))
        except Mismatch as error:
            found.append(f"seed {seed}: {error}")
    torch._dynamo.reset()
    return found


def sample() -> list[int]:
    """The first seeds whose programs are short."""
    seeds = (s for s in range(SEEDS) if len(draw_program(s).steps) <= SHORT)
    return [next(seeds) for _ in range(SAMPLE)]


@pytest.mark.parametrize("chunk", range(SAMPLE // CHUNK))
def test_short_random_graphs(chunk: int) -> None:
    assert not fails(sample()[chunk * CHUNK : (chunk + 1) * CHUNK])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_random_graphs(first: int) -> None:
    assert not fails(list(range(first, first + 50)))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(WIDE, WIDE + 200, 50))
def test_random_graphs_of_more_kinds(first: int) -> None:
    assert not fails(list(range(first, first + 50)))


def test_programs_come_from_their_seed() -> None:
    assert [str(draw_program(s)) for s in range(20)] == [str(draw_program(s)) for s in range(20)]


@pytest.mark.parametrize("wrong", [lambda r: r + r.abs().max() * 2.0**-8, lambda r: r.roll(1, 0), torch.zeros_like])
def test_the_oracle_sees_wrong_results(wrong: object) -> None:
    """Two units in the last place at the largest magnitude, a wrong row, no result: each is a mismatch."""
    x, w = torch.randn(8, 100).half().to("spyre"), torch.randn(100, 70).half().to("spyre")
    operands = [t.cpu().double() for t in (x, w)]
    right = x @ w
    Call(torch.ops.aten.mm.default, "mm", operands, {}).check(right)
    with pytest.raises(Mismatch):
        Call(torch.ops.aten.mm.default, "mm", operands, {}).check(wrong(right))  # type: ignore[operator]
