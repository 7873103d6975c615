# SPDX-License-Identifier: Apache-2.0
"""Scalars per compute tile: what a condition on the tile id says on each tile, where it follows from constants."""

from __future__ import annotations

from typing import Any

from xdsl.ir import Operation, SSAValue

from torch_spyre.ir.ktir.signatures import evaluate

_PREDICATES: list[Any] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]


class TileIds:
    def __init__(self, grid: tuple[int, ...], axis0_fastest: bool) -> None:
        self._grid = grid
        self._axes = range(len(grid)) if axis0_fastest else range(len(grid) - 1, -1, -1)

    def coordinates(self, flat: int) -> tuple[int, ...]:
        """Grid coordinates of a flat tile id."""
        found = [0] * len(self._grid)
        for axis in self._axes:
            found[axis] = flat % self._grid[axis]
            flat //= self._grid[axis]
        return tuple(found)

    def truth(self, condition: SSAValue, flat: int) -> bool | None:
        """A condition on one tile; None if it depends on more than the tile id."""
        op: Any = condition.owner
        if not isinstance(op, Operation):
            return None
        if op.name == "arith.cmpi":
            left, right = (evaluate(operand, self._known(operand, flat)) for operand in op.operands)
            if left is None or right is None:
                return None
            return bool(_PREDICATES[op.properties["predicate"].value.data](left, right))  # type: ignore[attr-defined]
        if op.name in ("arith.andi", "arith.ori", "arith.xori"):
            sides = [self.truth(operand, flat) for operand in op.operands]
            if None in sides:
                return None
            a, b = bool(sides[0]), bool(sides[1])
            return {"arith.andi": a and b, "arith.ori": a or b, "arith.xori": a != b}[op.name]
        if op.name == "arith.constant":
            return bool(evaluate(condition, {}))
        return None

    def _known(self, value: SSAValue, flat: int) -> dict[SSAValue, int]:
        """Tile ids that a value is computed from."""
        known: dict[SSAValue, int] = {}
        stack, seen = [value], set()
        while stack:
            owner = stack.pop().owner
            if not isinstance(owner, Operation) or owner in seen:
                continue
            seen.add(owner)
            if owner.name == "ktdp.get_compute_tile_id":
                coordinates = self.coordinates(flat)
                for axis, result in enumerate(owner.results):
                    known[result] = coordinates[axis] if axis < len(coordinates) else 0
            stack.extend(owner.operands)
        return known
