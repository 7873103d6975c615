# SPDX-License-Identifier: Apache-2.0
"""Forms that older files contain and the dialect does not, rewritten to what they can only mean (A9).

An `inter_tile_reduce` whose result drops the leading unit dimension of the partial is the legal reduction with a
`tensor.collapse_shape` after it, or before it where the combiner works on the smaller type already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IntegerAttr, ModuleOp, TensorType, i64
from xdsl.ir import Attribute, Operation, SSAValue

from torch_spyre.ir.ktir.dialect.delivery_ops import InterTileReduceOp
from torch_spyre.ir.ktir.dialect.inter_tile_ops import InterTileProduceOp
from torch_spyre.ir.ktir.dialect.tensor_ops import ExpandShapeOp
from torch_spyre.ir.ktir.dialect.types import TileFutureType
from torch_spyre.ir.ktir.locations import place


def normalise(module: ModuleOp) -> list[str]:
    """Rewrites what it knows; says what it has done."""
    notes = []
    for op in [op for op in module.walk() if isinstance(op, InterTileReduceOp)]:
        if _drops_unit_dim(op):
            notes.append(f"{place(op)}inter_tile_reduce drops the leading unit dimension of its partial (A9)")
            _rewrite(op)
    return notes


_SOFTPLUS = {"beta": 1.0, "threshold": 20.0}  # its parameters, and what they are if nothing is said


def spell_out(module: ModuleOp) -> None:
    """Parameters of scalar intrinsics that are written as attributes become operands."""
    for op in [op for op in module.walk() if op.name == "spyreop.softplus" and len(op.operands) == 1]:
        block = op.parent_block()
        assert block is not None
        values = [op.operands[0]]
        for name, default in _SOFTPLUS.items():
            given = op.attributes.pop(name, None)
            number = cast(Any, given).value.data if isinstance(given, FloatAttr | IntegerAttr) else default
            constant = arith.ConstantOp(FloatAttr(float(number), cast(Any, op.operands[0].type)))
            block.insert_op_before(constant, op)
            values.append(constant.result)
        op.operands = values


def _smaller(type_: Attribute) -> Attribute | None:
    """The type without its leading dimension of one element."""
    if not isinstance(type_, TensorType) or not type_.get_num_dims() or type_.get_shape()[0] != 1:
        return None
    return TensorType(type_.element_type, type_.get_shape()[1:])


def _drops_unit_dim(op: InterTileReduceOp) -> bool:
    if not isinstance(op.future.type, TileFutureType) or not isinstance(op.future.owner, InterTileProduceOp):
        return False
    parts = op.future.type.partials.data
    results = tuple(op.values.types)
    if len(parts) != len(results) or results == parts or not op.combiner.blocks:
        return False
    return all(r == _smaller(p) for p, r in zip(parts, results, strict=True))


def _rewrite(op: InterTileReduceOp) -> None:
    parts, results = op.future.type.partials.data, tuple(op.values.types)  # type: ignore[attr-defined]
    arguments = tuple(op.combiner.block.arg_types)
    if arguments == (*results, *results):
        produce = cast(InterTileProduceOp, op.future.owner)
        last = produce.body.block.last_op
        if last is not None:
            _resize_operands(last, range(len(last.operands)), results)
        cast(Any, produce.future)._type = TileFutureType(results, produce.future.type.groups)
        _resize_operands(op, range(1, len(op.operands)), results)
        return
    _resize_operands(op, range(1, len(op.operands)), parts)
    for value, part, result in zip(op.values, parts, results, strict=True):
        cast(Any, value)._type = part
        smaller = _collapse(value, cast(TensorType, result))
        block = op.parent_block()
        assert block is not None
        block.insert_op_after(smaller, op)
        _replace_elsewhere(value, smaller)


def _replace_elsewhere(value: SSAValue, op: tensor.CollapseShapeOp) -> None:
    """Every use of `value` but the op's own takes the op's result."""
    value.replace_uses_with_if(op.result, lambda use: use.operation is not op)


def _resize_operands(op: Operation, positions: Sequence[int], types: Sequence[Attribute]) -> None:
    """Gives operands the shape of `types` where only a leading unit dimension differs."""
    block = op.parent_block()
    assert block is not None
    for position, wanted in zip(positions, types, strict=False):
        value = op.operands[position]
        change: Any
        if _smaller(value.type) == wanted:
            change = _collapse(value, cast(TensorType, wanted))
        elif _smaller(wanted) == value.type:
            change = _expand(value, cast(TensorType, wanted))
        else:
            continue
        block.insert_op_before(change, op)
        op.operands[position] = change.result


def _groups(rank: int) -> ArrayAttr[ArrayAttr[IntegerAttr]]:
    """Dims 0 and 1 of a tensor of `rank` dims together, the others alone."""
    if rank == 1:
        return ArrayAttr([])
    groups = [[0, 1], *([d] for d in range(2, rank))]
    return ArrayAttr([ArrayAttr([IntegerAttr(d, i64) for d in group]) for group in groups])


def _collapse(value: SSAValue, result: TensorType) -> tensor.CollapseShapeOp:
    rank = cast(TensorType, value.type).get_num_dims()
    return tensor.CollapseShapeOp.build(
        operands=[value], result_types=[result], properties={"reassociation": _groups(rank)}
    )


def _expand(value: SSAValue, result: TensorType) -> ExpandShapeOp:
    return ExpandShapeOp(value, [], _groups(result.get_num_dims()), list(result.get_shape()), result)
