# SPDX-License-Identifier: Apache-2.0
"""Inter-tile ops of `ktdp`: a produce op turns a per-tile value into a future, a delivery op resolves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import AffineSetAttr, TensorType
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, MemoryReadEffect, MemoryWriteEffect, NoMemoryEffect
from xdsl.utils.exceptions import VerifyException

from torch_spyre.ktir.memory_ops import INDEX, require
from torch_spyre.ktir.types import TileFutureType, parse_elided


class _YieldOp(IRDLOperation):
    """A terminator that hands tensors to the op around it."""

    values = var_operand_def(TensorType)

    def __init__(self, *values: SSAValue) -> None:
        super().__init__(operands=[list(values)])

    @classmethod
    def parse(cls, parser: Parser) -> _YieldOp:
        pos = parser.pos
        values = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return cls.build(operands=[parser.resolve_operands(values, types, pos)])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.values, printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_list(self.values.types, printer.print_attribute)


def _partials(future: SSAValue) -> tuple[Attribute, ...]:
    return cast(TileFutureType, future.type).partials.data


def _verify_tile_set(name: str, key: str, tiles: AffineSetAttr) -> None:
    require(
        tiles.data.num_dims == 1 and tiles.data.num_symbols == 1,
        f"{name}: {key} must have one dim (tile) and one symbol (group), got {tiles}",
    )


def _verify_dependency(name: str, dependency: AffineSetAttr | None) -> None:
    require(
        dependency is None or (dependency.data.num_dims == 1 and dependency.data.num_symbols in (1, 2)),
        f"{name}: producer_dependency_per_consumer must have one dim (producer) and symbols (consumer[, group])",
    )


def _verify_yield(name: str, region: Region, terminator: type[_YieldOp], types: Sequence[Attribute]) -> None:
    last = region.block.last_op
    require(isinstance(last, terminator), f"{name}: the region must end with {terminator.name}")
    assert last is not None
    if tuple(last.operand_types) != tuple(types):
        given, expected = (", ".join(map(str, t)) for t in (last.operand_types, types))
        raise VerifyException(f"{name}: {terminator.name} gives {given}, expected {expected}")


def _verify_used_once(name: str, future: SSAValue) -> None:
    require(future.has_one_use(), f"{name}: a future must be used exactly once (R2)")


@irdl_op_definition
class InterTileProduceOp(IRDLOperation):
    """Runs its region on the producers of each group; what it yields becomes a future."""

    name = "ktdp.inter_tile_produce"

    producer_tiles_per_group = prop_def(AffineSetAttr)
    body = region_def("single_block")
    future = result_def(TileFutureType)

    traits = traits_def(MemoryWriteEffect())

    def __init__(self, producers: AffineSetAttr, future: TileFutureType, body: Region) -> None:
        super().__init__(result_types=[future], regions=[body], properties={"producer_tiles_per_group": producers})

    def verify_(self) -> None:
        _verify_tile_set("inter_tile_produce", "producer_tiles_per_group", self.producer_tiles_per_group)
        require(
            tuple(self.body.block.arg_types) == (INDEX,), "inter_tile_produce: the region takes the group id (index)"
        )
        _verify_yield("inter_tile_produce", self.body, YieldPartialOp, _partials(self.future))
        _verify_used_once("inter_tile_produce", self.future)

    @classmethod
    def parse(cls, parser: Parser) -> InterTileProduceOp:
        parser.parse_keyword("producer_tiles_per_group")
        parser.parse_punctuation("=")
        producers = parser.parse_attribute()
        if parser.parse_optional_punctuation(":"):  # older spelling: the partial's type before the future's
            parser.parse_type()
        parser.parse_punctuation("->")
        future = parse_elided(parser, TileFutureType)
        return cls(cast(AffineSetAttr, producers), cast(TileFutureType, future), parser.parse_region())

    def print(self, printer: Printer) -> None:
        printer.print_string(" producer_tiles_per_group = ")
        printer.print_attribute(self.producer_tiles_per_group)
        printer.print_string(" -> ")
        printer.print_attribute(self.future.type)
        printer.print_string(" ")
        printer.print_region(self.body)


@irdl_op_definition
class YieldPartialOp(_YieldOp):
    name = "ktdp.yield_partial"

    traits = traits_def(IsTerminator(), HasParent(InterTileProduceOp), NoMemoryEffect())


def _parse_delivery(parser: Parser) -> tuple[UnresolvedOperand, dict[str, Attribute]]:
    """``(%f) consumer_tiles_per_group = #S[, producer_dependency_per_consumer = #D]``, stopping at another keyword."""
    parser.parse_punctuation("(")
    future = parser.parse_unresolved_operand()
    parser.parse_punctuation(")")
    properties: dict[str, Attribute] = {}
    key: str | None = parser.parse_keyword("consumer_tiles_per_group")
    while key is not None:
        parser.parse_punctuation("=")
        properties[key] = parser.parse_attribute()
        if parser.parse_optional_punctuation(",") is None:
            break
        key = parser.parse_optional_keyword("producer_dependency_per_consumer")
    return future, properties


def _print_delivery(printer: Printer, op: InterTileConsumeOp | InterTileReduceOp) -> None:
    printer.print_string("(")
    printer.print_ssa_value(op.future)
    printer.print_string(") consumer_tiles_per_group = ")
    printer.print_attribute(op.consumer_tiles_per_group)
    if op.producer_dependency_per_consumer is not None:
        printer.print_string(", producer_dependency_per_consumer = ")
        printer.print_attribute(op.producer_dependency_per_consumer)


def _parse_future_to_types(parser: Parser, future: UnresolvedOperand) -> tuple[SSAValue, list[Attribute]]:
    parser.parse_punctuation(":")
    value = parser.resolve_operand(future, parse_elided(parser, TileFutureType))
    parser.parse_punctuation("->")
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return value, cast("list[Attribute]", types)


@irdl_op_definition
class InterTileConsumeOp(IRDLOperation):
    """Delivers the producers' values to the consumers unchanged."""

    name = "ktdp.inter_tile_consume"

    future = operand_def(TileFutureType)
    consumer_tiles_per_group = prop_def(AffineSetAttr)
    producer_dependency_per_consumer = opt_prop_def(AffineSetAttr)
    values = var_result_def(TensorType)

    traits = traits_def(MemoryReadEffect())

    def verify_(self) -> None:
        _verify_tile_set("inter_tile_consume", "consumer_tiles_per_group", self.consumer_tiles_per_group)
        _verify_dependency("inter_tile_consume", self.producer_dependency_per_consumer)
        require(
            tuple(self.values.types) == _partials(self.future),
            "inter_tile_consume: the results must have the types of the partials",
        )

    @classmethod
    def parse(cls, parser: Parser) -> InterTileConsumeOp:
        future, properties = _parse_delivery(parser)
        value, types = _parse_future_to_types(parser, future)
        return cls.build(operands=[value], result_types=[types], properties=properties)

    def print(self, printer: Printer) -> None:
        _print_delivery(printer, self)
        printer.print_string(" : ")
        printer.print_attribute(self.future.type)
        printer.print_string(" -> ")
        printer.print_list(self.values.types, printer.print_attribute)


@irdl_op_definition
class InterTileReduceOp(IRDLOperation):
    """Folds the producers' values with its combiner, from the identity on, and delivers the result to the consumers."""

    name = "ktdp.inter_tile_reduce"

    future = operand_def(TileFutureType)
    identity = var_operand_def(TensorType)
    consumer_tiles_per_group = prop_def(AffineSetAttr)
    producer_dependency_per_consumer = opt_prop_def(AffineSetAttr)
    combiner = region_def("single_block")
    values = var_result_def(TensorType)

    traits = traits_def(MemoryReadEffect())

    def __init__(
        self, future: SSAValue, identity: Sequence[SSAValue], consumers: AffineSetAttr, combiner: Region
    ) -> None:
        super().__init__(
            operands=[future, list(identity)],
            result_types=[list(_partials(future))],
            regions=[combiner],
            properties={"consumer_tiles_per_group": consumers},
        )

    def verify_(self) -> None:
        name, partials = "inter_tile_reduce", _partials(self.future)
        _verify_tile_set(name, "consumer_tiles_per_group", self.consumer_tiles_per_group)
        _verify_dependency(name, self.producer_dependency_per_consumer)
        require(tuple(self.identity.types) == partials, f"{name}: identity must have the types of the partials")
        require(tuple(self.values.types) == partials, f"{name}: the results must have the types of the partials")
        require(
            tuple(self.combiner.block.arg_types) == (*partials, *partials),
            f"{name}: the combiner takes all left and then all right partials",
        )
        _verify_yield(name, self.combiner, YieldReducedOp, partials)

    @classmethod
    def parse(cls, parser: Parser) -> InterTileReduceOp:
        future, properties = _parse_delivery(parser)
        parser.parse_keyword("identity")
        pos = parser.pos
        parser.parse_punctuation("(")
        identity = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        identity_types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        parser.parse_punctuation(")")
        value, types = _parse_future_to_types(parser, future)
        return cls.build(
            operands=[value, parser.resolve_operands(identity, identity_types, pos)],
            result_types=[types],
            properties=properties,
            regions=[parser.parse_region()],
        )

    def print(self, printer: Printer) -> None:
        _print_delivery(printer, self)
        printer.print_string(", identity(")
        printer.print_list(self.identity, printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_list(self.identity.types, printer.print_attribute)
        printer.print_string(") : ")
        printer.print_attribute(self.future.type)
        printer.print_string(" -> ")
        printer.print_list(self.values.types, printer.print_attribute)
        printer.print_string(" ")
        printer.print_region(self.combiner)


@irdl_op_definition
class YieldReducedOp(_YieldOp):
    name = "ktdp.yield_reduced"

    traits = traits_def(IsTerminator(), HasParent(InterTileReduceOp), NoMemoryEffect())
