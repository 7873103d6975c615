# SPDX-License-Identifier: Apache-2.0
"""Branches on what a program reads: both sides run, and the condition chooses their results and masks what they store.

A core takes branches on program ids, counters and arguments only.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, TensorType, i1
from xdsl.ir import Operation, SSAValue

from torch_spyre.triton.lowering import running_scalars
from torch_spyre.triton.lowering.accesses.addresses import address_of
from torch_spyre.triton.lowering.accesses.indexed_places import split
from torch_spyre.triton.lowering.refusals import refusal
from torch_spyre.triton.lowering.splice import before, erase, replace
from torch_spyre.triton.lowering.ttir_ops import PointerType, SplatOp

_MASKED = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}  # operations, and the place of their mask


def run(module: ModuleOp) -> None:
    """Outer branches first: what they contain is masked by both conditions then."""
    while True:
        running = running_scalars.find(module)
        branch = next((op for op in module.walk() if op.name == "scf.if" and op.operands[0] in running), None)
        if branch is None:
            return
        _flatten(branch)


def _flatten(branch: Any) -> None:
    condition = branch.operands[0]
    sides = []
    for number, region in enumerate(branch.regions):
        if not region.blocks:
            continue
        truth = condition
        if number:
            one = put(arith.ConstantOp(IntegerAttr(1, i1)), branch)
            truth = put(arith.XOrIOp(condition, one), branch)
        for op in list(region.walk()):
            mask(op, truth)
        last = region.block.last_op
        sides.append(list(last.operands))
        for op in list(region.block.ops):
            if op is not last:
                op.detach()
                branch.parent_block().insert_op_before(op, branch)
    results = [chosen(branch, condition, *values) for values in zip(*sides, strict=True)] if branch.results else []
    replace(branch, results)


def insert(op: Any, where: Operation) -> None:
    op.location = where.location
    block = where.parent_block()
    assert block is not None
    block.insert_op_before(op, where)


def put(op: Any, where: Operation) -> SSAValue:
    insert(op, where)
    result: SSAValue = op.results[0]
    return result


def splat(condition: SSAValue, kind: TensorType, where: Operation) -> SSAValue:
    return put(SplatOp.made([condition], [TensorType(i1, kind.shape)]), where)


def chosen(branch: Operation, condition: SSAValue, then: SSAValue, other: SSAValue) -> SSAValue:
    if then is other:
        return then
    element = then.type.element_type if isinstance(then.type, TensorType) else then.type
    if isinstance(element, PointerType):
        raise refusal(branch, "a pointer that depends on what is read; load from both tensors and use tl.where")
    kinds = str(then.type)
    if isinstance(then.type, TensorType):
        condition = splat(condition, then.type, branch)
        kinds = f"{condition.type}, {then.type}"
    values = {"condition": condition, "then": then, "other": other}
    return before(branch, f"%chosen = arith.select %condition, %then, %other : {kinds}", values)[0]


def mask(op: Any, truth: SSAValue, always: bool = False) -> None:
    """An access happens only where the condition holds. Loads from known places may happen anyway, if not `always`."""
    if op.name == "tt.descriptor_store":
        raise refusal(op, "a store through a descriptor under a condition that is read; use pointers and a mask")
    if op.name == "tt.assert":
        _excuse(op, truth)
    if op.name not in _MASKED:
        return
    if op.name == "tt.load" and not always:
        offset = address_of(op.operands[0], op).offset
        if not offset.leaves and not split(offset.scalar)[1]:
            return
    pointer = op.operands[0].type
    masked(op, splat(truth, pointer, op) if isinstance(pointer, TensorType) else truth)


def masked(op: Any, truth: SSAValue) -> Any:
    """The access with a mask that also asks for the truth of each of its positions."""
    operands, place = list(op.operands), _MASKED[op.name]
    if len(operands) > place:
        operands[place] = put(arith.AndIOp(operands[place], truth), op)
    else:
        operands.append(truth)
    made = type(op).made(operands, [r.type for r in op.results], dict(op.attributes))
    insert(made, op)
    replace(op, list(made.results)) if op.results else erase(op)
    return made


def _excuse(op: Any, truth: SSAValue) -> None:
    """An assertion holds where its branch is not taken."""
    one = put(arith.ConstantOp(IntegerAttr(1, i1)), op)
    excused = put(arith.XOrIOp(truth, one), op)
    kind = op.operands[0].type
    if isinstance(kind, TensorType):
        excused = splat(excused, kind, op)
    op.operands[0] = put(arith.OrIOp(op.operands[0], excused), op)
