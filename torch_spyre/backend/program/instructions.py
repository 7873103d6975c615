# SPDX-License-Identifier: Apache-2.0
"""The instructions and operands of docs/program-format.md as Python objects. `assembler` writes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_spyre.backend.program.isa import VOP_NAMES, Access, Compute, Rop, ScalarKind, Sop, Space
from torch_spyre.ir.affine import ZERO, Affine


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
    """`dims` are batch…, m, n and k; k is `taps` dims and a last one, summed row-major."""

    dims: tuple[Extent, ...]
    c: Operand
    a: Operand
    b: Operand
    accumulate: bool = False
    taps: int = 0

    def __str__(self) -> str:
        taps = f" taps {self.taps}" if self.taps else ""
        return f"{self.c} {'+=' if self.accumulate else '='} matmul{taps} {_dims_text(self.dims)} {self.a}, {self.b}"


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
class IndexOperand:
    """An index tensor of a GATHER or SCATTER: its value v, in [0, limit), adds `along`(v) bytes to the address."""

    operand: Operand
    along: DimMap
    limit: int

    def __str__(self) -> str:
        return f"{self.operand} along {self.along} < {self.limit}"


def _indices_text(indices: tuple[IndexOperand, ...], masked: bool) -> str:
    return "{" + "; ".join(map(str, indices)) + "}" + (" masked" if masked else "")


@dataclass(frozen=True, slots=True)
class GatherInst(Instruction):
    """out[v] = table at its own address of v plus what the indices add. Masked: 0 where an index is out of range."""

    dims: tuple[Extent, ...]
    out: Operand
    table: Operand
    indices: tuple[IndexOperand, ...]
    masked: bool = False

    def __str__(self) -> str:
        where = _indices_text(self.indices, self.masked)
        return f"{self.out} = gather {_dims_text(self.dims)} {self.table} at {where}"


@dataclass(frozen=True, slots=True)
class ScatterInst(Instruction):
    """table at its address of v plus what the indices add = source[v], row-major: the last write wins, or all add.

    Masked: a write with an index out of range is dropped.
    """

    dims: tuple[Extent, ...]
    table: Operand
    source: Operand
    indices: tuple[IndexOperand, ...]
    accumulate: bool = False
    masked: bool = False

    def __str__(self) -> str:
        where = _indices_text(self.indices, self.masked)
        sign = "+=" if self.accumulate else "="
        return f"{self.table} at {where} {sign} scatter {_dims_text(self.dims)} {self.source}"


@dataclass(frozen=True, slots=True)
class IotaInst(Instruction):
    """out[v] = start + the sum of steps[d](v_d), a 64-bit integer; the step maps give numbers, not bytes."""

    dims: tuple[Extent, ...]
    out: Operand
    start: Affine
    steps: tuple[DimMap, ...]

    def __str__(self) -> str:
        steps = "x".join(map(str, self.steps))
        return f"{self.out} = iota {_dims_text(self.dims)} from {self.start} by {steps}"


@dataclass(frozen=True, slots=True)
class ScanInst(Instruction):
    op: Rop
    compute: Compute
    dim: int
    dims: tuple[Extent, ...]
    out: Operand
    source: Operand

    def __str__(self) -> str:
        name = f"scan.{self.op.name.lower()}.{self.compute.name.lower()}"
        return f"{self.out} = {name} {_dims_text(self.dims)} along {self.dim} {self.source}"


@dataclass(frozen=True, slots=True)
class ArgReduceInst(Instruction):
    """Index and/or value of the first largest or smallest element along `dim`; the outputs do not move along it."""

    op: Rop  # MAX or MIN
    dim: int
    dims: tuple[Extent, ...]
    out_index: Operand | None
    out_value: Operand | None
    source: Operand

    def __str__(self) -> str:
        outs = ", ".join(str(o) for o in (self.out_index, self.out_value) if o)
        return f"{outs} = arg{self.op.name.lower()} {_dims_text(self.dims)} along {self.dim} {self.source}"


@dataclass(frozen=True, slots=True)
class SortInst(Instruction):
    """The first k of the sorted elements along `dim` and/or their indices. `dims` is the box of the source."""

    dim: int
    descending: bool
    stable: bool
    k: int
    dims: tuple[Extent, ...]
    out_value: Operand | None
    out_index: Operand | None
    source: Operand

    def __str__(self) -> str:
        outs = ", ".join(str(o) for o in (self.out_value, self.out_index) if o)
        order = "descending" if self.descending else "ascending"
        return f"{outs} = sort.{order} {_dims_text(self.dims)} along {self.dim} first {self.k} of {self.source}"


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
