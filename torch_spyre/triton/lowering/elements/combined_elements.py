# SPDX-License-Identifier: Apache-2.0
"""Reductions and matrix products."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import FloatAttr, ModuleOp, TensorType, _FloatType
from xdsl.dialects.linalg import YieldOp
from xdsl.ir import Attribute, Block, Operation, Region

from torch_spyre.ir.ktir.dialect.context import ReduceOp as LinalgReduce
from torch_spyre.triton.lowering import splice
from torch_spyre.triton.lowering.linear import shape_of
from torch_spyre.triton.lowering.refusals import refusal


def run(module: ModuleOp) -> None:
    for op in list(module.walk()):
        if op.name == "tt.reduce":
            _reduce(op)
        elif op.name == "tt.dot":
            _dot(op)


def _reduce(op: Any) -> None:
    """With one of the card's combiners from its neutral element on; with any other from the first element on."""
    axis = op.attributes["axis"] if "axis" in op.attributes else op.properties["axis"]
    dim = int(axis.value.data)
    block = op.regions[0].block
    kinds = [value.type for value in op.operands]
    small = [TensorType(k.element_type, [s for d, s in enumerate(k.get_shape()) if d != dim]) for k in kinds]
    names = [inner.name for inner in block.ops]
    neutral = _neutral(names[0], kinds[0].element_type) if len(kinds) == 1 and len(names) == 2 else None
    if neutral is not None:
        text = f"%n = arith.constant {neutral} : {small[0].element_type}\n%i = tensor.splat %n : {small[0]}"
        inputs, inits = list(op.operands), list(splice.before(op, text, {}))
    elif shape_of(kinds[0])[dim] == 1:
        raise refusal(op, "a reduction of one element with a combiner of your own; drop it")
    else:
        inits = [_part(op, i, dim, 0, 1, small[i]) for i in range(len(kinds))]
        inputs = [_part(op, i, dim, 1, shape_of(kinds[i])[dim] - 1, None) for i in range(len(kinds))]
    made = _linalg_reduce(op, inputs, inits, dim)
    results = []
    for kind, new in zip(small, made.results, strict=True):
        values = {"r": new}
        scalar = not kind.get_shape()
        results.append(splice.before(op, f"%x = tensor.extract %r[] : {kind}", values)[0] if scalar else new)
    splice.replace(op, results)


def _linalg_reduce(op: Any, inputs: Any, inits: Any, dim: int) -> Any:
    """The combiner's first operands are the result so far, its second ones the next elements."""
    count = len(inputs)
    old = op.regions[0].block
    elements = [value.type.element_type for value in inputs]
    block = Block(arg_types=[*elements, *elements])
    for i, argument in enumerate(old.args):
        argument.replace_all_uses_with(block.args[count + i if i < count else i - count])
    for inner in list(old.ops):
        inner.detach()
        block.add_op(inner)
    returned = block.last_op
    assert returned is not None
    block.insert_op_before(YieldOp(*returned.operands), returned)
    splice.erase(returned)
    made = LinalgReduce(inputs, inits, [dim], Region(block))
    made.location = op.location
    op.parent_block().insert_op_before(made, op)
    return made


def _part(op: Any, operand: int, dim: int, start: int, size: int, kind: TensorType | None) -> Any:
    """The elements from `start` on along a dim, without that dim if a smaller type is given."""
    given = op.operands[operand].type
    shape = list(given.get_shape())
    offsets = [start if d == dim else 0 for d in range(len(shape))]
    sizes = [size if d == dim else s for d, s in enumerate(shape)]
    strides = [1] * len(shape)
    result = kind or TensorType(given.element_type, sizes)
    text = f"%s = tensor.extract_slice %a{offsets} {sizes} {strides} : {given} to {result}"
    return splice.before(op, text, {"a": op.operands[operand]})[0]


def _neutral(combiner: str, element: Attribute) -> str | None:
    """The element that a combiner ignores, as a constant."""
    if isinstance(element, _FloatType):
        numbers = {
            "arith.addf": 0.0,
            "arith.mulf": 1.0,
            "arith.maxnumf": float("-inf"),
            "arith.maximumf": float("-inf"),
            "arith.minnumf": float("inf"),
            "arith.minimumf": float("inf"),
        }
        number = numbers.get(combiner)
        return None if number is None else str(FloatAttr(number, element)).split(" : ")[0]  # type: ignore[call-overload]
    bits = element.width.data  # type: ignore[attr-defined]
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    integers = {
        "arith.addi": 0,
        "arith.muli": 1,
        "arith.maxsi": low,
        "arith.minsi": high,
        "arith.maxui": 0,
        "arith.minui": -1,
    }
    if bits == 1 or combiner not in integers:
        return None
    return str(integers[combiner])


def _dot(op: Operation) -> None:
    a, b, c = op.operands
    name = "linalg.matmul" if len(shape_of(a.type)) == 2 else "linalg.batch_matmul"
    text = f"%r = {name} ins(%a, %b : {a.type}, {b.type}) outs(%c : {c.type}) -> {c.type}"
    splice.instead(op, text, {"a": a, "b": b, "c": c})
