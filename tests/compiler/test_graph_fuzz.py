# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_graph_fuzz.py
"""Random graphs, eager and compiled: each op against the CPU in float64, the fused graph against the unfused by bits.

`python tests/support/graph_fuzz.py shrink <seed>` makes a failing one small.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from graph_fuzz_build import MOVE_RULES, RULES, WIDE, WIDE_RULES, draw_program
from graph_fuzz_check import check
from graph_fuzz_kinds import KIND_RULES, KINDS, PARTS, PARTS_KINDS, kind_of
from graph_fuzz_oracle import Call, Lockstep, Mismatch, Surroundings

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
@pytest.mark.parametrize("first", range(0, SEEDS, 2 * CHUNK))
def test_random_graphs(first: int) -> None:
    assert not fails(list(range(first, first + 2 * CHUNK)))


def wide(kind: str, count: int, most: int = 30) -> list[int]:
    """The first seeds of a kind whose programs have at most so many statements."""
    first = WIDE if kind in KINDS else PARTS
    seeds = (s for s in itertools.count(first) if kind_of(s) == kind and len(draw_program(s).steps) <= most)
    return [next(seeds) for _ in range(count)]


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_short_random_graphs_of_each_kind(kind: str) -> None:
    assert not fails(wide(kind, 3, 3))


@pytest.mark.parametrize("kind", PARTS_KINDS)
def test_short_random_graphs_of_parts_whose_size_varies(kind: str) -> None:
    assert not fails(wide(kind, 2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(PARTS, PARTS + 300, CHUNK))
def test_random_graphs_of_parts_whose_size_varies(first: int) -> None:
    assert not fails(list(range(first, first + CHUNK)))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(WIDE, WIDE + 400, CHUNK))
def test_random_graphs_of_each_kind(first: int) -> None:
    assert not fails(list(range(first, first + CHUNK)))


@pytest.mark.slow
def test_a_second_process_computes_the_same_and_compiles_nothing(tmp_path: Path) -> None:
    seeds = [s for kind in ("plain", "small", "rank", "strided", "aliased") for s in wide(kind, 3, 6)]
    caches = {"SPYRE_CACHE_DIR": str(tmp_path / "programs"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    script = str(Path(__file__).parents[1] / "support" / "graph_fuzz.py")
    found = []
    for _ in range(2):
        command = [sys.executable, script, "bits", *map(str, seeds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1500, env={**os.environ, **caches})
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found[0]["bits"] == found[1]["bits"]
    assert found[0]["lowered"] >= len(seeds) and found[0]["planned"] >= len(seeds)
    assert found[1]["lowered"] == found[1]["planned"] == 0


def test_each_kind_draws_statements_that_compute_and_that_move() -> None:
    """A rule that is in no list is never drawn, and nothing fails."""
    draw_program(WIDE)
    assert len(RULES) > 10 and len(MOVE_RULES) > 5 and len(WIDE_RULES) > 5
    assert all(KIND_RULES[kind] for kind in [*KINDS, *PARTS_KINDS] if kind not in ("plain", "exported"))
    sources = [draw_program(s).source() for s in range(WIDE, WIDE + 200)]
    for text in ("permute(", "add_(", "index_select(", "softmax(", "@", "float8_e4m3fn", "out=", "n = a0.shape"):
        assert any(text in source for source in sources), text


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


def test_the_oracle_sees_writes_around_a_part() -> None:
    whole = torch.zeros(4, 40).half().to("spyre")
    part, lockstep = whole[1:3, 5:9], Lockstep()
    call = Call(torch.ops.aten.add_.Tensor, "add_", [part.cpu(), part.cpu()], {})
    around = Surroundings([part])
    part.fill_(1)
    around.check(call, lockstep.places)
    assert lockstep.written(whole).sum() == 8 and lockstep.written(whole)[1:3, 5:9].all()
    whole[3, 0].fill_(1)
    with pytest.raises(Mismatch, match="does not write"):
        around.check(call, lockstep.places)
