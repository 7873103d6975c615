# SPDX-License-Identifier: Apache-2.0
"""Sums of products that a loop carries: `addf(%sum, matmul(a, b))` is the matmul that adds to `%sum`.

Both say the same sum. Only the second lets the product add to a sum that is wider than its own type.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects import scf
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from torch_spyre.ir.ktir.dialect.contraction_ops import ContractionOp

_ADDITIONS = ("arith.addf", "linalg.add")


def rewrite(module: ModuleOp) -> None:
    for op in [op for op in module.walk() if op.name in _ADDITIONS]:
        pair = _carried_and_product(op)
        if pair is None:
            continue
        carried, product = pair
        product.operands[2] = carried
        op.results[0].replace_all_uses_with(product.results[0])
        block = op.parent_block()
        assert isinstance(block, Block)
        block.erase_op(op)


def _carried_and_product(op: Operation) -> tuple[SSAValue, ContractionOp] | None:
    """The two sides of an addition, if one is what a loop carries and the other a product from zero, used here only."""
    for carried, product in (tuple(op.operands[:2]), tuple(op.operands[1::-1])):
        owner = product.owner
        if (
            isinstance(carried, BlockArgument)
            and isinstance(carried.block.parent_op(), scf.ForOp)
            and carried.has_one_use()
            and carried.type == product.type
            and isinstance(owner, ContractionOp)
            and owner.parent_block() is op.parent_block() is carried.block
            and product.has_one_use()
            and _is_zero(owner.operands[2])
        ):
            return carried, owner
    return None


def _is_zero(value: SSAValue) -> bool:
    """True for a tensor that is 0 everywhere, or has no content yet."""
    op: Any = value.owner
    if not isinstance(op, Operation):
        return False
    if op.name == "tensor.empty":
        return True
    if op.name in ("tensor.splat", "linalg.fill"):
        return _is_zero(op.operands[0])
    if op.name != "arith.constant":
        return False
    content = op.properties["value"]
    if isinstance(content, FloatAttr):
        return float(content.value.data) == 0
    return isinstance(content, DenseIntOrFPElementsAttr) and not any(content.get_values())
