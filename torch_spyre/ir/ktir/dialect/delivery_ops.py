# SPDX-License-Identifier: Apache-2.0
"""Delivery ops of `ktdp`: they resolve the future of an `inter_tile_produce` on the consumers of each group.

| op | combine | placement | result type |
|---|---|---|---|
| consume | none | replicate | the partial's |
| reduce | fold | replicate | the partial's |
| gather | none | concat | the named dims times the producers |
| scatter | none | split | the named dims by the consumers |
| all_to_all | none | permute | split dims by the consumers, concat dims times the producers |
| reduce_scatter | fold | split | the named dims by the consumers |

The rank never changes. Several named dims share the factor: their quotients multiply to it, the first dim slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, AffineSetAttr, ArrayAttr, DenseArrayBase, IntegerAttr, TensorType, i64
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, MemoryReadEffect, NoMemoryEffect

from torch_spyre.ir.ktir.dialect.inter_tile_ops import TileYieldOp, partials, verify_tile_set, verify_yield
from torch_spyre.ir.ktir.dialect.memory_ops import require
from torch_spyre.ir.ktir.dialect.types import TileFutureType, parse_elided

CONSUMERS = "consumer_tiles_per_group"
DEPENDENCY = "producer_dependency_per_consumer"
DIMENSIONS = DenseArrayBase.constr(i64)


class DeliveryOp(IRDLOperation):
    """``(%f) consumer_tiles_per_group = #S[, key = …][, identity(%i : T)] : future -> T… [{ combiner }]``"""

    KEYS: ClassVar[tuple[str, ...]] = (DEPENDENCY,)  # what may follow the consumers
    FOLDS: ClassVar[bool] = False  # has an identity and a combiner

    @property
    def short_name(self) -> str:
        return self.name.removeprefix("ktdp.")

    @property
    def dependency(self) -> AffineSetAttr | None:
        """Producers that each consumer needs, where the op says so."""
        return cast("AffineSetAttr | None", self.properties.get(DEPENDENCY))

    def dims(self, key: str) -> tuple[int, ...]:
        attr = self.properties.get(key)
        return tuple(attr.get_values()) if isinstance(attr, DenseArrayBase) else ()

    @property
    def concat_dims(self) -> tuple[int, ...]:
        return self.dims("gather_dimensions") or self.dims("concat_dimensions")

    @property
    def split_dims(self) -> tuple[int, ...]:
        return self.dims("scatter_dimensions") or self.dims("split_dimensions")

    def verify_(self) -> None:
        this: Any = self
        name, parts = self.short_name, partials(this.future)
        verify_tile_set(name, CONSUMERS, this.consumer_tiles_per_group)
        require(
            self.dependency is None
            or (self.dependency.data.num_dims == 1 and self.dependency.data.num_symbols in (1, 2)),
            f"{name}: {DEPENDENCY} must have one dim (producer) and symbols (consumer[, group]), got {self.dependency}",
        )
        require(
            len(this.values) == len(parts),
            f"{name}: {len(this.values)} results for {len(parts)} partials",
        )
        for value, part in zip(this.values, parts, strict=True):
            self._verify_result(cast(TensorType, part), cast(TensorType, value.type))
        if self.FOLDS:
            self._verify_fold(this.identity, this.combiner, parts)

    def _verify_result(self, part: TensorType, result: TensorType) -> None:
        name = self.short_name
        concat, split = self.concat_dims, self.split_dims
        if not concat and not split:
            require(part == result, f"{name}: a result must have the partial's type {part}, got {result}")
            return
        require(
            part.get_num_dims() == result.get_num_dims() and part.element_type == result.element_type,
            f"{name}: the rank and element type of {part} never change, got {result}",
        )
        for what, dims in (("concat", concat), ("split", split)):
            require(
                list(dims) == sorted(set(dims)) and all(0 <= d < part.get_num_dims() for d in dims),
                f"{name}: {what} dims {list(dims)} must be ascending dims of {part}",
            )
        for dim, (before, after) in enumerate(zip(part.get_shape(), result.get_shape(), strict=True)):
            if DYNAMIC_INDEX in (before, after):
                continue
            grows, shrinks = dim in concat, dim in split
            if grows and not shrinks:
                rule, holds = (
                    "R12: a concatenated dim is a multiple of the partial's",
                    before > 0 and after % before == 0,
                )
            elif shrinks and not grows:
                rule, holds = "R9: a split dim divides the partial's", after > 0 and before % after == 0
            elif grows:
                rule, holds = "R9: a dim that is split and concatenated is not empty", before > 0 and after > 0
            else:
                rule, holds = "a dim that is not named keeps its size", before == after
            require(holds, f"{name}: {rule}; dim {dim} goes from {before} to {after}")

    def _verify_fold(self, identity: Any, combiner: Region, parts: Sequence[Attribute]) -> None:
        name = self.short_name
        require(tuple(identity.types) == tuple(parts), f"{name}: identity must have the types of the partials")
        require(
            tuple(combiner.block.arg_types) == (*parts, *parts),
            f"{name}: the combiner takes all left and then all right partials",
        )
        verify_yield(name, combiner, YieldReducedOp, parts)

    # -- text ------------------------------------------------------------------------------------------------------

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        parser.parse_punctuation("(")
        future = parser.parse_unresolved_operand()
        parser.parse_punctuation(")")
        properties: dict[str, Attribute] = {}
        identity: Sequence[SSAValue] = ()
        while True:
            key = parser.parse_identifier("attribute")
            if key == "identity" and cls.FOLDS and not identity:
                identity = _parse_identity(parser)
            elif key in (CONSUMERS, *cls.KEYS) and key not in properties:
                parser.parse_punctuation("=")
                properties[key] = _dimensions(parser) if key.endswith("_dimensions") else parser.parse_attribute()
            else:
                parser.raise_error(f"{cls.name} has no (further) attribute {key}")
            if parser.parse_optional_punctuation(",") is None:
                break
        parser.parse_punctuation(":")
        value = parser.resolve_operand(future, parse_elided(parser, TileFutureType))
        parser.parse_punctuation("->")
        types = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        if types is None:
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        for key in (CONSUMERS, *(k for k in cls.KEYS if k != DEPENDENCY)):
            if key not in properties:
                parser.raise_error(f"{cls.name} needs {key}")
        return cls.build(
            operands=[value, identity] if cls.FOLDS else [value],
            result_types=[types],
            properties=properties,
            regions=[parser.parse_region()] if cls.FOLDS else [],
            attributes=parser.parse_optional_attr_dict(),
        )

    def print(self, printer: Printer) -> None:
        this: Any = self
        printer.print_string("(")
        printer.print_ssa_value(this.future)
        printer.print_string(f") {CONSUMERS} = ")
        printer.print_attribute(this.consumer_tiles_per_group)
        for key in self.KEYS:
            attr = self.properties.get(key)
            if isinstance(attr, DenseArrayBase):
                printer.print_string(f", {key} = [{', '.join(map(str, attr.get_values()))}]")
            elif attr is not None:
                printer.print_string(f", {key} = ")
                printer.print_attribute(attr)
        if self.FOLDS:
            printer.print_string(", identity(")
            printer.print_list(this.identity, printer.print_ssa_value)
            printer.print_string(" : ")
            printer.print_list(this.identity.types, printer.print_attribute)
            printer.print_string(")")
        printer.print_string(" : ")
        printer.print_attribute(this.future.type)
        printer.print_string(" -> ")
        printer.print_list(this.values.types, printer.print_attribute)
        if self.FOLDS:
            printer.print_string(" ")
            printer.print_region(this.combiner)
        printer.print_op_attributes(self.attributes)


def _parse_identity(parser: Parser) -> Sequence[SSAValue]:
    pos = parser.pos
    parser.parse_punctuation("(")
    values = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    parser.parse_punctuation(")")
    return parser.resolve_operands(values, types, pos)


def _dimensions(parser: Parser) -> Attribute:
    """``[0, 1]``, ``array<i64: 0, 1>`` or one integer."""
    pos = parser.pos
    attr = parser.parse_attribute()
    if isinstance(attr, DenseArrayBase):
        return attr
    entries = attr.data if isinstance(attr, ArrayAttr) else (attr,)
    if not entries or not all(isinstance(e, IntegerAttr) for e in entries):
        parser.raise_error("expected a list of dimensions", pos)
    return DenseArrayBase.from_list(i64, [e.value.data for e in entries])


@irdl_op_definition
class InterTileConsumeOp(DeliveryOp):
    """Delivers the producers' values to the consumers unchanged."""

    name = "ktdp.inter_tile_consume"

    future = operand_def(TileFutureType)
    consumer_tiles_per_group = prop_def(AffineSetAttr)
    producer_dependency_per_consumer = opt_prop_def(AffineSetAttr)
    values = var_result_def(TensorType)

    traits = traits_def(MemoryReadEffect())


@irdl_op_definition
class InterTileReduceOp(DeliveryOp):
    """Folds the producers' values with its combiner, from the identity on, and delivers the result to the consumers."""

    name = "ktdp.inter_tile_reduce"
    FOLDS: ClassVar[bool] = True

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
            result_types=[list(partials(future))],
            regions=[combiner],
            properties={CONSUMERS: consumers},
        )


@irdl_op_definition
class InterTileReduceScatterOp(DeliveryOp):
    """Folds the producers' values and gives each consumer its slice, by its position among the consumers."""

    name = "ktdp.inter_tile_reduce_scatter"
    KEYS: ClassVar[tuple[str, ...]] = (DEPENDENCY, "scatter_dimensions")
    FOLDS: ClassVar[bool] = True

    future = operand_def(TileFutureType)
    identity = var_operand_def(TensorType)
    consumer_tiles_per_group = prop_def(AffineSetAttr)
    producer_dependency_per_consumer = opt_prop_def(AffineSetAttr)
    scatter_dimensions = prop_def(DIMENSIONS)
    combiner = region_def("single_block")
    values = var_result_def(TensorType)

    traits = traits_def(MemoryReadEffect())


@irdl_op_definition
class InterTileGatherOp(DeliveryOp):
    """Concatenates the producers' values, by their position among the producers, and delivers the whole."""

    name = "ktdp.inter_tile_gather"
    KEYS: ClassVar[tuple[str, ...]] = (DEPENDENCY, "gather_dimensions")

    future = operand_def(TileFutureType)
    consumer_tiles_per_group = prop_def(AffineSetAttr)
    producer_dependency_per_consumer = opt_prop_def(AffineSetAttr)
    gather_dimensions = prop_def(DIMENSIONS)
    values = var_result_def(TensorType)

    traits = traits_def(MemoryReadEffect())


@irdl_op_definition
class InterTileAllToAllOp(DeliveryOp):
    """Each consumer receives its slice of every producer's value, concatenated by the producer's position."""

    name = "ktdp.inter_tile_all_to_all"
    KEYS: ClassVar[tuple[str, ...]] = (DEPENDENCY, "split_dimensions", "concat_dimensions")

    future = operand_def(TileFutureType)
    consumer_tiles_per_group = prop_def(AffineSetAttr)
    producer_dependency_per_consumer = opt_prop_def(AffineSetAttr)
    split_dimensions = prop_def(DIMENSIONS)
    concat_dimensions = prop_def(DIMENSIONS)
    values = var_result_def(TensorType)

    traits = traits_def(MemoryReadEffect())


@irdl_op_definition
class InterTileScatterOp(DeliveryOp):
    """Gives each consumer its slice of the one producer's value, by its position among the consumers."""

    name = "ktdp.inter_tile_scatter"
    KEYS: ClassVar[tuple[str, ...]] = ("scatter_dimensions",)

    future = operand_def(TileFutureType)
    consumer_tiles_per_group = prop_def(AffineSetAttr)
    scatter_dimensions = prop_def(DIMENSIONS)
    values = var_result_def(TensorType)

    traits = traits_def(MemoryReadEffect())


@irdl_op_definition
class YieldReducedOp(TileYieldOp):
    name = "ktdp.yield_reduced"

    traits = lazy_traits_def(
        lambda: (IsTerminator(), HasParent(InterTileReduceOp, InterTileReduceScatterOp), NoMemoryEffect())
    )


DELIVERY_OPS: list[Any] = [
    InterTileConsumeOp,
    InterTileReduceOp,
    InterTileReduceScatterOp,
    InterTileGatherOp,
    InterTileAllToAllOp,
    InterTileScatterOp,
]
