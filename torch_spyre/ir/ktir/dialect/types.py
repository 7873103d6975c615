# SPDX-License-Identifier: Apache-2.0
"""Types and attributes of the `ktdp` dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineSetAttr,
    ArrayAttr,
    IndexType,
    IntAttr,
    IntegerType,
    NoneAttr,
    StringAttr,
    TensorType,
    _FloatType,
)
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

GLOBAL = "global"
CT_LOCAL = "ct_local"

# Names of the older spelling and the visibility each one stands for.
_LEGACY_SPACES = {"HBM": GLOBAL, "unspecified": GLOBAL, "LX": CT_LOCAL, "L0": CT_LOCAL}


@irdl_attr_definition
class MemorySpaceAttr(ParametrizedAttribute):
    """Who sees a memory: the whole chip (`global`) or one compute tile (`ct_local`; no `ct_id`: the executing one)."""

    name = "ktdp.memory_space"

    visibility: StringAttr
    ct_id: IntAttr | NoneAttr

    def __init__(self, visibility: str | StringAttr, ct_id: int | IntAttr | NoneAttr | None = None) -> None:
        if isinstance(visibility, str):
            visibility = StringAttr(visibility)
        if ct_id is None:
            ct_id = NoneAttr()
        super().__init__(visibility, IntAttr(ct_id) if isinstance(ct_id, int) else ct_id)

    @property
    def is_local(self) -> bool:
        return self.visibility.data == CT_LOCAL

    @property
    def tile(self) -> int | None:
        """The compute tile that `ct_id` names."""
        return self.ct_id.data if isinstance(self.ct_id, IntAttr) else None

    def verify(self) -> None:
        if self.visibility.data not in (GLOBAL, CT_LOCAL):
            raise VerifyException(f"memory_space: expected global or ct_local, got {self.visibility.data}")
        if self.tile is not None and not self.is_local:
            raise VerifyException("memory_space: ct_id is only allowed together with ct_local")
        if self.tile is not None and self.tile < 0:
            raise VerifyException(f"memory_space: ct_id must be at least 0, got {self.tile}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        return _parse_memory_space(parser, {GLOBAL: GLOBAL, CT_LOCAL: CT_LOCAL}, "ct_id")

    def print_parameters(self, printer: Printer) -> None:
        suffix = "" if self.tile is None else f", ct_id = {self.tile}"
        printer.print_string(f"<{self.visibility.data}{suffix}>")


@irdl_attr_definition
class LegacyMemorySpaceAttr(ParametrizedAttribute):
    """The older spelling `spyre_memory_space<HBM|LX[, core = N]>`; parsing it gives a MemorySpaceAttr."""

    name = "ktdp.spyre_memory_space"

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        return _parse_memory_space(parser, _LEGACY_SPACES, "core")

    @classmethod
    def new(cls, params: Sequence[Any]) -> Any:
        return MemorySpaceAttr.new(params)


def _parse_memory_space(parser: AttrParser, names: dict[str, str], tile_key: str) -> Sequence[Attribute]:
    with parser.in_angle_brackets():
        name = parser.parse_identifier()
        if name not in names:
            parser.raise_error(f"memory space must be one of {', '.join(names)}, got {name}")
        tile: Attribute = NoneAttr()
        if parser.parse_optional_punctuation(","):
            parser.parse_keyword(tile_key)
            parser.parse_punctuation("=")
            tile = IntAttr(parser.parse_integer())
    return (StringAttr(names[name]), tile)


@irdl_attr_definition
class AccessTileType(ParametrizedAttribute, TypeAttribute):
    """A set of coordinates of a view, of the given shape (DYNAMIC_INDEX for `?`)."""

    name = "ktdp.access_tile"

    shape: ArrayAttr[IntAttr]

    def __init__(self, shape: Sequence[int] | ArrayAttr[IntAttr]) -> None:
        if not isinstance(shape, ArrayAttr):
            shape = ArrayAttr([IntAttr(s) for s in shape])
        super().__init__(shape)

    def get_shape(self) -> tuple[int, ...]:
        return tuple(s.data for s in self.shape.data)

    @property
    def rank(self) -> int:
        return len(self.shape.data)

    def verify(self) -> None:
        for size in self.get_shape():
            if size < 0 and size != DYNAMIC_INDEX:
                raise VerifyException(f"access_tile: sizes must be at least 0 or ?, got {size}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            shape, element = parser.parse_ranked_shape()
        if element != IndexType():
            parser.raise_error(f"access_tile: the element type must be index, got {element}")
        return (ArrayAttr([IntAttr(s) for s in shape]),)

    def print_parameters(self, printer: Printer) -> None:
        dims = "".join("?x" if s == DYNAMIC_INDEX else f"{s}x" for s in self.get_shape())
        printer.print_string(f"<{dims}index>")


@irdl_attr_definition
class RuntimeArgType(ParametrizedAttribute, TypeAttribute):
    """A scalar argument known only at launch: a multiple of `granularity`, at most `upperbound`."""

    name = "ktdp.runtime_arg"

    value_type: Attribute
    granularity: IntAttr | NoneAttr
    upperbound: IntAttr | NoneAttr

    def verify(self) -> None:
        if not isinstance(self.value_type, IndexType | IntegerType | _FloatType):
            raise VerifyException(f"runtime_arg: the type must be index, integer or float, got {self.value_type}")
        for key, value in (("granularity", self.granularity), ("upperbound", self.upperbound)):
            if isinstance(value, IntAttr) and value.data <= 0:
                raise VerifyException(f"runtime_arg: {key} must be positive, got {value.data}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        values: dict[str, Attribute] = {}
        with parser.in_angle_brackets():
            value_type = parser.parse_type()
            while parser.parse_optional_punctuation(","):
                key = parser.parse_keyword_in(("granularity", "upperbound"))
                if key in values:
                    parser.raise_error(f"runtime_arg: {key} is given twice")
                parser.parse_punctuation("=")
                values[key] = IntAttr(parser.parse_integer())
        return (value_type, values.get("granularity", NoneAttr()), values.get("upperbound", NoneAttr()))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.value_type)
            for key, value in (("granularity", self.granularity), ("upperbound", self.upperbound)):
                if isinstance(value, IntAttr):
                    printer.print_string(f", {key} = {value.data}")


@irdl_attr_definition
class TileFutureType(ParametrizedAttribute, TypeAttribute):
    """Partial values that compute tiles of each group have produced and a delivery op will resolve."""

    name = "ktdp.tile_future"

    partials: ArrayAttr[Attribute]
    groups: AffineSetAttr

    def __init__(self, partials: Sequence[Attribute] | ArrayAttr[Attribute], groups: AffineSetAttr) -> None:
        super().__init__(partials if isinstance(partials, ArrayAttr) else ArrayAttr(partials), groups)

    def verify(self) -> None:
        if not self.partials.data:
            raise VerifyException("tile_future: at least one partial type is needed")
        for partial in self.partials.data:
            if not isinstance(partial, TensorType):
                raise VerifyException(f"tile_future: partials must be ranked tensors, got {partial}")
        if self.groups.data.num_dims != 1 or self.groups.data.num_symbols != 0:
            raise VerifyException(f"tile_future: groups must have one dim and no symbols, got {self.groups}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            partials = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
            if partials is None:
                older_spelling(parser, "tile_future without parentheses around its partial type (A9)")
                partials = [parser.parse_type()]
            parser.parse_punctuation(",")
            parser.parse_keyword("groups")
            parser.parse_punctuation("=")
            groups = parser.parse_attribute()
        return (ArrayAttr(cast("list[Attribute]", partials)), groups)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            with printer.in_parens():
                printer.print_list(self.partials.data, printer.print_attribute)
            printer.print_string(", groups = ")
            printer.print_attribute(self.groups)


def older_spelling(parser: AttrParser, what: str) -> None:
    """Notes a form that older files contain and the dialect does not; a strict parser refuses it."""
    note = getattr(parser, "note_older_spelling", None)
    if note is not None:
        note(what)


def parse_elided(parser: AttrParser, type_class: type[AccessTileType] | type[TileFutureType]) -> TypeAttribute:
    """Parse a type whose `!ktdp.name` prefix may be left out."""
    is_bare = parser.parse_optional_punctuation("<") is not None
    if not is_bare:
        return parser.parse_type()
    parser._resume_from(parser.pos - 1)
    return type_class.new(type_class.parse_parameters(parser))
