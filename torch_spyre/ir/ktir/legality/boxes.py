# SPDX-License-Identifier: Apache-2.0
"""Integer sets: boxes of coordinates and sets of cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

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

from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.affine import Affine


class Scalars(Protocol):
    """What a set asks of the SSA values that its symbols stand for. The back end's `Scalars` is one."""

    def affine(self, value: SSAValue) -> Affine: ...

    def least(self, a: Affine, b: Affine) -> Affine: ...

    def greatest(self, a: Affine, b: Affine) -> Affine: ...


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


@dataclass(frozen=True)
class Side:
    """All lower (or all upper) bounds of one dim; the tightest counts."""

    bounds: tuple[Bound, ...]

    @property
    def only(self) -> Bound | None:
        return self.bounds[0] if len(self.bounds) == 1 else None

    def affine(self, values: Sequence[SSAValue], scalars: Scalars, upper: bool) -> Affine | None:
        """The tightest bound; None if there is none."""
        if len(self.bounds) == 1 and not self.bounds[0].symbols:
            return Affine(self.bounds[0].const)
        forms = [bound.affine(values, scalars) for bound in self.bounds]
        if not forms:
            return None
        total = forms[0]
        for form in forms[1:]:
            total = scalars.least(total, form) if upper else scalars.greatest(total, form)
        return total


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


_BOXES: dict[int, tuple[AffineSet, tuple[tuple[Side, Side], ...]]] = {}


def box_of(points: AffineSet) -> tuple[tuple[Side, Side], ...]:
    """Lower and upper bounds of each dim; raises UnsupportedOp if the set is not a box."""
    known = _BOXES.get(id(points))  # emitters share sets, and comparing them costs more than this
    if known is None or known[0] is not points:
        if len(_BOXES) > 4096:
            _BOXES.clear()
        known = _BOXES[id(points)] = (points, _box_of(points))
    return known[1]


@lru_cache(maxsize=4096)
def _box_of(points: AffineSet) -> tuple[tuple[Side, Side], ...]:
    lows: list[list[Bound]] = [[] for _ in range(points.num_dims)]
    highs: list[list[Bound]] = [[] for _ in range(points.num_dims)]
    for constraint in points.constraints:
        flat = _Flat()
        ok = _flatten(constraint.lhs, 1, flat) and _flatten(constraint.rhs, -1, flat)
        dims = [(d, c) for d, c in flat.dims.items() if c]
        if not dims and ok:
            continue
        symbols = tuple(sorted((s, c) for s, c in flat.symbols.items() if c))
        if not ok or len(dims) != 1 or (symbols and abs(dims[0][1]) != 1):
            raise UnsupportedOp(f"coordinate set {points} is not a box")
        ((dim, factor),) = dims
        is_equal = constraint.kind is AffineConstraintKind.eq
        at_least = (constraint.kind is AffineConstraintKind.ge) == (factor > 0)
        for upper in (False, True):
            if is_equal or upper is not at_least:
                bound = _bound(flat.const, symbols, factor, upper)
                side = (highs if upper else lows)[dim]
                _tighten(side, bound, upper)
    return tuple((Side(tuple(low)), Side(tuple(high))) for low, high in zip(lows, highs, strict=True))


def _bound(const: int, symbols: tuple[tuple[int, int], ...], factor: int, upper: bool) -> Bound:
    """What ``factor * dim + const + symbols`` against 0 says about the dim."""
    if symbols:
        return Bound(-factor * const, tuple((s, -factor * c) for s, c in symbols))
    return Bound(-const // factor if upper else -(const // factor))


def _tighten(side: list[Bound], bound: Bound, upper: bool) -> None:
    """Adds a bound; of several constants the tightest stays."""
    for i, other in enumerate(side):
        if other.symbols == bound.symbols:
            side[i] = Bound((min if upper else max)(other.const, bound.const), bound.symbols)
            return
    side.append(bound)


_TESTS: dict[AffineConstraintKind, Callable[[int], bool]] = {
    AffineConstraintKind.ge: lambda v: v >= 0,
    AffineConstraintKind.le: lambda v: v <= 0,
    AffineConstraintKind.eq: lambda v: v == 0,
}


def members(points: AffineSet, candidates: Sequence[int], symbols: Sequence[int] = ()) -> list[int]:
    """Values of the one dim of `points` among the candidates."""
    kept = list(candidates)
    for constraint in points.constraints:
        test = _TESTS[constraint.kind]
        flat = _Flat()
        if _flatten(constraint.lhs, 1, flat) and _flatten(constraint.rhs, -1, flat):
            offset = flat.const + sum(c * symbols[s] for s, c in flat.symbols.items())
            factor = flat.dims.get(0, 0)
            kept = [value for value in kept if test(offset + factor * value)]
        else:
            lhs, rhs = constraint.lhs, constraint.rhs
            kept = [value for value in kept if test(lhs.eval([value], symbols) - rhs.eval([value], symbols))]
    return kept
