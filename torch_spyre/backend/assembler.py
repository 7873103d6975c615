# SPDX-License-Identifier: Apache-2.0
"""Programs as Python objects, and the writer of docs/program-format.md.

Enters: instruction dataclasses. Leaves: the bytes of a program. `decoder.decode` is the inverse.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from torch_spyre.backend.affine import ZERO, Affine
from torch_spyre.backend.isa import MAX_CORES, MAX_DIMS, VOP_NAMES, Access, Compute, Opcode, Rop, ScalarKind, Sop, Space
from torch_spyre.constants import LX_BYTES
from torch_spyre.errors import InvalidProgram

MAGIC = b"SPYP"
VERSION = 2
NO_ORIGIN = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Extent:
    """``min(cap, affine)``, at least 0."""

    affine: Affine
    cap: int

    @staticmethod
    def of(size: int) -> Extent:
        return Extent(Affine(size), size)

    @property
    def is_const(self) -> bool:
        return self.affine.is_const

    def __str__(self) -> str:
        return str(self.cap) if self.is_const else f"min({self.cap}, {self.affine})"


@dataclass(frozen=True, slots=True)
class DimMap:
    """Byte address along one dim: ``v*inner`` if block is 0, else ``(v % block)*inner + (v // block)*outer``."""

    inner: int = 0
    block: int = 0
    outer: int = 0

    def __str__(self) -> str:
        return f"{self.inner}/{self.outer}@{self.block}" if self.block else str(self.inner)


@dataclass(frozen=True, slots=True)
class LayoutMap:
    """A linear element offset that is decoded greedily through `dims`: (host stride, extent, byte stride)."""

    offset: Affine
    strides: tuple[int, ...]
    dims: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        return f"layout({self.offset}; {list(self.strides)}; {list(self.dims)})"


Maps = tuple[DimMap, ...] | LayoutMap


@dataclass(frozen=True, slots=True)
class Operand:
    """`index` is the argument (MEM) or launch scalar (SCALAR); `bits` the value of an IMM."""

    space: Space
    format: int
    offset: Affine = ZERO
    maps: Maps = ()
    index: int = 0
    core: Affine = ZERO
    bits: int = 0

    def __str__(self) -> str:
        match self.space:
            case Space.IMM:
                return f"imm:0x{self.bits:08x}"
            case Space.SCALAR:
                return f"scalar{self.index}"
        maps = str(self.maps) if isinstance(self.maps, LayoutMap) else "x".join(map(str, self.maps))
        where = {Space.MEM: f"arg{self.index}", Space.LX: "lx", Space.CONST: "const"}.get(self.space, f"lx@{self.core}")
        return f"{where}[{self.offset}; {maps}]:{self.format}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    origin: str | None = None

    def __str__(self) -> str:
        return type(self).__name__.removesuffix("Inst").lower()


@dataclass(frozen=True, slots=True)
class EndInst(Instruction):
    pass


@dataclass(frozen=True, slots=True)
class BarrierInst(Instruction):
    pass


@dataclass(frozen=True, slots=True)
class LoopInst(Instruction):
    register: int
    first: Affine
    limit: Affine
    step: int

    def __str__(self) -> str:
        return f"loop r{self.register} = {self.first} to {self.limit} step {self.step}"


@dataclass(frozen=True, slots=True)
class EndLoopInst(Instruction):
    pass


@dataclass(frozen=True, slots=True)
class IfInst(Instruction):
    condition: Affine  # true if >= 0

    def __str__(self) -> str:
        return f"if {self.condition} >= 0"


@dataclass(frozen=True, slots=True)
class EndIfInst(Instruction):
    pass


@dataclass(frozen=True, slots=True)
class SopInst(Instruction):
    register: int
    op: Sop
    a: Affine
    b: Affine

    def __str__(self) -> str:
        return f"r{self.register} = {self.op.name.lower()}({self.a}, {self.b})"


def _dims_text(dims: tuple[Extent, ...]) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"


@dataclass(frozen=True, slots=True)
class VopInst(Instruction):
    op: int
    compute: Compute
    dims: tuple[Extent, ...]
    out: Operand
    inputs: tuple[Operand, ...]

    def __str__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        return f"{self.out} = {VOP_NAMES[self.op]}.{self.compute.name.lower()} {_dims_text(self.dims)} {inputs}"


@dataclass(frozen=True, slots=True)
class ReduceInst(Instruction):
    op: Rop
    compute: Compute
    mask: int
    dims: tuple[Extent, ...]
    out: Operand
    input: Operand
    accumulate: bool = False

    def __str__(self) -> str:
        mask = [i for i in range(len(self.dims)) if self.mask >> i & 1]
        sign = "+=" if self.accumulate else "="
        return f"{self.out} {sign} reduce.{self.op.name.lower()} {_dims_text(self.dims)} over {mask} {self.input}"


@dataclass(frozen=True, slots=True)
class MatmulInst(Instruction):
    dims: tuple[Extent, ...]
    c: Operand
    a: Operand
    b: Operand
    accumulate: bool = False

    def __str__(self) -> str:
        return f"{self.c} {'+=' if self.accumulate else '='} matmul {_dims_text(self.dims)} {self.a}, {self.b}"


@dataclass(frozen=True, slots=True)
class CopyInst(Instruction):
    dims: tuple[Extent, ...]
    out: Operand
    input: Operand

    def __str__(self) -> str:
        return f"{self.out} = copy {_dims_text(self.dims)} {self.input}"


@dataclass(frozen=True, slots=True)
class RingSumInst(Instruction):
    count: int
    first: Affine
    step: int
    dims: tuple[Extent, ...]
    out: Operand
    input: Operand

    def __str__(self) -> str:
        cores = f"{self.count} cores from {self.first} step {self.step}"
        return f"{self.out} = ringsum {_dims_text(self.dims)} {self.input} of {cores}"


@dataclass(frozen=True, slots=True)
class ProgramArg:
    """A launch buffer: how it is used and how many bytes from its start the program may touch."""

    access: Access
    bytes: int


@dataclass
class Program:
    args: list[ProgramArg] = field(default_factory=list)
    scalars: list[ScalarKind] = field(default_factory=list)
    registers: int = 1
    cores: int = 1
    lx_bytes: int = 0
    constants: bytes = b""
    instructions: list[Instruction] = field(default_factory=list)
    duration_ns: int = 0  # what a launch adds to the device clock

    def __str__(self) -> str:
        head = f"cores {self.cores}, registers {self.registers}, lx {self.lx_bytes} bytes"
        args = [f"arg{i}: {a.access.name} {a.bytes} bytes" for i, a in enumerate(self.args)]
        lines, depth = [], 1
        for inst in self.instructions:
            depth -= isinstance(inst, EndIfInst | EndLoopInst)
            lines.append("  " * depth + str(inst))
            depth += isinstance(inst, IfInst | LoopInst)
        return "\n".join([head, *args, *lines])


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
                return Opcode.MATMUL, int(inst.accumulate)
            case CopyInst():
                self._dims_and_operands(inst.dims, inst.out, inst.input)
                return Opcode.COPY, 0
            case RingSumInst():
                self._pack("<I", inst.count)
                self._affine(inst.first)
                self._pack("<q", inst.step)
                self._dims_and_operands(inst.dims, inst.out, inst.input)
                return Opcode.RINGSUM, 0
        raise InvalidProgram(f"no encoding for {type(inst).__name__}")

    def _dims_and_operands(self, dims: tuple[Extent, ...], *operands: Operand) -> None:
        self._dims(dims)
        for operand in operands:
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
