# SPDX-License-Identifier: Apache-2.0
"""`ktdp.construct_indirect_access_tile`: coordinates as quasi-affine expressions or as values read from index views."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import (
    AffineMapAttr,
    AffineSetAttr,
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    MemRefType,
    TensorType,
    i1,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr
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
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, MemoryReadEffect, NoMemoryEffect

from torch_spyre.ir.ktir.dialect.affine_text import OperandCollector, print_expr
from torch_spyre.ir.ktir.dialect.memory_ops import (
    INDEX,
    SHAPED,
    default_space,
    parse_named_attrs,
    parse_symbols,
    print_attrs,
    print_symbols,
    require,
    resolve_indices,
    verify_space,
)
from torch_spyre.ir.ktir.dialect.types import AccessTileType, older_spelling, parse_elided


@irdl_op_definition
class RegionTerminatorOp(IRDLOperation):
    """Ends the hidden region that holds the intermediate variables."""

    name = "ktdp.region_terminator"

    assembly_format = "attr-dict"
    traits = traits_def(IsTerminator(), NoMemoryEffect())


_UNMARKED = re.compile(r"\(?\s*%[\w$.-]+(?:#\d+)?\s*\[")


def _reads_view(parser: Parser) -> bool:
    """True before ``%view[``, perhaps in a parenthesis: the RFC's spelling of an indirect subscript."""
    return _UNMARKED.match(parser.lexer.input.content, parser.pos) is not None


@irdl_op_definition
class ConstructIndirectAccessTileOp(IRDLOperation):
    """Coordinates of `base`, one per point of `variables_space_set`.

    Subscript d is `per_dim_subscript_maps[d]` over captured ++ variables: the coordinate itself, or, where
    `per_dim_subscript_kinds[d]` is true, the position in the next index view whose value is the coordinate.
    """

    name = "ktdp.construct_indirect_access_tile"

    base = operand_def(SHAPED)
    indirect = var_operand_def(SHAPED)
    captured = var_operand_def(IndexType)
    symbols = var_operand_def(IndexType)
    per_dim_subscript_kinds = prop_def(DenseArrayBase.constr(i1))
    per_dim_subscript_maps = prop_def(ArrayAttr[AffineMapAttr])
    variables_space_set = prop_def(AffineSetAttr)
    variables_space_order = prop_def(AffineMapAttr)
    region = region_def("single_block")
    tile = result_def(AccessTileType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryReadEffect())

    @classmethod
    def get(
        cls,
        base: SSAValue,
        captured: Sequence[SSAValue],
        symbols: Sequence[SSAValue],
        maps: ArrayAttr[AffineMapAttr],
        space: AffineSetAttr,
        order: AffineMapAttr,
        shape: AccessTileType,
        *,
        kinds: DenseArrayBase | None = None,
        indirect: Sequence[SSAValue] = (),
    ) -> ConstructIndirectAccessTileOp:
        """Build with fresh variables; without `kinds` every subscript is direct."""
        block = Block(arg_types=[INDEX] * space.data.num_dims)
        for i, arg in enumerate(block.args):
            arg.name_hint = f"v{i}"
        block.add_op(RegionTerminatorOp())
        if kinds is None:
            kinds = DenseArrayBase.from_list(i1, [0] * len(maps.data))
        return cls.build(
            operands=[base, list(indirect), list(captured), list(symbols)],
            result_types=[shape],
            regions=[Region(block)],
            properties={
                "per_dim_subscript_kinds": kinds,
                "per_dim_subscript_maps": maps,
                "variables_space_set": space,
                "variables_space_order": order,
            },
        )

    @property
    def variables(self) -> Sequence[SSAValue]:
        """The intermediate variables: arguments of the hidden region."""
        return self.region.block.args

    @property
    def is_indirect(self) -> tuple[bool, ...]:
        """Per subscript: does it read an index view?"""
        return tuple(bool(k) for k in self.per_dim_subscript_kinds.get_values())

    def verify_(self) -> None:
        name = "construct_indirect_access_tile"
        space, order = self.variables_space_set.data, self.variables_space_order.data
        variables = len(self.variables)
        base_rank = cast("MemRefType | TensorType", self.base.type).get_num_dims()
        kinds, maps = self.is_indirect, self.per_dim_subscript_maps.data
        require(
            space.num_dims == variables,
            f"{name}: variables_space_set has {space.num_dims} dims for {variables} intermediate variables",
        )
        verify_space(name, "variables_space_set", space, order, len(self.symbols))
        require(len(maps) == len(kinds) == base_rank, f"{name}: {len(maps)} subscripts for a base of rank {base_rank}")
        require(
            sum(kinds) == len(self.indirect),
            f"{name}: {sum(kinds)} subscripts read an index view but {len(self.indirect)} index views are given",
        )
        self._verify_maps(name, len(self.captured) + variables)
        rank = self.tile.type.rank
        require(rank == variables, f"{name}: the tile has rank {rank} for {variables} intermediate variables")

    def _verify_maps(self, name: str, inputs: int) -> None:
        views = iter(self.indirect)
        for dim, (attr, indirect) in enumerate(zip(self.per_dim_subscript_maps.data, self.is_indirect, strict=True)):
            map_ = attr.data
            require(
                map_.num_dims == inputs and map_.num_symbols == 0,
                f"{name}: the map of subscript {dim} must take the {inputs} captured values and variables, no symbols",
            )
            results = cast(MemRefType, next(views).type).get_num_dims() if indirect else 1
            require(
                len(map_.results) == results,
                f"{name}: subscript {dim} must have {results} expressions, got {len(map_.results)}",
            )

    @classmethod
    def parse(cls, parser: Parser) -> ConstructIndirectAccessTileOp:
        parser.parse_keyword("intermediate_variables")
        names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        base = parser.parse_unresolved_operand()
        collector = OperandCollector(parser, [n.operand_name for n in names])
        views: list[UnresolvedOperand] = []

        def parse_subscript() -> tuple[bool, list[AffineExpr]]:
            marked = parser.parse_optional_keyword("ind") is not None
            if not marked and not _reads_view(parser):
                return False, [collector.parse_expr()]
            if not marked:
                older_spelling(parser, "an index view as a subscript without ind(...)")
            if marked:
                parser.parse_punctuation("(")
            in_parens = marked or parser.parse_optional_punctuation("(") is not None
            views.append(parser.parse_unresolved_operand())
            exprs = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, collector.parse_expr)
            if in_parens:
                parser.parse_punctuation(")")
            return True, exprs

        subscripts = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_subscript)
        symbols = parse_symbols(parser)
        properties, attributes = parse_named_attrs(parser, ("variables_space_set", "variables_space_order"))
        parser.parse_punctuation(":")
        pos = parser.pos
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        if len(types) != 1 + len(views):
            parser.raise_error(f"expected {1 + len(views)} types: the base and one per index view", pos)
        parser.parse_punctuation("->")
        tile_type = parse_elided(parser, AccessTileType)
        default_space(parser, properties, "variables_space_set", "variables_space_order", tile_type)
        properties["per_dim_subscript_kinds"] = DenseArrayBase.from_list(i1, [int(k) for k, _ in subscripts])
        properties["per_dim_subscript_maps"] = ArrayAttr([AffineMapAttr(collector.close(e)) for _, e in subscripts])
        block = Block([RegionTerminatorOp()], arg_types=[INDEX] * len(names))
        for name, arg in zip(names, block.args, strict=True):
            if SSAValue.is_valid_name(name.operand_name):
                arg.name_hint = name.operand_name
        return cls.build(
            operands=[
                parser.resolve_operand(base, types[0]),
                parser.resolve_operands(views, types[1:], pos),
                resolve_indices(parser, collector.operands),
                symbols,
            ],
            result_types=[tile_type],
            regions=[Region(block)],
            properties=properties,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.enter_scope()
        printer.print_string(" intermediate_variables(")
        printer.print_list(self.variables, printer.print_ssa_value)
        printer.print_string(") ")
        printer.print_ssa_value(self.base)
        self._print_subscripts(printer)
        print_symbols(printer, self.symbols)
        named: dict[str, Attribute] = {
            "variables_space_set": self.variables_space_set,
            "variables_space_order": self.variables_space_order,
        }
        print_attrs(printer, {**named, **self.attributes})
        printer.print_string(" : ")
        printer.print_list((self.base.type, *self.indirect.types), printer.print_attribute)
        printer.print_string(" -> ")
        printer.print_attribute(self.tile.type)
        printer.exit_scope()

    def _print_subscripts(self, printer: Printer) -> None:
        values = (*self.captured, *self.variables)
        views = iter(self.indirect)
        printer.print_string("[")
        for i, (attr, indirect) in enumerate(zip(self.per_dim_subscript_maps.data, self.is_indirect, strict=True)):
            printer.print_string(", " if i else "")
            if indirect:
                printer.print_string("ind(")
                printer.print_ssa_value(next(views))
                with printer.in_square_brackets():
                    printer.print_list(attr.data.results, lambda e: print_expr(printer, e, values))
            else:
                printer.print_string("(")
                print_expr(printer, attr.data.results[0], values)
            printer.print_string(")")
        printer.print_string("]")
