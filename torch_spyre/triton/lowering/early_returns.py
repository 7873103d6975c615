# SPDX-License-Identifier: Apache-2.0
"""Branches between blocks, which is what `return` inside an `if` becomes, are `scf.if` around the rest.

Where branches meet again before the end of the kernel, each of them gets its own copy of what follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.dialects.scf import YieldOp
from xdsl.ir import Block, Operation, Region, SSAValue

from torch_spyre.ir.ktir.dialect.scf_ops import Scf
from torch_spyre.triton.lowering.known_integers import the_function
from torch_spyre.triton.lowering.refusals import refusal
from torch_spyre.triton.lowering.splice import copy, erase

_If: Any = next(op for op in Scf.operations if op.name == "scf.if")


def run(module: ModuleOp) -> None:
    function = the_function(module)
    if len(function.body.blocks) == 1:
        return
    first, *others = function.body.blocks
    entries = Counter(s for b in function.body.blocks for s in b.last_op.successors)
    _Structure(entries).end(first)
    for block in others:
        for op in block.ops:
            op.drop_all_references()
    for block in others:
        function.body.detach_block(block)
        block.erase(safe_erase=False)


class _Structure:
    def __init__(self, entries: Counter[Block]) -> None:
        self._entries = entries
        self._open: set[Block] = set()
        self._ended: set[Block] = set()

    def end(self, block: Block) -> None:
        """Ends a block, and all that follows it, without branches."""
        last: Any = block.last_op
        if block in self._ended:
            return
        if block in self._open:
            raise refusal(last, "control flow that goes back without being a loop; write it with for or while")
        self._open.add(block)
        if last.name == "cf.br":
            self._append(block, last.successor, last.arguments, last)
        elif last.name == "cf.cond_br":
            self._branch(block, last)
        elif last.name != "func.return":
            raise refusal(last, "control flow that is no loop and no if; write it with for and if")
        self._open.remove(block)
        self._ended.add(block)

    def _append(self, block: Block, target: Block, values: Sequence[SSAValue], last: Operation) -> None:
        """Puts what follows in place of a branch to it."""
        self.end(target)
        erase(last)
        self._entries[target] -= 1
        if self._entries[target]:
            known: dict[SSAValue, SSAValue] = dict(zip(target.args, values, strict=True))
            for op in target.ops:
                block.add_op(copy(op, known))
            return
        for argument, value in zip(target.args, values, strict=True):
            argument.replace_all_uses_with(value)
        for op in list(target.ops):
            op.detach()  # type: ignore[no-untyped-call]
            block.add_op(op)

    def _branch(self, block: Block, last: Any) -> None:
        regions = []
        for target, values in zip(last.successors, (last.then_arguments, last.else_arguments), strict=True):
            inner = Block()
            if not _only_returns(target):
                leave = ReturnOp()
                leave.location = last.location
                inner.add_op(leave)
                self._append(inner, target, values, leave)
                erase(inner.last_op)  # type: ignore[arg-type]
            inner.add_op(YieldOp())
            regions.append(Region(inner))
        made = _If(last.cond, [], *regions)
        made.location = last.location
        block.insert_op_before(made, last)
        end = ReturnOp()
        end.location = last.location
        block.add_op(end)
        erase(last)


def _only_returns(block: Block) -> bool:
    return block.first_op is not None and block.first_op.name == "func.return"
