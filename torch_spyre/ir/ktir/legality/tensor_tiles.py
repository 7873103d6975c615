# SPDX-License-Identifier: Apache-2.0
"""Access tiles of tensor values: a load through one is `tensor.extract_slice`, transposed if the order says so."""

from __future__ import annotations

from typing import Any, cast

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IndexType, IntegerAttr, ModuleOp, TensorType, i64
from xdsl.dialects.linalg.ops import TransposeOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
)

from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.ktir.dialect.memory_ops import ConstructAccessTileOp, LoadOp, StoreOp
from torch_spyre.ir.ktir.dialect.tensor_ops import EmptyOp
from torch_spyre.ir.ktir.legality.boxes import box_of
from torch_spyre.ir.ktir.locations import place

INDEX = IndexType()
_OPS: dict[AffineBinaryOpKind, Any] = {
    AffineBinaryOpKind.Add: arith.AddiOp,
    AffineBinaryOpKind.Mul: arith.MuliOp,
    AffineBinaryOpKind.FloorDiv: arith.FloorDivSIOp,
    AffineBinaryOpKind.CeilDiv: arith.CeilDivSIOp,
    AffineBinaryOpKind.Mod: arith.RemUIOp,
}


def rewrite(module: ModuleOp) -> None:
    for op in list(module.walk()):
        if isinstance(op, LoadOp | StoreOp) and _is_of_tensor(op.tile):
            if isinstance(op, StoreOp):
                raise InvalidProgram(
                    f"{place(op)}store through a tile of a tensor value; tensor.insert_slice makes a new one"
                )
            _slice(op)


def _is_of_tensor(tile: SSAValue) -> bool:
    return isinstance(tile.owner, ConstructAccessTileOp) and isinstance(tile.owner.base.type, TensorType)


class _Inserter:
    """Puts new operations before one, and remembers where they come from."""

    def __init__(self, before: Operation) -> None:
        self._before = before
        self._block = cast(Block, before.parent_block())

    def __call__(self, op: Operation) -> SSAValue:
        op.location = self._before.location
        self._block.insert_op_before(op, self._before)
        return op.results[0]


def _slice(load: LoadOp) -> None:
    tile = cast(ConstructAccessTileOp, load.tile.owner)
    add = _Inserter(load)
    permutation = [e.position for e in tile.access_tile_order.data.results if isinstance(e, AffineDimExpr)]
    rank = tile.tile.type.rank
    if sorted(permutation) != list(range(rank)):
        raise UnsupportedOp(f"{place(tile)}tile order {tile.access_tile_order.data} is not a permutation of the dims")
    offsets, sizes, static = [], [], [0] * rank
    for dim, (low, high) in enumerate(box_of(tile.access_tile_set.data)):
        first = low.only
        if first is None or first.symbols:
            raise UnsupportedOp(f"{place(tile)}a tile of a tensor value whose first coordinate is not a constant")
        anchor = tile.base_map.data.results[dim] + first.const
        offsets.append(_value(anchor, tile.indices, add))
        static[dim] = tile.tile.type.get_shape()[permutation.index(dim)]
        if static[dim] == DYNAMIC_INDEX:
            size = high.only.minus_one_of(list(tile.symbols)) if high.only is not None and first.const == 0 else None
            if size is None:
                raise UnsupportedOp(f"{place(tile)}a tile of a tensor value whose size is not one of its symbols")
            sizes.append(size)
    base = cast(TensorType, tile.base.type)
    part = tensor.ExtractSliceOp.build(
        operands=[tile.base, offsets, sizes, []],
        result_types=[TensorType(base.element_type, static)],
        properties={
            "static_offsets": DenseArrayBase.from_list(i64, [DYNAMIC_INDEX] * rank),
            "static_sizes": DenseArrayBase.from_list(i64, static),
            "static_strides": DenseArrayBase.from_list(i64, [1] * rank),
        },
    )
    value = add(part)
    if permutation != list(range(rank)):
        turned = [s for s in (sizes[_nth_dynamic(static, p)] for p in permutation if static[p] == DYNAMIC_INDEX)]
        init = add(EmptyOp(turned, load.value.type))
        permuted = DenseArrayBase.from_list(i64, permutation)
        value = add(TransposeOp(value, init, permuted, load.value.type))
    load.value.replace_all_uses_with(value)
    cast(Block, load.parent_block()).erase_op(load)


def _nth_dynamic(static: list[int], dim: int) -> int:
    return static[:dim].count(DYNAMIC_INDEX)


def _value(expr: AffineExpr, values: Any, add: _Inserter) -> SSAValue:
    """The expression as scalar operations."""
    if isinstance(expr, AffineDimExpr):
        return cast(SSAValue, values[expr.position])
    if isinstance(expr, AffineConstantExpr):
        return add(arith.ConstantOp(IntegerAttr(expr.value, INDEX)))
    assert isinstance(expr, AffineBinaryOpExpr)
    return add(_OPS[expr.kind](_value(expr.lhs, values, add), _value(expr.rhs, values, add)))
