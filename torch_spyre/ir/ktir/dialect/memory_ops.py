# SPDX-License-Identifier: Apache-2.0
"""Memory ops of `ktdp`: views say where a tensor is, access tiles say which coordinates, load and store move data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    AffineSetAttr,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.dialects.utils import parse_dynamic_index_list_without_types, print_dynamic_index_list
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineMap, AffineSet
from xdsl.irdl import (
    AttrSizedOperandSegments,
    BaseAttr,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from torch_spyre.ir.ktir.dialect.affine_text import OperandCollector, box_set, identity_map, print_expr
from torch_spyre.ir.ktir.dialect.types import (
    GLOBAL,
    AccessTileType,
    MemorySpaceAttr,
    RuntimeArgType,
    older_spelling,
    parse_elided,
)

INDEX = IndexType()
SHAPED = BaseAttr(MemRefType) | BaseAttr(TensorType)


def parse_named_attrs(parser: Parser, names: Sequence[str]) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    """The `{...}` after an op: values of `names`, and everything else."""
    attrs = parser.parse_optional_attr_dict()
    return {n: attrs.pop(n) for n in names if n in attrs}, attrs


def parse_symbols(parser: Parser) -> list[SSAValue]:
    if parser.parse_optional_keyword("symbols") is None:
        return []
    operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    return resolve_indices(parser, operands)


def resolve_indices(parser: Parser, operands: Sequence[UnresolvedOperand]) -> list[SSAValue]:
    return list(parser.resolve_operands(operands, [INDEX] * len(operands), parser.pos))


def print_symbols(printer: Printer, symbols: Sequence[SSAValue]) -> None:
    if symbols:
        printer.print_string(" symbols(")
        printer.print_list(symbols, printer.print_ssa_value)
        printer.print_string(")")


def print_attrs(printer: Printer, attrs: dict[str, Attribute]) -> None:
    printer.print_string(" {")
    for i, (name, value) in enumerate(attrs.items()):
        printer.print_string(f"{', ' if i else ''}{name} = ")
        printer.print_attribute(value)
    printer.print_string("}")


def require(condition: bool, rule: str) -> None:
    if not condition:
        raise VerifyException(rule)


@irdl_op_definition
class GetComputeTileIdOp(IRDLOperation):
    """Coordinates of the executing compute tile on the first grid axes."""

    name = "ktdp.get_compute_tile_id"

    ids = var_result_def(IndexType)

    traits = traits_def(Pure())

    def __init__(self, axes: int = 1) -> None:
        super().__init__(result_types=[[INDEX] * axes])

    def verify_(self) -> None:
        require(len(self.ids) >= 1, "get_compute_tile_id: at least one result is needed")

    @classmethod
    def parse(cls, parser: Parser) -> GetComputeTileIdOp:
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return cls.build(result_types=[types])

    def print(self, printer: Printer) -> None:
        printer.print_string(" : ")
        printer.print_list(self.result_types, printer.print_attribute)


def _constant_sizes(
    values: Sequence[SSAValue], sizes: Sequence[int], shape: Sequence[int]
) -> tuple[list[SSAValue], list[int]]:
    """Sizes that are constants of the program where the view's type has a number: they become that number."""
    left, folded, given = [], list(sizes), iter(values)
    for dim, size in enumerate(sizes):
        if size != DYNAMIC_INDEX:
            continue
        value = next(given)
        declared = shape[dim] if dim < len(shape) else DYNAMIC_INDEX
        constant = value.owner.value if isinstance(value.owner, ConstantOp) else None
        if declared == DYNAMIC_INDEX:
            left.append(value)
            continue
        require(
            isinstance(constant, IntegerAttr),
            f"construct_memory_view: the size of dim {dim} is a value that is not a constant, the view says {declared}",
        )
        folded[dim] = cast(IntegerAttr, constant).value.data
    return left, folded


@irdl_op_definition
class ConstructMemoryViewOp(IRDLOperation):
    """A logical tensor at `offset` with the given sizes and strides, all in elements of the result's element type."""

    name = "ktdp.construct_memory_view"

    offset = operand_def(IndexType)
    sizes = var_operand_def(IndexType)
    strides = var_operand_def(IndexType)
    static_sizes = prop_def(DenseArrayBase.constr(i64))
    static_strides = prop_def(DenseArrayBase.constr(i64))
    coordinate_set = prop_def(AffineSetAttr)
    memory_space = prop_def(MemorySpaceAttr)
    view = result_def(MemRefType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())

    @classmethod
    def get(
        cls, offset: SSAValue, shape: Sequence[int], strides: Sequence[int], element: Attribute, space: MemorySpaceAttr
    ) -> ConstructMemoryViewOp:
        """A view of static shape whose domain is the full box."""
        return cls.build(
            operands=[offset, [], []],
            result_types=[MemRefType(element, shape)],
            properties={
                "static_sizes": DenseArrayBase.from_list(i64, shape),
                "static_strides": DenseArrayBase.from_list(i64, strides),
                "coordinate_set": box_set(tuple(shape)),
                "memory_space": space,
            },
        )

    def verify_(self) -> None:
        shape = cast(MemRefType, self.view.type).get_shape()
        sizes, strides = self.static_sizes.get_values(), self.static_strides.get_values()
        require(
            len(sizes) == len(shape) == len(strides),
            f"construct_memory_view: {len(sizes)} sizes and {len(strides)} strides for a view of rank {len(shape)}",
        )
        for what, static, operands in (("sizes", sizes, self.sizes), ("strides", strides, self.strides)):
            require(
                static.count(DYNAMIC_INDEX) == len(operands),
                f"construct_memory_view: {static.count(DYNAMIC_INDEX)} dynamic {what} but {len(operands)} operands",
            )
        for dim, (size, declared) in enumerate(zip(sizes, shape, strict=True)):
            require(size == declared, f"construct_memory_view: size of dim {dim} is {size}, the view says {declared}")
        domain = self.coordinate_set.data
        require(
            domain.num_dims == len(shape),
            f"construct_memory_view: coordinate_set has {domain.num_dims} dims, the view has {len(shape)}",
        )
        require(
            domain.num_symbols <= len(self.sizes),
            f"construct_memory_view: coordinate_set has {domain.num_symbols} symbols, dynamic sizes {len(self.sizes)}",
        )

    @classmethod
    def parse(cls, parser: Parser) -> ConstructMemoryViewOp:
        offset = parser.resolve_operand(parser.parse_unresolved_operand(), INDEX)
        lists = []
        for keyword in ("sizes", "strides"):
            parser.parse_punctuation(",")
            parser.parse_keyword(keyword)
            parser.parse_punctuation(":")
            lists.append(parse_dynamic_index_list_without_types(parser, DYNAMIC_INDEX))
        (sizes, static_sizes), (strides, static_strides) = lists
        properties, attributes = parse_named_attrs(parser, ("coordinate_set", "memory_space"))
        parser.parse_punctuation(":")
        view_type = parser.parse_type()
        size_values = resolve_indices(parser, sizes)
        if isinstance(view_type, MemRefType):
            size_values, static_sizes = _constant_sizes(size_values, static_sizes, view_type.get_shape())
        properties.setdefault("coordinate_set", box_set(tuple(static_sizes)))
        if "memory_space" not in properties:
            older_spelling(parser, "construct_memory_view without memory_space")
            space = view_type.memory_space if isinstance(view_type, MemRefType) else None
            properties["memory_space"] = space if isinstance(space, MemorySpaceAttr) else MemorySpaceAttr(GLOBAL)
        properties["static_sizes"] = DenseArrayBase.from_list(i64, static_sizes)
        properties["static_strides"] = DenseArrayBase.from_list(i64, static_strides)
        return cls.build(
            operands=[offset, size_values, resolve_indices(parser, strides)],
            result_types=[view_type],
            properties=properties,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.offset)
        printer.print_string(", sizes: ")
        print_dynamic_index_list(printer, DYNAMIC_INDEX, self.sizes, self.static_sizes.get_values())
        printer.print_string(", strides: ")
        print_dynamic_index_list(printer, DYNAMIC_INDEX, self.strides, self.static_strides.get_values())
        named = {"coordinate_set": self.coordinate_set, "memory_space": self.memory_space}
        print_attrs(printer, {**named, **self.attributes})
        printer.print_string(" : ")
        printer.print_attribute(self.view.type)


@irdl_op_definition
class ConstructDistributedMemoryViewOp(IRDLOperation):
    """One logical tensor assembled from views in several memories; coordinate sets of the parts are global."""

    name = "ktdp.construct_distributed_memory_view"

    parts = var_operand_def(MemRefType)
    view = result_def(MemRefType)

    traits = traits_def(Pure())

    def verify_(self) -> None:
        result = cast(MemRefType, self.view.type)
        require(len(self.parts) >= 1, "construct_distributed_memory_view: at least one part is needed")
        for i, part in enumerate(self.parts):
            part_type = cast(MemRefType, part.type)
            require(
                part_type.get_num_dims() == result.get_num_dims() and part_type.element_type == result.element_type,
                f"construct_distributed_memory_view: part {i} is {part_type}; it must have the rank and element type "
                f"of the result {result}",
            )

    @classmethod
    def parse(cls, parser: Parser) -> ConstructDistributedMemoryViewOp:
        pos = parser.pos
        parser.parse_punctuation("(")
        parts = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.build(
            operands=[parser.resolve_operands(parts, types, pos)],
            result_types=[parser.parse_type()],
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" (")
        printer.print_list(self.parts, printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_list(self.parts.types, printer.print_attribute)
        printer.print_string(")")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.view.type)


@irdl_op_definition
class ConstructAccessTileOp(IRDLOperation):
    """The coordinates ``base_map(indices) + p`` for p in `access_tile_set`, listed as `access_tile_order` says."""

    name = "ktdp.construct_access_tile"

    base = operand_def(SHAPED)
    indices = var_operand_def(IndexType)
    symbols = var_operand_def(IndexType)
    base_map = prop_def(AffineMapAttr)
    access_tile_set = prop_def(AffineSetAttr)
    access_tile_order = prop_def(AffineMapAttr)
    tile = result_def(AccessTileType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        base_map, points, order = self.base_map.data, self.access_tile_set.data, self.access_tile_order.data
        rank = points.num_dims
        name = "construct_access_tile"
        base_rank = cast("MemRefType | TensorType", self.base.type).get_num_dims()
        require(
            len(base_map.results) == rank,
            f"{name}: {len(base_map.results)} subscripts but access_tile_set has {rank} dims",
        )
        require(base_rank == rank, f"{name}: {rank} subscripts for a base of rank {base_rank}")
        require(
            base_map.num_dims == len(self.indices),
            f"{name}: base_map takes {base_map.num_dims} inputs but there are {len(self.indices)} index operands",
        )
        verify_space(name, "access_tile_set", points, order, len(self.symbols))
        result_rank = self.tile.type.rank
        require(result_rank == rank, f"{name}: the tile has rank {result_rank}, access_tile_set has {rank} dims")

    @classmethod
    def parse(cls, parser: Parser) -> ConstructAccessTileOp:
        base = parser.parse_unresolved_operand()
        collector = OperandCollector(parser)
        exprs = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, collector.parse_expr)
        symbols = parse_symbols(parser)
        properties, attributes = parse_named_attrs(parser, ("access_tile_set", "access_tile_order"))
        parser.parse_punctuation(":")
        base_value = parser.resolve_operand(base, parser.parse_type())
        parser.parse_punctuation("->")
        tile = parse_elided(parser, AccessTileType)
        properties["base_map"] = AffineMapAttr(collector.close(exprs))
        default_space(parser, properties, "access_tile_set", "access_tile_order", tile)
        return cls.build(
            operands=[base_value, resolve_indices(parser, collector.operands), symbols],
            result_types=[tile],
            properties=properties,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        with printer.in_square_brackets():
            printer.print_list(self.base_map.data.results, lambda e: print_expr(printer, e, self.indices))
        print_symbols(printer, self.symbols)
        named = {"access_tile_set": self.access_tile_set, "access_tile_order": self.access_tile_order}
        print_attrs(printer, {**named, **self.attributes})
        printer.print_string(" : ")
        printer.print_attribute(self.base.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.tile.type)


def default_space(parser: Parser, properties: dict[str, Attribute], key: str, order: str, tile: Attribute) -> None:
    """A tile without a set covers its shape, one without an order keeps it."""
    for name in (key, order):
        if name in properties or not isinstance(tile, AccessTileType):
            continue
        older_spelling(parser, f"an access tile without {name}")
        properties[name] = box_set(tile.get_shape()) if name == key else identity_map(tile.rank)


def verify_space(name: str, key: str, points: AffineSet, order: AffineMap, symbols: int) -> None:
    """Rules that direct and indirect tiles share: set, order and symbol operands fit together."""
    rank, set_symbols = points.num_dims, points.num_symbols
    require(set_symbols == symbols, f"{name}: {key} has {set_symbols} symbols but there are {symbols} symbol operands")
    if not order.num_dims == len(order.results) == rank or order.num_symbols:
        raise VerifyException(f"{name}: the order must map {rank} dims to {rank} results without symbols, got {order}")


def view_element_type(tile: SSAValue) -> Attribute | None:
    """Element type of the view under an access tile, if its constructor is visible."""
    base = getattr(tile.owner, "base", None)
    view: object = None if base is None else base.type
    return view.element_type if isinstance(view, MemRefType | TensorType) else None


def _signless(element: Attribute) -> Attribute:
    """Views may say si32 where tensors say i32."""
    return IntegerType(element.width.data) if isinstance(element, IntegerType) else element


def verify_transfer(name: str, tile: SSAValue, tensor: Attribute) -> None:
    tile_type, tensor_type = cast(AccessTileType, tile.type), cast(TensorType, tensor)
    if tile_type.get_shape() != tensor_type.get_shape():
        raise VerifyException(f"{name}: the tile {tile_type} and the tensor {tensor_type} differ in shape")
    element = view_element_type(tile)
    if element is not None and _signless(element) != _signless(tensor_type.element_type):
        raise VerifyException(f"{name}: the view holds {element}, the tensor {tensor_type.element_type}")


@irdl_op_definition
class LoadOp(IRDLOperation):
    """Reads the elements of an access tile into a tensor value."""

    name = "ktdp.load"

    tile = operand_def(AccessTileType)
    value = result_def(TensorType)

    traits = traits_def(MemoryReadEffect())

    def verify_(self) -> None:
        verify_transfer("load", self.tile, self.value.type)

    @classmethod
    def parse(cls, parser: Parser) -> LoadOp:
        tile = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        tile_value = parser.resolve_operand(tile, parse_elided(parser, AccessTileType))
        parser.parse_punctuation("->")
        return cls.build(operands=[tile_value], result_types=[parser.parse_type()], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.tile)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.tile.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.value.type)


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Writes a tensor value to the coordinates of an access tile."""

    name = "ktdp.store"

    value = operand_def(TensorType)
    tile = operand_def(AccessTileType)

    traits = traits_def(MemoryWriteEffect())

    def verify_(self) -> None:
        verify_transfer("store", self.tile, self.value.type)

    @classmethod
    def parse(cls, parser: Parser) -> StoreOp:
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        tile = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        value_type = parser.parse_type()
        parser.parse_punctuation(",")
        tile_type = parse_elided(parser, AccessTileType)
        operands = [parser.resolve_operand(value, value_type), parser.resolve_operand(tile, tile_type)]
        return cls.build(operands=operands, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list((self.value, self.tile), printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list((self.value.type, self.tile.type), printer.print_attribute)


@irdl_op_definition
class RuntimeArgExtractOp(IRDLOperation):
    """Reads `value`, `granularity` or `upperbound` of a runtime argument."""

    name = "ktdp.runtime_arg_extract"

    argument = operand_def(RuntimeArgType)
    field = prop_def(StringAttr)
    result = result_def()

    traits = traits_def(Pure())

    def verify_(self) -> None:
        argument = cast(RuntimeArgType, self.argument.type)
        field, result = self.field.data, self.result.type
        if field == "value":
            require(
                result == argument.value_type,
                f"runtime_arg_extract: value has type {argument.value_type}, the result says {result}",
            )
            return
        present = {"granularity": argument.granularity, "upperbound": argument.upperbound}
        require(field in present, f"runtime_arg_extract: expected value, granularity or upperbound, got {field}")
        require(hasattr(present[field], "data"), f"runtime_arg_extract: {argument} has no {field}")
        require(result == INDEX, f"runtime_arg_extract: {field} has type index, the result says {result}")

    @classmethod
    def parse(cls, parser: Parser) -> RuntimeArgExtractOp:
        field = parser.parse_keyword_in(("value", "granularity", "upperbound"))
        parser.parse_keyword("from")
        argument = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        # MLIR's printer leaves out the name of a type that the op implies: `<index, granularity = 4>`.
        argument_type = parser.parse_optional_type() or RuntimeArgType.new(RuntimeArgType.parse_parameters(parser))
        value = parser.resolve_operand(argument, argument_type)
        parser.parse_punctuation("->")
        return cls.build(operands=[value], result_types=[parser.parse_type()], properties={"field": StringAttr(field)})

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.field.data} from ")
        printer.print_ssa_value(self.argument)
        printer.print_string(" : ")
        printer.print_attribute(self.argument.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)
