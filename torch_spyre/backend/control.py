# SPDX-License-Identifier: Apache-2.0
"""Handlers of structured control flow: guards and counted loops."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import TensorType

from torch_spyre.backend import assembler as asm
from torch_spyre.backend.access import Tile
from torch_spyre.backend.fold import element_name
from torch_spyre.backend.isa import format_of_type
from torch_spyre.backend.selector import Handler, Selector
from torch_spyre.backend.values import Splat
from torch_spyre.errors import UnsupportedOp


def if_(selector: Selector, op: Any) -> None:
    if op.results:
        raise UnsupportedOp("scf.if with results; store inside the branches instead")
    condition = selector.scalars.truth(op.operands[0])
    then_region, else_region = op.regions
    with selector.stream.guard(condition):
        selector.block(then_region.block)
    if else_region.blocks and else_region.block.ops.first is not None:
        with selector.stream.guard(-condition - 1):
            selector.block(else_region.block)


def for_(selector: Selector, op: Any) -> None:
    """A counted loop. Tensors that it carries live in scratch and are replaced at the end of every iteration."""
    first, limit = (selector.scalars.affine(operand) for operand in op.operands[:2])
    step = selector.scalars.constant(op.operands[2])
    if step is None or step <= 0:
        raise UnsupportedOp("scf.for with a step that is not a positive constant")
    block = op.regions[0].block
    carried = [_carry(selector, value) for value in op.operands[3:]]
    with selector.stream.loop(first, limit, step) as counter:
        selector.scalars.bind(block.args[0], counter)
        for arg, tile in zip(block.args[1:], carried, strict=True):
            selector.bind(arg, tile)
        selector.block(block)
        for tile, value in zip(carried, block.last_op.operands, strict=True):
            source = selector.tile(value, tile.dims)
            if source.operand != tile.operand:
                selector.emit(asm.CopyInst(tile.dims, tile.operand, source.operand, origin=selector.stream.origin))
    for result, tile in zip(op.results, carried, strict=True):
        selector.bind(result, tile)


def _carry(selector: Selector, value: Any) -> Tile:
    """A scratch copy of the initial value of a loop-carried tensor."""
    if not isinstance(value.type, TensorType):
        raise UnsupportedOp(f"scf.for carries a value of type {value.type}; only tensors can be carried")
    initial = selector.value(value)
    if initial.dims is None:
        raise UnsupportedOp(f"scf.for carries a tensor of type {value.type} whose extents are not known")
    tile = selector.new_scratch(initial.dims, format_of_type(element_name(value)))
    if isinstance(initial, Tile):
        selector.emit(asm.CopyInst(tile.dims, tile.operand, initial.operand, origin=selector.stream.origin))
    elif isinstance(initial, Splat) and not initial.undefined:
        selector.fill(tile, value)
    return tile


HANDLERS: dict[str, Handler] = {"scf.if": if_, "scf.for": for_}
