# SPDX-License-Identifier: Apache-2.0
"""scf: loops and conditions in the spellings that KTIR files use, and scf.forall, which xDSL lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from xdsl.dialects import scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, ArrayAttr, DenseArrayBase, IndexType, TensorType, i1, i64
from xdsl.dialects.utils import parse_assignment, parse_dynamic_index_list_without_types, print_dynamic_index_list
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, NoTerminator, SingleBlockImplicitTerminator, ensure_terminator
from xdsl.utils.exceptions import VerifyException

from torch_spyre.ir.ktir.dialect.overrides import parse_types, replace_ops

INDEX = IndexType()


class ForOp(scf.ForOp):
    """scf.for whose result type may stand without parentheses."""

    def verify_(self) -> None:
        super().verify_()  # type: ignore[no-untyped-call]
        step = _constant(self.step)
        if step is not None and step <= 0:
            raise VerifyException(f"scf.for: the step must be positive, got {step}")

    @classmethod
    def parse(cls, parser: Parser) -> ForOp:
        induction = parser.parse_argument(expect_type=False)
        parser.parse_punctuation("=")
        bounds = [parser.parse_unresolved_operand()]
        for keyword in ("to", "step"):
            parser.parse_keyword(keyword)
            bounds.append(parser.parse_unresolved_operand())
        pos = parser.pos
        carried: list[tuple[Parser.UnresolvedArgument, UnresolvedOperand]] = []
        types: list[Attribute] = []
        if parser.parse_optional_keyword("iter_args"):
            carried = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_assignment(parser))
            parser.parse_punctuation("->")
            types = parse_types(parser)
        if len(types) != len(carried):
            parser.raise_error(f"scf.for carries {len(carried)} values but gives {len(types)} types", pos)
        values = parser.resolve_operands([v for _, v in carried], types, pos)
        counter = parser.parse_type() if parser.parse_optional_punctuation(":") else INDEX
        resolved = [parser.resolve_operand(b, counter) for b in bounds]
        args = [induction.resolve(counter), *(a.resolve(t) for (a, _), t in zip(carried, types, strict=True))]
        body = parser.parse_region(args)
        attributes = parser.parse_optional_attr_dict()
        lower, upper, step = resolved
        loop = cls(lower, upper, step, values, body)
        loop.attributes |= attributes
        if not carried:
            for trait in loop.get_traits_of_type(SingleBlockImplicitTerminator):
                ensure_terminator(loop, trait)
        return loop


def _constant(value: SSAValue) -> int | None:
    op: Any = value.owner
    attr = getattr(op, "properties", {}).get("value") if getattr(op, "name", "") == "arith.constant" else None
    return attr.value.data if attr is not None and isinstance(attr.value.data, int) else None


class IfOp(scf.IfOp):
    """scf.if whose result type may stand without parentheses."""

    @classmethod
    def parse(cls, parser: Parser) -> IfOp:
        condition = parser.parse_operand(i1)
        types = parse_types(parser) if parser.parse_optional_punctuation("->") else []
        then_region = cls.parse_region_with_yield(parser)
        has_else = parser.parse_optional_keyword("else") is not None
        else_region = cls.parse_region_with_yield(parser) if has_else else Region()
        return cls(condition, types, then_region, else_region, parser.parse_optional_attr_dict())


def _parse_names(parser: Parser) -> list[Parser.UnresolvedArgument]:
    return parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False))


def _parse_indices(parser: Parser) -> Sequence[SSAValue]:
    pos = parser.pos
    values = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    return parser.resolve_operands(values, [INDEX] * len(values), pos)


class ParallelOp(scf.ParallelOp):
    """``scf.parallel (%i) = (%a) to (%b) step (%s) [init (%v) -> T] { … scf.reduce … }``: iterations in any order."""

    def verify_(self) -> None:
        super().verify_()
        for value in self.step:
            step = _constant(value)
            if step is not None and step <= 0:
                raise VerifyException(f"scf.parallel: the step must be positive, got {step}")
        last = cast(Any, self.body.block.last_op)
        if [v.type for v in last.args] != [v.type for v in self.initVals]:
            raise VerifyException("scf.parallel: scf.reduce must take values of the types of the initial values")

    @classmethod
    def parse(cls, parser: Parser) -> ParallelOp:
        names = _parse_names(parser)
        parser.parse_punctuation("=")
        bounds = [_parse_indices(parser)]
        for keyword in ("to", "step"):
            parser.parse_keyword(keyword)
            bounds.append(_parse_indices(parser))
        pos = parser.pos
        initial: Sequence[UnresolvedOperand] = ()
        types: list[Attribute] = []
        if parser.parse_optional_keyword("init"):
            initial = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
            parser.parse_punctuation("->")
            types = parse_types(parser)
        values = parser.resolve_operands(initial, types, pos)
        body = parser.parse_region([name.resolve(INDEX) for name in names])
        attributes = parser.parse_optional_attr_dict()
        last = body.block.last_op
        if last is None or not isinstance(last, scf.ReduceOp):
            body.block.add_op(scf.ReduceOp())
        op = cls(bounds[0], bounds[1], bounds[2], body, values)
        op.attributes |= attributes
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        with printer.in_parens():
            printer.print_list(self.body.block.args, printer.print_ssa_value)
        for word, values in ((" = ", self.lowerBound), (" to ", self.upperBound), (" step ", self.step)):
            printer.print_string(word)
            with printer.in_parens():
                printer.print_list(values, printer.print_ssa_value)
        if self.initVals:
            printer.print_string(" init ")
            with printer.in_parens():
                printer.print_list(self.initVals, printer.print_ssa_value)
            printer.print_string(" -> ")
            with printer.in_parens():
                printer.print_list(self.initVals.types, printer.print_attribute)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class InParallelOp(IRDLOperation):
    """Ends scf.forall; its region inserts slices into the shared outputs."""

    name = "scf.forall.in_parallel"

    region = region_def("single_block")

    traits = lazy_traits_def(lambda: (IsTerminator(), NoTerminator(), HasParent(ForallOp)))

    def verify_(self) -> None:
        for op in self.region.block.ops:
            if op.name != "tensor.parallel_insert_slice":
                raise VerifyException(f"scf.forall.in_parallel holds tensor.parallel_insert_slice only, not {op.name}")

    @classmethod
    def parse(cls, parser: Parser) -> InParallelOp:
        region = parser.parse_region()
        if not region.blocks:
            region.add_block(Block())
        op = cls.build(regions=[region])
        op.attributes |= parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_region(self.region, print_empty_block=False)
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class ForallOp(IRDLOperation):
    """``scf.forall (%i) in (8) [shared_outs(%o = %t) -> (T)] { … }``, or with ``= (lower) to (upper) step (step)``.

    The iterations are independent; the outputs receive what the terminator's tensor.parallel_insert_slice ops write.
    """

    name = "scf.forall"

    dynamicLowerBound = var_operand_def(IndexType)
    dynamicUpperBound = var_operand_def(IndexType)
    dynamicStep = var_operand_def(IndexType)
    outputs = var_operand_def(TensorType)
    staticLowerBound = prop_def(DenseArrayBase.constr(i64))
    staticUpperBound = prop_def(DenseArrayBase.constr(i64))
    staticStep = prop_def(DenseArrayBase.constr(i64))
    mapping = opt_prop_def(ArrayAttr)
    region = region_def("single_block")
    res = var_result_def(TensorType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(SingleBlockImplicitTerminator(InParallelOp))

    @property
    def rank(self) -> int:
        return len(self.staticLowerBound.get_values())

    def verify_(self) -> None:
        rank = self.rank
        for what in ("LowerBound", "UpperBound", "Step"):
            static = cast(Any, self.properties[f"static{what}"]).get_values()
            dynamic = getattr(self, f"dynamic{what}")
            if len(static) != rank or static.count(DYNAMIC_INDEX) != len(dynamic):
                raise VerifyException(f"scf.forall: {what} has {len(static)} entries for {rank} induction variables")
        if any(s <= 0 and s != DYNAMIC_INDEX for s in self.staticStep.get_values()):
            raise VerifyException("scf.forall: steps must be positive")
        expected = [INDEX] * rank + [o.type for o in self.outputs]
        if list(self.region.block.arg_types) != expected:
            raise VerifyException("scf.forall: the body takes the induction variables, then the shared outputs")
        if [r.type for r in self.res] != [o.type for o in self.outputs]:
            raise VerifyException("scf.forall: the results must have the types of the shared outputs")

    @classmethod
    def parse(cls, parser: Parser) -> ForallOp:
        names = _parse_names(parser)
        if parser.parse_optional_keyword("in"):
            upper = _parse_mixed(parser)
            lower: tuple[Sequence[SSAValue], Sequence[int]] = ((), [0] * len(names))
            step: tuple[Sequence[SSAValue], Sequence[int]] = ((), [1] * len(names))
        else:
            parser.parse_punctuation("=")
            lower = _parse_mixed(parser)
            parser.parse_keyword("to")
            upper = _parse_mixed(parser)
            parser.parse_keyword("step")
            step = _parse_mixed(parser)
        pos = parser.pos
        shared: list[tuple[Parser.UnresolvedArgument, UnresolvedOperand]] = []
        types: list[Attribute] = []
        if parser.parse_optional_keyword("shared_outs"):
            shared = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_assignment(parser))
            parser.parse_punctuation("->")
            types = parse_types(parser)
        outputs = parser.resolve_operands([v for _, v in shared], types, pos)
        args = [n.resolve(INDEX) for n in names] + [a.resolve(t) for (a, _), t in zip(shared, types, strict=True)]
        region = parser.parse_region(args)
        attributes = parser.parse_optional_attr_dict()
        properties: dict[str, Attribute] = {
            "staticLowerBound": DenseArrayBase.from_list(i64, lower[1]),
            "staticUpperBound": DenseArrayBase.from_list(i64, upper[1]),
            "staticStep": DenseArrayBase.from_list(i64, step[1]),
        }
        if "mapping" in attributes:
            properties["mapping"] = attributes.pop("mapping")
        if not isinstance(region.block.last_op, InParallelOp):
            region.block.add_op(InParallelOp.build(regions=[Region(Block())]))
        return cls.build(
            operands=[lower[0], upper[0], step[0], outputs],
            result_types=[types],
            regions=[region],
            properties=properties,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        args = self.region.block.args
        printer.print_string(" ")
        with printer.in_parens():
            printer.print_list(args[: self.rank], printer.print_ssa_value)
        from_zero = not any(self.staticLowerBound.get_values()) and set(self.staticStep.get_values()) <= {1}
        for word, what in ((" = ", "LowerBound"), (" to ", "UpperBound"), (" step ", "Step")):
            if from_zero and what != "UpperBound":
                continue
            printer.print_string(" in " if from_zero else word)
            static = cast(Any, self.properties[f"static{what}"]).get_values()
            print_dynamic_index_list(
                printer, DYNAMIC_INDEX, getattr(self, f"dynamic{what}"), static, delimiter=Parser.Delimiter.PAREN
            )
        if self.outputs:
            printer.print_string(" shared_outs")
            with printer.in_parens():
                printer.print_list(
                    list(zip(args[self.rank :], self.outputs, strict=True)), lambda pair: _print_pair(printer, pair)
                )
            printer.print_string(" -> ")
            with printer.in_parens():
                printer.print_list(self.outputs.types, printer.print_attribute)
        printer.print_string(" ")
        printer.print_region(self.region, print_entry_block_args=False)
        extra = dict(self.attributes) if self.mapping is None else {"mapping": self.mapping, **self.attributes}
        printer.print_op_attributes(extra)


def _print_pair(printer: Printer, pair: tuple[SSAValue, SSAValue]) -> None:
    printer.print_ssa_value(pair[0])
    printer.print_string(" = ")
    printer.print_ssa_value(pair[1])


def _parse_mixed(parser: Parser) -> tuple[Sequence[SSAValue], Sequence[int]]:
    """A list of constants and SSA values."""
    pos = parser.pos
    values, static = parse_dynamic_index_list_without_types(parser, DYNAMIC_INDEX, delimiter=parser.Delimiter.PAREN)
    return parser.resolve_operands(values, [INDEX] * len(values), pos), static


Scf = replace_ops(scf.Scf, [ForOp, IfOp, ParallelOp, ForallOp, InParallelOp])
