# SPDX-License-Identifier: Apache-2.0
"""Affine expressions over SSA values: parsing and printing `%a + 2 * %b`, and the sets and maps emission shares."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from xdsl.dialects.builtin import DYNAMIC_INDEX, AffineMapAttr, AffineSetAttr
from xdsl.ir import SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineConstraintExpr,
    AffineConstraintKind,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
    AffineSet,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.parser.affine_parser import AffineParser
from xdsl.printer import Printer


class OperandCollector:
    """Turns SSA names met in expressions into affine dims in order of first use; known variables become symbols."""

    def __init__(self, parser: Parser, variables: Sequence[str] = ()) -> None:
        self.parser = parser
        self.variables = {name: AffineExpr.symbol(i) for i, name in enumerate(variables)}
        self.operands: list[UnresolvedOperand] = []
        self._dims: dict[tuple[str, int], AffineExpr] = {}

    def parse_expr(self) -> AffineExpr:
        return AffineParser(self.parser._parser_state)._parse_affine_expr(self._parse_optional_value)

    def _parse_optional_value(self) -> AffineExpr | None:
        operand = self.parser.parse_optional_unresolved_operand()
        if operand is None:
            return None
        if operand.index == 0 and operand.operand_name in self.variables:
            return self.variables[operand.operand_name]
        key = (operand.operand_name, operand.index)
        if key not in self._dims:
            self._dims[key] = AffineExpr.dimension(len(self.operands))
            self.operands.append(operand)
        return self._dims[key]

    def close(self, exprs: Sequence[AffineExpr]) -> AffineMap:
        """The map over captured ++ variables, once everything has been parsed."""
        captured, total = len(self.operands), len(self.operands) + len(self.variables)
        dims = [AffineExpr.dimension(i) for i in range(total)]
        results = tuple(e.replace_dims_and_symbols(dims[:captured], dims[captured:]) for e in exprs)
        return AffineMap(total, 0, results)


_OPERATORS = {
    AffineBinaryOpKind.Add: "+",
    AffineBinaryOpKind.Mul: "*",
    AffineBinaryOpKind.Mod: "mod",
    AffineBinaryOpKind.FloorDiv: "floordiv",
    AffineBinaryOpKind.CeilDiv: "ceildiv",
}


def print_expr(printer: Printer, expr: AffineExpr, values: Sequence[SSAValue], nested: bool = False) -> None:
    """Print an expression whose dims are `values`; a nested binary expression gets parentheses."""
    if isinstance(expr, AffineDimExpr):
        printer.print_ssa_value(values[expr.position])
    elif isinstance(expr, AffineConstantExpr):
        printer.print_string(str(expr.value))
    elif isinstance(expr, AffineBinaryOpExpr):
        printer.print_string("(" if nested else "")
        print_expr(printer, expr.lhs, values, True)
        printer.print_string(f" {_OPERATORS[expr.kind]} ")
        print_expr(printer, expr.rhs, values, True)
        printer.print_string(")" if nested else "")
    else:
        raise ValueError(f"no SSA value stands for {expr}")


@cache
def box_set(shape: tuple[int, ...]) -> AffineSetAttr:
    """``0 <= d_i < shape[i]``; each dynamic size becomes the next symbol."""
    constraints = []
    symbols = 0
    for i, size in enumerate(shape):
        dim = AffineExpr.dimension(i)
        if size == DYNAMIC_INDEX:
            upper = AffineExpr.symbol(symbols) + -1
            symbols += 1
        else:
            upper = AffineExpr.constant(size - 1)
        constraints.append(_at_least_zero(dim))
        constraints.append(_at_least_zero(dim * -1 + upper))
    return AffineSetAttr(AffineSet(len(shape), symbols, tuple(constraints)))


def _at_least_zero(expr: AffineExpr) -> AffineConstraintExpr:
    return AffineConstraintExpr(AffineConstraintKind.ge, expr, AffineExpr.constant(0), canonicalize=False)


@cache
def identity_map(rank: int) -> AffineMapAttr:
    return AffineMapAttr(AffineMap.identity(rank))
