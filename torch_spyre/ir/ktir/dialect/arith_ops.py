# SPDX-License-Identifier: Apache-2.0
"""arith ops on tensors that xDSL defines on scalars only: comparisons, select, conversions with integers.

Each class keeps xDSL's class as its base, so that code written for the scalar op also sees the tensor one, and replaces
the type rules: all operands and results are scalars, or all are tensors of one shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerType, TensorType, _FloatType, i1
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from torch_spyre.ir.ktir.dialect.overrides import replace_ops


def element_type(type_: Attribute) -> Attribute:
    return type_.element_type if isinstance(type_, TensorType) else type_


def with_element(type_: Attribute, element: Attribute) -> Attribute:
    """`type_` with another element type."""
    return TensorType(element, type_.shape) if isinstance(type_, TensorType) else element


def _shape(type_: Attribute) -> tuple[int, ...] | None:
    return tuple(type_.get_shape()) if isinstance(type_, TensorType) else None


def _is_float(type_: Attribute) -> bool:
    return isinstance(type_, _FloatType)


def _is_integer(type_: Attribute) -> bool:
    return isinstance(type_, IntegerType | IndexType)


def _verify_elementwise(op: Operation, *rules: tuple[SSAValue, Callable[[Attribute], bool]]) -> None:
    shapes = {_shape(value.type) for value, _ in rules}
    if len(shapes) != 1:
        raise VerifyException(f"{op.name}: operands and result must have one shape")
    for value, rule in rules:
        if not rule(element_type(value.type)):
            raise VerifyException(f"{op.name}: element type {element_type(value.type)} is not allowed here")


class CmpiOp(arith.CmpiOp):
    def __init__(self, lhs: Operation | SSAValue, rhs: Operation | SSAValue, predicate: int | str) -> None:
        super().__init__(lhs, rhs, predicate)
        _widen_truth(self)

    def verify_(self) -> None:
        _verify_comparison(self, _is_integer)


class CmpfOp(arith.CmpfOp):
    def __init__(self, lhs: SSAValue | Operation, rhs: SSAValue | Operation, predicate: int | str, *flags: Any) -> None:
        super().__init__(lhs, rhs, predicate, *flags)
        _widen_truth(self)

    def verify_(self) -> None:
        _verify_comparison(self, _is_float)


def _widen_truth(op: CmpiOp | CmpfOp) -> None:
    """The base class gives i1; a comparison of tensors gives a tensor of i1."""
    result: Any = op.results[0]
    result._type = with_element(op.operands[0].type, i1)


def _verify_comparison(op: CmpiOp | CmpfOp, rule: Callable[[Attribute], bool]) -> None:
    lhs, rhs = op.operands
    if lhs.type != rhs.type:
        raise VerifyException(f"{op.name}: operands have types {lhs.type} and {rhs.type}")
    _verify_elementwise(op, (lhs, rule), (rhs, rule), (op.results[0], lambda t: t == i1))


class SelectOp(arith.SelectOp):
    """``select %c, %a, %b : type``, and with a tensor of conditions ``: condition type, type``."""

    def verify_(self) -> None:
        condition, lhs, rhs = self.operands
        if not lhs.type == rhs.type == self.result.type:
            raise VerifyException(
                f"arith.select: both values and the result must have one type, got {lhs.type}, {rhs.type}"
            )
        if element_type(condition.type) != i1 or _shape(condition.type) not in (None, _shape(lhs.type)):
            raise VerifyException(
                f"arith.select: the condition {condition.type} does not fit values of type {lhs.type}"
            )

    @classmethod
    def parse(cls, parser: Parser) -> SelectOp:
        operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        if len(operands) != 3:
            parser.raise_error("arith.select takes a condition and two values")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        condition = types[0] if len(types) == 2 else i1
        values = parser.resolve_operands(operands, [condition, types[-1], types[-1]], parser.pos)
        op = cls(*values)
        op.attributes |= attributes
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        if self.cond.type != i1:
            printer.print_attribute(self.cond.type)
            printer.print_string(", ")
        printer.print_attribute(self.result.type)


def _conversion(
    base: type[Operation], source: Callable[[Attribute], bool], target: Callable[[Attribute], bool]
) -> type[Operation]:
    def verify_(self: Operation) -> None:
        _verify_elementwise(self, (self.operands[0], source), (self.results[0], target))

    def parse(cls: Any, parser: Parser) -> Operation:
        operand = parser.parse_unresolved_operand()
        for hint in ("to_nearest_even", "nneg"):  # the only rounding there is; a promise that is not needed
            parser.parse_optional_keyword(hint)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        value = parser.resolve_operand(operand, parser.parse_type())
        parser.parse_keyword("to")
        made: Operation = cls.build(operands=[value], result_types=[parser.parse_type()], attributes=attributes)
        return made

    body = {"verify_": verify_, "parse": classmethod(parse), "__module__": __name__}
    return type(base.__name__, (base,), body)


SIToFPOp: Any = _conversion(arith.SIToFPOp, _is_integer, _is_float)
UIToFPOp: Any = _conversion(arith.UIToFPOp, _is_integer, _is_float)
FPToSIOp: Any = _conversion(arith.FPToSIOp, _is_float, _is_integer)
FPToUIOp: Any = _conversion(arith.FPToUIOp, _is_float, _is_integer)
ExtSIOp: Any = _conversion(arith.ExtSIOp, _is_integer, _is_integer)
ExtUIOp: Any = _conversion(arith.ExtUIOp, _is_integer, _is_integer)
TruncIOp: Any = _conversion(arith.TruncIOp, _is_integer, _is_integer)
IndexCastOp: Any = _conversion(arith.IndexCastOp, _is_integer, _is_integer)


@irdl_op_definition
class RemFOp(arith.FloatingPointLikeBinaryOperation):
    """Floating-point remainder with the sign of the dividend."""

    name = "arith.remf"

    traits = traits_def(Pure())


@irdl_op_definition
class _IndexCastUIBase(IRDLOperation):
    name = "arith.index_castui"

    input = operand_def()
    result = result_def()

    traits = traits_def(Pure())

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.input)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.input.type)
        printer.print_string(" to ")
        printer.print_attribute(self.result.type)


IndexCastUIOp: Any = _conversion(_IndexCastUIBase, _is_integer, _is_integer)
TruncFOp: Any = _conversion(arith.TruncFOp, _is_float, _is_float)

Arith = replace_ops(
    arith.Arith,
    [
        RemFOp,
        IndexCastUIOp,
        TruncFOp,
        CmpiOp,
        CmpfOp,
        SelectOp,
        SIToFPOp,
        UIToFPOp,
        FPToSIOp,
        FPToUIOp,
        ExtSIOp,
        ExtUIOp,
        TruncIOp,
        IndexCastOp,
    ],
)
