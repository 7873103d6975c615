# SPDX-License-Identifier: Apache-2.0
"""Loop absorption: a loop whose iterations do not depend on each other becomes a dim of its instructions.

Enters: instructions whose scratch has no addresses yet. A loop over rows turns into few instructions over many rows:
its counter moves the operands by a fixed step, which is a map of one more dim; temporaries of one iteration get one
place per row. Rows are taken in blocks, so that temporaries stay near. A loop that only adds products along K becomes
one product. Each element is computed by the same operations in the same order, so the bits stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

from torch_spyre import constants
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import DimMap, Extent, Instruction, LayoutMap, Operand
from torch_spyre.backend.program.isa import MAX_DIMS, Space
from torch_spyre.backend.schedule.scratch import Scratch
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.backend.schedule.values import inputs_of, map_operands, outputs_of, reach
from torch_spyre.ir.affine import ZERO, Affine, is_scratch, scratch_symbol

_ROWS = (asm.VopInst, asm.CopyInst, asm.ReduceInst, asm.MatmulInst, asm.GatherInst, asm.IotaInst)
_NEAR_BYTES = 256 << 10  # temporaries of a block of rows
_MAX_ELEMENTS = 1 << 16  # larger tiles gain nothing


@dataclass
class _Loop:
    """A loop of tile instructions only: ``register = first + step * t`` for t below `trips`."""

    start: int
    stop: int  # position of its end
    register: int
    first: Affine
    step: int
    trips: Extent
    body: list[Any]


def absorb(
    instructions: list[Instruction], scratch: Scratch, stream: Stream, span: float = constants.MAX_SPAN_BYTES
) -> list[Instruction]:
    """Takes loops from the innermost out, as long as they can be absorbed into instructions that stay in the span."""
    position = 0
    while position < len(instructions):
        loop = _loop_at(instructions, position, stream)
        taken = None if loop is None else (_as_product(loop, span) or _as_rows(loop, instructions, scratch, span))
        if loop is None or taken is None:
            position += 1
            continue
        instructions = [*instructions[: loop.start], *taken, *instructions[loop.stop + 1 :]]
        # The loop around it may be next.
        around = (i for i in range(loop.start - 1, -1, -1) if isinstance(instructions[i], asm.LoopInst))
        position = next(around, loop.start)
    return instructions


def _loop_at(instructions: list[Instruction], start: int, stream: Stream) -> _Loop | None:
    head = instructions[start]
    if not isinstance(head, asm.LoopInst):
        return None
    stop = start + 1
    while isinstance(instructions[stop], _ROWS):
        stop += 1
    if not isinstance(instructions[stop], asm.EndLoopInst) or stop == start + 1:
        return None
    distance = head.limit - head.first
    if distance.is_const:
        count = max(0, -(-distance.const // head.step))
        trips = Extent.of(count)
    else:
        low, high = stream.bounds(distance)
        if high is None or high <= 0:
            return None
        if low is not None and -(-low // head.step) == -(-high // head.step):  # as often on every core
            trips = Extent.of(-(-high // head.step))
        elif head.step == 1:
            trips = Extent(distance, high)
        else:
            return None
    return _Loop(start, stop, head.register, head.first, head.step, trips, list(instructions[start + 1 : stop]))


def _coefficient(affine: Affine, register: int) -> int:
    return affine.coefficient(register)


def _operands(inst: Instruction) -> tuple[Operand, ...]:
    return (*outputs_of(inst), *inputs_of(inst))


def _scratch_of(operand: Operand) -> list[int]:
    return [s for s, _ in operand.offset.terms if is_scratch(s)]


def _within(inst: Any, span: float) -> bool:
    """Does the instruction stay within the span in every tensor?"""
    reached = (reach(o, inst.dims) for o in _operands(inst) if o.space is Space.MEM)
    return all(high - low <= span for low, high in reached)


# -- rows --------------------------------------------------------------------------------------------------------------


def _as_rows(loop: _Loop, instructions: list[Instruction], scratch: Scratch, span: float) -> list[Instruction] | None:
    if not all(_may_widen(inst, loop.register) for inst in loop.body):
        return None
    private = _private(loop, instructions)
    if private is None or not _independent(loop):
        return None
    size = sum(scratch.sizes[scratch_symbol(0) - s] for s in private)
    cap = loop.trips.cap
    block = min(cap, max(1, _NEAR_BYTES // size)) if size else cap
    if cap < 2 or block < 2:
        return None
    # With blocks, the register counts rows in steps of a block; without, it is not needed any more.
    blocks = block < cap
    row = Affine.symbol(loop.register) if blocks else ZERO
    rows = Extent(loop.trips.affine - row, block) if blocks or not loop.trips.is_const else loop.trips
    body = [_widen(inst, loop, private, scratch, row, rows) for inst in loop.body]
    if not all(_within(inst, span) for inst in body):
        return None
    for symbol in private:
        scratch.sizes[scratch_symbol(0) - symbol] *= block
    if not blocks:
        return body
    head = asm.LoopInst(loop.register, ZERO, loop.trips.affine, block, origin=loop.body[0].origin)
    return [head, *body, asm.EndLoopInst()]


def _may_widen(inst: Any, register: int) -> bool:
    if len(inst.dims) >= MAX_DIMS or any(_coefficient(extent.affine, register) for extent in inst.dims):
        return False
    elements = 1
    for extent in inst.dims:
        elements *= max(extent.cap, 1)
    if elements > _MAX_ELEMENTS:
        return False
    for operand in _operands(inst):
        if isinstance(operand.maps, LayoutMap) or operand.space is Space.LX_REMOTE:
            return False
    return True


def _private(loop: _Loop, instructions: list[Instruction]) -> list[int] | None:
    """Scratch that lives within one iteration; None if the loop writes scratch that lives on."""
    inside: dict[int, bool] = {}
    for inst in loop.body:
        written = {s for o in outputs_of(inst) for s in _scratch_of(o)}
        for operand in _operands(inst):
            for symbol in _scratch_of(operand):
                inside[symbol] = inside.get(symbol, False) or symbol in written
    outside: set[int] = set()
    for index, inst in enumerate(instructions):
        if not loop.start <= index <= loop.stop:
            outside |= {s for o in _operands(inst) for s in _scratch_of(o)}
    if any(written and symbol in outside for symbol, written in inside.items()):
        return None
    return [symbol for symbol in inside if symbol not in outside]


def _independent(loop: _Loop) -> bool:
    """True if what an iteration writes outside scratch is not touched by any other."""
    touched: dict[tuple[Space, int], list[tuple[Operand, tuple[Extent, ...], bool]]] = {}
    for inst in loop.body:
        outputs = outputs_of(inst)
        for operand in _operands(inst):
            if operand.space in (Space.MEM, Space.LX) and not _scratch_of(operand):
                key = (operand.space, operand.index)
                touched.setdefault(key, []).append((operand, inst.dims, operand in outputs))
    for uses in touched.values():
        if not any(written for _, _, written in uses):
            continue
        base = uses[0][0].offset
        stride = abs(_coefficient(base, loop.register) * loop.step)
        lows, highs = [], []
        for operand, dims, _ in uses:
            distance = operand.offset - base
            if not distance.is_const:
                return False
            low, high = reach(operand, dims)
            lows.append(distance.const + low)
            highs.append(distance.const + high)
        if max(highs) - min(lows) > stride:
            return False
    return True


def _widen(inst: Any, loop: _Loop, private: list[int], scratch: Scratch, row: Affine, rows: Extent) -> Instruction:
    """The instruction over all rows of a block, as its first dim."""

    def change(operand: Operand) -> Operand:
        if operand.space in (Space.IMM, Space.SCALAR):
            return operand
        own = [s for s in _scratch_of(operand) if s in private]
        offset, stride = _moved(operand.offset, loop, row)
        if own:
            stride = scratch.sizes[scratch_symbol(0) - own[0]]
        return replace(operand, offset=offset, maps=(DimMap(stride), *operand.maps))  # type: ignore[misc]

    changed: Any = replace(map_operands(inst, change), dims=(rows, *inst.dims))  # type: ignore[call-arg]
    if isinstance(changed, asm.ReduceInst):
        changed = replace(changed, mask=changed.mask << 1)
    elif isinstance(changed, asm.IotaInst):
        start, step = _moved(inst.start, loop, row)
        changed = replace(changed, start=start, steps=(DimMap(step), *inst.steps))
    elif isinstance(changed, asm.MatmulInst):
        return _rows_into_m(changed)
    return _without_unit_dims(changed)


def _moved(offset: Affine, loop: _Loop, row: Affine) -> tuple[Affine, int]:
    """An offset at the first row of a block, and its step from row to row."""
    factor = _coefficient(offset, loop.register)
    if not factor:
        return offset, 0
    fixed = offset - Affine.symbol(loop.register, factor)
    return fixed + loop.first * factor + row * (factor * loop.step), factor * loop.step


def _rows_into_m(inst: asm.MatmulInst) -> asm.MatmulInst:
    """Rows of one matrix rather than a batch, where b is the same for all and a and c simply go on."""
    m = len(inst.dims) - 3 - inst.taps
    height = inst.dims[m]
    maps: list[Any] = [operand.maps for operand in (inst.c, inst.a, inst.b)]
    if m != 1 or not height.is_const or maps[2][0] != DimMap():
        return inst
    for own in maps[:2]:
        if height.cap != 1 and own[0].inner != own[m].inner * height.cap:
            return inst
    rows = inst.dims[0]
    dims = (Extent(rows.affine * height.cap, rows.cap * height.cap), *inst.dims[2:])
    c, a = (
        replace(operand, maps=(own[0] if height.cap == 1 else own[m], *own[2:]))
        for operand, own in ((inst.c, maps[0]), (inst.a, maps[1]))
    )
    return replace(inst, dims=dims, c=c, a=a, b=replace(inst.b, maps=maps[2][1:]))


def _without_unit_dims(inst: Any) -> Instruction:
    """Drops dims of one element."""
    kept = [d for d, extent in enumerate(inst.dims) if not (extent.is_const and extent.cap == 1)]
    if len(kept) == len(inst.dims):
        return cast(Instruction, inst)

    def change(operand: Operand) -> Operand:
        if operand.space in (Space.IMM, Space.SCALAR):
            return operand
        return replace(operand, maps=tuple(operand.maps[d] for d in kept))  # type: ignore[index]

    changed: Any = replace(map_operands(inst, change), dims=tuple(inst.dims[d] for d in kept))  # type: ignore[call-arg]
    if isinstance(changed, asm.ReduceInst):
        changed = replace(changed, mask=sum(1 << i for i, d in enumerate(kept) if inst.mask >> d & 1))
    elif isinstance(changed, asm.IotaInst):
        changed = replace(changed, steps=tuple(inst.steps[d] for d in kept))
    return cast(Instruction, changed)


# -- products ----------------------------------------------------------------------------------------------------------


def _as_product(loop: _Loop, span: float) -> list[Instruction] | None:
    """A loop of one product that adds to c, with a and b going on along k: one product over all of k."""
    (inst, *more) = loop.body
    if more or not isinstance(inst, asm.MatmulInst) or not inst.accumulate or inst.taps or not loop.trips.is_const:
        return None
    depth = inst.dims[-1]
    fixed = [inst.c.offset, *(extent.affine for extent in inst.dims)]
    if not depth.is_const or any(_coefficient(affine, loop.register) for affine in fixed) or not loop.trips.cap:
        return None
    operands = []
    for operand in (inst.a, inst.b):
        maps: Any = operand.maps
        offset, stride = _moved(operand.offset, loop, ZERO)
        along = maps[-1]
        if isinstance(maps, LayoutMap) or operand.space is Space.LX_REMOTE or along.block:
            return None
        if stride != along.inner * depth.cap or any(is_scratch(s) for s, _ in operand.offset.terms):
            return None
        operands.append(replace(operand, offset=offset))
    dims = (*inst.dims[:-1], Extent.of(depth.cap * loop.trips.cap))
    product = replace(inst, dims=dims, a=operands[0], b=operands[1])
    return [product] if _within(product, span) else None
