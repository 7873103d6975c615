# SPDX-License-Identifier: Apache-2.0
"""Tensor-level operations of `spyreop`: an extension, because neither ktdp nor linalg can say them.

``spyreop.scan %x {dimension = 1 : i64, kind = "sum"} : T -> T``
``%i, %v = spyreop.arg_reduce %x {dimension = 1 : i64, kind = "max"} : T -> (indices, values)``
``%v, %i = spyreop.sort %x {dimension = 1 : i64, descending = true, stable = true, k = 8 : i64} : T -> (values, at)``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, BoolAttr, IntegerAttr, IntegerType, StringAttr, TensorType, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from torch_spyre.ir.ktir.dialect.memory_ops import parse_named_attrs, print_attrs
from torch_spyre.ir.ktir.dialect.overrides import parse_types


class _AlongOp(IRDLOperation):
    """An operation along one dimension of a tensor, spelled ``%x {…} : T -> results``."""

    KEYS: ClassVar[tuple[str, ...]]

    @property
    def along(self) -> int:
        return cast(IntegerAttr, self.properties["dimension"]).value.data

    def _verify_dimension(self) -> tuple[int, ...]:
        shape = cast(TensorType, self.operands[0].type).get_shape()
        if not 0 <= self.along < len(shape):
            raise VerifyException(f"{self.name}: dimension {self.along} of a tensor of rank {len(shape)}")
        return tuple(shape)

    def _verify_kind(self, kinds: Sequence[str]) -> None:
        kind = cast(StringAttr, self.properties["kind"]).data
        if kind not in kinds:
            raise VerifyException(f"{self.name}: kind must be one of {', '.join(kinds)}, got {kind}")

    def _verify_result(self, value: SSAValue, shape: Sequence[int], element: Attribute) -> None:
        expected = TensorType(element, shape)
        if value.type != expected:
            raise VerifyException(f"{self.name}: a result must be {expected}, got {value.type}")

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        operand = parser.parse_unresolved_operand()
        properties, attributes = parse_named_attrs(parser, cls.KEYS)
        for key in cls.KEYS:
            if key not in properties:
                parser.raise_error(f"{cls.name} needs the attribute {key}")
        parser.parse_punctuation(":")
        value = parser.resolve_operand(operand, parser.parse_type())
        parser.parse_punctuation("->")
        pos = parser.pos
        types = parse_types(parser)
        expected = len(cls.get_irdl_definition().results)
        if len(types) != expected:
            parser.raise_error(f"{cls.name} has {expected} results, got {len(types)} types", pos)
        return cls.build(operands=[value], result_types=types, properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.operands[0])
        print_attrs(printer, {**{k: self.properties[k] for k in self.KEYS}, **self.attributes})
        printer.print_string(" : ")
        printer.print_attribute(self.operands[0].type)
        printer.print_string(" -> ")
        if len(self.results) == 1:
            printer.print_attribute(self.results[0].type)
            return
        with printer.in_parens():
            printer.print_list(self.result_types, printer.print_attribute)


@irdl_op_definition
class ScanOp(_AlongOp):
    """Running sum, product, maximum or minimum along a dimension, the element itself included."""

    name = "spyreop.scan"
    KEYS: ClassVar[tuple[str, ...]] = ("dimension", "kind")

    source = operand_def(TensorType)
    dimension = prop_def(IntegerAttr.constr(i64))
    kind = prop_def(StringAttr)
    result = result_def(TensorType)

    traits = traits_def(Pure())

    def __init__(self, source: SSAValue, dimension: int, kind: str) -> None:
        super().__init__(
            operands=[source],
            result_types=[source.type],
            properties={"dimension": IntegerAttr(dimension, i64), "kind": StringAttr(kind)},
        )

    def verify_(self) -> None:
        shape = self._verify_dimension()
        self._verify_kind(("sum", "prod", "max", "min"))
        self._verify_result(self.result, shape, cast(TensorType, self.source.type).element_type)


@irdl_op_definition
class ArgReduceOp(_AlongOp):
    """Place and value of the greatest or least element along a dimension; the first one wins. The dimension goes."""

    name = "spyreop.arg_reduce"
    KEYS: ClassVar[tuple[str, ...]] = ("dimension", "kind")

    source = operand_def(TensorType)
    dimension = prop_def(IntegerAttr.constr(i64))
    kind = prop_def(StringAttr)
    index = result_def(TensorType)
    value = result_def(TensorType)

    traits = traits_def(Pure())

    def __init__(self, source: SSAValue, dimension: int, kind: str) -> None:
        type_ = cast(TensorType, source.type)
        kept = [s for d, s in enumerate(type_.get_shape()) if d != dimension]
        super().__init__(
            operands=[source],
            result_types=[TensorType(i32, kept), TensorType(type_.element_type, kept)],
            properties={"dimension": IntegerAttr(dimension, i64), "kind": StringAttr(kind)},
        )

    def verify_(self) -> None:
        shape = self._verify_dimension()
        self._verify_kind(("max", "min"))
        kept = [s for d, s in enumerate(shape) if d != self.along]
        self._verify_result(self.index, kept, i32)
        self._verify_result(self.value, kept, cast(TensorType, self.source.type).element_type)


@irdl_op_definition
class SortOp(_AlongOp):
    """The first `k` elements along a dimension in sorted order, with the places they came from."""

    name = "spyreop.sort"
    KEYS: ClassVar[tuple[str, ...]] = ("dimension", "descending", "stable", "k")

    source = operand_def(TensorType)
    dimension = prop_def(IntegerAttr.constr(i64))
    descending = prop_def(BoolAttr)
    stable = prop_def(BoolAttr)
    k = prop_def(IntegerAttr.constr(i64))
    value = result_def(TensorType)
    index = result_def(TensorType)

    traits = traits_def(Pure())

    def __init__(self, source: SSAValue, dimension: int, descending: bool, stable: bool, k: int) -> None:
        type_ = cast(TensorType, source.type)
        shape = list(type_.get_shape())
        shape[dimension] = k
        one = IntegerType(1)
        super().__init__(
            operands=[source],
            result_types=[TensorType(type_.element_type, shape), TensorType(i32, shape)],
            properties={
                "dimension": IntegerAttr(dimension, i64),
                "descending": IntegerAttr(int(descending), one),
                "stable": IntegerAttr(int(stable), one),
                "k": IntegerAttr(k, i64),
            },
        )

    def verify_(self) -> None:
        shape = list(self._verify_dimension())
        k = self.k.value.data
        size = shape[self.along]
        if k < 1 or (size != DYNAMIC_INDEX and k > size):
            raise VerifyException(f"{self.name}: k is {k}, the dimension has {size} elements")
        shape[self.along] = k
        self._verify_result(self.value, shape, cast(TensorType, self.source.type).element_type)
        self._verify_result(self.index, shape, i32)


TENSOR_OPS: list[Any] = [ScanOp, ArgReduceOp, SortOp]
