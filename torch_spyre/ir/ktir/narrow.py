# SPDX-License-Identifier: Apache-2.0
"""64-bit integers in memory: the card stores 32 bits, so views of i64 become views of i32 with conversions around them.

That is what the device does to int64 tensors too; a value that does not fit is refused when a tensor is copied to it.
"""

from __future__ import annotations

from typing import Any, cast

from xdsl.dialects.builtin import IntegerType, MemRefType, ModuleOp, TensorType, i32
from xdsl.ir import Attribute, Operation, SSAValue

from torch_spyre.ir.ktir.dialect.arith_ops import ExtSIOp, TruncIOp
from torch_spyre.ir.ktir.dialect.memory_ops import LoadOp, StoreOp, view_element_type


def narrow(module: ModuleOp) -> None:
    """Rewrites every view of 64-bit integers, what is derived from it, and the loads and stores through it."""
    transfers = [
        op for op in module.walk() if isinstance(op, LoadOp | StoreOp) and _is_wide(view_element_type(op.tile))
    ]
    for op in module.walk():
        for result in op.results:
            if isinstance(result.type, MemRefType) and _is_wide(result.type.element_type):
                _set_type(result, MemRefType(i32, result.type.shape, result.type.layout, result.type.memory_space))
    for op in transfers:
        if isinstance(op, LoadOp):
            _narrow_load(op)
        else:
            _narrow_store(op)


def _is_wide(element: Attribute | None) -> bool:
    return isinstance(element, IntegerType) and element.width.data == 64


def _set_type(value: SSAValue, type_: Attribute) -> None:
    cast(Any, value)._type = type_


def _narrow_load(op: LoadOp) -> None:
    wide = cast(TensorType, op.value.type)
    _set_type(op.value, TensorType(i32, wide.shape))
    widened: Operation = ExtSIOp(op.value, wide)
    _block(op).insert_op_after(widened, op)
    op.value.replace_uses_with_if(widened.results[0], lambda use: use.operation is not widened)


def _narrow_store(op: StoreOp) -> None:
    wide = cast(TensorType, op.value.type)
    narrowed: Operation = TruncIOp(op.value, TensorType(i32, wide.shape))
    _block(op).insert_op_before(narrowed, op)
    op.operands[0] = narrowed.results[0]


def _block(op: Operation) -> Any:
    block = op.parent_block()
    assert block is not None
    return block
