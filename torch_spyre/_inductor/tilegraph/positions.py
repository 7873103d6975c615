# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic as values: a position where the expression is affine in the dims, integer operations elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sympy

from torch_spyre._inductor.tilegraph.expr import Expr, cast, const
from torch_spyre._inductor.tilegraph.graph import Position
from torch_spyre._inductor.tilegraph.index import Index, from_sympy
from torch_spyre.errors import UnsupportedOp

_INT = "int32"


def position(index: Index) -> Expr:
    return Expr("position", _INT, leaf=Position(index)) if index.terms else const(index.const, _INT)


def to_expr(expr: sympy.Expr, sizes: Mapping[str, int], symbols: Mapping[str, Expr]) -> Expr:
    """The value of a sympy expression over iteration dims (`sizes`) and symbols that stand for traced values."""
    expr = sympy.sympify(expr)
    if not any(str(s) in symbols for s in expr.free_symbols):
        try:
            return position(from_sympy(expr, sizes))
        except UnsupportedOp:
            pass
    if expr.is_Symbol and str(expr) in symbols:
        return cast(symbols[str(expr)], _INT)

    def value(e: sympy.Expr) -> Expr:
        return to_expr(e, sizes, symbols)

    name = type(expr).__name__
    if isinstance(expr, sympy.Add):
        affine, rest = _split(expr, sizes, symbols)
        return _fold("add", [position(affine)] * bool(affine.terms or affine.const) + [value(a) for a in rest])
    if isinstance(expr, sympy.Mul):
        return _fold("mul", [value(a) for a in expr.args])
    if isinstance(expr, sympy.Pow) and expr.args[1].is_Integer and int(expr.args[1]) > 0:
        return _fold("mul", [value(expr.args[0])] * int(expr.args[1]))
    rule = _RULES.get(name)
    if rule is None:
        raise UnsupportedOp(f"a position computed as {expr} has no device operation")
    return rule([value(a) for a in expr.args])


def _split(expr: sympy.Add, sizes: Mapping[str, int], symbols: Mapping[str, Expr]) -> tuple[Index, list[sympy.Expr]]:
    """The affine part of a sum, and the other addends."""
    affine, rest = [], []
    for addend in expr.args:
        try:
            if any(str(s) in symbols for s in addend.free_symbols):
                raise UnsupportedOp("not affine")
            from_sympy(addend, sizes)
            affine.append(addend)
        except UnsupportedOp:
            rest.append(addend)
    return from_sympy(sympy.Add(*affine), sizes), rest


def _fold(op: str, values: list[Expr]) -> Expr:
    total = values[0]
    for v in values[1:]:
        total = Expr(op, _INT, (total, v))
    return total


def _binary(op: str) -> Callable[[list[Expr]], Expr]:
    return lambda args: Expr(op, _INT, (args[0], args[1]))


def _digit(args: list[Expr]) -> Expr:
    base, div, mod = args
    return Expr("remainder", _INT, (Expr("floordiv", _INT, (base, div)), mod))


_RULES: dict[str, Callable[[list[Expr]], Expr]] = {
    "FloorDiv": _binary("floordiv"),
    "CleanDiv": _binary("floordiv"),
    "Mod": _binary("remainder"),
    "PythonMod": _binary("remainder"),
    "ModularIndexing": _digit,
    "Max": lambda args: _fold("maximum", args),
    "Min": lambda args: _fold("minimum", args),
    "Abs": lambda args: Expr("abs", _INT, (args[0],)),
    "Identity": lambda args: args[0],
}
