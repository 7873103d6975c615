# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_indexed_programs.py. Card and interpreter agree on indexed instructions.

Also what the clock charges for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_interp import execute, sen169_encode

from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.isa import (
    IEEE_FP32,
    IEEE_INT32,
    SEN169_FP16,
    Access,
    Compute,
    Rop,
    Space,
    format_bytes,
)
from torch_spyre.ir.affine import CORE_ID, Affine
from torch_spyre.perf.survey import survey
from torch_spyre.perf.timeline import estimate

SIZES = st.sampled_from([1, 2, 5, 33, 64, 70])
FORMATS = st.sampled_from([SEN169_FP16, IEEE_FP32, IEEE_INT32])


def dims(*extents: int) -> tuple[asm.Extent, ...]:
    return tuple(asm.Extent.of(e) for e in extents)


def memory(arg: int, fmt: int, *strides: int, offset: Affine | None = None) -> asm.Operand:
    """Strides in elements."""
    maps = tuple(asm.DimMap(s * format_bytes(fmt)) for s in strides)
    return asm.Operand(Space.MEM, fmt, offset or Affine(), maps, index=arg)


def bytes_of(values: np.ndarray, fmt: int) -> np.ndarray:
    stored = sen169_encode(values) if fmt == SEN169_FP16 else values.astype({1: np.float32, 12: np.int32}[fmt])
    return np.frombuffer(bytearray(np.ascontiguousarray(stored).tobytes()), np.uint8)


def build(instructions: list[asm.Instruction], buffers: list[np.ndarray], cores: int = 1, lx_bytes: int = 0) -> bytes:
    access = Access.READ | Access.WRITE
    args = [asm.ProgramArg(access, buffer.size) for buffer in buffers]
    program = asm.Program(args, cores=cores, lx_bytes=lx_bytes, instructions=[*instructions, asm.EndInst()])
    return asm.ProgramBuilder(program).build()


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Small numbers: sums of them are exact in every format."""
    return rng.integers(-8, 8, shape).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_gather_and_scatter(data: Any) -> None:
    rows, count, width = data.draw(SIZES), data.draw(SIZES), data.draw(SIZES)
    fin, fout, masked, accumulate = (
        data.draw(FORMATS),
        data.draw(FORMATS),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    low, high = (-1, rows + 1) if masked else (0, rows)
    buffers = [
        bytes_of(integers(rng, rows, width), fin),
        bytes_of(rng.integers(low, high, count), IEEE_INT32),
        bytes_of(integers(rng, count, width), fout),
        bytes_of(integers(rng, rows, width), fin),
    ]
    where = asm.IndexOperand(memory(1, IEEE_INT32, 1, 0), asm.DimMap(width * format_bytes(fin)), rows)
    box = dims(count, width)
    body: list[asm.Instruction] = [
        asm.GatherInst(box, memory(2, fout, width, 1), memory(0, fin, 0, 1), (where,), masked),
        asm.ScatterInst(box, memory(3, fin, 0, 1), memory(2, fout, width, 1), (where,), accumulate, masked),
    ]
    execute(build(body, buffers), buffers)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_work_along_a_dim(data: Any) -> None:
    shape = tuple(data.draw(st.lists(SIZES, min_size=1, max_size=3)))
    fin, fout = data.draw(FORMATS), data.draw(FORMATS)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dim, points = data.draw(st.integers(0, len(shape) - 1)), int(np.prod(shape))
    k = data.draw(st.integers(1, shape[dim]))
    values = integers(rng, *shape)
    if fin != IEEE_INT32 and data.draw(st.booleans()):
        values[rng.random(shape) < 0.1] = np.nan
    strides = [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
    still = [0 if d == dim else s for d, s in enumerate(strides)]
    source = memory(0, fin, *strides)
    value, where = memory(1, fout, *strides), memory(2, IEEE_INT32, *strides)
    rop = data.draw(st.sampled_from([Rop.MAX, Rop.MIN]))
    instruction = data.draw(
        st.sampled_from(
            [
                asm.SortInst(dim, data.draw(st.booleans()), True, k, dims(*shape), value, where, source),
                asm.ArgReduceInst(rop, dim, dims(*shape), memory(2, 12, *still), memory(1, fout, *still), source),
                asm.ScanInst(rop, Compute.F32, dim, dims(*shape), value, source),
                asm.IotaInst(dims(*shape), value, Affine(-3), tuple(asm.DimMap(s % 7, 5, 2) for s in strides)),
            ]
        )
    )
    buffers = [bytes_of(values, fin), bytes_of(np.zeros(points), fout), bytes_of(np.zeros(points), IEEE_INT32)]
    execute(build([instruction], buffers), buffers)


def test_a_gather_costs_the_memory_it_touches() -> None:
    """32 cores take 64 rows of 256 bytes each out of a table of 16384: the rows count, not the table."""
    rows, cores, width, table_rows = 64, 32, 128, 16384
    where = asm.IndexOperand(
        memory(1, IEEE_INT32, 1, 0, offset=CORE_ID * (rows * 4)), asm.DimMap(width * 2), table_rows
    )
    out = memory(2, SEN169_FP16, width, 1, offset=CORE_ID * (rows * width * 2))
    gather = asm.GatherInst(dims(rows, width), out, memory(0, SEN169_FP16, 0, 1), (where,))
    sizes = [table_rows * width * 2, cores * rows * 4, cores * rows * width * 2]
    args = [asm.ProgramArg(Access.READ | Access.WRITE, size) for size in sizes]
    found = survey(asm.Program(args, cores=cores, instructions=[gather, asm.EndInst()]))
    assert found.written_bytes == sizes[2]
    assert found.read_bytes == sizes[2] + sizes[1]


@pytest.mark.parametrize("kind", ["iota", "scan", "argreduce", "sort", "scatter"])
def test_every_instruction_has_a_price(kind: str) -> None:
    fp32 = memory(0, IEEE_FP32, 1024, 1)
    index = asm.IndexOperand(memory(1, IEEE_INT32, 1, 0), asm.DimMap(4096), 8)
    box = dims(8, 1024)
    still = memory(1, IEEE_INT32, 1, 0)
    instruction: asm.Instruction = {
        "iota": asm.IotaInst(box, fp32, Affine(), (asm.DimMap(), asm.DimMap(1))),
        "scan": asm.ScanInst(Rop.SUM, Compute.F32, 1, box, fp32, fp32),
        "argreduce": asm.ArgReduceInst(Rop.MAX, 1, box, still, memory(2, IEEE_FP32, 1, 0), fp32),
        "sort": asm.SortInst(1, True, True, 8, box, memory(2, IEEE_FP32, 8, 1), memory(1, IEEE_INT32, 8, 1), fp32),
        "scatter": asm.ScatterInst(box, memory(2, IEEE_FP32, 0, 1), fp32, (index,), True),
    }[kind]
    empty = asm.Program(instructions=[asm.EndInst()])
    program = asm.Program([], instructions=[instruction, asm.EndInst()])
    assert estimate(program).duration_ns > estimate(empty).duration_ns
    works = survey(program).phases[0]
    assert [w.kind for w in works] == {"argreduce": ["reduce", "store"], "sort": ["reduce", "store"]}.get(
        kind, ["vop" if kind == "iota" else "gather" if kind == "scatter" else "reduce"]
    )
