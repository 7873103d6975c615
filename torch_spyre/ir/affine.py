# SPDX-License-Identifier: Apache-2.0
"""Affine forms over integer symbols.

Symbols at or above 0 are scalar registers of the program. Negative symbols stand for what the scalar unit does not
hold: bases of launch buffers (`arg_symbol`), of scratch buffers without an address yet (`scratch_symbol`), and integers
that the program computes as data (`data_symbol`). They ride along in offsets and disappear before a program is
assembled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_FIRST_SCRATCH = -(1 << 20)
_FIRST_DATA = -(1 << 40)


def arg_symbol(index: int) -> int:
    return -1 - index


def scratch_symbol(index: int) -> int:
    return _FIRST_SCRATCH - index


def data_symbol(index: int) -> int:
    return _FIRST_DATA - index


def is_data(symbol: int) -> bool:
    return symbol <= _FIRST_DATA


def is_arg(symbol: int) -> bool:
    return _FIRST_SCRATCH < symbol < 0


def is_scratch(symbol: int) -> bool:
    return _FIRST_DATA < symbol <= _FIRST_SCRATCH


def arg_index(symbol: int) -> int:
    return -1 - symbol


@dataclass(frozen=True, slots=True)
class Affine:
    """``const + sum(coefficient * symbol)``; terms are sorted by symbol and have no zero coefficients."""

    const: int = 0
    terms: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def symbol(symbol: int, coefficient: int = 1) -> Affine:
        return Affine(0, ((symbol, coefficient),) if coefficient else ())

    @property
    def is_const(self) -> bool:
        return not self.terms

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.const + other, self.terms)
        if not other.terms:
            return Affine(self.const + other.const, self.terms)
        if not self.terms:
            return Affine(self.const + other.const, other.terms)
        merged = dict(self.terms)
        for symbol, coefficient in other.terms:
            merged[symbol] = merged.get(symbol, 0) + coefficient
        return Affine(self.const + other.const, tuple(sorted((s, c) for s, c in merged.items() if c)))

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        return self + (-other)

    def __mul__(self, factor: int) -> Affine:
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Affine(self.const * factor, tuple((s, c * factor) for s, c in self.terms))

    def exact_div(self, divisor: int) -> Affine | None:
        """The form divided by `divisor`, or None if some coefficient does not divide."""
        if self.const % divisor or any(c % divisor for _, c in self.terms):
            return None
        return Affine(self.const // divisor, tuple((s, c // divisor) for s, c in self.terms))

    def coefficient(self, symbol: int) -> int:
        return next((c for s, c in self.terms if s == symbol), 0)

    def evaluate(self, values: Mapping[int, int]) -> int:
        return self.const + sum(c * values[s] for s, c in self.terms)

    def substitute(self, values: Mapping[int, int]) -> Affine:
        """Replaces the symbols in `values` by numbers."""
        if not self.terms:
            return self
        const = self.const + sum(c * values[s] for s, c in self.terms if s in values)
        return Affine(const, tuple((s, c) for s, c in self.terms if s not in values))

    def __str__(self) -> str:
        parts = [f"r{s}" if c == 1 else f"{c}*r{s}" for s, c in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")


ZERO = Affine()
CORE_ID = Affine.symbol(0)
