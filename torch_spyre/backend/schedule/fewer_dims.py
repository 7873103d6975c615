# SPDX-License-Identifier: Apache-2.0
"""Tile instructions of tensors with many dims: a dim that is cut has two, and an instruction has no more than eight.

Enters: an instruction that computes or copies element by element. Leaves: the same with dims of one step left out, and
dims that follow each other in every operand as one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from torch_spyre.backend.program.instructions import CopyInst, Extent, Instruction, LayoutMap, Operand, VopInst
from torch_spyre.backend.program.isa import MAX_DIMS


def fewer_dims(inst: Instruction) -> Instruction:
    while isinstance(inst, (VopInst, CopyInst)) and len(inst.dims) > MAX_DIMS:
        shorter = _without_single(inst) or _joined(inst)
        if shorter is None:
            break
        inst = shorter
    return inst


def _operands(inst: VopInst | CopyInst) -> list[Operand]:
    return [inst.out, *inst.inputs] if isinstance(inst, VopInst) else [inst.out, inst.input]


def _rebuilt(inst: VopInst | CopyInst, dims: list[Extent], operands: list[Operand]) -> VopInst | CopyInst:
    if isinstance(inst, VopInst):
        return replace(inst, dims=tuple(dims), out=operands[0], inputs=tuple(operands[1:]))
    return replace(inst, dims=tuple(dims), out=operands[0], input=operands[1])


def _without_single(inst: VopInst | CopyInst) -> VopInst | CopyInst | None:
    for at, extent in enumerate(inst.dims):
        if extent.is_const and extent.affine.const == 1:
            operands = [_without(operand, at) for operand in _operands(inst)]
            return _rebuilt(inst, [*inst.dims[:at], *inst.dims[at + 1 :]], operands)
    return None


def _without(operand: Operand, at: int) -> Operand:
    maps = operand.maps
    if isinstance(maps, LayoutMap):
        return replace(operand, maps=replace(maps, strides=(*maps.strides[:at], *maps.strides[at + 1 :])))
    return replace(operand, maps=(*maps[:at], *maps[at + 1 :]))


def _joined(inst: VopInst | CopyInst) -> VopInst | CopyInst | None:
    """The first two dims of which one continues the other everywhere, as one dim in the place of the inner one."""
    for outer, inner in permutations(range(len(inst.dims)), 2):
        if not (inst.dims[outer].is_const and inst.dims[inner].is_const):
            continue
        steps = inst.dims[inner].affine.const
        operands = [_continued(operand, outer, inner, steps) for operand in _operands(inst)]
        found = [operand for operand in operands if operand is not None]
        if len(found) == len(operands):
            dims = list(inst.dims)
            dims[inner] = Extent.of(steps * inst.dims[outer].affine.const)
            return _rebuilt(inst, [*dims[:outer], *dims[outer + 1 :]], found)
    return None


def _continued(operand: Operand, outer: int, inner: int, steps: int) -> Operand | None:
    maps = operand.maps
    if isinstance(maps, LayoutMap):
        return _without(operand, outer) if maps.strides[outer] == maps.strides[inner] * steps else None
    if not maps:
        return operand
    high, low = maps[outer], maps[inner]
    if high.block or (low.block and steps % low.block):
        return None
    reach = low.outer * (steps // low.block) if low.block else low.inner * steps
    return _without(operand, outer) if high.inner == reach else None
