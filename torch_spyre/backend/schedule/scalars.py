# SPDX-License-Identifier: Apache-2.0
"""Normalise: scalar and index SSA values become affine forms over registers.

Values are evaluated when somebody asks for them, so scalar code that nothing uses costs nothing. A truth value is an
affine form that is at or above 0 when true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation, SSAValue

from torch_spyre.backend.program.assembler import Extent
from torch_spyre.backend.program.isa import Sop, type_name
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.affine import CORE_ID, ZERO, Affine

_SOPS = {
    "arith.addi": Sop.ADD,
    "arith.subi": Sop.SUB,
    "arith.muli": Sop.MUL,
    "arith.divui": Sop.FLOORDIV,
    "arith.floordivsi": Sop.FLOORDIV,
    "arith.remui": Sop.MOD,
    "arith.minsi": Sop.MIN,
    "arith.minui": Sop.MIN,
    "arith.maxsi": Sop.MAX,
    "arith.maxui": Sop.MAX,
}
_UNSIGNED = {"arith.divui", "arith.remui", "arith.ceildivui", "arith.minui", "arith.maxui", "arith.shrui"}
_WIDTHS = {"i8": 8, "i16": 16, "i32": 32}
_CASTS = {"arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci"}
_BITS = {"arith.andi", "arith.shli", "arith.shrsi", "arith.shrui"}


class Scalars:
    """Evaluates scalar SSA values on a stream. `grid` are the sizes of the grid axes."""

    def __init__(self, stream: Stream, grid: tuple[int, ...], axis0_fastest: bool = True) -> None:
        self._stream = stream
        self._grid = grid
        self._axes = range(len(grid)) if axis0_fastest else range(len(grid) - 1, -1, -1)
        self._affines: dict[SSAValue, Affine] = {}
        self._truths: dict[SSAValue, Affine] = {}

    def bind(self, value: SSAValue, affine: Affine) -> None:
        self._affines[value] = affine

    def form(self, value: SSAValue) -> Affine:
        """A number as its affine form, a truth value as the form that is at or above 0 when true."""
        return self.truth(value) if type_name(value.type) == "i1" else self.affine(value)

    def bind_form(self, value: SSAValue, affine: Affine) -> None:
        (self._truths if type_name(value.type) == "i1" else self._affines)[value] = affine

    def affine(self, value: SSAValue) -> Affine:
        if value not in self._affines:
            self._affines[value] = self._evaluate(value)
        return self._affines[value]

    def known(self, value: SSAValue) -> Affine:
        """What has been found for a value so far; 0 if nothing has."""
        return self._affines.get(value) or self._truths.get(value) or ZERO

    def settle(self, value: SSAValue) -> None:
        """Evaluates a value now."""
        self.form(value)

    def least(self, a: Affine, b: Affine) -> Affine:
        return self._stream.scalar(Sop.MIN, a, b)

    def greatest(self, a: Affine, b: Affine) -> Affine:
        return self._stream.scalar(Sop.MAX, a, b)

    def constant(self, value: SSAValue) -> int | None:
        affine = self.affine(value)
        return affine.const if affine.is_const else None

    def _evaluate(self, value: SSAValue) -> Affine:
        op = value.owner
        if not isinstance(op, Operation):
            raise UnsupportedOp(f"scalar {value} of type {value.type} is not known when the program is compiled")
        name = op.name
        if name == "arith.constant":
            return Affine(_integer(op))
        if name in _SOPS:
            return self._stream.scalar(_SOPS[name], *self._operands(op))
        if name in ("arith.divsi", "arith.remsi"):
            return self._truncating(name, *(self.affine(operand) for operand in op.operands))
        if name in _CASTS:
            if type_name(op.operands[0].type) == "i1":
                one = self._one_if(self.truth(op.operands[0]))
                return -one if name == "arith.extsi" else one
            return self.affine(op.operands[0])
        if name == "arith.ceildivsi" or name == "arith.ceildivui":
            a, b = self._operands(op)
            return self._stream.scalar(Sop.FLOORDIV, a + b - 1, b)
        if name in _BITS:
            return self._bits(op)
        if name == "ktdp.get_compute_tile_id":
            return self._tile_id(op, value)
        if name == "ktdp.runtime_arg_extract":
            return self._runtime_arg(op)
        if name == "arith.select":
            return self._select(op)
        raise UnsupportedOp(f"{name} computes a scalar; indices are built from arith operations on integers")

    def _operands(self, op: Operation) -> tuple[Affine, Affine]:
        """Both operands; of an unsigned operation as the unsigned numbers of their bits, up to 32 of them."""
        a, b = op.operands
        return (self._unsigned(a), self._unsigned(b)) if op.name in _UNSIGNED else (self.affine(a), self.affine(b))

    def _unsigned(self, value: SSAValue) -> Affine:
        number, bits = self.affine(value), _WIDTHS.get(type_name(value.type))
        low, _ = self._stream.bounds(number)
        if bits is None or (low is not None and low >= 0):
            return number
        return self._stream.scalar(Sop.MOD, number, Affine(1 << bits))

    def _truncating(self, name: str, a: Affine, b: Affine) -> Affine:
        """Division that rounds toward 0, and its remainder, which has the sign of the dividend."""
        scalar = self._stream.scalar
        sign = 1
        if b.is_const and b.const < 0:
            sign, b = -1, -b
        low, _ = self._stream.bounds(a)
        if low is not None and low >= 0:
            quotient = scalar(Sop.FLOORDIV, a, b)
            rest = scalar(Sop.MOD, a, b)
        else:
            up, down = (scalar(Sop.MAX, side, Affine(0)) for side in (a, -a))
            quotient = scalar(Sop.FLOORDIV, up, b) - scalar(Sop.FLOORDIV, down, b)
            rest = scalar(Sop.MOD, up, b) - scalar(Sop.MOD, down, b)
        return quotient * sign if name == "arith.divsi" else rest

    def _bits(self, op: Operation) -> Affine:
        """Shifts by constants, and masks that keep low bits."""
        a, b = self._operands(op)
        if op.name == "arith.andi" and a.is_const:
            a, b = b, a
        if b.is_const and b.const >= 0:
            if op.name == "arith.shli":
                return a * (1 << b.const)
            if op.name == "arith.andi" and b.const & (b.const + 1) == 0:
                return self._stream.scalar(Sop.MOD, a, Affine(b.const + 1))
            if op.name.startswith("arith.shr"):
                return self._stream.scalar(Sop.FLOORDIV, a, Affine(1 << b.const))
        raise UnsupportedOp(f"{op.name} of indices {a} and {b}; shifts need a constant, masks must keep low bits")

    def _runtime_arg(self, op: Any) -> Affine:
        kind = op.operands[0].type
        field = op.properties["field"].data
        return self.affine(op.operands[0]) if field == "value" else Affine(getattr(kind, field).data)

    def _tile_id(self, op: Operation, value: SSAValue) -> Affine:
        axis = list(op.results).index(value)  # type: ignore[arg-type]
        below = 1
        for lower in self._axes:
            if lower == axis:
                break
            below *= self._grid[lower]
        if axis >= len(self._grid):
            return Affine(0)
        coordinate = self._stream.scalar(Sop.FLOORDIV, CORE_ID, Affine(below))
        return self._stream.scalar(Sop.MOD, coordinate, Affine(self._grid[axis]))

    def _select(self, op: Operation) -> Affine:
        return self.choose(self.truth(op.operands[0]), self.affine(op.operands[1]), self.affine(op.operands[2]))

    def _one_if(self, condition: Affine) -> Affine:
        scalar = self._stream.scalar
        return scalar(Sop.MIN, scalar(Sop.MAX, condition + 1, Affine(0)), Affine(1))

    def choose(self, condition: Affine, a: Affine, b: Affine) -> Affine:
        """`a` where the condition is at or above 0, else `b`."""
        low, high = self._stream.bounds(condition)
        if low is not None and low >= 0:
            return a
        if high is not None and high < 0:
            return b
        return b + self._stream.scalar(Sop.MUL, self._one_if(condition), a - b)

    # -- truth values --------------------------------------------------------------------------------------------

    def truth(self, value: SSAValue) -> Affine:
        """A form that is >= 0 where `value` is true and < 0 where it is false."""
        if value not in self._truths:
            self._truths[value] = self._evaluate_truth(value)
        return self._truths[value]

    def _evaluate_truth(self, value: SSAValue) -> Affine:
        op = value.owner
        if not isinstance(op, Operation):
            raise UnsupportedOp(f"condition {value} is not known when the program is compiled")
        scalar = self._stream.scalar
        if op.name == "arith.constant":
            return Affine(0 if _integer(op) else -1)
        if op.name == "arith.cmpi":
            return self._compare(op)
        if op.name == "arith.andi":
            return scalar(Sop.MIN, self.truth(op.operands[0]), self.truth(op.operands[1]))
        if op.name == "arith.ori":
            return scalar(Sop.MAX, self.truth(op.operands[0]), self.truth(op.operands[1]))
        if op.name == "arith.xori":
            a, b = (self.truth(operand) for operand in op.operands)
            return scalar(Sop.MIN, scalar(Sop.MAX, a, b), -scalar(Sop.MIN, a, b) - 1)
        if op.name == "arith.select":
            condition, a, b = (self.truth(operand) for operand in op.operands)
            return self.choose(condition, a, b)
        if op.name == "arith.trunci":
            return self._stream.scalar(Sop.MOD, self.affine(op.operands[0]), Affine(2)) - 1
        raise UnsupportedOp(f"condition computed by {op.name}; use arith.cmpi, andi, ori, xori and select")

    def _compare(self, op: Operation) -> Affine:
        predicate = _compare_predicate(op)
        if type_name(op.operands[0].type) == "i1":
            a, b = (self._one_if(self.truth(operand)) for operand in op.operands)
        else:
            a, b = (self.affine(operand) for operand in op.operands)
        if predicate.startswith("u") and predicate != "une":
            lows = [self._stream.bounds(side)[0] for side in (a, b)]
            if any(low is None or low < 0 for low in lows):
                raise UnsupportedOp(f"arith.cmpi {predicate} of an index that may be negative; compare it as signed")
        distance = self._stream.scalar(Sop.MAX, a - b, b - a) if predicate in ("eq", "ne") else a - b
        forms: dict[str, Callable[[Affine], Affine]] = {
            "eq": lambda d: -d,
            "ne": lambda d: d - 1,
            "lt": lambda d: -d - 1,
            "le": lambda d: -d,
            "gt": lambda d: d - 1,
            "ge": lambda d: d,
        }
        return forms[predicate if predicate in ("eq", "ne") else predicate[1:]](distance)

    # -- extents -------------------------------------------------------------------------------------------------

    def extent(self, value: SSAValue) -> Extent:
        """`value` as the number of elements of a tile; minima with constants and clamps at 0 stay in the extent."""
        affine, cap = self._extent_parts(value)
        low, high = self._stream.bounds(affine)
        if cap is None:
            cap = high
        if cap is None:
            raise UnsupportedOp(f"extent {affine} has no upper bound; take arith.minsi of it and the size of the tile")
        if low is not None and (low >= cap or low == high):
            return Extent.of(max(0, min(cap, low)))
        if high is not None:
            cap = max(0, min(cap, high))
        return Extent(affine, cap)

    def _extent_parts(self, value: SSAValue) -> tuple[Affine, int | None]:
        op = value.owner
        if isinstance(op, Operation) and op.name in ("arith.minsi", "arith.maxsi", "arith.minui"):
            for a, b in (op.operands, reversed(op.operands)):
                bound = self._literal(b)
                if bound is None:
                    continue
                if op.name == "arith.maxsi" and bound <= 0:
                    return self._extent_parts(a)
                if op.name != "arith.maxsi" and bound >= 0:
                    affine, cap = self._extent_parts(a)
                    return affine, bound if cap is None else min(bound, cap)
        return self.affine(value), None

    def _literal(self, value: SSAValue) -> int | None:
        op = value.owner
        return _integer(op) if isinstance(op, Operation) and op.name == "arith.constant" else None


def _integer(op: Operation) -> int:
    value = op.properties.get("value")
    if not isinstance(value, IntegerAttr):
        raise UnsupportedOp(f"constant {value} is used as an index; it must be an integer")
    return value.value.data


_CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


def _compare_predicate(op: Operation) -> str:
    predicate: Any = op.properties["predicate"]
    return _CMPI[predicate.value.data]
