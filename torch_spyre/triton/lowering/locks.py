# SPDX-License-Identifier: Apache-2.0
"""Compare-and-swap, and loops that wait for another program.

A kernel with atomic operations runs its programs one after the other on one core. So compare-and-swap is a load and a
store, and a loop that does nothing but wait has to find what it waits for at the first look: nobody else will change
it. If it does not, the launch fails with the line of the loop.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, TensorType, UnitAttr, i1

from torch_spyre.triton.lowering import conditions
from torch_spyre.triton.lowering.known_integers import the_function
from torch_spyre.triton.lowering.refusals import refusal
from torch_spyre.triton.lowering.splice import before, erase, replace
from torch_spyre.triton.lowering.ttir_ops import AssertOp, LoadOp, StoreOp

ORDERED = "ordered"  # attribute of a function whose programs run one after the other
_READS = ("tt.load", "tt.atomic_cas", "tt.atomic_rmw")
_MESSAGE = "this loop waits for a later program, but programs run one after the other"


def run(module: ModuleOp) -> None:
    ops = list(module.walk())
    for op in ops:
        if op.name == "scf.while" and _only_waits(op):
            the_function(module).attributes[ORDERED] = UnitAttr()
            _look_once(op)
    for op in ops:
        if op.name == "tt.atomic_cas":
            the_function(module).attributes[ORDERED] = UnitAttr()
            _swap(op)


def _only_waits(loop: Any) -> bool:
    """True if the body does nothing, and the condition reads memory."""
    first, after = (region.block for region in loop.regions)
    check, end = first.last_op, after.last_op
    unchanged = all(
        value in after.args and check.operands[1 + after.args.index(value)] is argument
        for value, argument in zip(end.operands, first.args, strict=True)
    )
    return after.first_op is end and unchanged and any(op.name in _READS for op in first.ops)


def _look_once(loop: Any) -> None:
    first = loop.regions[0].block
    for argument, value in zip(first.args, loop.operands, strict=True):
        argument.replace_all_uses_with(value)
    check = first.last_op
    waits, *passed = check.operands
    for op in list(first.ops):
        if op is not check:
            op.detach()
            loop.parent_block().insert_op_before(op, loop)
    one = conditions.put(arith.ConstantOp(IntegerAttr(1, i1)), loop)
    found = conditions.put(arith.XOrIOp(waits, one), loop)
    conditions.insert(AssertOp.made([found], [], {"message": StringAttr(_MESSAGE)}), loop)
    erase(check)
    replace(loop, passed)


def _swap(op: Any) -> None:
    pointer, expected, value = op.operands
    if isinstance(value.type, TensorType):
        raise refusal(op, "compare-and-swap of a tile, whose positions may share a place; use one place at a time")
    old = conditions.put(LoadOp.made([pointer], [value.type], {}), op)
    compare = "arith.cmpf oeq" if str(value.type).startswith(("f", "bf")) else "arith.cmpi eq"
    text = f"%same = {compare}, %old, %expected : {value.type}\n%new = arith.select %same, %value, %old : {value.type}"
    (new,) = before(op, text, {"old": old, "expected": expected, "value": value})
    conditions.insert(StoreOp.made([pointer, new], [], {}), op)
    replace(op, [old])
