# SPDX-License-Identifier: Apache-2.0
"""`spyreop`: scalar intrinsics that stand inside linalg.generic bodies, and the card's own 16-bit float type."""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import FunctionType, IndexType, IntegerType, _FloatType
from xdsl.ir import Attribute, Dialect, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import IRDLOperation, irdl_attr_definition, irdl_op_definition, result_def, traits_def, var_operand_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from torch_spyre import optable

# name -> number of operands: those that the op table spells so, and what the published dialect has besides.
INTRINSICS: dict[str, int] = {
    "addi32toi32": 2,
    "addi64toi64": 2,
    "muli32toi32": 2,
    "idx32toaddr": 3,
    "layernormscale": 1,
    **{
        spelling.removeprefix("spyreop."): row.operands
        for row in optable.OPS.values()
        for spelling in row.spellings
        if spelling.startswith("spyreop.")
    },
}


@irdl_attr_definition
class DF16Type(ParametrizedAttribute, TypeAttribute):
    """The card's 16-bit float: 1 sign, 6 exponent, 9 mantissa bits."""

    name = "spyreop.df16"


class IntrinsicOp(IRDLOperation):
    """A scalar function: ``spyreop.name %a, %b : type, type -> type`` (one type alone stands for all)."""

    arguments = var_operand_def()
    result = result_def()

    def __init__(self, *arguments: SSAValue, result_type: Attribute | None = None) -> None:
        super().__init__(operands=[list(arguments)], result_types=[result_type or arguments[0].type])

    def verify_(self) -> None:
        expected = INTRINSICS[self.name.removeprefix("spyreop.")]
        if len(self.arguments) != expected:
            raise VerifyException(f"{self.name}: expected {expected} operands, got {len(self.arguments)}")
        for value in (*self.arguments, self.result):
            if not isinstance(value.type, _FloatType | IntegerType | IndexType | DF16Type):
                raise VerifyException(f"{self.name}: operands and result must be scalars, got {value.type}")

    @classmethod
    def parse(cls, parser: Parser) -> IntrinsicOp:
        pos = parser.pos
        operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        result: Attribute
        if isinstance(types[0], FunctionType) and len(types[0].outputs) == 1:  # (type, type) -> type
            (result,), types = types[0].outputs.data, cast("list[TypeAttribute]", list(types[0].inputs.data))
        else:
            result = parser.parse_type() if parser.parse_optional_punctuation("->") else types[0]
        if len(types) == 1:
            types = types * len(operands)
        return cls.build(
            operands=[parser.resolve_operands(operands, types, pos)], result_types=[result], attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.arguments, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        types = [a.type for a in self.arguments]
        if all(t == self.result.type for t in types):
            printer.print_attribute(self.result.type)
            return
        printer.print_list(types, printer.print_attribute)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)


def _define(name: str) -> type[IntrinsicOp]:
    body = {"name": f"spyreop.{name}", "traits": traits_def(Pure()), "__module__": __name__}
    return irdl_op_definition(type(f"{name.capitalize()}Op", (IntrinsicOp,), body))


OPS: dict[str, type[IntrinsicOp]] = {name: _define(name) for name in INTRINSICS}

SpyreOp = Dialect("spyreop", list(OPS.values()), [DF16Type])
