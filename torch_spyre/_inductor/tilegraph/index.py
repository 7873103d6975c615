# SPDX-License-Identifier: Apache-2.0
"""Quasi-affine index expressions, and their decomposition into the coordinates of a strided or tiled array.

An `Index` is ``const + sum(scale * ((dim // div) % mod))`` over named iteration dims: exactly what views,
flattenings, transposes and slices produce. `decompose` turns a linear element offset into one coordinate per array
dim. The array may be a host tensor (size, stride) or a device layout (device_size, stride_map): both are lists of
(stride, extent).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sympy

from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.plan.tileops import Coord, Term


@dataclass(frozen=True)
class Index:
    """A linear element offset as a function of the iteration dims."""

    terms: tuple[Term, ...] = ()
    const: int = 0

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t.dim for t in self.terms))

    def rename(self, names: Mapping[str, str]) -> Index:
        return Index(tuple(Term(names.get(t.dim, t.dim), t.scale, t.div, t.mod) for t in self.terms), self.const)

    def shifted(self, offset: int) -> Index:
        return Index(self.terms, self.const + offset)


def term_range(term: Term, sizes: Mapping[str, int]) -> int:
    """Number of values ``(dim // div) % mod`` takes."""
    n = -(-sizes[term.dim] // term.div)
    return min(n, term.mod) if term.mod else n


def bounds(index: Index, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The least and the greatest value (each term by itself; digits of one dim need not peak together)."""
    reach = [t.scale * (term_range(t, sizes) - 1) for t in index.terms]
    return index.const + sum(r for r in reach if r < 0), index.const + sum(r for r in reach if r > 0)


def from_sympy(expr: sympy.Expr, sizes: Mapping[str, int]) -> Index:
    """Reads Inductor's index expression. Raises UnsupportedOp for anything that is not quasi-affine in the dims."""
    expr = sympy.expand(sympy.sympify(expr))
    terms: dict[tuple[str, int, int], int] = {}
    const = 0
    for addend in sympy.Add.make_args(expr):
        coefficient, rest = addend.as_coeff_Mul()
        if not coefficient.is_integer:
            raise UnsupportedOp(f"index {expr}: coefficient {coefficient} is not an integer")
        if rest == 1:
            const += int(coefficient)
            continue
        key = _digit(rest, sizes)
        if key is None:
            raise UnsupportedOp(f"index {expr}: term {rest} is not affine in the loop dims {sorted(sizes)}")
        terms[key] = terms.get(key, 0) + int(coefficient)
    return Index(
        tuple(Term(dim, scale, div, mod) for (dim, div, mod), scale in terms.items() if scale and sizes[dim] > 1), const
    )


def _digit(expr: sympy.Expr, sizes: Mapping[str, int]) -> tuple[str, int, int] | None:
    """(dim, div, mod) if expr is ``(dim // div) % mod``."""
    if expr.is_Symbol:
        return (str(expr), 1, 0) if str(expr) in sizes else None
    name = type(expr).__name__
    if name == "ModularIndexing":
        base, div, mod = expr.args
        inner = _digit(base, sizes)
        if inner is None or not (div.is_Integer and mod.is_Integer):
            return None
        if inner[2] % (int(div) * int(mod)):  # a digit of a digit is one if it ends where the outer one repeats
            return None
        return _canonical((inner[0], inner[1] * int(div), int(mod)), sizes)
    if name in ("FloorDiv", "CleanDiv"):
        base, div = expr.args
        inner = _digit(base, sizes)
        if inner is None or not div.is_Integer:
            return None
        mod = inner[2]
        if mod and mod % int(div):
            return None
        return _canonical((inner[0], inner[1] * int(div), mod // int(div) if mod else 0), sizes)
    if name in ("Mod", "PythonMod"):
        base, mod = expr.args
        inner = _digit(base, sizes)
        if inner is None or inner[2] or not mod.is_Integer:
            return None
        return _canonical((inner[0], inner[1], int(mod)), sizes)
    return None


BASE = "s"  # stands for a sum of dims, see split_base


def split_base(expr: sympy.Expr, sizes: Mapping[str, int]) -> tuple[Index, dict[str, int], Index] | None:
    """``f(g(dims), other dims)`` for an index with digits of one linear sum g: a reshape or slice of a reshaped view.

    Returns f as an index over BASE and the other dims, the sizes of those (BASE innermost, past g's peak), and g.
    None if there is no such sum.
    """
    digits = [a for a in expr.atoms(sympy.Function) if type(a).__name__ in ("FloorDiv", "CleanDiv", "ModularIndexing")]
    inner = max((a.args[0] for a in digits), key=lambda e: len(sympy.Add.make_args(e)), default=sympy.Integer(0))
    if len(sympy.Add.make_args(inner)) < 2:
        return None
    base = sympy.Symbol(BASE, integer=True, nonnegative=True)
    digits = [a for a in digits if _digit_of(a, inner)]
    rest = expr.xreplace({a: a.func(base, *a.args[1:]) for a in digits})
    try:
        position = from_sympy(inner, sizes)
        peak = position.const + sum(t.scale * (term_range(t, sizes) - 1) for t in position.terms if t.scale > 0)
        dims = {d: n for d, n in sizes.items() if sympy.Symbol(d, integer=True, nonnegative=True) in rest.free_symbols}
        # Whole digits: the lower ones run through all their values anyway, so nothing outside the buffer is touched.
        step = max(int(sympy.prod(a.args[1:])) for a in digits)
        dims[BASE] = -(-(peak + 1) // step) * step
        return from_sympy(rest, dims), dims, position
    except UnsupportedOp:
        return None


def _digit_of(digit: sympy.Expr, base: sympy.Expr) -> bool:
    """Is this a digit of base? A modulus lets sympy drop the terms of base that are multiples of it."""
    difference = sympy.expand(base - digit.args[0])
    if difference == 0 or type(digit).__name__ != "ModularIndexing":
        return bool(difference == 0)
    modulus = digit.args[1] * digit.args[2]
    return all((term.as_coeff_Mul()[0] % modulus) == 0 for term in sympy.Add.make_args(difference))


def _canonical(key: tuple[str, int, int], sizes: Mapping[str, int]) -> tuple[str, int, int]:
    dim, div, mod = key
    if mod and -(-sizes[dim] // div) <= mod:
        mod = 0
    return dim, div, mod


def decompose(index: Index, axes: Iterable[tuple[int, int]], sizes: Mapping[str, int]) -> list[Coord] | None:
    """`_decompose`, remembered: a model asks the same of each of its layers."""
    found = _decompose(index, tuple(axes), tuple((t.dim, sizes[t.dim]) for t in index.terms))
    return None if found is None else list(found)


@functools.lru_cache(maxsize=1 << 14)
def _decompose(
    index: Index, axes: tuple[tuple[int, int], ...], known: tuple[tuple[str, int], ...]
) -> list[Coord] | None:
    """Coordinates of a linear offset along each (stride, extent) axis, or None if they do not separate.

    They separate when no term and no sum of terms carries from one axis into the next, so that each coordinate is
    itself a sum of digits of single dims. Axes with stride <= 0 (synthetic dims of a layout) get coordinate 0.
    """
    sizes = dict(known)
    # An axis of extent 1 moves nothing; it would only get in the way of equal strides.
    order = [i for i, (stride, extent) in enumerate(axes) if stride > 0 and extent > 1]
    order.sort(key=lambda i: -axes[i][0])
    strides = [axes[i][0] for i in order]
    consts = [0] * len(order)
    rest = index.const
    if rest < 0:
        return None
    for k, stride in enumerate(strides):
        consts[k], rest = divmod(rest, stride)
    if rest:
        return None

    placed: list[list[tuple[int, Term]]] = []  # per term of the index: (position in order, digit)
    for term in index.terms:
        digits = _place(term, strides, sizes)
        if digits is None:
            return None
        placed.append(digits)

    coords = [Coord() for _ in axes]
    for k, axis in enumerate(order):
        here = tuple(t for digits in placed for pos, t in digits if pos == k)
        top = consts[k] + sum(t.scale * (term_range(t, sizes) - 1) for t in here)
        if top >= axes[axis][1]:
            return None
        if k > 0 and _reach_below(index, placed, consts, strides, k, sizes) >= strides[k - 1]:
            return None
        coords[axis] = Coord(here, consts[k])
    return coords


def _reach_below(
    index: Index,
    placed: list[list[tuple[int, Term]]],
    consts: list[int],
    strides: list[int],
    k: int,
    sizes: Mapping[str, int],
) -> int:
    """Largest offset that the axes at position k and below can add up to."""
    reach = sum(c * s for c, s in zip(consts[k:], strides[k:], strict=True))
    for term, digits in zip(index.terms, placed, strict=True):
        low = [(pos, t) for pos, t in digits if pos >= k]
        if len(low) == len(digits):  # digits of one dim do not peak together: take the whole term's own peak
            reach += term.scale * (term_range(term, sizes) - 1)
        else:
            reach += sum(strides[pos] * t.scale * (term_range(t, sizes) - 1) for pos, t in low)
    return reach


def _place(term: Term, strides: list[int], sizes: Mapping[str, int]) -> list[tuple[int, Term]] | None:
    """Distributes one term over the axes, low digits to small strides; None if a digit does not fit."""
    k = next((i for i, s in enumerate(strides) if s <= term.scale), None)
    if k is None:
        return None
    digits: list[tuple[int, Term]] = []
    while True:
        if term.scale % strides[k]:
            return None
        step = term.scale // strides[k]
        if k == 0 or term.scale * (term_range(term, sizes) - 1) < strides[k - 1]:
            digits.append((k, Term(term.dim, step, term.div, term.mod)))
            return digits
        if strides[k - 1] % term.scale:
            return None
        low = strides[k - 1] // term.scale  # the low values of the term stay on this axis, the rest moves up
        if term.mod and term.mod % low:
            return None
        if low > 1:
            digits.append((k, Term(term.dim, step, term.div, low)))
        term = Term(term.dim, strides[k - 1], term.div * low, term.mod // low if term.mod else 0)
        k -= 1


def evaluate(terms: Iterable[Term], const: int, point: Mapping[str, int]) -> int:
    """Value at one iteration point (for tests and checks)."""
    total = const
    for t in terms:
        v = point[t.dim] // t.div
        total += t.scale * (v % t.mod if t.mod else v)
    return total
