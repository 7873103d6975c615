# SPDX-License-Identifier: Apache-2.0
"""Combiners of inter-tile reductions: are they pure, and is the identity neutral?"""

from __future__ import annotations

import math
from typing import Any

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr, IntegerType
from xdsl.ir import Operation, Region, SSAValue

_PURE_DIALECTS = ("arith", "math", "linalg", "tensor", "scf", "spyreop")
_PURE_OPS = ("ktdp.yield_reduced", "ktdp.get_compute_tile_id")


def impure_op(combiner: Region) -> Operation | None:
    """The first op of a combiner that touches memory or other tiles."""
    for op in combiner.walk():
        if op.name.split(".")[0] not in _PURE_DIALECTS and op.name not in _PURE_OPS:
            return op
    return None


_ORDERED = (
    "arith.subf",
    "arith.divf",
    "arith.remf",
    "arith.subi",
    "arith.divsi",
    "arith.divui",
    "arith.remsi",
    "arith.remui",
)


def not_commutative(combiner: Region) -> str | None:
    """Why a combiner cannot be commutative: it ignores a side, or is an op whose operands cannot trade places."""
    block = combiner.block
    used: set[SSAValue] = set()
    stack = list(block.last_op.operands) if block.last_op is not None else []
    while stack:
        value = stack.pop()
        if value in used:
            continue
        used.add(value)
        owner = value.owner
        if isinstance(owner, Operation) and owner.parent_block() is not None:
            stack.extend(owner.operands)
            stack.extend(operand for inner in owner.walk() for operand in inner.operands)
    count = len(block.args) // 2
    for index, arg in enumerate(block.args):
        if arg not in used:
            side = "left" if index < count else "right"
            return f"it ignores the {side} side of partial {index % count}"
    ops = list(block.ops)
    if len(ops) == 2 and ops[0].name in _ORDERED:
        return f"{ops[0].name} depends on the order of its operands"
    return None


# What counts as minus infinity for a maximum: the format's own, its lowest finite value, and the usual stand-ins.
_VERY_LOW = {"f16": -6.0e4, "bf16": -1.0e30, "f32": -1.0e30}


def _is_neutral(name: str, number: float, element: Any) -> bool | None:
    """None for an op whose neutral element is not known."""
    low = _VERY_LOW.get(str(element), -math.inf)
    bits = element.width.data if isinstance(element, IntegerType) else 32
    rules: dict[str, bool] = {
        "arith.addf": number == 0,
        "arith.addi": number == 0,
        "arith.ori": number == 0,
        "arith.xori": number == 0,
        "arith.mulf": number == 1,
        "arith.muli": number == 1,
        "arith.andi": number == -1 or number == 2**bits - 1 or (bits == 1 and number in (1, True)),
        "arith.maximumf": number <= low,
        "arith.maxnumf": number <= low or math.isnan(number),
        "arith.minimumf": number >= -low,
        "arith.minnumf": number >= -low or math.isnan(number),
        "arith.maxsi": number == -(2 ** (bits - 1)),
        "arith.minsi": number == 2 ** (bits - 1) - 1,
        "arith.maxui": number == 0,
        "linalg.add": number == 0,
        "linalg.mul": number == 1,
        "linalg.max": number <= low,
        "linalg.min": number >= -low,
    }
    return rules.get(name)


def wrong_identity(delivery: Any) -> str | None:
    """Why the identity of a reduction is not neutral; None if it is, or if that cannot be seen."""
    last = delivery.combiner.block.last_op
    count = len(delivery.identity)
    for index, (identity, yielded) in enumerate(zip(delivery.identity, last.operands, strict=True)):
        number = constant_of(identity)
        op = yielded.owner
        if number is None or not isinstance(op, Operation):
            continue
        sides = delivery.combiner.block.args[index], delivery.combiner.block.args[count + index]
        if set(op.operands[:2]) != set(sides):
            continue
        element = identity.type.element_type
        if _is_neutral(op.name, number, element) is False:
            return f"{op.name} starts from {number:g}"
    return None


def constant_of(value: SSAValue) -> float | None:
    """The number that all elements of a tensor equal, if it can be seen."""
    op: Any = value.owner
    if not isinstance(op, Operation):
        return None
    if op.name == "arith.constant":
        attr: Any = op.properties.get("value")
        if isinstance(attr, FloatAttr | IntegerAttr):
            return float(attr.value.data)
        if isinstance(attr, DenseIntOrFPElementsAttr):
            numbers = set(attr.get_values())
            return float(numbers.pop()) if len(numbers) == 1 else None
    if op.name in ("tensor.splat", "linalg.fill"):
        return constant_of(op.operands[0])
    if op.name in ("tensor.expand_shape", "tensor.collapse_shape", "tensor.reshape", "tensor.cast", "linalg.broadcast"):
        return constant_of(op.operands[0])
    return None
