# SPDX-License-Identifier: Apache-2.0
"""Short spellings for hand-written card programs. Everything is fp32 unless told otherwise."""

from __future__ import annotations

import struct

import numpy as np

from torch_spyre import _card
from torch_spyre.backend.program import assembler as a
from torch_spyre.backend.program.isa import VOPS, Access, Compute, ScalarKind, Sop, Space
from torch_spyre.ir.affine import Affine

FP32, INT32, SEN169 = 1, 12, 0
R, W, RW = Access.READ, Access.WRITE, Access.READ | Access.WRITE

Number = Affine | int


def affine(value: Number) -> Affine:
    return value if isinstance(value, Affine) else Affine(value)


def reg(index: int, coefficient: int = 1) -> Affine:
    return Affine.symbol(index, coefficient)


CORE = reg(0)


def dims(*extents: Number) -> tuple[a.Extent, ...]:
    return tuple(a.Extent(affine(e), e if isinstance(e, int) else 1 << 40) for e in extents)


def maps(strides: tuple[int | tuple[int, int, int], ...]) -> tuple[a.DimMap, ...]:
    """A stride per dim; a stick dim is (block, inner, outer)."""
    return tuple(a.DimMap(s) if isinstance(s, int) else a.DimMap(s[1], s[0], s[2]) for s in strides)


def mem(arg: int, offset: Number, *strides: int | tuple[int, int, int], fmt: int = FP32) -> a.Operand:
    return a.Operand(Space.MEM, fmt, affine(offset), maps(strides), index=arg)


def lx(offset: Number, *strides: int | tuple[int, int, int], fmt: int = FP32) -> a.Operand:
    return a.Operand(Space.LX, fmt, affine(offset), maps(strides))


def remote(core: Number, offset: Number, *strides: int | tuple[int, int, int], fmt: int = FP32) -> a.Operand:
    return a.Operand(Space.LX_REMOTE, fmt, affine(offset), maps(strides), core=affine(core))


def const(offset: Number, *strides: int, fmt: int = FP32) -> a.Operand:
    return a.Operand(Space.CONST, fmt, affine(offset), maps(strides))


def scalar(index: int, fmt: int = FP32) -> a.Operand:
    return a.Operand(Space.SCALAR, fmt, index=index)


def imm(value: float | int) -> a.Operand:
    if isinstance(value, int):
        return a.Operand(Space.IMM, INT32, bits=value & 0xFFFFFFFF)
    return a.Operand(Space.IMM, FP32, bits=struct.unpack("<I", struct.pack("<f", value))[0])


def vop(name: str, shape: tuple[a.Extent, ...], out: a.Operand, *inputs: a.Operand, integer: bool = False) -> a.VopInst:
    return a.VopInst(
        VOPS[name].code, Compute.I32 if integer else Compute.F32, shape, out, inputs, origin=f"test {name}"
    )


def copy(shape: tuple[a.Extent, ...], out: a.Operand, source: a.Operand) -> a.CopyInst:
    return a.CopyInst(shape, out, source)


def loop(register: int, first: Number, limit: Number, step: int, *body: a.Instruction) -> list[a.Instruction]:
    return [a.LoopInst(register, affine(first), affine(limit), step), *body, a.EndLoopInst()]


def when(condition: Number, *body: a.Instruction) -> list[a.Instruction]:
    return [a.IfInst(affine(condition)), *body, a.EndIfInst()]


def sop(register: int, op: Sop, x: Number, y: Number) -> a.SopInst:
    return a.SopInst(register, op, affine(x), affine(y))


def store(value: Number | a.Operand, slot: Number) -> a.CopyInst:
    """One fp32 element of argument 0: a constant of the constants table (value = its index) into a slot."""
    source = value if isinstance(value, a.Operand) else const(affine(value) * 4)
    return copy((), mem(0, affine(slot) * 4), source)


BARRIER = a.BarrierInst()


def build(
    instructions: list[a.Instruction],
    args: list[tuple[Access, int]],
    *,
    cores: int = 1,
    registers: int = 8,
    lx_bytes: int = 0,
    scalars: tuple[ScalarKind, ...] = (),
    constants: bytes = b"",
    duration_ns: int = 0,
) -> bytes:
    program = a.Program(
        args=[a.ProgramArg(access, size) for access, size in args],
        scalars=list(scalars),
        registers=registers,
        cores=cores,
        lx_bytes=lx_bytes,
        constants=constants,
        instructions=[*instructions, a.EndInst()],
        duration_ns=duration_ns,
    )
    return a.ProgramBuilder(program).build()


def run(binary: bytes, arrays: list[np.ndarray], scalars: list[float | int] | None = None) -> list[np.ndarray]:
    """Loads and launches the program on a fresh card with copies of the arrays; returns what they hold afterwards."""
    card, program = _card.Card(), _card.Program.load(binary)
    buffers = []
    for array in arrays:
        address = card.allocate(array.nbytes)
        card.write(address, array.tobytes())
        buffers.append((address, array.nbytes))
    card.launch(program, buffers, scalars or [])
    card.synchronize()
    return [
        np.frombuffer(card.read(address, size), array.dtype).reshape(array.shape)
        for (address, size), array in zip(buffers, arrays, strict=True)
    ]


INDEX_TABLE = np.arange(64, dtype=np.float32).tobytes()
