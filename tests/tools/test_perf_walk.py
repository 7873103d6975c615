# SPDX-License-Identifier: Apache-2.0
# pytest tests/tools/test_perf_walk.py
"""The walk for all cores at once sees what a walk of each core alone sees; operands are measured in runs and sticks."""

from __future__ import annotations

import numpy as np

from torch_spyre.backend.program.assembler import (
    BarrierInst,
    CopyInst,
    DimMap,
    EndIfInst,
    EndInst,
    EndLoopInst,
    Extent,
    IfInst,
    LoopInst,
    Operand,
    Program,
    SopInst,
)
from torch_spyre.backend.program.isa import SEN169_FP16, Sop, Space
from torch_spyre.ir.affine import CORE_ID, Affine
from torch_spyre.perf.requests import Streams
from torch_spyre.perf.survey import survey
from torch_spyre.perf.walk import Registers, extents, walk

CORES = 5


def copy(size: Extent, offset: Affine) -> CopyInst:
    operand = Operand(Space.MEM, SEN169_FP16, offset, (DimMap(2),))
    return CopyInst((size,), operand, operand)


def divergent() -> Program:
    """Core c runs c trips; odd trips copy trip+1 elements; then a barrier and a copy by cores 2 and up."""
    trip = Affine.symbol(1)
    body = [
        LoopInst(1, Affine(0), CORE_ID, 1),
        SopInst(2, Sop.MOD, trip, Affine(2)),
        IfInst(Affine.symbol(2) + Affine(-1)),
        copy(Extent(trip + Affine(1), 64), trip * 128),
        EndIfInst(),
        EndLoopInst(),
        BarrierInst(),
        IfInst(CORE_ID + Affine(-2)),
        copy(Extent.of(64), CORE_ID * 128),
        EndIfInst(),
        EndInst(),
    ]
    return Program(registers=3, cores=CORES, instructions=body)


def test_divergent_cores() -> None:
    seen: dict[int, list[tuple[int, int]]] = {c: [] for c in range(CORES)}
    for phase, inst, registers, active in walk(divergent()):
        assert isinstance(inst, CopyInst)
        size = np.broadcast_to(np.asarray(extents(inst.dims, registers)[0]), (CORES,))
        for core in np.flatnonzero(active):
            seen[int(core)].append((phase, int(size[core])))
    expected = {c: [(0, t + 1) for t in range(c) if t % 2] + ([(1, 64)] if c >= 2 else []) for c in range(CORES)}
    assert seen == expected


def test_survey_counts_bytes_and_cores() -> None:
    found = survey(divergent())
    last = found.phases[1][0]
    assert (last.cores, last.output.total, last.output.cohort) == (3, 3 * 128, 1)
    assert found.written_bytes == sum(w.output.core_bytes * w.cores for phase in found.phases for w in phase)


def test_runs_pitch_and_sticks() -> None:
    registers, active = Registers({0: np.arange(4)}), np.ones(4, dtype=bool)
    sizes = [8, 128]
    dims = (Extent.of(8), Extent.of(128))
    rows = Operand(Space.MEM, SEN169_FP16, CORE_ID * 1024, (DimMap(128), DimMap(2, 64, 4096)))
    one = Streams().of(rows, dims, sizes, registers, active)
    assert (one.core_bytes, one.total, one.cohort) == (2048, 4 * 2048, 1)
    assert (one.run, one.pitch, one.runs, one.nearest) == (1024, 4096, 2, 1024)
    column = Operand(Space.MEM, SEN169_FP16, Affine(0), (DimMap(128), DimMap()))
    shared = Streams().of(column, dims, sizes, registers, active)
    assert (shared.core_bytes, shared.total, shared.cohort) == (8 * 128, 8 * 128, 4)
