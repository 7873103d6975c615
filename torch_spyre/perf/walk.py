# SPDX-License-Identifier: Apache-2.0
"""The scalar dry run: executes the scalar part of a program for all cores at once.

A register holds an int while all cores agree and an array (one entry per core) once they differ. Loops and
conditionals run under a mask of active cores, so that one walk serves all cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from torch_spyre.backend.program.assembler import (
    BarrierInst,
    EndIfInst,
    EndInst,
    EndLoopInst,
    Extent,
    IfInst,
    Instruction,
    LoopInst,
    Program,
    SopInst,
)
from torch_spyre.backend.program.isa import Sop
from torch_spyre.ir.affine import Affine

Value = Any  # int, or an int64 array with one entry per core


class Registers(dict[int, Value]):
    """Scalar registers. `state` changes whenever a register or the set of active cores may have changed."""

    state = 0


_SOPS: dict[Sop, Any] = {
    Sop.ADD: lambda a, b: a + b,
    Sop.SUB: lambda a, b: a - b,
    Sop.MUL: lambda a, b: a * b,
    Sop.FLOORDIV: lambda a, b: a // b,
    Sop.MOD: lambda a, b: a % b,
    Sop.MIN: np.minimum,
    Sop.MAX: np.maximum,
}


def value(affine: Affine, registers: Registers) -> Value:
    total: Value = affine.const
    for register, coefficient in affine.terms:
        total = total + registers[register] * coefficient
    return total


def extents(dims: Sequence[Extent], registers: Registers) -> list[Value]:
    """Box sizes: ints where all cores agree."""
    sizes: list[Value] = []
    for dim in dims:
        if dim.is_const:
            sizes.append(max(0, min(dim.cap, dim.affine.const)))
            continue
        size = value(dim.affine, registers)
        sizes.append(np.clip(size, 0, dim.cap) if isinstance(size, np.ndarray) else max(0, min(dim.cap, size)))
    return sizes


def matching(instructions: Sequence[Instruction]) -> dict[int, int]:
    """Positions of LOOP/ENDLOOP and IF/ENDIF partners, both ways."""
    stack: list[int] = []
    jumps: dict[int, int] = {}
    for i, inst in enumerate(instructions):
        if isinstance(inst, (LoopInst, IfInst)):
            stack.append(i)
        elif isinstance(inst, (EndLoopInst, EndIfInst)):
            start = stack.pop()
            jumps[start], jumps[i] = i, start
    return jumps


def walk(program: Program, scalars: Sequence[int] = ()) -> Iterator[tuple[int, Instruction, Registers, np.ndarray]]:
    """(phase, tile instruction, registers, active cores) in execution order. Consume each item before the next."""
    return _Walker(program, scalars).run()


class _Walker:
    def __init__(self, program: Program, scalars: Sequence[int]) -> None:
        self.instructions = program.instructions
        self.jumps = matching(program.instructions)
        cores = np.arange(program.cores, dtype=np.int64)
        self.registers = Registers({0: cores if program.cores > 1 else 0})
        self.registers.update({i + 1: int(v) for i, v in enumerate(scalars)})
        self.active = np.ones(program.cores, dtype=bool)
        self.outer: list[np.ndarray] = []  # masks outside the open loops and conditionals
        self.limits: dict[int, Value] = {}

    def run(self) -> Iterator[tuple[int, Instruction, Registers, np.ndarray]]:
        pc = phase = 0
        while pc < len(self.instructions):
            inst = self.instructions[pc]
            match inst:
                case EndInst():
                    return
                case BarrierInst():
                    phase += 1
                    pc += 1
                    continue
                case LoopInst() | IfInst():
                    pc = self._enter(pc, inst)
                case EndLoopInst():
                    pc = self._again(pc)
                case EndIfInst():
                    self.active = self.outer.pop()
                case SopInst():
                    a, b = value(inst.a, self.registers), value(inst.b, self.registers)
                    self.registers[inst.register] = _SOPS[inst.op](a, b)
                case _:
                    yield phase, inst, self.registers, self.active
                    pc += 1
                    continue
            self.registers.state += 1
            pc += 1

    def _enter(self, pc: int, inst: LoopInst | IfInst) -> int:
        """Opens a body, or returns the position of its end if no core enters it."""
        if isinstance(inst, LoopInst):
            first, self.limits[pc] = value(inst.first, self.registers), value(inst.limit, self.registers)
            self.registers[inst.register] = first
            taken = self.active & (first < self.limits[pc])
        else:
            taken = self.active & (value(inst.condition, self.registers) >= 0)
        if not taken.any():
            return self.jumps[pc]
        self.outer.append(self.active)
        self.active = taken
        return pc

    def _again(self, pc: int) -> int:
        """At ENDLOOP: back to the loop's head, or past it when every core is done."""
        start = self.jumps[pc]
        loop = self.instructions[start]
        assert isinstance(loop, LoopInst)
        self.registers[loop.register] = self.registers[loop.register] + loop.step
        taken = self.active & (self.registers[loop.register] < self.limits[start])
        if taken.any():
            self.active = taken
            return start
        self.active = self.outer.pop()
        return pc
