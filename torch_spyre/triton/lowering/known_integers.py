# SPDX-License-Identifier: Apache-2.0
"""Integer arguments and sizes of the grid become constants, and what follows from them is computed.

A program of the card is made for one set of integers: strides are part of its instructions and sizes part of its proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from torch_spyre.errors import InvalidArgument
from torch_spyre.triton.lowering.linear import constant
from torch_spyre.triton.lowering.splice import erase, replace

_AXES = {"x": 0, "y": 1, "z": 2}


def the_function(module: ModuleOp) -> FuncOp:
    functions = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
    assert len(functions) == 1, "Triton's inliner leaves one function"
    return functions[0]


def bind(module: ModuleOp, arguments: Sequence[object], grid: tuple[int, int, int]) -> None:
    """`arguments` holds an int for each integer of the function, anything else for the others."""
    function = the_function(module)
    block = function.body.block if len(function.body.blocks) == 1 else function.body.blocks[0]
    if len(arguments) != len(block.args):
        raise InvalidArgument(f"{function.sym_name.data} takes {len(block.args)} values, {len(arguments)} are given")
    first = block.first_op
    assert first is not None
    for argument, value in zip(tuple(block.args), arguments, strict=True):
        if isinstance(argument.type, IntegerType):
            argument.replace_all_uses_with(_number(first, int(value), argument.type))  # type: ignore[call-overload]
    for op in list(module.walk()):
        if op.name not in ("tt.get_num_programs", "tt.get_program_id"):
            continue
        programs = grid[_AXES[op.attributes["axis"].data]]  # type: ignore[attr-defined]
        if op.name == "tt.get_num_programs":
            replace(op, [_number(op, programs, op.results[0].type)])
        else:
            op.attributes["programs"] = IntegerAttr(programs, 64)


def _number(before: Operation, value: int, kind: Attribute) -> SSAValue:
    width = kind.width.data if isinstance(kind, IntegerType) else 64
    made = ConstantOp(IntegerAttr(_signed(value, width), kind))  # type: ignore[call-overload]
    made.location = before.location
    Rewriter.insert_op(made, InsertPoint.before(before))
    return made.result


def _signed(value: int, width: int) -> int:
    if width == 1:
        return value & 1
    return (value + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))


def fold(module: ModuleOp) -> None:
    """Replaces scalar integers that follow from constants, with the wrap-around of their types. A loop with one
    iteration is its body."""
    for op in list(module.walk()):
        if op.name == "scf.for" and _runs_once(op):
            _unroll_once(op)
            continue
        if op.name not in _FOLDS or not _is_scalar(op.results[0].type):
            continue
        numbers = [constant(operand) for operand in op.operands]
        if None in numbers:
            continue
        widths = [_width(operand.type) for operand in op.operands]
        found = _FOLDS[op.name](op, [n for n in numbers if n is not None], widths)
        if found is not None:
            replace(op, [_number(op, found, op.results[0].type)])


def _runs_once(loop: Operation) -> bool:
    first, limit, step = (constant(bound) for bound in loop.operands[:3])
    return first is not None and limit is not None and step is not None and first < limit <= first + step


def _unroll_once(loop: Any) -> None:
    body = loop.regions[0].block
    for argument, value in zip(body.args, (loop.operands[0], *loop.operands[3:]), strict=True):
        argument.replace_all_uses_with(value)
    end = body.last_op
    values = list(end.operands)
    for op in list(body.ops):
        if op is not end:
            op.detach()
            loop.parent_block().insert_op_before(op, loop)
    erase(end)
    replace(loop, values)


def _is_scalar(kind: Attribute) -> bool:
    return isinstance(kind, IntegerType | IndexType)


def _width(kind: Attribute) -> int:
    return kind.width.data if isinstance(kind, IntegerType) else 64


Fold = Callable[[Operation, list[int], list[int]], int | None]


def _plain(f: Callable[[int, int], int]) -> Fold:
    return lambda op, n, w: f(*n)


def _unsigned(f: Callable[[int, int], int]) -> Fold:
    return lambda op, n, w: f(*(x % (1 << bits) for x, bits in zip(n, w, strict=True)))


def _divided(f: Callable[[int, int], int]) -> Fold:
    return lambda op, n, w: f(*n) if n[1] else None


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_COMPARISONS: tuple[Callable[[int, int], bool], ...] = (
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
)


def _compared(op: Operation, n: list[int], w: list[int]) -> int:
    predicate = op.properties["predicate"].value.data  # type: ignore[attr-defined]
    if predicate >= 6:
        n = [x % (1 << bits) for x, bits in zip(n, w, strict=True)]
        predicate -= 4
    return int(_COMPARISONS[predicate](*n))


_FOLDS: dict[str, Fold] = {
    "arith.addi": _plain(lambda a, b: a + b),
    "arith.subi": _plain(lambda a, b: a - b),
    "arith.muli": _plain(lambda a, b: a * b),
    "arith.andi": _plain(lambda a, b: a & b),
    "arith.ori": _plain(lambda a, b: a | b),
    "arith.xori": _plain(lambda a, b: a ^ b),
    "arith.minsi": _plain(min),
    "arith.maxsi": _plain(max),
    "arith.minui": _unsigned(min),
    "arith.maxui": _unsigned(max),
    "arith.shli": _plain(lambda a, b: a << b),
    "arith.shrsi": _plain(lambda a, b: a >> b),
    "arith.shrui": _unsigned(lambda a, b: a >> b),
    "arith.divsi": _divided(_truncated),
    "arith.remsi": _divided(lambda a, b: a - b * _truncated(a, b)),
    "arith.divui": lambda op, n, w: n[0] % (1 << w[0]) // (n[1] % (1 << w[1])) if n[1] else None,
    "arith.remui": lambda op, n, w: n[0] % (1 << w[0]) % (n[1] % (1 << w[1])) if n[1] else None,
    "arith.extsi": lambda op, n, w: -n[0] if w[0] == 1 else n[0],
    "arith.extui": lambda op, n, w: n[0] % (1 << w[0]),
    "arith.trunci": lambda op, n, w: n[0],
    "arith.index_cast": lambda op, n, w: n[0],
    "arith.select": lambda op, n, w: n[1] if n[0] else n[2],
    "arith.cmpi": _compared,
    "tt.mulhiui": _unsigned(lambda a, b: a * b >> 32),
}
