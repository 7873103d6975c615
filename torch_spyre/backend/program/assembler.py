# SPDX-License-Identifier: Apache-2.0
"""The writer of docs/program-format.md.

Enters: a `Program` of instruction dataclasses (`instructions.py`). Leaves: its bytes. `decoder.decode` is the inverse.
"""

from __future__ import annotations

import struct
import zlib

from torch_spyre.backend.program.instructions import (
    ArgReduceInst,
    BarrierInst,
    CopyInst,
    DimMap,
    EndIfInst,
    EndInst,
    EndLoopInst,
    Extent,
    GatherInst,
    IfInst,
    IndexOperand,
    Instruction,
    IotaInst,
    LayoutMap,
    LoopInst,
    Maps,
    MatmulInst,
    Operand,
    Program,
    ProgramArg,
    ReduceInst,
    RingSumInst,
    ScanInst,
    ScatterInst,
    SopInst,
    SortInst,
    VopInst,
)
from torch_spyre.backend.program.isa import (
    ACCUMULATE,
    MASKED,
    MAX_CORES,
    MAX_DIMS,
    MAX_INDICES,
    TAPS_SHIFT,
    Opcode,
    Space,
)
from torch_spyre.constants import LX_BYTES
from torch_spyre.errors import InvalidProgram
from torch_spyre.ir.affine import Affine

MAGIC = b"SPYP"
VERSION = 3
NO_ORIGIN = 0xFFFFFFFF
_MAX_DURATION_NS = 86_400 * 10**9  # a day

__all__ = [
    "MAGIC",
    "NO_ORIGIN",
    "VERSION",
    "ArgReduceInst",
    "BarrierInst",
    "CopyInst",
    "DimMap",
    "EndIfInst",
    "EndInst",
    "EndLoopInst",
    "Extent",
    "GatherInst",
    "IfInst",
    "IndexOperand",
    "Instruction",
    "IotaInst",
    "LayoutMap",
    "LoopInst",
    "Maps",
    "MatmulInst",
    "Operand",
    "Program",
    "ProgramArg",
    "ProgramBuilder",
    "ReduceInst",
    "RingSumInst",
    "ScanInst",
    "ScatterInst",
    "SopInst",
    "SortInst",
    "VopInst",
]


def _outputs(first: Operand | None, second: Operand | None) -> int:
    """Bits of the outputs an instruction has."""
    if first is None and second is None:
        raise InvalidProgram("an instruction with two optional outputs needs at least one of them")
    return (first is not None) | (second is not None) << 1


class ProgramBuilder:
    """Writes one program. Use: ``ProgramBuilder(program).build()``."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._strings: dict[str, int] = {}
        self._out = bytearray()

    def build(self) -> bytes:
        program = self._program
        self._check_header()
        records = bytearray()
        for inst in program.instructions:
            self._out = bytearray()
            opcode, flags = self._payload(inst)
            origin = NO_ORIGIN
            if inst.origin is not None:
                origin = self._strings.setdefault(inst.origin, len(self._strings))
            records += struct.pack("<HHII", opcode, flags, origin, len(self._out)) + self._out
        body = self._head() + struct.pack("<I", len(program.instructions)) + records
        return MAGIC + struct.pack("<HHII", VERSION, 0, len(body), zlib.crc32(body)) + body

    def _check_header(self) -> None:
        program = self._program
        if not 1 <= program.cores <= MAX_CORES:
            raise InvalidProgram(f"a program runs on 1 to {MAX_CORES} cores, not {program.cores}")
        if program.lx_bytes > LX_BYTES:
            raise InvalidProgram(
                f"a program needs {program.lx_bytes} bytes of LX, a core has {LX_BYTES}; use smaller tiles"
            )
        if program.registers > 0xFFFF:
            raise InvalidProgram(f"a program has at most 65535 scalar registers, not {program.registers}")
        if program.duration_ns > _MAX_DURATION_NS:
            raise InvalidProgram(f"a launch of {program.duration_ns} ns; the device clock takes up to a day")

    def _head(self) -> bytes:
        program = self._program
        out = bytearray(struct.pack("<I", len(program.args)))
        for arg in program.args:
            out += struct.pack("<BQ", arg.access, arg.bytes)
        out += struct.pack("<I", len(program.scalars)) + bytes(program.scalars)
        out += struct.pack("<IIIQ", program.registers, program.cores, program.lx_bytes, program.duration_ns)
        out += struct.pack("<I", len(self._strings))
        for text in self._strings:
            data = text.encode()[:0xFFFF].decode(errors="ignore").encode()
            out += struct.pack("<H", len(data)) + data
        return bytes(out + struct.pack("<I", len(program.constants)) + program.constants)

    def _payload(self, inst: Instruction) -> tuple[Opcode, int]:
        """Appends the payload of an instruction; returns its opcode and flags."""
        match inst:
            case EndInst():
                return Opcode.END, 0
            case BarrierInst():
                return Opcode.BARRIER, 0
            case LoopInst(register=register, first=first, limit=limit, step=step):
                self._pack("<H", register)
                self._affine(first)
                self._affine(limit)
                self._pack("<q", step)
                return Opcode.LOOP, 0
            case EndLoopInst():
                return Opcode.ENDLOOP, 0
            case IfInst(condition=condition):
                self._affine(condition)
                return Opcode.IF, 0
            case EndIfInst():
                return Opcode.ENDIF, 0
            case SopInst():
                self._pack("<HB", inst.register, inst.op)
                self._affine(inst.a)
                self._affine(inst.b)
                return Opcode.SOP, 0
        return self._tile_payload(inst)

    def _tile_payload(self, inst: Instruction) -> tuple[Opcode, int]:
        match inst:
            case VopInst():
                self._pack("<HB", inst.op, inst.compute)
                self._dims(inst.dims)
                self._operand(inst.out, len(inst.dims))
                self._pack("<B", len(inst.inputs))
                for operand in inst.inputs:
                    self._operand(operand, len(inst.dims))
                return Opcode.VOP, 0
            case ReduceInst():
                self._pack("<BBB", inst.op, inst.compute, inst.mask)
                self._dims_and_operands(inst.dims, inst.out, inst.input)
                return Opcode.REDUCE, int(inst.accumulate)
            case MatmulInst():
                self._dims_and_operands(inst.dims, inst.c, inst.a, inst.b)
                return Opcode.MATMUL, int(inst.accumulate) | inst.taps << TAPS_SHIFT
            case CopyInst():
                self._dims_and_operands(inst.dims, inst.out, inst.input)
                return Opcode.COPY, 0
            case RingSumInst():
                self._pack("<I", inst.count)
                self._affine(inst.first)
                self._pack("<q", inst.step)
                self._dims_and_operands(inst.dims, inst.out, inst.input)
                return Opcode.RINGSUM, 0
        return self._indexed_payload(inst)

    def _indexed_payload(self, inst: Instruction) -> tuple[Opcode, int]:
        match inst:
            case GatherInst():
                self._dims_and_operands(inst.dims, inst.out, inst.table)
                self._indices(inst.indices, len(inst.dims))
                return Opcode.GATHER, MASKED * inst.masked
            case ScatterInst():
                self._dims_and_operands(inst.dims, inst.table, inst.source)
                self._indices(inst.indices, len(inst.dims))
                return Opcode.SCATTER, ACCUMULATE * inst.accumulate | MASKED * inst.masked
            case IotaInst():
                if len(inst.steps) != len(inst.dims):
                    raise InvalidProgram(f"an iota of {len(inst.dims)} dims has {len(inst.steps)} steps")
                self._dims_and_operands(inst.dims, inst.out)
                self._affine(inst.start)
                for step in inst.steps:
                    self._dim_map(step)
                return Opcode.IOTA, 0
            case ScanInst():
                self._pack("<BBB", inst.op, inst.compute, inst.dim)
                self._dims_and_operands(inst.dims, inst.out, inst.source)
                return Opcode.SCAN, 0
            case ArgReduceInst():
                self._pack("<BBB", inst.op, inst.dim, _outputs(inst.out_index, inst.out_value))
                self._dims_and_operands(inst.dims, inst.out_index, inst.out_value, inst.source)
                return Opcode.ARGREDUCE, 0
            case SortInst():
                self._pack("<BBq", inst.dim, inst.descending | inst.stable << 1, inst.k)
                self._pack("<B", _outputs(inst.out_value, inst.out_index))
                self._dims_and_operands(inst.dims, inst.out_value, inst.out_index, inst.source)
                return Opcode.SORT, 0
        raise InvalidProgram(f"no encoding for {type(inst).__name__}")

    def _indices(self, indices: tuple[IndexOperand, ...], rank: int) -> None:
        if not 1 <= len(indices) <= MAX_INDICES:
            raise InvalidProgram(f"a gather or scatter takes 1 to {MAX_INDICES} indices, not {len(indices)}")
        self._pack("<B", len(indices))
        for index in indices:
            self._operand(index.operand, rank)
            self._dim_map(index.along)
            self._pack("<q", index.limit)

    def _dims_and_operands(self, dims: tuple[Extent, ...], *operands: Operand | None) -> None:
        self._dims(dims)
        for operand in operands:
            if operand is not None:
                self._operand(operand, len(dims))

    def _pack(self, fmt: str, *values: int) -> None:
        try:
            self._out += struct.pack(fmt, *values)
        except struct.error as e:
            raise InvalidProgram(f"a field of the program is out of range: {values} ({e})") from None

    def _affine(self, affine: Affine) -> None:
        self._pack("<qB", affine.const, len(affine.terms))
        for register, coefficient in affine.terms:
            if register < 0:
                raise InvalidProgram(f"offset {affine} still refers to a buffer base, which has no address yet")
            self._pack("<Hq", register, coefficient)

    def _dims(self, dims: tuple[Extent, ...]) -> None:
        if len(dims) > MAX_DIMS:
            raise InvalidProgram(f"a tile instruction has at most {MAX_DIMS} dims, not {len(dims)}")
        self._pack("<B", len(dims))
        for extent in dims:
            self._affine(extent.affine)
            self._pack("<q", extent.cap)

    def _operand(self, operand: Operand, rank: int) -> None:
        self._pack("<BB", operand.space, operand.format)
        match operand.space:
            case Space.MEM:
                self._pack("<H", operand.index)
            case Space.LX_REMOTE:
                self._affine(operand.core)
            case Space.SCALAR:
                self._pack("<H", operand.index)
                return
            case Space.IMM:
                self._pack("<I", operand.bits)
                return
        self._affine(operand.offset)
        self._maps(operand.maps, rank)

    def _maps(self, maps: Maps, rank: int) -> None:
        if isinstance(maps, LayoutMap):
            self._layout(maps, rank)
            return
        if len(maps) != rank:
            raise InvalidProgram(f"an operand has {len(maps)} maps in an instruction of {rank} dims")
        self._pack("<B", 0)
        for m in maps:
            self._dim_map(m)

    def _dim_map(self, m: DimMap) -> None:
        if m.block:
            self._pack("<Bqqq", 2, m.block, m.inner, m.outer)
        elif m.inner:
            self._pack("<Bq", 1, m.inner)
        else:
            self._pack("<B", 0)

    def _layout(self, layout: LayoutMap, rank: int) -> None:
        if len(layout.strides) != rank or len(layout.dims) > MAX_DIMS:
            raise InvalidProgram(f"{layout} does not fit an instruction of {rank} dims and {MAX_DIMS} device dims")
        self._pack("<B", 1)
        self._affine(layout.offset)
        for stride in layout.strides:
            self._pack("<q", stride)
        self._pack("<B", len(layout.dims))
        for dim in layout.dims:
            self._pack("<qqq", *dim)
