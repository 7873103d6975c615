# SPDX-License-Identifier: Apache-2.0
"""tensor: generate and parallel_insert_slice, which xDSL lacks, and forms of empty and expand_shape that it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from xdsl.dialects import tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, ArrayAttr, DenseArrayBase, IndexType, TensorType, i64
from xdsl.dialects.utils import parse_dynamic_index_list_without_types, print_dynamic_index_list
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from torch_spyre.ir.ktir.dialect.overrides import replace_ops

INDEX = IndexType()


def _parse_indices(parser: Parser) -> tuple[Sequence[SSAValue], Sequence[int]]:
    pos = parser.pos
    values, static = parse_dynamic_index_list_without_types(parser, DYNAMIC_INDEX)
    return parser.resolve_operands(values, [INDEX] * len(values), pos), static


@irdl_op_definition
class GenerateOp(IRDLOperation):
    """``tensor.generate %sizes { ^bb0(%i: index, …): … tensor.yield %v : f32 } : T``: elements by their place."""

    name = "tensor.generate"

    dynamicExtents = var_operand_def(IndexType)
    body = region_def("single_block")
    result = result_def(TensorType)

    traits = traits_def(Pure())

    def verify_(self) -> None:
        type_ = cast(TensorType, self.result.type)
        dynamic = sum(s == DYNAMIC_INDEX for s in type_.get_shape())
        if dynamic != len(self.dynamicExtents):
            raise VerifyException(f"tensor.generate: {type_} needs {dynamic} sizes, got {len(self.dynamicExtents)}")
        if list(self.body.block.arg_types) != [INDEX] * type_.get_num_dims():
            raise VerifyException(f"tensor.generate: the body takes {type_.get_num_dims()} indices")
        last = self.body.block.last_op
        if not isinstance(last, tensor.YieldOp) or [v.type for v in last.operands] != [type_.element_type]:
            raise VerifyException(f"tensor.generate: the body must end with tensor.yield of {type_.element_type}")

    @classmethod
    def parse(cls, parser: Parser) -> GenerateOp:
        pos = parser.pos
        sizes: list[Any] = []
        operand = parser.parse_optional_unresolved_operand()
        while operand is not None:
            sizes.append(operand)
            operand = parser.parse_unresolved_operand() if parser.parse_optional_punctuation(",") else None
        body = parser.parse_region()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.build(
            operands=[parser.resolve_operands(sizes, [INDEX] * len(sizes), pos)],
            result_types=[parser.parse_type()],
            regions=[body],
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.dynamicExtents, printer.print_ssa_value)
        printer.print_string(" " if self.dynamicExtents else "")
        printer.print_region(self.body)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)


@irdl_op_definition
class ParallelInsertSliceOp(IRDLOperation):
    """``tensor.parallel_insert_slice %s into %t[offsets] [sizes] [strides] : S into T``, in scf.forall.in_parallel."""

    name = "tensor.parallel_insert_slice"

    source = operand_def(TensorType)
    dest = operand_def(TensorType)
    offsets = var_operand_def(IndexType)
    sizes = var_operand_def(IndexType)
    strides = var_operand_def(IndexType)
    static_offsets = prop_def(DenseArrayBase.constr(i64))
    static_sizes = prop_def(DenseArrayBase.constr(i64))
    static_strides = prop_def(DenseArrayBase.constr(i64))

    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def verify_(self) -> None:
        rank = cast(TensorType, self.dest.type).get_num_dims()
        for what in ("offsets", "sizes", "strides"):
            static = cast(Any, self.properties[f"static_{what}"]).get_values()
            if len(static) != rank or static.count(DYNAMIC_INDEX) != len(getattr(self, what)):
                raise VerifyException(f"tensor.parallel_insert_slice: {what} must have {rank} entries")
        if cast(TensorType, self.source.type).element_type != cast(TensorType, self.dest.type).element_type:
            raise VerifyException("tensor.parallel_insert_slice: source and destination differ in element type")

    @classmethod
    def parse(cls, parser: Parser) -> ParallelInsertSliceOp:
        source = parser.parse_unresolved_operand()
        parser.parse_keyword("into")
        dest = parser.parse_unresolved_operand()
        lists = [_parse_indices(parser) for _ in range(3)]
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source_type = parser.parse_type()
        parser.parse_keyword("into")
        dest_type = parser.parse_type()
        names = ("static_offsets", "static_sizes", "static_strides")
        return cls.build(
            operands=[
                parser.resolve_operand(source, source_type),
                parser.resolve_operand(dest, dest_type),
                *(values for values, _ in lists),
            ],
            properties={n: DenseArrayBase.from_list(i64, s) for n, (_, s) in zip(names, lists, strict=True)},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.source)
        printer.print_string(" into ")
        printer.print_ssa_value(self.dest)
        for what in ("offsets", "sizes", "strides"):
            printer.print_string("" if what == "offsets" else " ")
            static = cast(Any, self.properties[f"static_{what}"]).get_values()
            print_dynamic_index_list(printer, DYNAMIC_INDEX, getattr(self, what), static)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.source.type)
        printer.print_string(" into ")
        printer.print_attribute(self.dest.type)


class EmptyOp(tensor.EmptyOp):
    """tensor.empty with an attribute dictionary."""

    def verify_(self) -> None:
        dynamic = sum(s == DYNAMIC_INDEX for s in self.tensor.type.get_shape())
        if dynamic != len(self.dynamic_sizes):
            raise VerifyException(f"tensor.empty: {self.tensor.type} needs {dynamic} sizes")

    @classmethod
    def parse(cls, parser: Parser) -> EmptyOp:
        pos = parser.pos
        sizes = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        op = cls(parser.resolve_operands(sizes, [INDEX] * len(sizes), pos), parser.parse_type())
        op.attributes |= attributes
        return op

    def print(self, printer: Printer) -> None:
        with printer.in_parens():
            printer.print_list(self.dynamic_sizes, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.tensor.type)


class ExpandShapeOp(tensor.ExpandShapeOp):
    """tensor.expand_shape without `output_shape`, as older files write it, and from rank 0."""

    def verify_(self) -> None:
        source, result = cast(TensorType, self.src.type), self.result.type
        if source.get_num_dims() or self.reassociation.data:
            super().verify_()  # type: ignore[no-untyped-call]
        elif set(result.get_shape()) - {1}:
            raise VerifyException(f"tensor.expand_shape: {source} has one element, {result} more")

    @classmethod
    def parse(cls, parser: Parser) -> ExpandShapeOp:
        source = parser.parse_unresolved_operand()
        reassociation = cast("ArrayAttr[Any]", parser.parse_attribute())
        shape: tuple[Sequence[SSAValue], Sequence[int]] | None = None
        if parser.parse_optional_keyword("output_shape"):
            shape = _parse_indices(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source_type = parser.parse_type()
        parser.parse_keyword("into")
        pos = parser.pos
        result_type = parser.parse_type()
        if shape is None:
            sizes = cast(TensorType, result_type).get_shape()
            if DYNAMIC_INDEX in sizes:
                parser.raise_error("tensor.expand_shape to a dynamic shape needs output_shape", pos)
            shape = ((), sizes)
        return cls(
            parser.resolve_operand(source, source_type),
            shape[0],
            reassociation,
            list(shape[1]),
            cast(TensorType, result_type),
            attributes,
        )


Tensor = replace_ops(tensor.Tensor, [GenerateOp, ParallelInsertSliceOp, EmptyOp, ExpandShapeOp])
