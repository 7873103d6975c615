# SPDX-License-Identifier: Apache-2.0
"""Reader of docs/program-format.md, for tools and tests. The card has its own."""

from __future__ import annotations

import struct
import zlib

from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.isa import (
    ACCUMULATE,
    MASKED,
    MAX_DIMS,
    MAX_TAPS,
    TAPS_SHIFT,
    Access,
    Compute,
    Opcode,
    Rop,
    ScalarKind,
    Sop,
    Space,
)
from torch_spyre.errors import InvalidProgram
from torch_spyre.ir.affine import Affine


def decode(binary: bytes) -> asm.Program:
    """The program that `binary` encodes. Raises InvalidProgram for anything that is not exactly one program."""
    if len(binary) < 16 or binary[:4] != asm.MAGIC:
        raise InvalidProgram("not a program: the file does not begin with SPYP")
    version, flags, length, crc = struct.unpack_from("<HHII", binary, 4)
    body = binary[16:]
    if version != asm.VERSION or flags:
        raise InvalidProgram(f"program version {version}, flags {flags}; this reader knows version {asm.VERSION}")
    if length != len(body) or crc != zlib.crc32(body):
        raise InvalidProgram("program body is damaged: length or checksum does not match")
    return _Reader(body).program()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    def _unpack(self, fmt: str) -> tuple[int, ...]:
        try:
            values = struct.unpack_from(fmt, self._data, self._pos)
        except struct.error:
            raise InvalidProgram(f"program ends early, at byte {self._pos} of its body") from None
        self._pos += struct.calcsize(fmt)
        return values

    def _int(self, fmt: str) -> int:
        return self._unpack(fmt)[0]

    def _bytes(self, count: int) -> bytes:
        data = self._data[self._pos : self._pos + count]
        if len(data) != count:
            raise InvalidProgram(f"program ends early, at byte {self._pos} of its body")
        self._pos += count
        return data

    def program(self) -> asm.Program:
        try:
            return self._program()
        except ValueError as e:  # a code that is not in one of the tables, or text that is not UTF-8
            raise InvalidProgram(f"program has an unknown code before byte {self._pos} of its body: {e}") from None

    def _program(self) -> asm.Program:
        args = [asm.ProgramArg(Access(a), b) for a, b in (self._unpack("<BQ") for _ in range(self._int("<I")))]
        scalars = [ScalarKind(b) for b in self._bytes(self._int("<I"))]
        registers, cores, lx_bytes, duration_ns = self._unpack("<IIIQ")
        strings = [self._bytes(self._int("<H")).decode() for _ in range(self._int("<I"))]
        constants = self._bytes(self._int("<I"))
        instructions = [self._instruction(strings) for _ in range(self._int("<I"))]
        if self._pos != len(self._data):
            raise InvalidProgram(f"{len(self._data) - self._pos} bytes follow the last instruction")
        return asm.Program(args, scalars, registers, cores, lx_bytes, constants, instructions, duration_ns)

    def _instruction(self, strings: list[str]) -> asm.Instruction:
        opcode, flags, origin_index, length = self._unpack("<HHII")
        if origin_index != asm.NO_ORIGIN and origin_index >= len(strings):
            raise InvalidProgram(f"origin {origin_index} of {len(strings)} strings")
        origin = None if origin_index == asm.NO_ORIGIN else strings[origin_index]
        end = self._pos + length
        inst = self._payload(Opcode(opcode), flags, origin)
        if self._pos != end:
            raise InvalidProgram(f"{Opcode(opcode).name} has a payload of {length} bytes, which its fields do not fill")
        return inst

    def _payload(self, opcode: Opcode, flags: int, origin: str | None) -> asm.Instruction:
        match opcode:
            case Opcode.END:
                return asm.EndInst(origin=origin)
            case Opcode.BARRIER:
                return asm.BarrierInst(origin=origin)
            case Opcode.LOOP:
                register, first, limit, step = self._int("<H"), self._affine(), self._affine(), self._int("<q")
                return asm.LoopInst(register, first, limit, step, origin=origin)
            case Opcode.ENDLOOP:
                return asm.EndLoopInst(origin=origin)
            case Opcode.IF:
                return asm.IfInst(self._affine(), origin=origin)
            case Opcode.ENDIF:
                return asm.EndIfInst(origin=origin)
            case Opcode.SOP:
                register, op = self._unpack("<HB")
                return asm.SopInst(register, Sop(op), self._affine(), self._affine(), origin=origin)
        return self._tile_payload(opcode, flags, origin)

    def _tile_payload(self, opcode: Opcode, flags: int, origin: str | None) -> asm.Instruction:
        accumulate = bool(flags & ACCUMULATE)
        if opcode == Opcode.VOP:
            op, compute = self._unpack("<HB")
            dims = self._dims()
            out, count = self._operand(len(dims)), self._int("<B")
            inputs = tuple(self._operand(len(dims)) for _ in range(count))
            return asm.VopInst(op, Compute(compute), dims, out, inputs, origin=origin)
        if opcode == Opcode.REDUCE:
            op, compute, mask = self._unpack("<BBB")
            dims = self._dims()
            out, source = self._operand(len(dims)), self._operand(len(dims))
            return asm.ReduceInst(Rop(op), Compute(compute), mask, dims, out, source, accumulate, origin=origin)
        if opcode == Opcode.MATMUL:
            dims = self._dims()
            c, a, b = (self._operand(len(dims)) for _ in range(3))
            return asm.MatmulInst(dims, c, a, b, accumulate, flags >> TAPS_SHIFT & MAX_TAPS, origin=origin)
        if opcode == Opcode.COPY:
            dims = self._dims()
            return asm.CopyInst(dims, self._operand(len(dims)), self._operand(len(dims)), origin=origin)
        if opcode >= Opcode.GATHER:
            return self._indexed_payload(opcode, flags, origin)
        count, first, step, dims = self._int("<I"), self._affine(), self._int("<q"), self._dims()
        out, source = self._operand(len(dims)), self._operand(len(dims))
        return asm.RingSumInst(count, first, step, dims, out, source, origin=origin)

    def _indexed_payload(self, opcode: Opcode, flags: int, origin: str | None) -> asm.Instruction:
        match opcode:
            case Opcode.GATHER:
                dims, out, table = self._dims_and_two()
                indices = self._indices(len(dims))
                return asm.GatherInst(dims, out, table, indices, bool(flags & MASKED), origin=origin)
            case Opcode.SCATTER:
                dims, table, source = self._dims_and_two()
                indices = self._indices(len(dims))
                accumulate, masked = bool(flags & ACCUMULATE), bool(flags & MASKED)
                return asm.ScatterInst(dims, table, source, indices, accumulate, masked, origin=origin)
            case Opcode.IOTA:
                dims = self._dims()
                out, start = self._operand(len(dims)), self._affine()
                return asm.IotaInst(dims, out, start, tuple(self._dim_map() for _ in dims), origin=origin)
            case Opcode.SCAN:
                op, compute, dim = self._unpack("<BBB")
                return asm.ScanInst(Rop(op), Compute(compute), dim, *self._dims_and_two(), origin=origin)
            case Opcode.ARGREDUCE:
                op, dim, outputs = self._unpack("<BBB")
                dims, index, value, source = self._dims_and_outputs(outputs)
                return asm.ArgReduceInst(Rop(op), dim, dims, index, value, source, origin=origin)
        dim, order, k, outputs = self._unpack("<BBqB")
        if order > 3:
            raise InvalidProgram(f"sort order {order}; known are 0 to 3")
        dims, value, index, source = self._dims_and_outputs(outputs)
        return asm.SortInst(dim, bool(order & 1), bool(order & 2), k, dims, value, index, source, origin=origin)

    def _dims_and_two(self) -> tuple[tuple[asm.Extent, ...], asm.Operand, asm.Operand]:
        dims = self._dims()
        return dims, self._operand(len(dims)), self._operand(len(dims))

    def _dims_and_outputs(
        self, outputs: int
    ) -> tuple[tuple[asm.Extent, ...], asm.Operand | None, asm.Operand | None, asm.Operand]:
        if not 1 <= outputs <= 3:
            raise InvalidProgram(f"outputs {outputs}; known are 1 to 3")
        dims = self._dims()
        first, second = (self._operand(len(dims)) if outputs >> bit & 1 else None for bit in (0, 1))
        return dims, first, second, self._operand(len(dims))

    def _indices(self, rank: int) -> tuple[asm.IndexOperand, ...]:
        return tuple(
            asm.IndexOperand(self._operand(rank), self._dim_map(), self._int("<q")) for _ in range(self._int("<B"))
        )

    def _affine(self) -> Affine:
        const, count = self._unpack("<qB")
        return Affine(const, tuple((r, c) for r, c in (self._unpack("<Hq") for _ in range(count))))

    def _dims(self) -> tuple[asm.Extent, ...]:
        rank = self._int("<B")
        if rank > MAX_DIMS:
            raise InvalidProgram(f"a tile instruction with {rank} dims; at most {MAX_DIMS}")
        return tuple(asm.Extent(self._affine(), self._int("<q")) for _ in range(rank))

    def _operand(self, rank: int) -> asm.Operand:
        code, fmt = self._unpack("<BB")
        space = Space(code)
        if space == Space.SCALAR:
            return asm.Operand(space, fmt, index=self._int("<H"))
        if space == Space.IMM:
            return asm.Operand(space, fmt, bits=self._int("<I"))
        index = self._int("<H") if space == Space.MEM else 0
        core = self._affine() if space == Space.LX_REMOTE else Affine()
        return asm.Operand(space, fmt, self._affine(), self._maps(rank), index, core)

    def _maps(self, rank: int) -> asm.Maps:
        mode = self._int("<B")
        if mode == 1:
            offset = self._affine()
            strides = tuple(self._int("<q") for _ in range(rank))
            dims = tuple((h, e, b) for h, e, b in (self._unpack("<qqq") for _ in range(self._int("<B"))))
            return asm.LayoutMap(offset, strides, dims)
        if mode:
            raise InvalidProgram(f"map mode {mode}; known are 0 and 1")
        return tuple(self._dim_map() for _ in range(rank))

    def _dim_map(self) -> asm.DimMap:
        kind = self._int("<B")
        if kind == 0:
            return asm.DimMap()
        if kind == 1:
            return asm.DimMap(self._int("<q"))
        if kind == 2:
            block, inner, outer = self._unpack("<qqq")
            return asm.DimMap(inner, block, outer)
        raise InvalidProgram(f"dim map kind {kind}; known are 0, 1 and 2")
