# SPDX-License-Identifier: Apache-2.0
"""A branch between blocks, which is what `return` inside an `if` becomes, is an `scf.if` around the rest."""

from __future__ import annotations

from collections import Counter
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.dialects.scf import YieldOp
from xdsl.ir import Block, Operation, Region

from torch_spyre.ir.ktir.dialect.scf_ops import Scf
from torch_spyre.triton.lowering.known_integers import the_function
from torch_spyre.triton.lowering.refusals import refusal
from torch_spyre.triton.lowering.splice import erase

_If: Any = next(op for op in Scf.operations if op.name == "scf.if")


def run(module: ModuleOp) -> None:
    function = the_function(module)
    if len(function.body.blocks) == 1:
        return
    entries = Counter(s for b in function.body.blocks for s in b.last_op.successors)
    _structure(function.body.blocks[0], entries)
    for block in list(function.body.blocks)[1:]:
        function.body.detach_block(block)
        block.erase()


def _structure(block: Block, entries: Counter[Block]) -> None:
    """Ends a block, and all that follows it, without branches."""
    last: Any = block.last_op
    if last.name == "func.return":
        return
    if last.name == "cf.br" and not last.operands:
        target = last.successor
        _check_single(last, target, entries)
        _structure(target, entries)
        erase(last)
        _move(target, block)
        return
    if last.name != "cf.cond_br" or len(last.operands) != 1 or any(s.args for s in last.successors):
        raise refusal(last, "control flow that is no loop and no if; write it with for and if")
    regions = []
    for target in last.successors:
        inner = Block()
        if not _only_returns(target):
            _check_single(last, target, entries)
            _structure(target, entries)
            _move(target, inner)
            erase(inner.last_op)  # type: ignore[arg-type]
        inner.add_op(YieldOp())
        regions.append(Region(inner))
    condition = last.operands[0]
    made = _If(condition, [], *regions)
    made.location = last.location
    block.insert_op_before(made, last)
    end = ReturnOp()
    end.location = last.location
    block.add_op(end)
    erase(last)


def _only_returns(block: Block) -> bool:
    return block.first_op is not None and block.first_op.name == "func.return"


def _check_single(op: Operation, target: Block, entries: Counter[Block]) -> None:
    if entries[target] != 1:
        raise refusal(op, "two branches that meet before the end of the kernel; write them as one if")


def _move(source: Block, target: Block) -> None:
    for op in list(source.ops):
        op.detach()  # type: ignore[no-untyped-call]
        target.add_op(op)
