# SPDX-License-Identifier: Apache-2.0
"""Sizes in buckets: tensors of any size up to a capacity, addressed as if they had that capacity.

A tensor of size s may be stored with room for B >= s, its strides on the host being those of s. A program made for B
then serves every s in the bucket, if each access, split into levels between which nothing carries, is put together
again with the strides of B. The proofs here are about polynomials in the size symbols, for all sizes from the least
one of the bucket on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from torch_spyre.buckets import KERNEL_SIZES


class NotBucketed(Exception):
    """Why a kernel is planned for its exact sizes."""


def number(expr: sympy.Expr, values: Mapping[Any, int]) -> int | float:
    """The value of an expression for given sizes."""
    return _evaluator(expr)(values)


@functools.lru_cache(maxsize=65536)
def _evaluator(expr: sympy.Expr) -> Callable[[Mapping[Any, int]], int | float]:
    """sympy's own substitution takes a hundred times as long, and every new size asks for dozens."""
    if expr.is_Integer:
        constant = int(expr)
        return lambda values: constant
    if expr.is_Symbol:
        return lambda values: values[expr]
    if isinstance(expr, (sympy.Add, sympy.Mul)):
        args = [_evaluator(a) for a in expr.args]
        fold = sum if isinstance(expr, sympy.Add) else math.prod
        return lambda values: fold(a(values) for a in args)

    def substituted(values: Mapping[Any, int]) -> int | float:
        value = expr.xreplace({s: sympy.Integer(values[s]) for s in expr.free_symbols})
        return int(value) if value.is_Integer else float(value)

    return substituted


@dataclass(frozen=True)
class Space:
    """One combination of buckets: a capacity for each size expression, and for each symbol its least and its greatest
    value."""

    capacity: Mapping[sympy.Expr, int]
    low: Mapping[sympy.Symbol, int]
    top: Mapping[sympy.Symbol, int]
    extents: dict[sympy.Expr, int] = field(default_factory=dict)

    def room(self, size: Any) -> int:
        """Elements that a buffer has room for along a dim of this size."""
        size = sympy.sympify(size)
        return int(size) if size.is_Integer else self.capacity[size]

    def extent(self, size: Any) -> int:
        """Points that an iteration over this size makes: at least the size, whatever it is in this bucket."""
        size = sympy.sympify(size)
        if size.is_Integer or not size.free_symbols:
            return int(size)
        if size not in self.extents:
            most = self.most(size)
            self.extents[size] = self.capacity[size] if most is None else min(self.capacity[size], most)
        return self.extents[size]

    def most(self, expr: sympy.Expr) -> int | None:
        """The greatest value, of a polynomial that grows with its symbols."""
        return int(number(expr, self.top)) if _grows(expr) else None

    def never_negative(self, expr: Any) -> bool:
        """Is the polynomial proved to be >= 0? (One whose coefficients are, counted from the least sizes, is.)"""
        expr = sympy.expand(expr)
        if expr.is_Integer:
            return bool(expr >= 0)
        if not expr.is_polynomial(*self.low):
            return False
        shifted = sympy.Poly(expr.xreplace({s: s + n for s, n in self.low.items()}), *self.low)
        return all(c >= 0 for c in shifted.coeffs())


@dataclass(frozen=True)
class Sizes:
    """What a recipe is specialised for: a number for each symbol, or a space of buckets for all of them.

    Exact sizes are the case without symbols: every buffer is stored as its size says, and nothing has to be proved.
    """

    values: Mapping[str, int] = field(default_factory=dict)
    space: Space = field(default_factory=lambda: Space({}, {}, {}))
    shapes: Mapping[str, Shape] = field(default_factory=dict)  # of the buffers, with their room
    joined: Mapping[sympy.Expr, Sequence[sympy.Expr]] = field(default_factory=dict)  # size -> those of joined dims
    filled: bool = False  # a new buffer that is written in parts begins as zeros

    @property
    def exact(self) -> bool:
        return not self.space.low

    def text(self) -> str:
        """All that programs for these sizes depend on."""
        if self.exact:
            return str(sorted(self.values.items()))
        rooms = [(name, s.room) for name, s in self.shapes.items()]  # which also tell joined dims from others
        capacities = [(str(e), c) for e, c in (*self.space.capacity.items(), *self.space.top.items())]
        return f"{capacities}{rooms}{self.filled}"


def _grows(expr: sympy.Expr) -> bool:
    symbols = sorted(expr.free_symbols, key=str)
    if not symbols or not expr.is_polynomial(*symbols):
        return not symbols
    return all(c >= 0 for monomial, c in sympy.Poly(expr, *symbols).terms() if any(monomial))


def capacity(size: sympy.Expr, values: Mapping[sympy.Symbol, int]) -> int:
    """The capacity for a size that is no product. A sum of several that vary has room for the bucket of each."""
    if size.is_Integer:
        return int(size)
    present = int(number(size, values))
    if present < 0:
        raise NotBucketed(f"a size is the product of numbers below 0, one of them {size}")
    if len(size.free_symbols) > 1 and _grows(size):
        return int(number(size, {s: KERNEL_SIZES.capacity(values[s]) for s in size.free_symbols}))
    return KERNEL_SIZES.capacity(present)


def quotient(a: Any, b: Any) -> sympy.Expr | None:
    """a / b if that is a polynomial with whole coefficients."""
    ratio = sympy.cancel(sympy.sympify(a) / sympy.sympify(b))
    if ratio.is_Integer:
        return ratio
    if not ratio.free_symbols or not ratio.is_polynomial(*ratio.free_symbols):
        return None
    whole = all(c.is_Integer for c in sympy.Poly(ratio, *ratio.free_symbols).coeffs())
    return ratio if whole else None


def factors(size: sympy.Expr, order: Sequence[sympy.Symbol]) -> list[sympy.Expr]:
    """The sizes of the dims that may have been joined into one of this size: numbers first, then symbols in order."""
    content, rest = sympy.factor_list(size)
    if content < 0:  # 50 - n comes as -1 and n - 50
        if len(rest) != 1 or rest[0][1] != 1:
            return [size]
        content, rest = -content, [(sympy.expand(-rest[0][0]), 1)]
    found = [(-1, sympy.Integer(content))] if content != 1 else []
    for factor, power in rest:
        rank = min(order.index(s) for s in factor.free_symbols)
        found += [(rank, factor)] * power
    return [f for _, f in sorted(found, key=lambda pair: pair[0])]


@dataclass(frozen=True)
class Level:
    """Dims whose strides are whole multiples of `base`; `base` with the strides of the capacity is `room_base`."""

    base: sympy.Expr
    room_base: int


@dataclass
class Shape:
    """A strided tensor by its exact size and stride (symbolic), with the strides that its capacity gives it."""

    size: list[sympy.Expr]
    stride: list[sympy.Expr]
    room: list[int]
    room_stride: list[int] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)

    @staticmethod
    def of(size: Sequence[Any], stride: Sequence[Any], room: Sequence[int], values: Mapping[Any, int]) -> Shape:
        """`values` are present sizes: they only tell which stride is the larger."""
        shape = Shape([sympy.expand(s) for s in size], [sympy.expand(s) for s in stride], list(room))
        if all(n.is_Integer for n in (*shape.size, *shape.stride)):
            shape.room_stride, shape.levels = [int(s) for s in stride], [Level(sympy.Integer(1), 1)]
        else:
            shape._pack(values)
        return shape

    @property
    def varies(self) -> bool:
        return not all(n.is_Integer for n in (*self.size, *self.stride))

    def _pack(self, values: Mapping[Any, int]) -> None:
        order = [i for i, n in enumerate(self.size) if n != 1 and self.stride[i] != 0]
        order.sort(key=lambda i: (number(self.stride[i], values), -i))
        self.room_stride = [0] * len(self.size)
        self.levels = [Level(sympy.Integer(1), 1)]
        previous: int | None = None
        for i in order:
            stride = self.stride[i]
            if stride.is_Integer:
                here = int(stride)
                if previous is not None and self.room_stride[previous] * self.room[previous] > here:
                    raise NotBucketed(f"a dim of stride {stride} has no room inside it")
            else:
                if previous is None or sympy.expand(stride - self.size[previous] * self.stride[previous]) != 0:
                    raise NotBucketed(f"stride {stride} of a tensor of size {self.size} is not that of a dense tensor")
                here = self.room_stride[previous] * self.room[previous]
            self.room_stride[i] = here
            level = self.levels[-1]
            step = quotient(stride, level.base)
            if step is None or not step.is_Integer:
                self.levels.append(Level(stride, here))
            elif int(step) * level.room_base != here:
                raise NotBucketed(f"dims of a tensor of size {self.size} do not nest")
            previous = i

    def inner(self, low: Mapping[sympy.Symbol, int]) -> float:
        """Offsets below this are the same with the strides of the capacity, whatever the sizes are."""
        return number(self.levels[1].base, low) if len(self.levels) > 1 else math.inf

    def level_size(self, number: int) -> sympy.Expr | None:
        """Offsets that a level takes, in units of its base; None for the last, which nothing can carry out of."""
        if number + 1 == len(self.levels):
            return None
        size = quotient(self.levels[number + 1].base, self.levels[number].base)
        if size is None:
            raise NotBucketed(f"strides {self.stride} do not divide one another")
        return size

    def level_room(self, number: int) -> int:
        if number + 1 < len(self.levels):
            return self.levels[number + 1].room_base // self.levels[number].room_base
        base = self.levels[number].room_base
        reach = sum((n - 1) * s for n, s in zip(self.room, self.room_stride, strict=True) if s >= base)
        return reach // base + 1

    def translated(
        self, strides: Sequence[int], extents: Sequence[int], values: Mapping[Any, int], back: bool
    ) -> list[int]:
        """Strides of a storage layout, from those of the exact sizes to those of the capacity, or back."""
        found, bases = self._by_levels(strides, extents, values, back)
        return [bases[at] * times for at, times in found]

    def stride_exprs(
        self, strides: Sequence[int], extents: Sequence[int], values: Mapping[Any, int], back: bool
    ) -> list[sympy.Expr]:
        """Strides of a storage layout, given for the present sizes or (`back`) for the capacity, as functions of the
        sizes."""
        found, _ = self._by_levels(strides, extents, values, back)
        return [self.levels[at].base * times for at, times in found]

    def _by_levels(
        self, strides: Sequence[int], extents: Sequence[int], values: Mapping[Any, int], back: bool
    ) -> tuple[list[tuple[int, int]], list[int]]:
        """The level of each device dim and its stride in units of that level's base, and the base of each level on the
        other side. A dim that moves nothing has the stride -1, in units of the first level's base, which is 1.

        The storage must be laid out by the dims of the tensor (`coverage`).
        """
        if back and coverage(self.room, self.room_stride, strides, extents) is None:
            raise NotBucketed("a device dim goes through several dims of the tensor")
        exact = [int(number(level.base, values)) for level in self.levels]
        room = [level.room_base for level in self.levels]
        source, target = (room, exact) if back else (exact, room)
        found = []
        for stride, extent in zip(strides, extents, strict=True):
            if stride <= 0 or extent == 1:  # moves nothing, whatever its stride
                found.append((0, -1))
                continue
            at = max(i for i, base in enumerate(source) if base <= stride)
            times, rest = divmod(stride, source[at])
            if rest or (at + 1 < len(target) and times * target[at] >= target[at + 1]):
                raise NotBucketed(f"a storage layout has the stride {stride}, which is none of the tensor's")
            found.append((at, times))
        return found, target


def coverage(
    size: Sequence[int], stride: Sequence[int], strides: Sequence[int], extents: Sequence[int]
) -> list[int] | None:
    """How far a storage with these strides and extents of device dims reaches along each dim of a tensor; None if it
    is laid out for other dims."""
    dims = [i for i, n in enumerate(size) if n > 1]
    dims.sort(key=lambda i: stride[i])
    found = [1] * len(size)
    for step, extent in zip(strides, extents, strict=True):
        if step <= 0 or extent == 1:
            continue
        owner = next((i for i in reversed(dims) if stride[i] <= step), None)
        if owner is None or stride[owner] == 0 or step % stride[owner]:
            return None
        found[owner] = max(found[owner], step // stride[owner] * extent)
    return found if all(found[i] >= size[i] for i in dims) else None


# Digits

# What each function keeps of the divisions by its arguments: the quotient (0) or the remainder (1).
_KEPT = {"FloorDiv": (0,), "CleanDiv": (0,), "Mod": (1,), "PythonMod": (1,), "ModularIndexing": (0, 1)}


def without_digits(expr: sympy.Expr, space: Space, extents: Mapping[sympy.Expr, sympy.Expr]) -> sympy.Expr:
    """The expression with quotients and remainders by symbolic sizes carried out, where they are known exactly."""

    def carried_out(digit: sympy.Expr) -> sympy.Expr:
        name, (base, *numbers) = type(digit).__name__, digit.args
        for step, keep in zip(numbers, _KEPT[name], strict=True):
            divided = _divided(base, step, space, extents)
            if divided is None:
                return digit
            base = divided[keep]
        return base

    found = [
        a
        for a in expr.atoms(sympy.Function)
        if type(a).__name__ in _KEPT and any(n.free_symbols & set(space.low) for n in a.args[1:])
    ]
    return expr.xreplace({a: carried_out(a) for a in found}) if found else expr


def _divided(
    base: sympy.Expr, by: sympy.Expr, space: Space, extents: Mapping[sympy.Expr, sympy.Expr]
) -> tuple[sympy.Expr, sympy.Expr] | None:
    """Quotient and remainder of a sum by a size: terms that the size divides, and a rest proved to be below it."""
    whole, rest, low, high = sympy.Integer(0), sympy.Integer(0), sympy.Integer(0), sympy.Integer(0)
    try:
        terms, const = split(base, space.low)
    except NotBucketed:
        return None
    for atom, coefficient in [*terms.items(), (sympy.Integer(1), const)]:
        share = quotient(coefficient, by) if coefficient != 0 else sympy.Integer(0)
        if share is not None:
            whole += share * atom
        elif atom == 1:
            rest, low, high = rest + coefficient, low + coefficient, high + coefficient
        elif atom in extents and space.never_negative(coefficient):
            rest, high = rest + coefficient * atom, high + coefficient * (extents[atom] - 1)
        else:
            return None
    if space.never_negative(low) and space.never_negative(by - 1 - high):
        return whole, rest
    return None


# Accesses


@dataclass
class Part:
    """What one level contributes to an access: whole multiples of loop variables, and a constant (maybe symbolic)."""

    terms: dict[sympy.Expr, int] = field(default_factory=dict)
    const: sympy.Expr = field(default_factory=lambda: sympy.Integer(0))


def split(index: sympy.Expr, symbols: Iterable[sympy.Symbol]) -> tuple[dict[sympy.Expr, sympy.Expr], sympy.Expr]:
    """Coefficient of each loop variable (or digit of one), and the constant; both in the size symbols."""
    sizes = set(symbols)
    terms: dict[sympy.Expr, sympy.Expr] = {}
    const = sympy.Integer(0)
    for addend in sympy.Add.make_args(sympy.expand(index)):
        coefficient, atom = sympy.Integer(1), sympy.Integer(1)
        for factor in sympy.Mul.make_args(addend):
            if factor.free_symbols <= sizes:
                coefficient *= factor
            else:
                atom *= factor
        if atom == 1:
            const += coefficient
        elif atom.free_symbols & sizes or atom.is_Mul:
            raise NotBucketed(f"the index {index} is not a sum of loop variables")
        else:
            terms[atom] = sympy.expand(terms.get(atom, 0) + coefficient)
    return terms, sympy.expand(const)


def parts(shape: Shape, index: sympy.Expr, space: Space, extents: Mapping[sympy.Expr, sympy.Expr]) -> list[Part]:
    """The access by levels, proved not to carry. `extents` gives the number of values of a variable or digit."""
    terms, const = split(index, space.low)
    if not const.is_polynomial(*space.low):
        raise NotBucketed(f"the index {index} begins at {const}, which is no polynomial of the sizes")
    found = [Part() for _ in shape.levels]
    for atom, coefficient in terms.items():
        if extents[atom] == 1:  # always 0
            continue
        for level in reversed(range(len(shape.levels))):
            step = quotient(coefficient, shape.levels[level].base)
            if step is not None and step.is_Integer:
                found[level].terms[atom] = int(step)
                break
        else:
            raise NotBucketed(f"the index {index} moves by {coefficient}, which is no multiple of a stride")
    for consts in _constants(shape, const, len(shape.levels) - 1):
        for part, c in zip(found, consts, strict=True):
            part.const = c
        if all(_holds(shape, number, part, space, extents) for number, part in enumerate(found)):
            return found
    raise NotBucketed(f"the index {index} may carry between the dims of a tensor of size {shape.size}")


def _constants(shape: Shape, const: sympy.Expr, number: int) -> Iterator[list[sympy.Expr]]:
    """Ways to share a constant out among the levels."""
    if number == 0:
        yield [const]
        return
    base = shape.levels[number].base
    symbols = sorted(base.free_symbols | const.free_symbols, key=str)
    whole = const // base
    if not (const.is_polynomial(*symbols) and base.is_polynomial(*symbols)):
        raise NotBucketed(f"the index begins at {const}, which is no polynomial of the sizes")
    if symbols:
        ratio = sympy.div(sympy.Poly(const, *symbols), sympy.Poly(base, *symbols))[0]
        whole = sympy.Poly({m: c // 1 for m, c in ratio.terms()}, *symbols).as_expr()
    for share in dict.fromkeys((whole, whole - 1, sympy.Integer(0))):
        for below in _constants(shape, sympy.expand(const - share * base), number - 1):
            yield [*below, share]


def reach(part: Part, extents: Mapping[sympy.Expr, Any]) -> tuple[Any, Any]:
    """Least and greatest value of the terms of a part."""
    low = sum(q * (extents[a] - 1) for a, q in part.terms.items() if q < 0)
    high = sum(q * (extents[a] - 1) for a, q in part.terms.items() if q > 0)
    return low, high


def _holds(shape: Shape, number: int, part: Part, space: Space, extents: Mapping[sympy.Expr, sympy.Expr]) -> bool:
    size = shape.level_size(number)
    low, high = reach(part, extents)
    if not space.never_negative(low + part.const):
        return False
    return size is None or space.never_negative(size - 1 - high - part.const)
