# SPDX-License-Identifier: Apache-2.0
"""`ktdp.inter_tile_produce` turns a per-tile value into a future, which one of the delivery ops resolves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import AffineSetAttr, TensorType
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, MemoryWriteEffect, NoMemoryEffect
from xdsl.utils.exceptions import VerifyException

from torch_spyre.ir.ktir.dialect.memory_ops import INDEX, require
from torch_spyre.ir.ktir.dialect.types import TileFutureType, older_spelling, parse_elided


class TileYieldOp(IRDLOperation):
    """A terminator that hands tensors to the op around it."""

    values = var_operand_def(TensorType)

    def __init__(self, *values: SSAValue) -> None:
        super().__init__(operands=[list(values)])

    @classmethod
    def parse(cls, parser: Parser) -> TileYieldOp:
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


def partials(future: SSAValue) -> tuple[Attribute, ...]:
    return cast(TileFutureType, future.type).partials.data


def verify_tile_set(name: str, key: str, tiles: AffineSetAttr) -> None:
    require(
        tiles.data.num_dims == 1 and tiles.data.num_symbols == 1,
        f"{name}: {key} must have one dim (tile) and one symbol (group), got {tiles}",
    )


def verify_yield(name: str, region: Region, terminator: type[TileYieldOp], types: Sequence[Attribute]) -> None:
    last = region.block.last_op
    require(isinstance(last, terminator), f"{name}: the region must end with {terminator.name}")
    assert last is not None
    if tuple(last.operand_types) != tuple(types):
        given, expected = (", ".join(map(str, t)) for t in (last.operand_types, types))
        raise VerifyException(f"{name}: {terminator.name} gives {given}, expected {expected}")


def verify_used_once(name: str, future: SSAValue) -> None:
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
        verify_tile_set("inter_tile_produce", "producer_tiles_per_group", self.producer_tiles_per_group)
        require(
            tuple(self.body.block.arg_types) == (INDEX,), "inter_tile_produce: the region takes the group id (index)"
        )
        verify_yield("inter_tile_produce", self.body, YieldPartialOp, partials(self.future))
        verify_used_once("inter_tile_produce", self.future)

    @classmethod
    def parse(cls, parser: Parser) -> InterTileProduceOp:
        parser.parse_keyword("producer_tiles_per_group")
        parser.parse_punctuation("=")
        producers = parser.parse_attribute()
        if parser.parse_optional_punctuation(":"):
            older_spelling(parser, "inter_tile_produce with the partial's type before the future's (A9)")
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
class YieldPartialOp(TileYieldOp):
    name = "ktdp.yield_partial"

    traits = traits_def(IsTerminator(), HasParent(InterTileProduceOp), NoMemoryEffect())
