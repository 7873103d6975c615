# SPDX-License-Identifier: Apache-2.0
"""Tile loops as KTIR: an `scf.for` whose body works on one chunk of every core's slice at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from torch_spyre.ir.ktir.dialect.context import ForOp
from torch_spyre.ir.ktir.emit.accesses import INDEX, Head, Slice, hint
from torch_spyre.ir.plan.tileops import Dim, Tensor, TileOp


def tile_loop(head: Head, trips: int, emit_body: Callable[[Head, list[Operation]], None]) -> Operation:
    """The loop; `emit_body` appends the operations of one trip."""
    block = Block(arg_types=[INDEX])
    hint(block.args[0], "trip")
    body: list[Operation] = []
    emit_body(_LoopHead(head, block), body)
    block.add_ops(body)
    block.add_op(scf.YieldOp())
    return ForOp(head.index(0), head.index(trips), head.index(1), [], Region(block))


class _LoopHead(Head):
    """The head of a loop body: what depends on the trip stands here, everything else in the function's own head."""

    def __init__(self, outer: Head, block: Block) -> None:
        super().__init__(outer.kernel, block)
        self.outer = outer

    def argument(self, number: int) -> SSAValue:
        return self.outer.argument(number)

    @property
    def core_id(self) -> SSAValue:
        return self.outer.core_id

    def scalar(self, value: float, element: Attribute) -> SSAValue:
        return self.outer.scalar(value, element)

    def splat(self, scalar: SSAValue, slices: Sequence[Slice]) -> SSAValue:
        mine = any(s.extent is not None and s.extent.owner.parent_block() is self.block for s in slices)
        return super().splat(scalar, slices) if mine else self.outer.splat(scalar, slices)

    def view(self, buffer: Tensor) -> SSAValue:
        return self.outer.view(buffer)

    def slice_index(self, op: TileOp, dim: Dim) -> SSAValue:
        return self.outer.slice_index(op, dim)

    def less_than(self, value: SSAValue, limit: int) -> SSAValue:
        return self.outer.less_than(value, limit)

    def _trip_along(self, op: TileOp, dim: Dim) -> SSAValue:
        """Which chunk of the dim it is; the trips count through the chunks of all dims that have some."""
        trips = {d.name: -(-d.extent // d.chunk) for d in op.dims if d.chunk}
        names = list(trips)
        inner = math.prod(trips[name] for name in names[names.index(dim.name) + 1 :])
        value: SSAValue = self.block.args[0]
        if inner > 1:
            value = self._binary(arith.DivUIOp, value, self.index(inner))
        if dim.name != names[0]:
            value = self._binary(arith.RemUIOp, value, self.index(trips[dim.name]))
        return value

    def slice(self, op: TileOp, dim: Dim) -> Slice:
        whole = self.outer.slice(op, dim)
        if not dim.chunk:
            return whole
        trip = self._binary(arith.MuliOp, self._trip_along(op, dim), self.index(dim.chunk), f"{dim.name}_trip")
        offset = trip if whole.offset is None else self._binary(arith.AddiOp, whole.offset, trip)
        if dim.extent % dim.chunk == 0 and dim.even:
            return Slice(dim.name, dim.chunk, offset, None, trip)
        size = self.index(dim.chunk)
        if dim.extent % dim.chunk:
            left = self._binary(arith.SubiOp, self.index(dim.extent), trip)
            size = self._binary(arith.MinSIOp, left, size)
        if not dim.even:
            left = self._binary(arith.SubiOp, self.index(dim.size), offset)
            size = self._binary(arith.MinSIOp, left, size)
            size = self._binary(arith.MaxSIOp, size, self.index(0), f"{dim.name}_ext")
        return Slice(dim.name, DYNAMIC_INDEX, offset, size, trip)
