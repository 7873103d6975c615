# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_assembler.py. The writer and the reader of docs/program-format.md agree."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.decoder import decode
from torch_spyre.backend.program.isa import FORMATS, VOPS, Access, Compute, Rop, ScalarKind, Sop, Space
from torch_spyre.errors import InvalidProgram
from torch_spyre.ir.affine import Affine

i64 = st.integers(-(1 << 62), 1 << 62)
small = st.integers(0, 1 << 16)
formats = st.sampled_from([row.code for row in FORMATS.values() if row.bytes])
origins = st.none() | st.sampled_from(["add: aten.add", "größer als ×", ""])


@st.composite
def affines(draw: Any) -> Affine:
    registers = draw(st.lists(st.integers(0, 40), unique=True, max_size=3))
    coefficients = st.integers(-1000, 1000).filter(bool)
    return Affine(draw(i64), tuple(sorted((r, draw(coefficients)) for r in registers)))


@st.composite
def maps(draw: Any, rank: int, layout: bool) -> asm.Maps:
    if layout and draw(st.booleans()):
        dims = draw(st.lists(st.tuples(st.integers(1, 999), st.integers(1, 99), small), max_size=4))
        return asm.LayoutMap(draw(affines()), tuple(draw(i64) for _ in range(rank)), tuple(dims))
    kinds = st.one_of(
        st.just(asm.DimMap()),
        st.builds(asm.DimMap, i64.filter(bool)),
        st.builds(asm.DimMap, i64, st.integers(1, 1 << 20), i64),
    )
    return tuple(draw(kinds) for _ in range(rank))


@st.composite
def operands(draw: Any, rank: int, layout: bool = False) -> asm.Operand:
    space, fmt = draw(st.sampled_from(Space)), draw(formats)
    match space:
        case Space.IMM:
            return asm.Operand(space, fmt, bits=draw(st.integers(0, (1 << 32) - 1)))
        case Space.SCALAR:
            return asm.Operand(space, fmt, index=draw(st.integers(0, 9)))
    index = draw(st.integers(0, 9)) if space is Space.MEM else 0
    core = draw(affines()) if space is Space.LX_REMOTE else Affine()
    return asm.Operand(space, fmt, draw(affines()), draw(maps(rank, layout)), index, core)


@st.composite
def instructions(draw: Any) -> asm.Instruction:
    origin = draw(origins)
    dims = tuple(draw(st.lists(st.builds(asm.Extent, affines(), i64), max_size=4)))
    rank = len(dims)

    def operand(layout: bool = False) -> asm.Operand:
        return draw(operands(rank, layout))

    def indices() -> tuple[asm.IndexOperand, ...]:
        count = draw(st.integers(1, 4))
        return tuple(asm.IndexOperand(operand(), draw(maps(1, False))[0], draw(i64)) for _ in range(count))

    def outputs() -> tuple[asm.Operand | None, asm.Operand | None]:
        which = draw(st.integers(1, 3))
        return operand() if which & 1 else None, operand() if which & 2 else None

    choices = {
        "barrier": lambda: asm.BarrierInst(origin=origin),
        "loop": lambda: asm.LoopInst(draw(small) % 99, draw(affines()), draw(affines()), draw(i64), origin=origin),
        "endloop": lambda: asm.EndLoopInst(origin=origin),
        "if": lambda: asm.IfInst(draw(affines()), origin=origin),
        "endif": lambda: asm.EndIfInst(origin=origin),
        "sop": lambda: asm.SopInst(7, draw(st.sampled_from(Sop)), draw(affines()), draw(affines()), origin=origin),
        "vop": lambda: asm.VopInst(
            VOPS["add"].code, Compute.I32, dims, operand(), (operand(), operand()), origin=origin
        ),
        "reduce": lambda: asm.ReduceInst(
            draw(st.sampled_from(Rop)), Compute.F32, 5, dims, operand(), operand(), draw(st.booleans()), origin=origin
        ),
        "matmul": lambda: asm.MatmulInst(dims, operand(), operand(), operand(), draw(st.booleans()), origin=origin),
        "copy": lambda: asm.CopyInst(dims, operand(True), operand(True), origin=origin),
        "gather": lambda: asm.GatherInst(dims, operand(), operand(), indices(), draw(st.booleans()), origin=origin),
        "scatter": lambda: asm.ScatterInst(
            dims, operand(), operand(), indices(), draw(st.booleans()), draw(st.booleans()), origin=origin
        ),
        "iota": lambda: asm.IotaInst(dims, operand(), draw(affines()), draw(maps(rank, False)), origin=origin),
        "scan": lambda: asm.ScanInst(
            draw(st.sampled_from(Rop)), Compute.F32, 2, dims, operand(), operand(), origin=origin
        ),
        "argreduce": lambda: asm.ArgReduceInst(Rop.MIN, 1, dims, *outputs(), operand(), origin=origin),
        "sort": lambda: asm.SortInst(
            1, draw(st.booleans()), draw(st.booleans()), draw(i64), dims, *outputs(), operand(), origin=origin
        ),
        "ringsum": lambda: asm.RingSumInst(4, draw(affines()), draw(i64), dims, operand(), operand(), origin=origin),
    }
    return choices[draw(st.sampled_from(sorted(choices)))]()


programs = st.builds(
    asm.Program,
    st.lists(
        st.builds(asm.ProgramArg, st.sampled_from([Access.READ, Access.WRITE, Access.READ | Access.WRITE]), small)
    ),
    st.lists(st.sampled_from(ScalarKind), max_size=3),
    st.integers(1, 999),
    st.integers(1, 32),
    st.integers(0, 2 << 20),
    st.binary(max_size=40),
    st.lists(instructions(), max_size=6).map(lambda body: [*body, asm.EndInst()]),
)


@settings(max_examples=150, deadline=None)
@given(programs)
def test_decode_inverts_build(program: asm.Program) -> None:
    assert decode(asm.ProgramBuilder(program).build()) == program
    assert str(program)


@settings(max_examples=100, deadline=None)
@given(programs, st.data())
def test_a_damaged_body_is_refused_by_name(program: asm.Program, data: Any) -> None:
    """Flip one byte, repair the checksum: the reader either still understands the program or raises InvalidProgram."""
    binary = bytearray(asm.ProgramBuilder(program).build())
    at = data.draw(st.integers(16, len(binary) - 1))
    binary[at] ^= data.draw(st.integers(1, 255))
    binary[12:16] = struct.pack("<I", zlib.crc32(binary[16:]))
    try:
        decode(bytes(binary))
    except InvalidProgram:
        pass


def test_header_is_as_documented() -> None:
    binary = asm.ProgramBuilder(asm.Program(instructions=[asm.EndInst()])).build()
    body = binary[16:]
    assert binary[:16] == b"SPYP" + struct.pack("<HHII", 3, 0, len(body), zlib.crc32(body))
    # no args, no scalars, 1 register, 1 core, no LX, no strings, no constants, one END
    assert body == struct.pack("<IIIIIQII", 0, 0, 1, 1, 0, 0, 0, 0) + struct.pack("<IHHII", 1, 0, 0, 0xFFFFFFFF, 0)


@pytest.mark.parametrize("cut", [0, 3, 15, 20, -1])
def test_truncated_programs_are_refused(cut: int) -> None:
    binary = asm.ProgramBuilder(asm.Program(instructions=[asm.EndInst()])).build()
    with pytest.raises(InvalidProgram):
        decode(binary[:cut])


def test_limits_have_messages() -> None:
    with pytest.raises(InvalidProgram, match="1 to 32 cores"):
        asm.ProgramBuilder(asm.Program(cores=33)).build()
    with pytest.raises(InvalidProgram, match="bytes of LX"):
        asm.ProgramBuilder(asm.Program(lx_bytes=(2 << 20) + 1)).build()
    operand = asm.Operand(Space.LX, 0)
    with pytest.raises(InvalidProgram, match="1 to 4 indices, not 0"):
        asm.ProgramBuilder(asm.Program(instructions=[asm.GatherInst((), operand, operand, ())])).build()
    with pytest.raises(InvalidProgram, match="at least one of them"):
        sort = asm.SortInst(0, False, False, 1, (asm.Extent.of(1),), None, None, operand)
        asm.ProgramBuilder(asm.Program(instructions=[sort])).build()
    unresolved = asm.IfInst(Affine.symbol(-1))
    with pytest.raises(InvalidProgram, match="buffer base"):
        asm.ProgramBuilder(asm.Program(instructions=[unresolved])).build()
