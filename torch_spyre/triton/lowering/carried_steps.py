# SPDX-License-Identifier: Apache-2.0
"""Pointers and offsets that a loop advances by a fixed step are computed from its counter.

``for k in range(n): ...; p += step`` becomes ``p = start + k * step``, so that an address is a form of the counter.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, ModuleOp, TensorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from torch_spyre.triton.lowering.linear import constant, is_integer
from torch_spyre.triton.lowering.splice import erase
from torch_spyre.triton.lowering.ttir_ops import AddPtrOp, PointerType, SplatOp

Steps = list[tuple[SSAValue, int]]


def run(module: ModuleOp) -> None:
    """Inner loops first: what an outer loop carries may pass through them."""
    for loop in reversed([op for op in module.walk() if op.name == "scf.for"]):
        _rewrite(loop)


def _rewrite(loop: Any) -> None:
    block = loop.regions[0].block
    yielded = block.last_op
    steps: dict[int, Steps] = {}
    for i, value in enumerate(loop.operands[3:]):
        found = _steps(yielded.operands[i], block.args[i + 1], block) if _is_place(value.type) else None
        if found is not None:
            steps[i] = found
    if not steps:
        return
    first, limit, step = loop.operands[:3]
    for i, found in steps.items():
        inside = _Inserter(block.first_op)
        start = loop.operands[3 + i]
        advanced = inside.advanced(start, found, inside.trips(first, block.args[0], step))
        block.args[i + 1].replace_all_uses_with(advanced)
        after = _Inserter(loop)
        if loop.results[i].uses:
            total = after.at_least_zero(after.trips(first, after.up(limit, step), step))
            loop.results[i].replace_all_uses_with(after.advanced(start, found, total))
    _without(loop, set(steps))


def _is_place(kind: Attribute) -> bool:
    element = kind.element_type if isinstance(kind, TensorType) else kind
    return isinstance(element, PointerType) or is_integer(kind)


def _steps(value: SSAValue, argument: SSAValue, block: Block) -> Steps | None:
    """What is added to an argument of a loop in each iteration, if that is the same each time."""
    if value is argument:
        return []
    op = value.owner
    if not isinstance(op, Operation) or op.name not in ("tt.addptr", "arith.addi", "arith.subi"):
        return None
    carried, added = op.operands
    if op.name == "arith.addi" and _is_outside(carried, block):
        carried, added = added, carried
    if not _is_outside(added, block):
        return None
    rest = _steps(carried, argument, block)
    return None if rest is None else [*rest, (added, -1 if op.name == "arith.subi" else 1)]


def _is_outside(value: SSAValue, block: Block) -> bool:
    """True if a value does not change while the loop runs."""
    owner = value.owner
    place = owner if isinstance(owner, Block) else owner.parent_block()
    while place is not None and place is not block:
        parent = place.parent_op()
        place = parent.parent_block() if parent is not None else None
    return place is not block or constant(value) is not None


class _Inserter:
    """Makes operations before another one."""

    def __init__(self, before: Operation) -> None:
        self._before = before

    def add(self, op: Any) -> SSAValue:
        op.location = self._before.location
        block = self._before.parent_block()
        assert block is not None
        block.insert_op_before(op, self._before)
        result: SSAValue = op.results[0]
        return result

    def number(self, value: int, kind: Attribute) -> SSAValue:
        return self.add(arith.ConstantOp.from_int_and_width(value, kind))  # type: ignore[arg-type]

    def trips(self, first: SSAValue, now: SSAValue, step: SSAValue) -> SSAValue:
        """How many steps are between two values of a counter."""
        distance = now if constant(first) == 0 else self.add(arith.SubiOp(now, first))
        return distance if constant(step) == 1 else self.add(arith.DivSIOp(distance, step))

    def up(self, limit: SSAValue, step: SSAValue) -> SSAValue:
        if constant(step) == 1:
            return limit
        less = self.add(arith.SubiOp(step, self.number(1, step.type)))
        return self.add(arith.AddiOp(limit, less))

    def at_least_zero(self, value: SSAValue) -> SSAValue:
        return self.add(arith.MaxSIOp(value, self.number(0, value.type)))

    def advanced(self, start: SSAValue, steps: Steps, count: SSAValue) -> SSAValue:
        value = start
        for step, sign in steps:
            times = self._like(count, step.type)
            moved = self.add(arith.MuliOp(self._inside(step), times))
            if sign < 0:
                value = self.add(arith.SubiOp(value, moved))
            elif is_integer(value.type):
                value = self.add(arith.AddiOp(value, moved))
            else:
                value = self.add(AddPtrOp.made([value, moved], [value.type]))
        return value

    def _inside(self, step: SSAValue) -> SSAValue:
        """A step that can be used here; a constant of the loop's body is made again."""
        owner = step.owner
        number = constant(step)
        if isinstance(owner, Operation) and number is not None:
            return self.add(owner.clone())
        return step

    def _like(self, count: SSAValue, kind: Attribute) -> SSAValue:
        """The counter as an integer, or a tensor of integers, of a type."""
        element = kind.element_type if isinstance(kind, TensorType) else kind
        assert isinstance(element, IntegerType) and isinstance(count.type, IntegerType)
        given = count.type.width.data
        if given < element.width.data:
            count = self.add(arith.ExtSIOp(count, element))
        elif given > element.width.data:
            count = self.add(arith.TruncIOp(count, element))
        return self.add(SplatOp.made([count], [kind])) if isinstance(kind, TensorType) else count


def _without(loop: Any, dropped: set[int]) -> None:
    """The loop without the values that it no longer carries."""
    block: Block = loop.regions[0].block
    yielded: Any = block.last_op
    kept = [i for i in range(len(loop.results)) if i not in dropped]
    values = [yielded.operands[i] for i in kept]
    for i in sorted(dropped, reverse=True):
        block.erase_arg(block.args[i + 1], safe_erase=False)
    made_yield = type(yielded)(*values)
    made_yield.location = yielded.location
    block.insert_op_before(made_yield, yielded)
    erase(yielded)
    loop.regions[0].detach_block(block)
    operands = list(loop.operands)
    made = type(loop)(operands[0], operands[1], operands[2], [operands[3 + i] for i in kept], Region(block))
    made.location = loop.location
    parent = loop.parent_block()
    parent.insert_op_before(made, loop)
    for new, i in enumerate(kept):
        loop.results[i].replace_all_uses_with(made.results[new])
    erase(loop)
