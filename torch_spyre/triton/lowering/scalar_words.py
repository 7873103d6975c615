# SPDX-License-Identifier: Apache-2.0
"""Scalar integers that are no indices: what wraps around, and what is computed bit by bit.

The scalar unit counts in 64 bits and knows no exclusive or. A sum that may leave 32 bits is brought back to them; a
word of bits, as random numbers need, is computed by the vector unit as a tensor of one element.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import IntegerType, ModuleOp, TensorType
from xdsl.ir import Operation, SSAValue

from torch_spyre.triton.lowering import linear, splice
from torch_spyre.triton.lowering.linear import constant
from torch_spyre.triton.lowering.refusals import refusal

_I32 = IntegerType(32)
_BITWISE = ("arith.xori", "arith.ori", "tt.mulhiui")
_SHIFTS = ("arith.andi", "arith.shli", "arith.shrsi", "arith.shrui")
_SUMS = ("arith.addi", "arith.subi", "arith.muli", "arith.trunci")
_OTHERS = ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui", "arith.minsi", "arith.maxsi", "arith.cmpi")
_WORDS = (*_BITWISE, *_SHIFTS, *_SUMS[:3], *_OTHERS, "arith.select")


def run(module: ModuleOp) -> None:
    words: dict[SSAValue, SSAValue] = {}  # a scalar, and the tensor of one element that holds it
    for op in list(module.walk()):
        if not op.results or _within_reduction(op):
            continue
        if any(operand in words for operand in op.operands):
            _follow(op, words)
        elif op.results[0].type == _I32 and (op.name in _BITWISE or _is_word(op)):
            _as_tensor(op, words)
        elif op.results[0].type == _I32 and op.name in _SUMS and not _fits(op):
            _wrap(op)


def _within_reduction(op: Operation) -> bool:
    parent = op.parent_op()
    return parent is not None and parent.name == "tt.reduce"


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


def _follow(op: Any, words: dict[SSAValue, SSAValue]) -> None:
    """What is computed from a word is one too, up to where it becomes a tensor, a float or an index."""
    kind = op.results[0].type
    if op.name in _WORDS and (kind == _I32 or op.name == "arith.cmpi"):
        _as_tensor(op, words)
    elif op.name in ("arith.extsi", "arith.extui", "arith.trunci"):
        raise refusal(op, "a word of bits as an integer of another width; keep it in 32 bits")


def _as_tensor(op: Any, words: dict[SSAValue, SSAValue]) -> None:
    """The operation on tensors of one element."""
    operands = [_tensor(op, value, words) for value in op.operands]
    made = op.clone()
    made.operands = operands
    kind = op.results[0].type
    made.results[0]._type = TensorType(kind, [1])
    made.location = op.location
    op.parent_block().insert_op_before(made, op)
    text = f"%zero = arith.constant 0 : index\n%word = tensor.extract %t[%zero] : tensor<1x{kind}>"
    (scalar,) = splice.before(op, text, {"t": made.results[0]})
    words[scalar] = made.results[0]
    splice.replace(op, [scalar])


def _tensor(op: Operation, value: SSAValue, words: dict[SSAValue, SSAValue]) -> SSAValue:
    if value in words:
        return words[value]
    return splice.before(op, f"%t = tensor.splat %a : tensor<1x{value.type}>", {"a": value})[0]
