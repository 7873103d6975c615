# SPDX-License-Identifier: Apache-2.0
"""Prints a hand-over between cores as one delivery of KTIR."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AffineSetAttr, DenseArrayBase, IndexType, TensorType, i64
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr

from torch_spyre.errors import InvalidProgram
from torch_spyre.ir.ktir.dialect.context import InterTileProduceOp, TileFutureType, YieldPartialOp
from torch_spyre.ir.ktir.dialect.delivery_ops import (
    InterTileAllToAllOp,
    InterTileConsumeOp,
    InterTileGatherOp,
    InterTileScatterOp,
)
from torch_spyre.ir.ktir.emit.core_groups import at_least_zero, groups_set, is_zero, tile_set
from torch_spyre.ir.plan.handover_groups import Digit, Groups, groups
from torch_spyre.ir.plan.tileops import TileOp


def groups_of(op: TileOp) -> Groups:
    found = groups(op.source, op.source_order, op.dims, op.core_order)
    if found is None:
        raise InvalidProgram(f"op {op.name}: no single exchange leads from {op.source} to {op.dims}")
    return found


def deliver(found: Groups, partial: SSAValue, result: TensorType) -> Sequence[Operation]:
    """Producers give `partial`; the last operation's value is what each consumer gets."""
    body = Block(arg_types=[IndexType()])
    body.args[0].name_hint = "group"
    body.add_op(YieldPartialOp(partial))
    future = TileFutureType([partial.type], groups_set(found.count))
    produce = InterTileProduceOp(_members(found, found.producers), future, Region(body))
    properties = {"consumer_tiles_per_group": _members(found, found.consumers)}
    split, concat = (DenseArrayBase.from_list(i64, list(dims)) for dims in (found.split, found.concat))
    kind: type[Operation]
    if found.split and found.concat:
        kind = InterTileAllToAllOp
        properties |= {"split_dimensions": split, "concat_dimensions": concat}  # type: ignore[dict-item]
    elif found.concat:
        kind = InterTileGatherOp
        properties |= {"gather_dimensions": concat}  # type: ignore[dict-item]
    elif found.split:
        kind = InterTileScatterOp
        properties |= {"scatter_dimensions": split}  # type: ignore[dict-item]
    else:
        kind = InterTileConsumeOp
    return produce, kind.build(operands=[produce.future], result_types=[[result]], properties=properties)


def _members(found: Groups, digits: Sequence[Digit]) -> AffineSetAttr:
    """Cores whose cell is the group's."""
    tile = AffineExpr.dimension(0)
    number: AffineExpr = AffineExpr.symbol(0) * -1
    weight = found.count
    for digit, ways in zip(digits, found.cells, strict=True):
        weight //= ways
        if ways > 1:
            number = number + (tile // digit.stride) % digit.slices // digit.finer * weight
    return tile_set((is_zero(number), at_least_zero(tile), at_least_zero(tile * -1 + (found.cores - 1))))
