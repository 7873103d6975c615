# SPDX-License-Identifier: Apache-2.0
# pytest tests/card/test_control.py
"""The scalar unit: LOOP, IF, SOP and affine extents, observed through what the tile instructions store."""

from __future__ import annotations

import numpy as np
import pytest
from programs import (
    CORE,
    INDEX_TABLE,
    INT32,
    W,
    a,
    affine,
    build,
    copy,
    dims,
    imm,
    loop,
    mem,
    reg,
    run,
    scalar,
    sop,
    store,
    vop,
    when,
)

from torch_spyre.backend.program.isa import ScalarKind, Sop
from torch_spyre.errors import Overflow

SLOTS = 64


def slots(instructions: list[a.Instruction], cores: int = 1) -> list[float]:
    binary = build(instructions, [(W, SLOTS * 4)], cores=cores, constants=INDEX_TABLE)
    return run(binary, [np.full(SLOTS, -1, np.float32)])[0].tolist()


def test_loop_counts_up_to_its_limit() -> None:
    out = slots(loop(1, 3, 12, 4, store(reg(1), reg(1))))
    assert {i: v for i, v in enumerate(out) if v >= 0} == {3: 3, 7: 7, 11: 11}


def test_loop_without_iterations() -> None:
    assert max(slots(loop(1, 5, 5, 1, store(0, 0)))) == -1
    assert max(slots(loop(1, 9, 5, 1, store(0, 0)))) == -1


def test_nested_loops_and_core_dependent_bounds() -> None:
    body = loop(1, 0, CORE + 1, 1, *loop(2, 0, reg(1) + 1, 1, store(reg(2), CORE * 16 + reg(1, 4) + reg(2))))
    out = slots(body, cores=4)
    expected = [-1.0] * SLOTS
    for core in range(4):
        for i in range(core + 1):
            for j in range(i + 1):
                expected[core * 16 + i * 4 + j] = j
    assert out == expected


def test_loop_register_keeps_its_last_value() -> None:
    assert slots([*loop(1, 0, 10, 4), store(reg(1), 0)])[0] == 12


def test_if_takes_values_at_least_zero() -> None:
    out = slots(when(CORE - 2, store(CORE, CORE), *when(CORE * -1 + 2, store(CORE + 40, CORE))), cores=4)
    assert out[:4] == [-1, -1, 42, 3]


@pytest.mark.parametrize("x, y", [(7, 3), (-7, 3), (6, 3), (-6, 3), (0, 5), (-1, 5)])
@pytest.mark.parametrize("op", list(Sop))
def test_scalar_operations(op: Sop, x: int, y: int) -> None:
    expected = {
        Sop.ADD: x + y,
        Sop.SUB: x - y,
        Sop.MUL: x * y,
        Sop.FLOORDIV: x // y,
        Sop.MOD: x % y,
        Sop.MIN: min(x, y),
        Sop.MAX: max(x, y),
    }[op]
    out = slots([sop(1, op, x, y), store(reg(1) + 30, 0)])
    assert out[0] == expected + 30


def test_affine_extents_are_capped_and_clamped() -> None:
    extent = (a.Extent(affine(10) - CORE * 6, 8),)
    out = slots([copy(extent, mem(0, CORE * 64, 4), imm(1.0))], cores=3)
    assert [sum(v == 1 for v in out[c * 16 : c * 16 + 16]) for c in range(3)] == [8, 4, 0]


def test_launch_scalars() -> None:
    program = [
        vop("add", dims(4), mem(0, 0, 4), imm(1.0), scalar(0)),
        vop("add", dims(4), mem(0, reg(1, 4), 4, fmt=INT32), imm(1), scalar(1, INT32), integer=True),
    ]
    binary = build(program, [(W, SLOTS * 4)], scalars=(ScalarKind.FP32, ScalarKind.INTEGER), constants=INDEX_TABLE)
    out = run(binary, [np.zeros(SLOTS, np.float32)], [0.5, 8])[0]
    assert out[:4].tolist() == [1.5] * 4
    assert out.view(np.int32)[8:12].tolist() == [9] * 4
    with pytest.raises(Overflow, match="outside int32"):
        run(binary, [np.zeros(SLOTS, np.float32)], [0.5, 1 << 40])
