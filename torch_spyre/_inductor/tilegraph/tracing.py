# SPDX-License-Identifier: Apache-2.0
"""The ops handler under which Inductor runs a buffer's body: it records the body as one expression over loads.

An index that depends on values, or that no sum of digits of dims can say, becomes a gather: of the table's own dims
where the index is affine in the values, else by the linear offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import OpsValue, V
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_spyre._inductor.tilegraph import positions, scalar_functions
from torch_spyre._inductor.tilegraph.carried import Assertion, Draw, Ranking, Running, Windows
from torch_spyre._inductor.tilegraph.expr import Expr, cast, const, dtype_name
from torch_spyre._inductor.tilegraph.graph import Buffer, Const, Load, Position
from torch_spyre._inductor.tilegraph.index import Index, bounds, from_sympy, split_base, term_range
from torch_spyre._inductor.tilegraph.sizes import static
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.plan.tileops import Term
from torch_spyre.optable import BY_INDUCTOR, Kind

if TYPE_CHECKING:
    from torch_spyre._inductor.tilegraph.build import Builder

_UNKNOWN = 2**31 - 1  # bound of an offset into a target: the builder knows the true one
INDIRECT = "@"  # first letter of the names of dims that stand for index values


def _number_name(dtype: torch.dtype) -> str:
    """Numbers of the host that a graph computes with (the root of a size) are float64: the card takes them as fp32."""
    return "float32" if dtype == torch.float64 else dtype_name(dtype)


def _is_number(x: Expr) -> bool:
    """Is it made of numbers alone, of no element of a tensor?"""
    return not isinstance(x.leaf, Load) and all(_is_number(a) for a in x.args)


@dataclass(frozen=True)
class Stored:
    """Where a body stores and what: `places` are the values of the indirect dims in `index`, below `limits`."""

    index: Index
    value: Expr
    mode: str | None = None
    places: tuple[Expr, ...] = ()
    limits: tuple[int, ...] = ()


def symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, nonnegative=True)


class Tracer(DefaultHandler):
    """Records one buffer's body; `stored` is the result."""

    def __init__(self, builder: Builder, sizes: dict[str, int], reading: str) -> None:
        self.builder = builder
        self.sizes = sizes
        self.reading = reading
        self.stored: Stored | None = None
        self.masks: list[Expr] = []
        self.indirect: dict[str, tuple[Expr, int]] = {}  # name of a dim that stands for a value -> value, bound

    # Indices

    def _numbers(self, expr: sympy.Expr) -> sympy.Expr:
        """The expression with its symbolic sizes as numbers."""
        expr = sympy.sympify(expr)
        known = {*self.sizes, *self.indirect}
        return expr.xreplace({s: sympy.Integer(static(s)) for s in expr.free_symbols if str(s) not in known})

    def _ranges(self) -> dict[str, int]:
        return {**self.sizes, **{name: limit for name, (_, limit) in self.indirect.items()}}

    def _index(self, index: sympy.Expr) -> Index:
        ranges = self._ranges()
        symbols = {symbol(n): sympy.Integer(s) for n, s in ranges.items()}
        return from_sympy(V.graph.sizevars.simplify_with_ranges(self._numbers(index), symbols), ranges)

    def _value(self, expr: sympy.Expr) -> Expr:
        return positions.to_expr(self._numbers(expr), self.sizes, {n: v for n, (v, _) in self.indirect.items()})

    def _guarded(self, place: Expr) -> Expr:
        """An index value that is legal also where an enclosing mask does not hold."""
        for mask in self.masks:
            place = Expr("where3", "int32", (mask, place, const(0, "int32")))
        return place

    def _forward(self, index: Index) -> Index:
        """The index with each digit that it walks backwards as the value of a position that runs the other way."""
        start, terms = index.const, []
        for t in index.terms:
            if t.scale > 0:
                terms.append(t)
                continue
            last = term_range(t, self._ranges()) - 1
            name = f"{INDIRECT}{len(self.indirect)}"
            backwards = self._backwards(t, last)
            self.indirect[name] = (backwards, last + 1)
            terms.append(Term(name, -t.scale))
            start += t.scale * last
        return Index(tuple(terms), start)

    def _backwards(self, t: Term, last: int) -> Expr:
        """``last`` less the digit that a term holds, of a loop variable or of an index value."""
        if t.dim not in self.indirect:
            return positions.position(Index((Term(t.dim, -1, t.div, t.mod),), last))
        digit = cast(self.indirect[t.dim][0], "int32")
        for op, number in (("floordiv", t.div if t.div > 1 else 0), ("remainder", t.mod)):
            digit = Expr(op, "int32", (digit, const(number, "int32"))) if number else digit
        return Expr("sub", "int32", (const(last, "int32"), digit))

    def _places(self, index: Index) -> tuple[Index, tuple[Expr, ...], tuple[int, ...]]:
        """The index with its indirect dims numbered from 0, their values and their bounds."""
        names = [d for d in index.dims if d.startswith(INDIRECT)]
        chosen = [self.indirect[n] for n in names]
        renamed = index.rename({n: f"{INDIRECT}{i}" for i, n in enumerate(names)})
        places = tuple(self._guarded(cast(value, "int32")) for value, _ in chosen)
        return renamed, places, tuple(limit for _, limit in chosen)

    def indirect_indexing(self, x: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> sympy.Expr:
        limit = int(self._numbers(size))
        if isinstance(x, sympy.Expr):
            return x
        if isinstance(x.leaf, Const):
            value = int(x.leaf.value)
            return sympy.Integer(value + limit if value < 0 and wrap_neg else value)
        x = cast(x, "int32")
        if isinstance(x.leaf, Position):
            low, high = bounds(x.leaf.index, self.sizes)
            if low >= 0 and high < limit:
                return _to_sympy(x.leaf.index)
        if wrap_neg and not _never_negative(x, self.sizes):
            shifted = Expr("add", "int32", (x, const(limit, "int32")))
            negative = Expr("lesserthan", "bool", (x, const(0, "int32")))
            x = Expr("where3", "int32", (negative, shifted, x))
        name = f"{INDIRECT}{len(self.indirect)}"
        self.indirect[name] = (x, limit)
        return symbol(name)

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        """The card checks every index it uses."""

    def device_assert_async(self, condition: Any, message: str) -> Expr:
        return Expr("assert", "bool", (condition,), form=Assertion(message))

    # Memory

    def load(self, name: str, index: sympy.Expr) -> Expr:
        buffer = self.builder.buffer(name)
        try:
            place = self._index(index)
        except UnsupportedOp:
            return self._load_digits(buffer, index)
        place = self._forward(place)
        if any(d.startswith(INDIRECT) for d in place.dims):
            renamed, places, limits = self._places(place)
            return Expr("gather", buffer.dtype, places, Load(buffer.name, renamed), limits)
        if self.masks and buffer.kind != "scalar" and not _inside(buffer, place, self.sizes):
            return self._load_offset(buffer, positions.position(place))
        return Expr("load", buffer.dtype, leaf=Load(buffer.name, place))

    def _load_digits(self, buffer: Buffer, index: sympy.Expr) -> Expr:
        """An index that is no sum of digits: digits of one sum are a copy's, anything else is gathered."""
        numbers = self._numbers(index)
        direct = not self.masks and not any(str(s) in self.indirect for s in numbers.free_symbols)
        found = split_base(numbers, self.sizes) if direct else None
        if found is None:
            return self._load_offset(buffer, self._value(index))
        return Expr("load", buffer.dtype, leaf=self.builder.flattened(buffer, *found, self.reading))

    def _load_offset(self, buffer: Buffer, offset: Expr) -> Expr:
        table = Load(buffer.name, Index((Term(f"{INDIRECT}0"),)))
        return Expr("gather", buffer.dtype, (self._guarded(offset),), table, (buffer.span,))

    def store(self, name: str, index: sympy.Expr, value: Expr, mode: Any = None) -> None:
        if mode not in (None, "atomic_add"):
            raise UnsupportedOp(f"store mode {mode} in {self.reading} has no device operation yet")
        try:
            place, places, limits = self._places(self._index(index))
        except UnsupportedOp:
            place, places, limits = Index((Term(f"{INDIRECT}0"),)), (self._value(index),), (_UNKNOWN,)
        if mode is not None and not places:  # known places, which several points may share
            places, limits = (positions.position(place),), (_UNKNOWN,)
            place = Index((Term(f"{INDIRECT}0"),))
        self.stored = Stored(place, value, mode, places, limits)

    def store_reduction(self, name: str, index: sympy.Expr, value: Expr) -> None:
        self.stored = Stored(self._index(index), value)

    # Values

    def constant(self, value: bool | float | int, dtype: torch.dtype) -> Expr:
        return const(value, _number_name(dtype))

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Expr:
        number = self._numbers(expr)
        if number.is_number and not isinstance(number, sympy.Integer):
            return const(float(number), _number_name(dtype))
        return cast(self._value(expr), _number_name(dtype))

    value_expr = index_expr

    def to_dtype(self, x: Expr, dtype: torch.dtype, src_dtype: Any = None, use_compute_types: bool = True) -> Expr:
        return self.builder.cast(x, _number_name(dtype) if _is_number(x) else dtype_name(dtype))

    def to_dtype_bitcast(self, x: Expr, dtype: torch.dtype, src_dtype: torch.dtype) -> Expr:
        raise UnsupportedOp(f"{self.reading} reads the bits of {src_dtype} as {dtype}: the card stores other bits")

    def identity(self, x: Expr) -> Expr:
        return x

    def masked(self, mask: Expr, body: Callable[[], Expr], other: Any) -> Expr:
        if isinstance(mask.leaf, Const) and mask.leaf.value:
            return _unwrapped(body())
        self.masks.append(mask)
        value = _unwrapped(body())
        self.masks.pop()
        filler = const(bool(other) if value.dtype == "bool" else other, value.dtype)
        return scalar_functions.apply("where", (mask, value, filler), self.reading)

    def inline_asm_elementwise(self, *inputs: Expr, asm: str, dtype: torch.dtype, **_: Any) -> Expr:
        """A function that the card has whole, by its name in the op table."""
        draw = Draw.parse(asm)
        if draw is not None:
            return Expr("random", "int32", (*inputs, *map(self.builder.random_key, draw.keys)))
        return Expr(asm, dtype_name(dtype), inputs)

    def _to_int(self, rounding: str, x: Expr, dtype: torch.dtype) -> Expr:
        return self.builder.cast(scalar_functions.apply(rounding, (x,), self.reading), dtype_name(dtype))

    def trunc_to_int(self, x: Expr, dtype: torch.dtype) -> Expr:
        return self._to_int("trunc", x, dtype)

    def ceil_to_int(self, x: Expr, dtype: torch.dtype) -> Expr:
        return self._to_int("ceil", x, dtype)

    def floor_to_int(self, x: Expr, dtype: torch.dtype) -> Expr:
        return self._to_int("floor", x, dtype)

    def round_to_int(self, x: Expr, dtype: torch.dtype) -> Expr:
        return self._to_int("round", x, dtype)

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Expr:
        values = (*args, *kwargs.values())
        dtype = next((v.dtype for v in values if isinstance(v, Expr)), "float32")
        return scalar_functions.apply(name, tuple(self._number(v, dtype) for v in values), self.reading)

    def _number(self, value: Any, dtype: str) -> Any:
        """Bodies may mix plain numbers with values."""
        if isinstance(value, (bool, int, float)):
            return cast(const(value, "float32" if isinstance(value, float) else "int32"), dtype)
        return cast(self._value(value), dtype) if isinstance(value, sympy.Expr) else value

    # Reductions and scans

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Any) -> Any:
        result = dtype_name(dtype)
        if reduction_type == "dot" and value.op == "dot":
            return Expr("batchmatmul", result, value.args)
        windows = Windows.parse(reduction_type)
        if windows is not None:
            return Expr("batchmatmul", result, value.args, form=windows)
        if reduction_type in ("argmax_with_value", "argmin_with_value"):
            kind = "max" if "max" in reduction_type else "min"
            value = value[0] if isinstance(value, tuple) else value
            return Expr(kind, value.dtype, (value,)), Expr(f"arg{kind}", "int64", (value,))
        ranking = Ranking.parse(reduction_type)
        if ranking is not None:
            return Expr(ranking.op, result, (value,), form=ranking)
        row = BY_INDUCTOR.get(reduction_type)
        if row is not None and row.kind is Kind.SELECTION:
            return Expr(row.name, result, (value,))
        if row is None or row.kind is not Kind.REDUCTION or not isinstance(value, Expr):
            raise UnsupportedOp(f"reduction {reduction_type} in {self.reading} has no device operation yet")
        if reduction_type == "any":
            value = cast(value, "bool")
        return Expr(row.name, value.dtype if reduction_type == "any" else result, (value,))

    def scan(self, dtypes: tuple[torch.dtype, ...], combine_fn: Any, values: tuple[Expr, ...]) -> tuple[Expr, ...]:
        if not isinstance(combine_fn, Running) or len(values) != 1:
            raise UnsupportedOp(f"the scan in {self.reading} has no device operation")
        return (Expr(combine_fn.op, dtype_name(dtypes[0]), values),)

    def dot(self, x: Expr, y: Expr) -> Expr:
        return Expr("dot", x.dtype, (x, y))


def _unwrapped(value: Any) -> Expr:
    expr: Expr = value.value if isinstance(value, OpsValue) else value
    return expr


def _inside(buffer: Buffer, index: Index, sizes: dict[str, int]) -> bool:
    low, high = bounds(index, sizes)
    return low >= 0 and high < buffer.span


def _never_negative(x: Expr, sizes: dict[str, int]) -> bool:
    return isinstance(x.leaf, Position) and bounds(x.leaf.index, sizes)[0] >= 0


def _to_sympy(index: Index) -> sympy.Expr:
    total = sympy.Integer(index.const)
    for t in index.terms:
        digit = symbol(t.dim)
        if t.mod:
            digit = ModularIndexing(digit, t.div, t.mod)
        elif t.div > 1:
            digit = FloorDiv(digit, t.div)
        total += t.scale * digit
    return total
