# SPDX-License-Identifier: Apache-2.0
"""Helpers for operations that stand in for xDSL's, or that it lacks."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, Dialect, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer


def replace_ops(
    dialect: Dialect, ops: Sequence[type[Operation]], attributes: Sequence[type[Attribute]] = ()
) -> Dialect:
    """The dialect with `ops` added, or in place of those with the same names, and further attributes."""
    names = {op.name for op in ops}
    kept = [op for op in dialect.operations if op.name not in names]
    return Dialect(dialect.name, [*kept, *ops], [*dialect.attributes, *attributes])


def parse_group(parser: Parser, keyword: str) -> Sequence[SSAValue]:
    """``keyword(%a, %b : type, type)``"""
    parser.parse_keyword(keyword)
    return parse_group_after_keyword(parser)


def parse_group_after_keyword(parser: Parser) -> Sequence[SSAValue]:
    pos = parser.pos
    parser.parse_punctuation("(")
    values = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    parser.parse_punctuation(")")
    return parser.resolve_operands(values, types, pos)


def print_group(printer: Printer, keyword: str, values: Sequence[SSAValue]) -> None:
    printer.print_string(f" {keyword}(")
    printer.print_list(values, printer.print_ssa_value)
    printer.print_string(" : ")
    printer.print_list([v.type for v in values], printer.print_attribute)
    printer.print_string(")")


def parse_types(parser: Parser) -> list[Attribute]:
    """One type, several with commas, or several in parentheses."""
    in_parens = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    if in_parens is not None:
        return list(in_parens)
    return list(parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type))
