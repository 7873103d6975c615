# SPDX-License-Identifier: Apache-2.0
"""Quasi-affine subscripts: sums of variables and of mixed-radix digits of linear forms.

``(w floordiv a) mod m`` is the digit of w that starts at a and ends at a*m. Subscripts of tiled tensors are sums of
such digits, and the sum over all device dims, weighted with their strides, is the address. This file does the algebra
and knows nothing about operands: it turns a subscript into a `Quasi`, and the digits of one linear form into `Levels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineConstantExpr, AffineDimExpr, AffineExpr

from torch_spyre.backend.program.isa import Sop
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.affine import ZERO, Affine


@dataclass(frozen=True)
class Linear:
    """``offset + sum(coefficient * variable)``."""

    offset: Affine
    terms: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Digit:
    """``(w floordiv div) mod mod``, w being `linear` reduced by each modulus of `prefix` in turn; mod 0: no modulus."""

    linear: Linear
    div: int
    mod: int
    prefix: tuple[int, ...] = ()

    @property
    def moduli(self) -> tuple[int, ...]:
        return (*self.prefix, self.div * self.mod) if self.mod else self.prefix


@dataclass
class Quasi:
    """``const + sum(coefficient * variable) + sum(coefficient * digit)``."""

    const: Affine = ZERO
    variables: dict[int, int] = field(default_factory=dict)
    digits: dict[Digit, int] = field(default_factory=dict)

    def add(self, other: Quasi, factor: int = 1) -> None:
        self.const = self.const + other.const * factor
        for variable, coefficient in other.variables.items():
            self.variables[variable] = self.variables.get(variable, 0) + coefficient * factor
        for digit, coefficient in other.digits.items():
            self.digits[digit] = self.digits.get(digit, 0) + coefficient * factor

    def scaled(self, factor: int) -> Quasi:
        result = Quasi()
        result.add(self, factor)
        return result

    @property
    def is_const(self) -> bool:
        return not self.variables and not self.digits


class Subscripts:
    """Evaluates subscript expressions for variables that stay below `caps`."""

    def __init__(self, stream: Stream, caps: Sequence[int]) -> None:
        self._stream = stream
        self._caps = caps

    def range_of(self, linear: Linear) -> tuple[int | None, int | None]:
        """Least and greatest value of a linear form."""
        low, high = self._stream.bounds(linear.offset)
        for variable, coefficient in linear.terms:
            reach = coefficient * max(self._caps[variable] - 1, 0)
            low = None if low is None else low + min(reach, 0)
            high = None if high is None else high + max(reach, 0)
        return low, high

    def evaluate(self, expr: AffineExpr, inputs: Sequence[Quasi]) -> Quasi:
        """The expression with its dims replaced by `inputs`."""
        match expr:
            case AffineConstantExpr(value=value):
                return Quasi(Affine(value))
            case AffineDimExpr(position=position):
                return inputs[position]
            case AffineBinaryOpExpr(kind=kind, lhs=lhs, rhs=rhs):
                return self._binary(kind, self.evaluate(lhs, inputs), self.evaluate(rhs, inputs), expr)
        raise UnsupportedOp(f"subscript {expr} is not an affine expression over indices")

    def _binary(self, kind: AffineBinaryOpKind, left: Quasi, right: Quasi, expr: AffineExpr) -> Quasi:
        if kind is AffineBinaryOpKind.Add:
            result = left.scaled(1)
            result.add(right)
            return result
        if kind is AffineBinaryOpKind.Mul:
            if not (right.is_const and right.const.is_const):
                left, right = right, left
            if right.is_const and right.const.is_const:
                return left.scaled(right.const.const)
        elif right.is_const and right.const.is_const and right.const.const > 0:
            divisor = right.const.const
            if kind is AffineBinaryOpKind.CeilDiv:
                left = left.scaled(1)
                left.const = left.const + (divisor - 1)
            return self._divide(left, divisor, kind is AffineBinaryOpKind.Mod, expr)
        raise UnsupportedOp(f"subscript {expr} multiplies or divides by something that is not a positive constant")

    def _divide(self, value: Quasi, divisor: int, remainder: bool, expr: AffineExpr) -> Quasi:
        if value.is_const:
            return Quasi(self._stream.scalar(Sop.MOD if remainder else Sop.FLOORDIV, value.const, Affine(divisor)))
        if not value.digits:
            return self._divide_linear(value, divisor, remainder)
        if len(value.digits) == 1 and not any(value.variables.values()) and value.const == ZERO:
            ((digit, coefficient),) = value.digits.items()
            if coefficient == 1:
                return _divide_digit(digit, divisor, remainder)
        quotient = _exact_quotient(value, divisor)
        if quotient is not None:
            return Quasi() if remainder else quotient
        raise UnsupportedOp(f"subscript {expr} divides a sum of tiled indices by {divisor}; divide each index alone")

    def _divide_linear(self, value: Quasi, divisor: int, remainder: bool) -> Quasi:
        linear = Linear(value.const, tuple(sorted((v, c) for v, c in value.variables.items() if c)))
        low, high = self.range_of(linear)
        if low is not None and high is not None and 0 <= low <= high < divisor:
            return value if remainder else Quasi()
        if not remainder:
            return Quasi(digits={Digit(linear, divisor, 0): 1})
        return Quasi(digits={Digit(linear, 1, divisor): 1})


def _divide_digit(digit: Digit, divisor: int, remainder: bool) -> Quasi:
    """A digit of a digit is a digit."""
    linear, div, mod, prefix = digit.linear, digit.div, digit.mod, digit.prefix
    if mod == 0:
        result = Digit(linear, div, divisor, prefix) if remainder else Digit(linear, div * divisor, 0, prefix)
    elif divisor >= mod:
        return Quasi(digits={digit: 1}) if remainder else Quasi()
    elif mod % divisor == 0:
        result = (
            Digit(linear, div, divisor, prefix) if remainder else Digit(linear, div * divisor, mod // divisor, prefix)
        )
    else:
        inner = (*prefix, div * mod)
        result = Digit(linear, div, divisor, inner) if remainder else Digit(linear, div * divisor, 0, inner)
    return Quasi(digits={result: 1})


def _exact_quotient(value: Quasi, divisor: int) -> Quasi | None:
    const = value.const.exact_div(divisor)
    coefficients = [*value.variables.values(), *value.digits.values()]
    if const is None or any(c % divisor for c in coefficients):
        return None
    return Quasi(
        const,
        {v: c // divisor for v, c in value.variables.items()},
        {d: c // divisor for d, c in value.digits.items()},
    )


# Levels of one linear form: ascending (start, stride), the first start is 1. The value is the sum of stride * digit,
# where the digits are found greedily from the highest start down. If every start divides the next, a digit depends on
# its own range only.
Levels = list[tuple[int, int]]


def levels_of(digits: dict[Digit, int], what: str) -> Levels:
    """Levels of digits that share one linear form."""
    starts = sorted({1, *(d.div for d in digits), *(m for d in digits for m in d.moduli)})
    strides = dict.fromkeys(starts, 0)
    for digit, coefficient in digits.items():
        moduli = digit.moduli
        end = moduli[-1] if moduli else starts[-1] + 1
        span = [s for s in starts if digit.div <= s < end]
        above = [s for s in reversed(starts) if s >= end]
        if _canonical(above) != _canonical(moduli) or any(b % a for a, b in pairwise(span)):
            raise UnsupportedOp(f"{what}: radices {starts} do not nest; use one layout for all subscripts of a tensor")
        for start in span:
            strides[start] += coefficient * (start // digit.div)
    return merge_levels(list(strides.items()))


def _canonical(moduli: Iterable[int]) -> list[int]:
    """Moduli without those that a later one makes irrelevant."""
    kept: list[int] = []
    for modulus in moduli:
        while kept and kept[-1] % modulus == 0:
            kept.pop()
        kept.append(modulus)
    return kept


def nests(levels: Levels) -> bool:
    """True if every start divides the next."""
    return all(high[0] % low[0] == 0 for low, high in pairwise(levels))


def merge_levels(levels: Levels) -> Levels:
    """Joins neighbours that continue each other."""
    merged: Levels = []
    for start, stride in levels:
        if merged and start % merged[-1][0] == 0 and merged[-1][1] * (start // merged[-1][0]) == stride:
            continue
        merged.append((start, stride))
    return merged


def split_levels(levels: Levels, at: int) -> tuple[Levels, Levels] | None:
    """The digits below and from `at` on, for levels that nest; None if `at` does not nest with them."""
    low, high = [], []
    for i, (start, stride) in enumerate(levels):
        end = levels[i + 1][0] if i + 1 < len(levels) else 0
        if end and end <= at:
            low.append((start, stride))
        elif start >= at:
            high.append((start, stride))
        elif at % start or (end and end % at):
            return None
        else:
            low.append((start, stride))
            high.append((at, stride * (at // start)))
    return low, high


def add_levels(a: Levels, b: Levels) -> Levels | None:
    """Levels of the sum of two functions of one variable, or None if their radices do not nest."""
    starts = sorted({s for s, _ in a} | {s for s, _ in b})
    if any(high % low for low, high in pairwise(starts)):
        return None
    total = []
    for start in starts:
        stride = 0
        for levels in (a, b):
            below = [(s, t) for s, t in levels if s <= start]
            if below:
                stride += below[-1][1] * (start // below[-1][0])
        total.append((start, stride))
    return merge_levels(total)
