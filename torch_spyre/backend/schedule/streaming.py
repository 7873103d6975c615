# SPDX-License-Identifier: Apache-2.0
"""Streaming: chains whose temporaries do not fit LX run strip by strip.

Enters: instructions whose scratch has no addresses yet. A run of tile instructions that hand temporaries to each other
is put into a loop over strips of a dim that all of them have and none of them combines; temporaries shrink to one
strip. Every element is still computed by the same operations in the same order, so the bits stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import DimMap, Extent, Instruction, LayoutMap, Operand
from torch_spyre.backend.program.isa import Sop, Space
from torch_spyre.backend.schedule.scratch import Scratch
from torch_spyre.backend.schedule.values import inputs_of, map_operands, outputs_of
from torch_spyre.ir.affine import Affine, is_scratch, scratch_symbol

_TILE = (
    asm.VopInst,
    asm.CopyInst,
    asm.ReduceInst,
    asm.MatmulInst,
    asm.IotaInst,
    asm.GatherInst,
    asm.ScanInst,
    asm.ArgReduceInst,
    asm.SortInst,
)

_Lives = dict[int, tuple[int, int]]  # symbol of scratch -> positions of the first and the last instruction that name it


@dataclass
class _Run:
    """A run of instructions, the strip dim of each, and the scratch that shrinks: symbol -> stride along that dim."""

    start: int
    stop: int
    dims: list[int] = field(default_factory=list)
    strides: dict[int, int] = field(default_factory=dict)
    extent: Extent = field(default_factory=lambda: Extent.of(1))
    unit: int = 1  # strips are multiples of this


def stream(
    instructions: list[Instruction], scratch: Scratch, registers: int, room: int
) -> tuple[list[Instruction], int]:
    """Puts runs of instructions into loops until their temporaries fit into `room` bytes; also the registers used."""
    if sum(scratch.sizes) > room // 2:
        instructions = _numbers_first(instructions)
    position = 0
    lives = _lives(instructions)
    while position < len(instructions):
        runs = _find_runs(instructions, lives, position)
        if not runs:
            position += 1
            continue
        heights = [(run, _height(run, scratch, instructions, room)) for run in runs]
        run, height = next(((r, h) for r, h in heights if h is not None), heights[0])
        if height is None:
            position = run.stop
            continue
        body = _strips(instructions[run.start : run.stop], run, scratch, registers, height)
        instructions = [*instructions[: run.start], *body, *instructions[run.stop :]]
        lives = _lives(instructions)
        registers += sum(isinstance(inst, (asm.LoopInst, asm.SopInst)) for inst in body)
        position = run.start + len(body)
    return instructions, registers


def _numbers_first(instructions: list[Instruction]) -> list[Instruction]:
    """Numbers that are the same for all elements before the tiles that do not use them, so that they cut no run."""
    result: list[Instruction] = []
    for inst in instructions:
        place = len(result)
        if isinstance(inst, asm.IotaInst) and not inst.dims:
            own = {s for operand in outputs_of(inst) for s in _symbols(operand)}
            while own and place and isinstance(result[place - 1], _TILE) and not own & _mentioned(result[place - 1]):
                place -= 1
        result.insert(place, inst)
    return result


def _mentioned(inst: Instruction) -> set[int]:
    return {s for operand in (*outputs_of(inst), *inputs_of(inst)) for s in _symbols(operand)}


def _symbols(operand: Operand) -> list[int]:
    return [s for s, _ in operand.offset.terms if is_scratch(s)]


def _size(symbol: int, scratch: Scratch) -> int:
    return scratch.sizes[scratch_symbol(0) - symbol]


# -- finding runs ------------------------------------------------------------------------------------------------------


def _find_runs(instructions: list[Instruction], lives: _Lives, start: int) -> list[_Run]:
    """The longest runs from `start` on that can be cut along some dim of their first instruction, one for each dim."""
    first = instructions[start]
    if not isinstance(first, _TILE):
        return []
    grown = [_grow(instructions, lives, start, dim) for dim in range(len(first.dims))]
    runs = [run for run in grown if run is not None]
    return [run for run in runs if run.stop == max(r.stop for r in runs)]


def _grow(instructions: list[Instruction], lives: _Lives, start: int, dim: int) -> _Run | None:
    first: Any = instructions[start]
    run = _Run(start, start, extent=first.dims[dim])
    complete = 0
    for index in range(start, len(instructions)):
        inst: Any = instructions[index]
        if not isinstance(inst, _TILE) or not _add(run, inst, index, dim if index == start else None):
            break
        run.stop = index + 1
        if all(lives[s][1] <= index for s in run.strides) and run.strides:
            complete = index + 1
    if complete <= start + 1:
        return None
    run.stop = complete
    del run.dims[complete - start :]
    return run if all(lives[s][0] >= start for s in run.strides) else None


def _lives(instructions: Sequence[Instruction]) -> _Lives:
    found: _Lives = {}
    for index, inst in enumerate(instructions):
        for symbol in _mentioned(inst):
            found[symbol] = found.get(symbol, (index,))[0], index
    return found


def _add(run: _Run, inst: Any, index: int, dim: int | None) -> bool:
    """Tries to append an instruction: finds its strip dim and checks that strips do not disturb each other."""
    if dim is None:
        dim = _strip_dim(run, inst)
    if dim is None or inst.dims[dim] != run.extent or _combines(inst, dim):
        return False
    operands = [*outputs_of(inst), *inputs_of(inst)]
    strides: dict[int, int] = {}
    unit = 1
    for operand in operands:
        if isinstance(operand.maps, LayoutMap):
            return False
        if operand.space in (Space.IMM, Space.SCALAR):
            continue
        dim_map = operand.maps[dim]
        if dim_map.block:
            unit = math.lcm(unit, dim_map.block)
        for symbol in _symbols(operand):
            known = run.strides.get(symbol, strides.get(symbol))
            if dim_map.block or (known is not None and known != dim_map.inner):
                return False
            if operand in outputs_of(inst) or known is not None:
                if dim_map.inner == 0:
                    return False
                strides[symbol] = dim_map.inner
    run.dims.append(dim)
    run.strides.update(strides)
    run.unit = math.lcm(run.unit, unit)
    return True


def _strip_dim(run: _Run, inst: Any) -> int | None:
    """The dim along which the instruction walks through the run's temporaries."""
    for operand in (*outputs_of(inst), *inputs_of(inst)):
        for symbol in _symbols(operand):
            stride = run.strides.get(symbol)
            if stride is None or isinstance(operand.maps, LayoutMap):
                continue
            for d, dim_map in enumerate(operand.maps):
                if dim_map == DimMap(stride) and inst.dims[d] == run.extent:
                    return d
    return None


def _combines(inst: Any, dim: int) -> bool:
    """True if the instruction combines elements along the dim."""
    match inst:
        case asm.ReduceInst():
            return bool(inst.mask >> dim & 1)
        case asm.MatmulInst():
            return dim >= len(inst.dims) - 1 - inst.taps
        case asm.ScanInst() | asm.ArgReduceInst() | asm.SortInst():
            return dim == inst.dim
        case asm.IotaInst():
            return bool(inst.steps[dim].block)
    return False


def _disturbs(run: _Run, instructions: Sequence[Instruction]) -> bool:
    """True if one strip writes bytes outside scratch that another strip of the run touches."""
    touched = []
    for inst, dim in zip(instructions[run.start : run.stop], run.dims, strict=True):
        outs = outputs_of(inst)
        touched += [(o, dim, o in outs) for o in (*outs, *inputs_of(inst)) if o.space in (Space.MEM, Space.LX)]
    for operand, dim, written in touched:
        if not written or _symbols(operand):
            continue
        for other, other_dim, _ in touched:
            same_space = other.space == operand.space and other.index == operand.index and not _symbols(other)
            if not same_space:
                continue
            aligned = other.offset == operand.offset and other.maps[other_dim] == operand.maps[dim]  # type: ignore[index]
            if not aligned:
                return True
    return False


# -- cutting -----------------------------------------------------------------------------------------------------------


def _height(run: _Run, scratch: Scratch, instructions: list[Instruction], room: int) -> int | None:
    """Rows per strip; None if the run is better left alone."""
    total = sum(_size(s, scratch) for s in run.strides)
    cap = run.extent.cap
    if total <= room // 2 or cap <= 1 or _disturbs(run, instructions):
        return None
    if any(stride * cap > _size(s, scratch) for s, stride in run.strides.items()):
        return None
    rows = int(cap * (room // 2) / total) // run.unit * run.unit
    return min(rows, cap) if rows >= 1 else None


def _strips(body: list[Instruction], run: _Run, scratch: Scratch, register: int, height: int) -> list[Instruction]:
    cap, rows = run.extent.cap, run.extent.affine
    result: list[Instruction] = []
    if not rows.is_const and cap % height:  # the last strip ends with the slice, however much is behind it
        result.append(asm.SopInst(register, Sop.MIN, rows, Affine(cap), origin=body[0].origin))
        rows, register = Affine.symbol(register), register + 1
    strip = Affine.symbol(register)
    extent = Extent(rows - strip * height, height)
    result.append(asm.LoopInst(register, Affine(0), Affine(-(-cap // height)), 1, origin=body[0].origin))
    for inst, dim in zip(body, run.dims, strict=True):
        result.append(_strip(inst, dim, run, strip, height, extent))
    result.append(asm.EndLoopInst())
    for symbol in run.strides:
        number = scratch_symbol(0) - symbol
        scratch.sizes[number] = -(-scratch.sizes[number] * height // cap // 128) * 128
    return result


def _strip(inst: Any, dim: int, run: _Run, strip: Affine, height: int, extent: Extent) -> Instruction:
    def change(operand: Operand) -> Operand:
        if operand.space in (Space.IMM, Space.SCALAR):
            return operand
        maps: Any = operand.maps
        own = [s for s in _symbols(operand) if s in run.strides]
        if own:
            stride = run.strides[own[0]]
            return replace(operand, maps=tuple(_shrunk(m, stride, run.extent.cap, height) for m in maps))
        dim_map = maps[dim]
        step = height // dim_map.block * dim_map.outer if dim_map.block else height * dim_map.inner
        return replace(operand, offset=operand.offset + strip * step)

    dims = tuple(extent if d == dim else e for d, e in enumerate(inst.dims))
    changed = replace(map_operands(inst, change), dims=dims)  # type: ignore[call-arg]
    if isinstance(changed, asm.IotaInst):
        changed = replace(changed, start=changed.start + strip * (height * changed.steps[dim].inner))
    return changed


def _shrunk(dim_map: DimMap, stride: int, cap: int, height: int) -> DimMap:
    """Strides beyond the strip dim shrink with it."""
    if dim_map.inner >= stride * cap and dim_map.inner % (stride * cap) == 0:
        return replace(dim_map, inner=dim_map.inner // cap * height)
    return dim_map
