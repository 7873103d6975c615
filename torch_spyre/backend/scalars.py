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

from torch_spyre.backend.affine import CORE_ID, Affine
from torch_spyre.backend.assembler import Extent
from torch_spyre.backend.isa import Sop
from torch_spyre.backend.stream import Stream
from torch_spyre.errors import UnsupportedOp

_SOPS = {
    "arith.addi": Sop.ADD,
    "arith.subi": Sop.SUB,
    "arith.muli": Sop.MUL,
    "arith.divui": Sop.FLOORDIV,
    "arith.divsi": Sop.FLOORDIV,
    "arith.floordivsi": Sop.FLOORDIV,
    "arith.remui": Sop.MOD,
    "arith.remsi": Sop.MOD,
    "arith.minsi": Sop.MIN,
    "arith.minui": Sop.MIN,
    "arith.maxsi": Sop.MAX,
    "arith.maxui": Sop.MAX,
}
_CASTS = {"arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci"}
# Operations whose signed and unsigned meaning differ from floor division unless the left side is at least 0.
_TRUNCATING = {"arith.divsi", "arith.remsi"}


class Scalars:
    """Evaluates scalar SSA values on a stream. `grid` are the sizes of the grid axes, axis 0 fastest."""

    def __init__(self, stream: Stream, grid: tuple[int, ...]) -> None:
        self._stream = stream
        self._grid = grid
        self._affines: dict[SSAValue, Affine] = {}
        self._truths: dict[SSAValue, Affine] = {}

    def bind(self, value: SSAValue, affine: Affine) -> None:
        self._affines[value] = affine

    def affine(self, value: SSAValue) -> Affine:
        if value not in self._affines:
            self._affines[value] = self._evaluate(value)
        return self._affines[value]

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
            a, b = (self.affine(operand) for operand in op.operands)
            if name in _TRUNCATING and (self._stream.bounds(a)[0] is None or self._stream.bounds(a)[0] < 0):  # type: ignore[operator]
                raise UnsupportedOp(f"{name} of an index that may be negative; use arith.floordivsi or prove it is not")
            return self._stream.scalar(_SOPS[name], a, b)
        if name in _CASTS:
            return self.affine(op.operands[0])
        if name == "arith.ceildivsi" or name == "arith.ceildivui":
            a, b = (self.affine(operand) for operand in op.operands)
            return self._stream.scalar(Sop.FLOORDIV, a + b - 1, b)
        if name == "ktdp.get_compute_tile_id":
            return self._tile_id(op, value)
        if name == "arith.select":
            return self._select(op)
        raise UnsupportedOp(f"{name} computes a scalar; indices are built from arith operations on integers")

    def _tile_id(self, op: Operation, value: SSAValue) -> Affine:
        axis = list(op.results).index(value)  # type: ignore[arg-type]
        below = 1
        for size in self._grid[:axis]:
            below *= size
        coordinate = self._stream.scalar(Sop.FLOORDIV, CORE_ID, Affine(below))
        size = self._grid[axis] if axis < len(self._grid) else 1
        return self._stream.scalar(Sop.MOD, coordinate, Affine(size))

    def _select(self, op: Operation) -> Affine:
        condition, a, b = self.truth(op.operands[0]), self.affine(op.operands[1]), self.affine(op.operands[2])
        scalar = self._stream.scalar
        one_if_true = scalar(Sop.MIN, scalar(Sop.MAX, condition + 1, Affine(0)), Affine(1))
        return b + scalar(Sop.MUL, one_if_true, a - b)

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
        raise UnsupportedOp(f"condition computed by {op.name}; use arith.cmpi, andi and ori")

    def _compare(self, op: Operation) -> Affine:
        a, b = (self.affine(operand) for operand in op.operands)
        predicate = _compare_predicate(op)
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
