# SPDX-License-Identifier: Apache-2.0
"""Tile instructions of tensors with many dims: a dim that is cut has two, and an instruction has no more than eight.

Enters: an instruction. Leaves: the same with dims of one step left out, and dims that follow each other in every
operand as one. The dim along which an instruction scans, sorts or searches stays as it is, and where the order of
elements decides (sums, the last write of a scatter), only dims that follow each other there too become one. Where more
than eight are left, an instruction whose elements do not depend on each other is done in a loop over one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

from torch_spyre.backend.program.instructions import (
    ArgReduceInst,
    CopyInst,
    DimMap,
    Extent,
    GatherInst,
    IndexOperand,
    Instruction,
    IotaInst,
    LayoutMap,
    Operand,
    ReduceInst,
    RingSumInst,
    ScanInst,
    ScatterInst,
    SortInst,
    VopInst,
)
from torch_spyre.backend.program.isa import MAX_DIMS
from torch_spyre.ir.affine import ZERO, Affine

Maps = tuple[DimMap, ...] | LayoutMap
Change = Callable[[Maps], Maps | None]  # None: it cannot be done
Start = Callable[[Operand], Operand | None]

# The fields of an instruction that have a map for each dim. A product has three dims by nature.
_FIELDS: dict[type[Instruction], tuple[str, ...]] = {
    VopInst: ("out", "inputs"),
    CopyInst: ("out", "input"),
    ReduceInst: ("out", "input"),
    RingSumInst: ("out", "input"),
    GatherInst: ("out", "table", "indices"),
    ScatterInst: ("table", "source", "indices"),
    IotaInst: ("out", "steps"),
    ScanInst: ("out", "source"),
    ArgReduceInst: ("out_index", "out_value", "source"),
    SortInst: ("out_value", "out_index", "source"),
}


def fewer_dims(inst: Any) -> Any:
    while type(inst) in _FIELDS and len(inst.dims) > MAX_DIMS:
        shorter = _without_single(inst) or _joined(inst)
        if shorter is None:
            break
        inst = shorter
    return inst


def dim_to_loop_over(inst: Any) -> int | None:
    """The shortest dim that a loop can take, if the instruction has too many dims; None if it has not."""
    if type(inst) not in _FIELDS or len(inst.dims) <= MAX_DIMS:
        return None
    able = [at for at, extent in enumerate(inst.dims) if extent.is_const and in_loop(inst, at, ZERO) is not None]
    return min(able, key=lambda at: inst.dims[at].cap, default=None)


def in_loop(inst: Any, at: int, counter: Affine) -> Any:
    """The instruction at one step of a dim; None if it cannot be done step by step along it."""
    if isinstance(inst, ScatterInst | RingSumInst | IotaInst) or at == getattr(inst, "dim", None):
        return None
    if isinstance(inst, ReduceInst) and inst.mask >> at & 1:
        return None
    return _changed(inst, at, list(inst.dims), partial(_without, at=at), partial(_moved, at=at, counter=counter))


def _moved(operand: Operand, at: int, counter: Affine) -> Operand | None:
    """The operand from that step of the dim on; None if the dim is cut into blocks."""
    maps = operand.maps
    if not maps:
        return operand
    if isinstance(maps, LayoutMap):
        return replace(operand, maps=replace(maps, offset=maps.offset + counter * maps.strides[at]))
    return None if maps[at].block else replace(operand, offset=operand.offset + counter * maps[at].inner)


def _without_single(inst: Any) -> Any:
    for at, extent in enumerate(inst.dims):
        if extent.is_const and extent.affine.const == 1 and at != getattr(inst, "dim", None):
            return _changed(inst, at, list(inst.dims), partial(_without, at=at))
    return None


def _joined(inst: Any) -> Any:
    """The first two dims of which one continues the other everywhere, as one dim in the place of the inner one."""
    for outer, inner in permutations(range(len(inst.dims)), 2):
        if not (inst.dims[outer].is_const and inst.dims[inner].is_const and _may_join(inst, outer, inner)):
            continue
        steps = inst.dims[inner].affine.const
        dims = list(inst.dims)
        dims[inner] = Extent.of(steps * inst.dims[outer].affine.const)
        found = _changed(inst, outer, dims, partial(_continued, outer=outer, inner=inner, steps=steps))
        if found is not None:
            return found
    return None


def _may_join(inst: Any, outer: int, inner: int) -> bool:
    if getattr(inst, "dim", None) in (outer, inner):
        return False
    if isinstance(inst, ScatterInst):
        return outer + 1 == inner
    if not isinstance(inst, ReduceInst):
        return True
    reduced = [inst.mask >> i & 1 for i in range(len(inst.dims))]
    if reduced[outer] != reduced[inner]:
        return False
    return not reduced[outer] or (outer < inner and not any(reduced[outer + 1 : inner]))


def _changed(inst: Any, gone: int, dims: list[Extent], change: Change, start: Start = lambda operand: operand) -> Any:
    """The instruction without the dim `gone`, its operands moved and their maps changed; None if one cannot be."""
    fields: dict[str, Any] = {}
    for name in _FIELDS[type(inst)]:
        value = _of_field(getattr(inst, name), change, start)
        if value is NotImplemented:
            return None
        fields[name] = value
    if isinstance(inst, ReduceInst):
        low = (1 << gone) - 1
        fields["mask"] = inst.mask & low | inst.mask >> 1 & ~low
    elif hasattr(inst, "dim"):
        fields["dim"] = inst.dim - (gone < inst.dim)
    return replace(inst, dims=(*dims[:gone], *dims[gone + 1 :]), **fields)


def _of_field(value: Any, change: Change, start: Start) -> Any:
    """A field with its operands moved and their maps changed; NotImplemented if one of them cannot be."""
    if value is None:
        return None
    if isinstance(value, Operand):
        moved = start(value)
        maps = None if moved is None else change(moved.maps)
        return NotImplemented if moved is None or maps is None else replace(moved, maps=maps)
    if isinstance(value, IndexOperand):
        operand = _of_field(value.operand, change, start)
        return NotImplemented if operand is NotImplemented else replace(value, operand=operand)
    if value and isinstance(value[0], DimMap):
        steps = change(value)
        return NotImplemented if steps is None else steps
    parts = tuple(_of_field(part, change, start) for part in value)
    return NotImplemented if NotImplemented in parts else parts


def _without(maps: Maps, at: int) -> Maps:
    if isinstance(maps, LayoutMap):
        return replace(maps, strides=(*maps.strides[:at], *maps.strides[at + 1 :]))
    return (*maps[:at], *maps[at + 1 :])


def _continued(maps: Maps, outer: int, inner: int, steps: int) -> Maps | None:
    if isinstance(maps, LayoutMap):
        return _without(maps, outer) if maps.strides[outer] == maps.strides[inner] * steps else None
    if not maps:
        return maps
    high, low = maps[outer], maps[inner]
    if high.block or (low.block and steps % low.block):
        return None
    reach = low.outer * (steps // low.block) if low.block else low.inner * steps
    return _without(maps, outer) if high.inner == reach else None
