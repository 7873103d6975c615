# SPDX-License-Identifier: Apache-2.0
"""Loops with bounds from memory, and `while`, become loops of as many iterations as `trip_counts` gives.

``for i in range(low, high, step)`` becomes ``for n in range(count)`` with ``i = low + n * step``, and an iteration in
which `i` is beyond `high` does nothing: what it stores and adds is masked, what it carries stays as it is. A `while`
loop evaluates its condition in each iteration in the same way; what it carries stays once the condition is false, so
that it stays false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i32
from xdsl.dialects.scf import YieldOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from torch_spyre.ir.ktir.dialect.context import ForOp
from torch_spyre.triton.lowering import conditions
from torch_spyre.triton.lowering.linear import is_integer
from torch_spyre.triton.lowering.loops import trip_counts
from torch_spyre.triton.lowering.refusals import CountsNeeded, refusal
from torch_spyre.triton.lowering.splice import before, erase

Counts = Sequence[int] | None


def run(module: ModuleOp, counts: Counts) -> None:
    loops = trip_counts.uncounted(module)
    if not loops:
        return
    if counts is None:
        raise CountsNeeded("loops whose number of iterations the launch has to count")
    for loop, count in reversed(list(zip(loops, counts, strict=True))):
        _for(loop, count) if loop.name == "scf.for" else _while(loop, count)


def _number(value: int, kind: Attribute, before: Operation) -> SSAValue:
    return conditions.put(arith.ConstantOp(IntegerAttr(value, kind)), before)  # type: ignore[call-overload]


def _for(loop: Any, count: int) -> None:
    first, limit, step = loop.operands[:3]
    kind = first.type
    old = loop.regions[0].block
    body = Block(arg_types=[kind, *(a.type for a in old.args[1:])])
    _moved(old, body, {old.args[1 + i]: body.args[1 + i] for i in range(len(old.args) - 1)})
    start = body.first_op
    assert start is not None
    passed = conditions.put(arith.MuliOp(body.args[0], step), start)
    place = conditions.put(arith.AddiOp(first, passed), start)
    old.args[0].replace_all_uses_with(place)
    text = f"%goes_on = arith.cmpi slt, %place, %limit : {kind}"
    (goes_on,) = before(start, text, {"place": place, "limit": limit})
    _only_where(body, goes_on, list(loop.operands[3:]), lambda i: bool(loop.results[i].uses))
    made = _counted(loop, count, kind, list(loop.operands[3:]), body)
    for old_result, new in zip(loop.results, made.results, strict=True):
        old_result.replace_all_uses_with(new)
    erase(loop)


def _while(loop: Any, count: int) -> None:
    first, after = (region.block for region in loop.regions)
    kind = i32
    inits = list(loop.operands)
    body = Block(arg_types=[kind, *(a.type for a in first.args)])
    asked = set(_within(first))
    _moved(first, body, dict(zip(first.args, body.args[1:], strict=True)))
    check = body.last_op
    assert check is not None
    goes_on, *passed = check.operands
    for argument, value in zip(after.args, passed, strict=True):
        argument.replace_all_uses_with(value)
    start = after.first_op
    for op in list(after.ops):
        op.detach()
        body.add_op(op)
    erase(check)
    used = [bool(argument.uses) and any(use.operation in asked for use in argument.uses) for argument in body.args[1:]]
    results = bool([r for r in loop.results if r.uses])
    _only_where(body, goes_on, inits, lambda i: used[i] or results, start)
    made = _counted(loop, count, kind, inits, body)
    if results:  # what the condition passes on when it is false: the same again after the last iteration
        values: dict[SSAValue, SSAValue] = dict(zip(body.args[1:], made.results, strict=True))
        for op in [op for op in body.ops if op in asked]:
            copy = op.clone(values)
            copy.location = op.location
            loop.parent_block().insert_op_before(copy, loop)
            values.update(zip(op.results, copy.results, strict=True))
        for result, value in zip(loop.results, passed, strict=True):
            result.replace_all_uses_with(values.get(value, value))
    erase(loop)


def _within(block: Block) -> list[Operation]:
    return [op for op in block.ops if op is not block.last_op]


def _moved(old: Block, body: Block, arguments: dict[Any, SSAValue]) -> None:
    for argument, new in arguments.items():
        argument.replace_all_uses_with(new)
    for op in list(old.ops):
        op.detach()  # type: ignore[no-untyped-call]
        body.add_op(op)


def _only_where(
    body: Block, truth: SSAValue, inits: list[SSAValue], stays: Callable[[int], bool], start: Any = None
) -> None:
    """Masks what a body does, and what it carries where that is used once the loop has ended."""
    ops = list(body.ops)
    begin = ops.index(start) if start is not None else ops.index(truth.owner) + 1  # type: ignore[arg-type]
    for op in ops[begin:]:
        for inner in list(op.walk()):
            if inner.parent is not None:
                conditions.mask(inner, truth, always=True)
    end: Any = body.last_op
    values = []
    for i, value in enumerate(end.operands):
        argument = body.args[1 + i]
        place = is_integer(value.type) or "tt.ptr" in str(value.type)
        if value is argument or (place and not stays(i)):
            values.append(value)
            continue
        values.append(conditions.chosen(end, truth, value, argument))
    made = YieldOp(*values)
    made.location = end.location
    body.insert_op_before(made, end)
    erase(end)


def _counted(loop: Any, count: int, kind: Any, inits: list[SSAValue], body: Block) -> Any:
    if count >= 1 << 31:
        raise refusal(loop, f"a loop of {count} iterations")
    bounds = [_number(value, kind, loop) for value in (0, count, 1)]
    made = ForOp(bounds[0], bounds[1], bounds[2], inits, Region(body))
    made.location = loop.location
    loop.parent_block().insert_op_before(made, loop)
    return made
