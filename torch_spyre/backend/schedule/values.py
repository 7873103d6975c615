# SPDX-License-Identifier: Apache-2.0
"""What the selector knows of a tensor value, and small questions about operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_spyre.backend.addressing.access_tiles import Tile
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import DimMap, Extent, LayoutMap, Operand
from torch_spyre.backend.program.isa import Space, format_bytes
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.ir.affine import Affine, is_scratch


@dataclass(frozen=True)
class Splat:
    """All elements equal: a number, or launch scalar `scalar`. Neither: contents undefined (tensor.empty)."""

    element: str
    value: float | int | None = None
    scalar: int | None = None
    dims: tuple[Extent, ...] | None = None

    @property
    def undefined(self) -> bool:
        return self.value is None and self.scalar is None


Value = Tile | Splat


def embed(operand: Operand, positions: Sequence[int], rank: int) -> Operand:
    """The operand in an instruction of `rank` dims, where its own dims stand at `positions`."""
    maps = operand.maps
    assert not isinstance(maps, LayoutMap)
    if not maps:  # a scalar stands for all elements
        return replace(operand, maps=(DimMap(),) * rank)
    if list(positions) == list(range(rank)) and len(maps) == rank:
        return operand
    wide = [DimMap()] * rank
    for position, dim_map in zip(positions, maps, strict=True):
        wide[position] = dim_map
    return replace(operand, maps=tuple(wide))


def outputs_of(inst: asm.Instruction) -> tuple[Operand, ...]:
    match inst:
        case asm.VopInst() | asm.ReduceInst() | asm.CopyInst() | asm.RingSumInst():
            return (inst.out,)
        case asm.MatmulInst():
            return (inst.c,)
        case asm.GatherInst() | asm.IotaInst() | asm.ScanInst():
            return (inst.out,)
        case asm.ScatterInst():
            return (inst.table,)
        case asm.ArgReduceInst() | asm.SortInst():
            return tuple(o for o in (inst.out_index, inst.out_value) if o is not None)
    return ()


def inputs_of(inst: asm.Instruction) -> tuple[Operand, ...]:
    match inst:
        case asm.VopInst():
            return inst.inputs
        case asm.ReduceInst():
            return (inst.input, inst.out) if inst.accumulate else (inst.input,)
        case asm.MatmulInst():
            return (inst.a, inst.b, inst.c) if inst.accumulate else (inst.a, inst.b)
        case asm.CopyInst() | asm.RingSumInst():
            return (inst.input,)
        case asm.GatherInst():
            return (inst.table, *(index.operand for index in inst.indices))
        case asm.ScatterInst():
            table = (inst.table,) if inst.accumulate else ()
            return (inst.source, *(index.operand for index in inst.indices), *table)
        case asm.ScanInst() | asm.ArgReduceInst() | asm.SortInst():
            return (inst.source,)
    return ()


_OPERAND_FIELDS = ("out", "c", "a", "b", "input", "table", "source", "out_index", "out_value")


def map_operands(inst: asm.Instruction, change: Callable[[Operand], Operand]) -> asm.Instruction:
    """The instruction with every operand replaced."""
    changes: dict[str, Any] = {}
    for name in _OPERAND_FIELDS:
        operand = getattr(inst, name, None)
        if isinstance(operand, Operand):
            changes[name] = change(operand)
    if isinstance(inst, asm.VopInst):
        changes["inputs"] = tuple(change(o) for o in inst.inputs)
    elif isinstance(inst, asm.GatherInst | asm.ScatterInst):
        changes["indices"] = tuple(replace(index, operand=change(index.operand)) for index in inst.indices)
    return replace(inst, **changes) if changes else inst


def is_linear(operand: Operand) -> bool:
    return not isinstance(operand.maps, LayoutMap) and not any(m.block for m in operand.maps)


def sub_box(operand: Operand, start: Sequence[Affine]) -> Operand:
    """The operand from a point of its box on; its maps are linear."""
    offset = operand.offset
    assert is_linear(operand)
    for first, dim_map in zip(start, operand.maps, strict=True):  # type: ignore[arg-type]
        offset = offset + first * dim_map.inner
    return replace(operand, offset=offset)


def reach(operand: Operand, box: Sequence[Extent]) -> tuple[int, int]:
    """First and past-the-last byte relative to the operand's offset."""
    low, high = 0, format_bytes(operand.format)
    if isinstance(operand.maps, LayoutMap):
        return low, high + sum((extent - 1) * stride for _, extent, stride in operand.maps.dims)
    for dim_map, extent in zip(operand.maps, box, strict=True):
        last = max(extent.cap - 1, 0)
        if dim_map.block:
            ends = [min(last, dim_map.block - 1) * dim_map.inner, last // dim_map.block * dim_map.outer]
        else:
            ends = [last * dim_map.inner]
        low += sum(e for e in ends if e < 0)
        high += sum(e for e in ends if e > 0)
    return low, high


def may_overlap(a: Operand, b: Operand, box: Sequence[Extent], stream: Stream) -> bool:
    """True if two operands of one instruction may share bytes on a core."""
    if a.space != b.space or a.space not in (Space.MEM, Space.LX) or (a.space is Space.MEM and a.index != b.index):
        return False
    if _scratch_of(a) != _scratch_of(b):
        return False
    low, high = stream.bounds(b.offset - a.offset)
    if low is None or high is None:
        return True
    (a_low, a_high), (b_low, b_high) = reach(a, box), reach(b, box)
    return low + b_low < a_high and a_low < high + b_high


def _scratch_of(operand: Operand) -> list[int]:
    return [symbol for symbol, _ in operand.offset.terms if is_scratch(symbol)]


def clobbers(
    out: Operand, inputs: Iterable[Operand], box: Sequence[Extent], stream: Stream, element_for_element: bool
) -> bool:
    """True if writing `out` may change an input that is still to be read.

    An instruction that works `element_for_element` may write over an input with the very same addresses.
    """
    for operand in inputs:
        same = operand.offset == out.offset and operand.maps == out.maps
        if same and element_for_element and format_bytes(operand.format) == format_bytes(out.format):
            continue
        if may_overlap(out, operand, box, stream):
            return True
    return False
