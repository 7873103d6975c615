# SPDX-License-Identifier: Apache-2.0
"""Integer sets: boxes of coordinates and sets of cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from xdsl.ir import SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineConstraintKind,
    AffineDimExpr,
    AffineExpr,
    AffineSet,
    AffineSymExpr,
)

from torch_spyre.backend.affine import Affine
from torch_spyre.backend.scalars import Scalars
from torch_spyre.errors import UnsupportedOp


@dataclass(frozen=True)
class Bound:
    """``const + sum(coefficient * symbol)`` over the symbols of a set."""

    const: int = 0
    symbols: tuple[tuple[int, int], ...] = ()

    def affine(self, values: Sequence[SSAValue], scalars: Scalars) -> Affine:
        total = Affine(self.const)
        for symbol, coefficient in self.symbols:
            total = total + scalars.affine(values[symbol]) * coefficient
        return total

    def minus_one_of(self, values: Sequence[SSAValue]) -> SSAValue | None:
        """The value s if the bound is ``s - 1``."""
        if self.const == -1 and len(self.symbols) == 1 and self.symbols[0][1] == 1:
            return values[self.symbols[0][0]]
        return None


@dataclass
class _Flat:
    const: int = 0
    dims: dict[int, int] = field(default_factory=dict)
    symbols: dict[int, int] = field(default_factory=dict)


def _flatten(expr: AffineExpr, factor: int, into: _Flat) -> bool:
    match expr:
        case AffineConstantExpr(value=value):
            into.const += factor * value
        case AffineDimExpr(position=position):
            into.dims[position] = into.dims.get(position, 0) + factor
        case AffineSymExpr(position=position):
            into.symbols[position] = into.symbols.get(position, 0) + factor
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Add, lhs=lhs, rhs=rhs):
            return _flatten(lhs, factor, into) and _flatten(rhs, factor, into)
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Mul, lhs=lhs, rhs=AffineConstantExpr(value=value)):
            return _flatten(lhs, factor * value, into)
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Mul, lhs=AffineConstantExpr(value=value), rhs=rhs):
            return _flatten(rhs, factor * value, into)
        case _:
            return False
    return True


@lru_cache(maxsize=4096)
def box_of(points: AffineSet) -> tuple[tuple[Bound, Bound], ...]:
    """Lowest and highest coordinate of each dim; raises UnsupportedOp if the set is not a box."""
    lows: dict[int, Bound] = {}
    highs: dict[int, Bound] = {}
    for constraint in points.constraints:
        flat = _Flat()
        ok = _flatten(constraint.lhs, 1, flat) and _flatten(constraint.rhs, -1, flat)
        dims = [(d, c) for d, c in flat.dims.items() if c]
        if not dims and ok:
            continue
        if not ok or len(dims) != 1 or abs(dims[0][1]) != 1:
            raise UnsupportedOp(f"coordinate set {points} is not a box")
        ((dim, sign),) = dims
        bound = Bound(-sign * flat.const, tuple(sorted((s, -sign * c) for s, c in flat.symbols.items() if c)))
        kinds = {AffineConstraintKind.ge: (sign > 0, sign < 0), AffineConstraintKind.le: (sign < 0, sign > 0)}
        is_low, is_high = kinds.get(constraint.kind, (True, True))
        for applies, bounds in ((is_low, lows), (is_high, highs)):
            if applies and bounds.setdefault(dim, bound) != bound:
                raise UnsupportedOp(f"coordinate set {points} bounds dim {dim} twice")
    if set(lows) != set(highs) or len(lows) != points.num_dims:
        raise UnsupportedOp(f"coordinate set {points} does not bound every dim from both sides")
    return tuple((lows[d], highs[d]) for d in range(points.num_dims))


def members(points: AffineSet, candidates: Sequence[int], symbols: Sequence[int] = ()) -> list[int]:
    """Values of the one dim of `points` among the candidates."""
    tests = {
        AffineConstraintKind.ge: lambda a, b: a >= b,
        AffineConstraintKind.le: lambda a, b: a <= b,
        AffineConstraintKind.eq: lambda a, b: a == b,
    }
    return [
        value
        for value in candidates
        if all(tests[c.kind](c.lhs.eval([value], symbols), c.rhs.eval([value], symbols)) for c in points.constraints)
    ]
