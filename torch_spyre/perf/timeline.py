# SPDX-License-Identifier: Apache-2.0
"""The static timeline of a program: how long each phase takes on the described card, and what bounds it.

The scalar part of the program is run for each core; every tile instruction then charges its units: memory (shared by
all cores, read and written bytes counted once per distinct slice, because cores that read the same slice receive it
by multicast), PT, SFP, the LX port and the ring of its core. Units overlap inside a phase; phases follow one another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch_spyre.backend.affine import Affine
from torch_spyre.backend.assembler import (
    BarrierInst,
    CopyInst,
    EndIfInst,
    EndInst,
    EndLoopInst,
    Extent,
    IfInst,
    Instruction,
    LayoutMap,
    LoopInst,
    MatmulInst,
    Operand,
    Program,
    ReduceInst,
    RingSumInst,
    SopInst,
    VopInst,
)
from torch_spyre.backend.isa import VOP_NAMES, Sop, Space, format_bytes
from torch_spyre.formats import CODE
from torch_spyre.perf.device import Device, load

_SLOW = {"exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "div"}
_UNITS = ("pt", "sfp", "lx", "ring")


@dataclass
class Phase:
    """Work between two barriers."""

    read: dict[tuple[object, ...], int] = field(default_factory=dict)  # distinct slice -> bytes
    written: int = 0
    drawn: dict[int, int] = field(default_factory=dict)  # core -> memory bytes it moves
    busy: dict[str, dict[int, float]] = field(default_factory=lambda: {u: {} for u in _UNITS})  # unit -> core -> ns

    def charge(self, unit: str, core: int, ns: float) -> None:
        self.busy[unit][core] = self.busy[unit].get(core, 0.0) + ns

    def times(self, device: Device) -> dict[str, float]:
        """Nanoseconds each resource needs."""
        read, written = sum(self.read.values()), self.written
        memory = (read + written) / device["memory.bandwidth"]
        memory += device["memory.turnaround"] * min(read, written)
        times = {unit: max(cores.values(), default=0.0) for unit, cores in self.busy.items()}
        times["memory"] = memory
        times["draw"] = max(self.drawn.values(), default=0) / device["memory.core_draw"]
        return times


@dataclass(frozen=True)
class Timeline:
    """What `estimate` found. Times in nanoseconds."""

    duration_ns: float
    phases: tuple[tuple[float, str], ...]  # (duration, bottleneck)
    read_bytes: int
    written_bytes: int

    @property
    def bottleneck(self) -> str:
        total: dict[str, float] = {}
        for ns, unit in self.phases:
            total[unit] = total.get(unit, 0.0) + ns
        return max(total, key=lambda u: total[u]) if total else "launch"


def estimate(program: Program, scalars: Sequence[int] = (), device: Device | None = None) -> Timeline:
    """Time of one launch with the given integer launch scalars."""
    device = device or load()
    phases: list[Phase] = [Phase()]
    for core in range(program.cores):
        number = 0
        for instruction, registers in _walk(program.instructions, core, scalars):
            if isinstance(instruction, BarrierInst):
                number += 1
                if number == len(phases):
                    phases.append(Phase())
            else:
                _charge(phases[number], instruction, registers, core, device)
    rows = []
    for phase in phases:
        times = phase.times(device)
        unit = max(times, key=lambda u: times[u])
        rows.append((times[unit], unit))
    duration = device["launch.device"] * 1e3 + sum(ns for ns, _ in rows)
    read = sum(sum(p.read.values()) for p in phases)
    return Timeline(duration, tuple(rows), read, sum(p.written for p in phases))


def _value(affine: Affine, registers: dict[int, int]) -> int:
    return affine.const + sum(registers[r] * c for r, c in affine.terms)


def _extents(dims: Sequence[Extent], registers: dict[int, int]) -> list[int]:
    return [max(0, min(d.cap, _value(d.affine, registers))) for d in dims]


def _walk(
    instructions: Sequence[Instruction], core: int, scalars: Sequence[int]
) -> Iterator[tuple[Instruction, dict[int, int]]]:
    """Tile instructions and barriers of one core in execution order, with the registers they see."""
    registers = {0: core, **{i + 1: v for i, v in enumerate(scalars)}}
    jumps = _matching(instructions)
    pc = 0
    limits: dict[int, tuple[int, int]] = {}
    while pc < len(instructions):
        inst = instructions[pc]
        match inst:
            case EndInst():
                return
            case LoopInst():
                registers[inst.register] = _value(inst.first, registers)
                limits[pc] = (_value(inst.limit, registers), inst.step)
                if registers[inst.register] >= limits[pc][0]:
                    pc = jumps[pc]
            case EndLoopInst():
                start = jumps[pc]
                loop = instructions[start]
                assert isinstance(loop, LoopInst)
                limit, step = limits[start]
                registers[loop.register] += step
                if registers[loop.register] < limit:
                    pc = start
            case IfInst():
                if _value(inst.condition, registers) < 0:
                    pc = jumps[pc]
            case EndIfInst():
                pass
            case SopInst():
                registers[inst.register] = _sop(inst, registers)
            case _:
                yield inst, registers
        pc += 1


def _matching(instructions: Sequence[Instruction]) -> dict[int, int]:
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


def _sop(inst: SopInst, registers: dict[int, int]) -> int:
    a, b = _value(inst.a, registers), _value(inst.b, registers)
    match inst.op:
        case Sop.ADD:
            return a + b
        case Sop.SUB:
            return a - b
        case Sop.MUL:
            return a * b
        case Sop.FLOORDIV:
            return a // b
        case Sop.MOD:
            return a % b
        case Sop.MIN:
            return min(a, b)
    return max(a, b)


def _touched(operand: Operand, extents: Sequence[int]) -> int:
    """Elements of the operand that the box touches: dims it does not move along count once."""
    if isinstance(operand.maps, LayoutMap):
        return math.prod(n for n, s in zip(extents, operand.maps.strides, strict=True) if s)
    return math.prod(n for n, m in zip(extents, operand.maps, strict=True) if m.inner or m.outer)


def _charge(phase: Phase, inst: Instruction, registers: dict[int, int], core: int, device: Device) -> None:
    dims = getattr(inst, "dims", None)
    if dims is None:
        return
    extents = _extents(dims, registers)
    if 0 in extents:
        return
    points = math.prod(extents)
    match inst:
        case MatmulInst():
            _matmul(phase, inst, points, core, device)
            _move(phase, inst.c, extents, registers, core, device, output=True)
            operands: tuple[Operand, ...] = (inst.a, inst.b)
        case VopInst():
            name = VOP_NAMES[inst.op]
            rate = device[
                "sfp.transcendental" if name in _SLOW else "sfp.unary" if len(inst.inputs) == 1 else "sfp.simple"
            ]
            phase.charge("sfp", core, points / rate)
            _move(phase, inst.out, extents, registers, core, device, output=True)
            operands = inst.inputs
        case ReduceInst():
            phase.charge("sfp", core, points / device["sfp.reduce"])
            _move(phase, inst.out, extents, registers, core, device, output=True)
            operands = (inst.input,)
        case CopyInst():
            phase.charge("sfp", core, points / device["sfp.copy"])
            _move(phase, inst.out, extents, registers, core, device, output=True)
            operands = (inst.input,)
        case RingSumInst():
            total = points * format_bytes(inst.input.format)
            phase.charge("ring", core, (inst.count - 1) * total / device["ring.bandwidth"])
            phase.charge("sfp", core, inst.count * points / device["sfp.simple"])
            _move(phase, inst.out, extents, registers, core, device, output=True)
            operands = ()
        case _:
            return
    for operand in operands:
        _move(phase, operand, extents, registers, core, device, output=False)


def _matmul(phase: Phase, inst: MatmulInst, macs: int, core: int, device: Device) -> None:
    if inst.a.format == CODE["IEEE_FP32"]:
        phase.charge("sfp", core, macs / device["sfp.lanes_fp32_matmul"] / device["cores.clock"])
        return
    names = {CODE["SENINT8"]: "pt.macs_int8", CODE["SEN143_FP8"]: "pt.macs_fp8", CODE["SEN152_FP8"]: "pt.macs_fp8"}
    rate = device[names.get(inst.a.format, "pt.macs_fp16")] * device["cores.clock"]
    phase.charge("pt", core, macs / rate * (1 + device["pt.reload"]))


def _move(
    phase: Phase,
    operand: Operand,
    extents: Sequence[int],
    registers: dict[int, int],
    core: int,
    device: Device,
    output: bool,
) -> None:
    """Charges the bytes of one operand to memory or to the LX port."""
    if operand.space in (Space.IMM, Space.SCALAR, Space.CONST):
        return
    count = _touched(operand, extents) * format_bytes(operand.format)
    if operand.space is Space.LX_REMOTE:
        phase.charge("ring", core, count / device["ring.bandwidth"])
        return
    if operand.space is Space.LX:
        phase.charge("lx", core, count / (device["cores.lx_port"] * device["cores.clock"]))
        return
    phase.drawn[core] = phase.drawn.get(core, 0) + count
    if output:
        phase.written += count
    else:
        where = operand.maps.offset if isinstance(operand.maps, LayoutMap) else operand.offset
        phase.read[(operand.index, _value(where, registers), count)] = count
