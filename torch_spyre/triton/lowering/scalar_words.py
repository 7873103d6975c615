# SPDX-License-Identifier: Apache-2.0
"""Scalar integers that the scalar unit does not compute.

It counts in 64 bits, knows no exclusive or, and nothing that is read. A sum that may leave 32 bits is brought back to
them; a word of bits, as random numbers need, and what follows from memory are computed by the vector unit as tensors
of one element.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import IndexType, IntegerType, ModuleOp, TensorType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from torch_spyre.triton.lowering import linear, running_scalars, splice
from torch_spyre.triton.lowering.linear import constant
from torch_spyre.triton.lowering.refusals import refusal
from torch_spyre.triton.lowering.running_scalars import within_combiner
from torch_spyre.triton.lowering.ttir_ops import BroadcastOp, ReshapeOp

_I32 = IntegerType(32)
_BITWISE = ("arith.xori", "arith.ori", "tt.mulhiui")
_SHIFTS = ("arith.andi", "arith.shli", "arith.shrsi", "arith.shrui")
_SUMS = ("arith.addi", "arith.subi", "arith.muli", "arith.trunci")
_WIDTHS = ("arith.extsi", "arith.extui", "arith.trunci")
_ELEMENTWISE = ("arith.", "math.", "tt.mulhiui", "tt.bitcast", "tt.clampf", "tt.extern_elementwise")
_CARRYING = ("scf.for", "scf.if")


def run(module: ModuleOp) -> None:
    running = {value for value in running_scalars.find(module) if isinstance(value.type, IntegerType)}
    words = _Words(_words(module, running), running)
    for op in list(module.walk()):
        if not within_combiner(op):
            words.rewrite(op)


def _words(module: ModuleOp, running: set[SSAValue]) -> set[SSAValue]:
    """All integers that become tensors of one element."""
    found = set(running)
    ops = [op for op in module.walk() if not within_combiner(op)]
    before = -1
    while before != len(found):
        before = len(found)
        for op in ops:
            if op.name in _CARRYING:
                found.update(_carried(op, found))
            elif op.name.startswith(_ELEMENTWISE) and isinstance(op.results[0].type, IntegerType):
                starts = op.results[0].type == _I32 and (op.name in _BITWISE or _is_word(op))
                if starts or any(operand in found for operand in op.operands):
                    found.add(op.results[0])
    return found


def _carried(op: Any, found: set[SSAValue]) -> list[SSAValue]:
    """What a loop or a branch hands on, if it is a word once."""
    more = []
    for i, result in enumerate(op.results):
        ends = [region.block.last_op.operands[i] for region in op.regions if region.blocks]
        if op.name == "scf.for":
            ends += [op.operands[3 + i]]
        if isinstance(result.type, IntegerType) and any(value in found for value in (result, *ends)):
            more.append(result)
            if op.name == "scf.for":
                more.append(op.regions[0].block.args[1 + i])
    return more


def _is_word(op: Operation) -> bool:
    """Shifts and masks that the scalar unit does not have: it shifts by constants and keeps low bits."""
    if op.name not in _SHIFTS:
        return False
    number = constant(op.operands[1])
    if number is None or number < 0:
        return True
    if op.name == "arith.andi":
        return number & (number + 1) != 0
    low = linear.bounds(op.operands[0])[0]
    return op.name == "arith.shli" or (op.name == "arith.shrui" and (low is None or low < 0))


def _fits(op: Operation) -> bool:
    low, high = linear.exact_bounds(op)
    return low is not None and high is not None and -(1 << 31) <= low and high < 1 << 31


def _wrap(op: Operation) -> None:
    """The same number modulo 2^32, computed in 64 bits: remui of what is below 0 counts from 2^64, a multiple of it."""
    kind = op.operands[0].type
    lines, names = [], []
    for i, value in enumerate(op.operands):
        lines.append(f"%w{i} = arith.index_cast %a{i} : {value.type} to index")
        names.append(f"%w{i}")
    if op.name == "arith.trunci":
        if kind != IntegerType(64):
            return
        lines.append("%zero = arith.constant 0 : index")
        lines.append("%exact = arith.addi %w0, %zero : index")
    else:
        lines.append(f"%exact = {op.name} {', '.join(names)} : index")
    lines += [
        f"%half = arith.constant {1 << 31} : index",
        f"%whole = arith.constant {1 << 32} : index",
        "%up = arith.addi %exact, %half : index",
        "%rest = arith.remui %up, %whole : index",
        "%signed = arith.subi %rest, %half : index",
        "%r = arith.index_cast %signed : index to i32",
    ]
    splice.instead(op, "\n".join(lines), {f"a{i}": value for i, value in enumerate(op.operands)})


class _Words:
    """Rewrites operations in the order of the program. `_tensors`: a scalar, and the tensor that holds it."""

    def __init__(self, words: set[SSAValue], running: set[SSAValue]) -> None:
        self._words = words
        self._running = running
        self._tensors: dict[SSAValue, SSAValue] = {}

    def rewrite(self, op: Any) -> None:
        if op.name in _CARRYING:
            self._carry(op)
        elif op.name == "scf.yield":
            self._hand_on(op)
        elif op.name == "tt.splat" and op.operands[0] in self._tensors:
            self._spread(op)
        elif op.name == "arith.select" and self._chooses_tensors(op):
            op.operands[0] = _broadcast(op, self._tensors[op.operands[0]], op.results[0].type)
        elif op.name.startswith(_ELEMENTWISE) and len(op.results) == 1:
            self._compute(op)

    def _compute(self, op: Any) -> None:
        kind = op.results[0].type
        if isinstance(kind, TensorType | IndexType):
            return
        if op.results[0] in self._words or any(operand in self._tensors for operand in op.operands):
            if op.name == "arith.constant":
                return
            if op.name in _WIDTHS and op.operands[0] not in self._running and _width(op) != {1, 32}:
                raise refusal(op, "a word of bits as an integer of another width; keep it in 32 bits")
            self._as_tensor(op)
        elif kind == _I32 and op.name in _SUMS and not _fits(op):
            _wrap(op)

    def _chooses_tensors(self, op: Any) -> bool:
        return isinstance(op.results[0].type, TensorType) and op.operands[0] in self._tensors

    def _as_tensor(self, op: Any) -> None:
        """The operation on tensors of one element."""
        operands = [self._tensor(op, value) for value in op.operands]
        made = op.clone()
        made.operands = operands
        kind = op.results[0].type
        made.results[0]._type = TensorType(kind, [1])
        made.location = op.location
        op.parent_block().insert_op_before(made, op)
        scalar = _extracted(made.results[0], kind, op)
        self._note(op.results[0], scalar, made.results[0])
        splice.replace(op, [scalar])

    def _note(self, old: SSAValue, scalar: SSAValue, tensor: SSAValue) -> None:
        self._tensors[scalar] = tensor
        if old in self._words:
            self._words.add(scalar)
        if old in self._running:
            self._running.add(scalar)

    def _tensor(self, op: Operation, value: SSAValue) -> SSAValue:
        if value in self._tensors:
            return self._tensors[value]
        return splice.before(op, f"%t = tensor.splat %a : tensor<1x{value.type}>", {"a": value})[0]

    def _spread(self, op: Any) -> None:
        splice.replace(op, [_broadcast(op, self._tensors[op.operands[0]], op.results[0].type)])

    def _carry(self, op: Any) -> None:
        """Loops and branches hand tensors on."""
        after = op.next_op
        for i, result in enumerate(op.results):
            if result not in self._words:
                continue
            kind = result.type
            if op.name == "scf.for":
                op.operands[3 + i] = self._tensor(op, op.operands[3 + i])
                block = op.regions[0].block
                self._retype(block.args[1 + i], kind, block.first_op)
            self._retype(result, kind, after)

    def _retype(self, value: SSAValue, kind: Attribute, before: Operation) -> None:
        value._type = TensorType(kind, [1])
        uses = list(value.uses)
        scalar = _extracted(value, kind, before)
        for use in uses:
            use.operation.operands[use.index] = scalar
        self._note(value, scalar, value)

    def _hand_on(self, op: Any) -> None:
        parent = op.parent_op()
        if parent is None or parent.name not in _CARRYING:
            return
        for i, result in enumerate(parent.results):
            if isinstance(result.type, TensorType) and not isinstance(op.operands[i].type, TensorType):
                op.operands[i] = self._tensor(op, op.operands[i])


def _width(op: Operation) -> set[int]:
    return {value.type.width.data for value in (op.operands[0], op.results[0])}  # type: ignore[attr-defined]


def _extracted(tensor: SSAValue, kind: Attribute, before: Operation) -> SSAValue:
    text = f"%zero = arith.constant 0 : index\n%word = tensor.extract %t[%zero] : tensor<1x{kind}>"
    return splice.before(before, text, {"t": tensor})[0]


def _broadcast(op: Any, tensor: SSAValue, wanted: Any) -> SSAValue:
    """One element as a tile."""
    element = tensor.type.element_type  # type: ignore[attr-defined]
    shape = wanted.get_shape()
    block: Block = op.parent_block()
    for kind, sizes in ((ReshapeOp, [1] * len(shape)), (BroadcastOp, list(shape))):
        if tuple(sizes) == tuple(tensor.type.get_shape()):  # type: ignore[attr-defined]
            continue
        made = kind.made([tensor], [TensorType(element, sizes)])
        made.location = op.location
        block.insert_op_before(made, op)
        tensor = made.results[0]
    return tensor
