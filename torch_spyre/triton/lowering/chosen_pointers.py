# SPDX-License-Identifier: Apache-2.0
"""An access through a pointer that a condition chooses becomes an access through each of them, masked by the condition.

``p = a if condition else b`` is a `select` of pointers, or an `scf.if` that hands them on. A view of the card has one
base, so that both are accessed, each where it was chosen.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, TensorType, i1
from xdsl.dialects.scf import YieldOp
from xdsl.ir import Operation, SSAValue

from torch_spyre.triton.lowering import conditions, unused
from torch_spyre.triton.lowering.linear import shape_of
from torch_spyre.triton.lowering.splice import before, copy, erase, replace
from torch_spyre.triton.lowering.ttir_ops import PointerType

_MEMORY = ("tt.load", "tt.store", "tt.atomic_rmw")
_PURE = ("arith.", "tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.bitcast", "tt.make_range", "tt.base")
_MOVED = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans")


def run(module: ModuleOp) -> None:
    for op in reversed([op for op in module.walk() if op.name == "scf.if"]):
        if any(_is_pointer(result) for result in op.results):
            _selected(op)
    waiting, found = [op for op in module.walk() if op.name in _MEMORY], False
    while waiting:
        op = waiting.pop()
        chain = _steps_to_choice(op.operands[0])
        if chain is not None:
            found = True
            waiting += _split(op, chain)
    if found:
        unused.run(module)  # the choices themselves


def _is_pointer(value: SSAValue) -> bool:
    kind = value.type.element_type if isinstance(value.type, TensorType) else value.type
    return isinstance(kind, PointerType)


# -- branches ---------------------------------------------------------------------------------------------------------


def _selected(branch: Any) -> None:
    """Pointers that an `if` hands on become a choice after it, where both sides only compute them."""
    kept = []
    for i, result in enumerate(branch.results):
        ends = [region.block.last_op.operands[i] for region in branch.regions]
        if _is_pointer(result) and all(_is_computed(end, branch) for end in ends):
            choice = arith.SelectOp(branch.operands[0], *(_outside(end, branch, {}) for end in ends))
            result.replace_all_uses_with(conditions.put(choice, branch))
        else:
            kept.append(i)
    if len(kept) == len(branch.results):
        return
    for region in branch.regions:
        end = region.block.last_op
        shorter = YieldOp(*(end.operands[i] for i in kept))
        shorter.location = end.location
        region.block.insert_op_before(shorter, end)
        erase(end)
    regions = [branch.detach_region(0) for _ in tuple(branch.regions)]
    made = type(branch)(branch.operands[0], [branch.results[i].type for i in kept], *regions)
    conditions.insert(made, branch)
    for new, i in zip(made.results, kept, strict=True):
        branch.results[i].replace_all_uses_with(new)
    erase(branch)


def _inside(value: SSAValue, branch: Operation) -> bool:
    owner = value.owner
    return isinstance(owner, Operation) and any(parent is branch for parent in _parents(owner))


def _parents(op: Operation) -> list[Operation]:
    parent = op.parent_op()
    return [] if parent is None else [parent, *_parents(parent)]


def _is_computed(value: SSAValue, branch: Operation) -> bool:
    """True if a value follows from what is known before the branch, without memory."""
    if not _inside(value, branch):
        return True
    op: Any = value.owner
    return op.name.startswith(_PURE) and all(_is_computed(operand, branch) for operand in op.operands)


def _outside(value: SSAValue, branch: Operation, known: dict[SSAValue, SSAValue]) -> SSAValue:
    """The same value, computed before the branch."""
    if not _inside(value, branch):
        return value
    if value not in known:
        op: Any = value.owner
        operands = {operand: _outside(operand, branch, known) for operand in op.operands}
        known[value] = conditions.put(copy(op, operands), branch)
    return known[value]


# -- accesses ---------------------------------------------------------------------------------------------------------


def _steps_to_choice(pointer: SSAValue) -> list[Operation] | None:
    """The operations that lead from a choice to a pointer, the choice first; None if nothing is chosen."""
    steps: list[Operation] = []
    while isinstance(pointer.owner, Operation):
        op = pointer.owner
        if op.name == "arith.select":
            return [op, *reversed(steps)]
        if op.name not in ("tt.addptr", "tt.bitcast", *_MOVED):
            return None
        steps.append(op)
        pointer = op.operands[0]
    return None


def _split(op: Any, chain: list[Operation]) -> list[Operation]:
    choice, *steps = chain
    condition, *pointers = choice.operands
    if isinstance(pointers[0].type, TensorType) and not isinstance(condition.type, TensorType):
        condition = conditions.splat(condition, pointers[0].type, op)
    truth, otherwise = (_spread(value, steps, op) for value in (condition, _inverse(condition, op)))
    made = []
    for pointer, holds in zip(pointers, (truth, otherwise), strict=True):
        for step in steps:
            pointer = conditions.put(copy(step, {step.operands[0]: pointer}), op)
        access = copy(op, {op.operands[0]: pointer})
        conditions.insert(access, op)
        made.append(conditions.masked(access, holds))
    if op.results:
        first, second = (access.results[0] for access in made)
        kinds = f"{truth.type}, {first.type}" if isinstance(truth.type, TensorType) else str(first.type)
        text = f"%chosen = arith.select %truth, %first, %second : {kinds}"
        replace(op, before(op, text, {"truth": truth, "first": first, "second": second}))
    else:
        erase(op)
    return made


def _inverse(condition: SSAValue, where: Operation) -> SSAValue:
    one = conditions.put(arith.ConstantOp(IntegerAttr(1, i1)), where)
    if isinstance(condition.type, TensorType):
        one = conditions.splat(one, condition.type, where)
    return conditions.put(arith.XOrIOp(condition, one), where)


def _spread(condition: SSAValue, steps: list[Operation], where: Operation) -> SSAValue:
    """The condition for each pointer of the access."""
    for step in steps:
        if step.name in _MOVED and (step.name == "tt.splat" or condition.type != i1):
            kind = TensorType(i1, shape_of(step.results[0].type))
            made = type(step).made([condition], [kind], dict(step.attributes))  # type: ignore[attr-defined]
            condition = conditions.put(made, where)
    return condition
