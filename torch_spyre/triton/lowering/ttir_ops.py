# SPDX-License-Identifier: Apache-2.0
"""The `tt` dialect as far as kernels for the card use it: types, and the custom syntax of each operation.

Only reading matters here: Triton has verified what it prints, and the passes of this package replace every operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import StringAttr, TensorType
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    var_operand_def,
    var_region_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer


@irdl_attr_definition
class PointerType(ParametrizedAttribute, TypeAttribute):
    """``!tt.ptr<f16>``: a place in the memory of one launch argument."""

    name = "tt.ptr"

    pointee: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            pointee = parser.parse_type()
            if parser.parse_optional_punctuation(","):  # an address space, of which the card has one
                parser.parse_integer()
        return [pointee]


@irdl_attr_definition
class DescriptorType(ParametrizedAttribute, TypeAttribute):
    """``!tt.tensordesc<32x64xf32>``; Triton 3.7 writes ``!tt.tensordesc<tensor<32x64xf32>>``."""

    name = "tt.tensordesc"

    block: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return [_block_type(parser)]


def _block_type(parser: AttrParser) -> Attribute:
    """A tensor type, or what stands between its brackets."""
    if parser._current_token.text == "tensor":
        return parser.parse_type()
    shape, element = parser.parse_ranked_shape()
    return TensorType(element, shape)


def pointee(type_: Attribute) -> Attribute:
    """What a pointer, or each pointer of a tensor, points to."""
    if isinstance(type_, TensorType):
        inner = type_.element_type
        assert isinstance(inner, PointerType)
        return TensorType(inner.pointee, type_.shape)
    assert isinstance(type_, PointerType)
    return type_.pointee


class TritonOperation(IRDLOperation):
    """Any number of operands, results and regions; attributes as they are written."""

    ins = var_operand_def()
    outs = var_result_def()
    parts = var_region_def()

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_operation_type(self)

    @classmethod
    def made(
        cls, operands: Sequence[Any], results: Sequence[Attribute], attributes: dict[str, Attribute] | None = None
    ) -> Any:
        return cls.build(operands=[operands], result_types=[results], regions=[[]], attributes=attributes or {})


def _values(parser: Parser) -> list[Any]:
    return list(parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand))


def _types(parser: Parser) -> list[Attribute]:
    return list(parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type))


def _words(parser: Parser) -> dict[str, Attribute]:
    """What follows the operands: ``key = word`` pairs, bare words, then the attributes in braces."""
    found: dict[str, Attribute] = {}
    while True:
        parser.parse_optional_punctuation(",")
        word = parser.parse_optional_identifier()
        if word is None:
            break
        value = "true"
        if parser.parse_optional_punctuation("="):
            value = parser.parse_optional_identifier() or str(parser.parse_attribute())
        found[word] = StringAttr(value)
    return found | parser.parse_optional_attr_dict()


def _operands_then_types(parser: Parser) -> tuple[list[Any], dict[str, Attribute]]:
    """Operands up to something that is no operand."""
    operands = []
    while True:
        value = parser.parse_optional_unresolved_operand()
        if value is None:
            break
        operands.append(value)
        if not parser.parse_optional_punctuation(","):
            break
    return operands, _words(parser)


def _define(name: str, parse: Any, doc: str = "") -> type[TritonOperation]:
    body = {"name": f"tt.{name}", "parse": classmethod(parse), "__module__": __name__, "__doc__": doc}
    parts = "".join(word.capitalize() for word in name.replace(".", "_").split("_"))
    return irdl_op_definition(type(f"{parts}Op", (TritonOperation,), body))


def _axis(cls: Any, parser: Parser) -> Operation:
    axis = parser.parse_identifier()
    parser.parse_punctuation(":")
    return cls.made([], [parser.parse_type()], {"axis": StringAttr(axis)})  # type: ignore[no-any-return]


def _no_operands(cls: Any, parser: Parser) -> Operation:
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    return cls.made([], [parser.parse_type()], attributes)  # type: ignore[no-any-return]


def _arrow(cls: Any, parser: Parser) -> Operation:
    """``%a, %b words {attributes} : type -> types``; one type on the left serves all operands."""
    operands, attributes = _operands_then_types(parser)
    parser.parse_punctuation(":")
    given = _types(parser)
    parser.parse_punctuation("->")
    results = _types(parser)
    types = given if len(given) == len(operands) else given * len(operands)
    return cls.made(parser.resolve_operands(operands, types, parser.pos), results, attributes)  # type: ignore[no-any-return]


def _same(cls: Any, parser: Parser) -> Operation:
    """``%a, %b words : type``; operands and result have one type."""
    operands, attributes = _operands_then_types(parser)
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    values = parser.resolve_operands(operands, [kind] * len(operands), parser.pos)
    return cls.made(values, [kind], attributes)  # type: ignore[no-any-return]


def _addptr(cls: Any, parser: Parser) -> Operation:
    operands, attributes = _operands_then_types(parser)
    parser.parse_punctuation(":")
    types = _types(parser)
    return cls.made(parser.resolve_operands(operands, types, parser.pos), [types[0]], attributes)  # type: ignore[no-any-return]


def _mask_of(type_: Attribute) -> Attribute:
    from xdsl.dialects.builtin import i1

    return TensorType(i1, type_.shape) if isinstance(type_, TensorType) else i1


def _load(cls: Any, parser: Parser) -> Operation:
    operands, attributes = _operands_then_types(parser)
    parser.parse_punctuation(":")
    pointer = parser.parse_type()
    value = pointee(pointer)
    types = [pointer, _mask_of(pointer), value][: len(operands)]
    return cls.made(parser.resolve_operands(operands, types, parser.pos), [value], attributes)  # type: ignore[no-any-return]


def _store(cls: Any, parser: Parser) -> Operation:
    operands, attributes = _operands_then_types(parser)
    parser.parse_punctuation(":")
    pointer = parser.parse_type()
    types = [pointer, pointee(pointer), _mask_of(pointer)][: len(operands)]
    return cls.made(parser.resolve_operands(operands, types, parser.pos), [], attributes)  # type: ignore[no-any-return]


def _dot(cls: Any, parser: Parser) -> Operation:
    operands, attributes = _operands_then_types(parser)
    parser.parse_punctuation(":")
    left = parser.parse_type()
    parser.parse_punctuation("*")
    right = parser.parse_type()
    parser.parse_punctuation("->")
    result = parser.parse_type()
    return cls.made(parser.resolve_operands(operands, [left, right, result], parser.pos), [result], attributes)  # type: ignore[no-any-return]


def _returned(cls: Any, parser: Parser) -> Operation:
    operands = _values(parser)
    parser.parse_punctuation(":")
    return cls.made(parser.resolve_operands(operands, _types(parser), parser.pos), [])  # type: ignore[no-any-return]


def _functional(cls: Any, parser: Parser) -> Operation:
    """``words, %a, %b {attributes} : (types) -> type``"""
    words = []
    while (word := parser.parse_optional_identifier()) is not None:
        words.append(word)
        parser.parse_punctuation(",")
    operands, attributes = _operands_then_types(parser)
    parser.parse_punctuation(":")
    kind = parser.parse_function_type()
    values = parser.resolve_operands(operands, list(kind.inputs), parser.pos)
    return cls.made(values, list(kind.outputs), attributes | {"kind": StringAttr(" ".join(words))})  # type: ignore[no-any-return]


def _split(cls: Any, parser: Parser) -> Operation:
    operand = parser.parse_unresolved_operand()
    attributes = _words(parser)
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    parser.parse_punctuation("->")
    result = parser.parse_type()
    return cls.made([parser.resolve_operand(operand, kind)], [result, result], attributes)  # type: ignore[no-any-return]


def _gather(cls: Any, parser: Parser) -> Operation:
    """``%tile[%places] {attributes} : (types) -> type``"""
    operand = parser.parse_unresolved_operand()
    operands = [operand, *_indices(parser)]
    attributes = _words(parser)
    parser.parse_punctuation(":")
    kind = parser.parse_function_type()
    values = parser.resolve_operands(operands, list(kind.inputs), parser.pos)
    return cls.made(values, list(kind.outputs), attributes)  # type: ignore[no-any-return]


def _histogram(cls: Any, parser: Parser) -> Operation:
    operands, attributes = _operands_then_types(parser)
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    parser.parse_punctuation("->")
    types = [kind, _mask_of(kind)][: len(operands)]
    return cls.made(parser.resolve_operands(operands, types, parser.pos), [parser.parse_type()], attributes)  # type: ignore[no-any-return]


def _call(cls: Any, parser: Parser) -> Operation:
    callee = parser.parse_symbol_name()
    operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    kind = parser.parse_function_type()
    values = parser.resolve_operands(operands, list(kind.inputs), parser.pos)
    return cls.made(values, list(kind.outputs), {**attributes, "callee": callee})  # type: ignore[no-any-return]


def _assert(cls: Any, parser: Parser) -> Operation:
    operand = parser.parse_unresolved_operand()
    parser.parse_punctuation(",")
    message = parser.parse_str_literal()
    parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    value = parser.resolve_operand(operand, parser.parse_type())
    return cls.made([value], [], {"message": StringAttr(message)})  # type: ignore[no-any-return]


def _indices(parser: Parser) -> list[Any]:
    return list(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand))


def _descriptor(cls: Any, parser: Parser) -> Operation:
    from xdsl.dialects.builtin import i32, i64

    base = parser.parse_unresolved_operand()
    parser.parse_punctuation(",")
    sizes = _indices(parser)
    parser.parse_punctuation(",")
    strides = _indices(parser)
    attributes = _words(parser)
    parser.parse_punctuation(":")
    pointer = PointerType(*_elided(parser, PointerType))
    parser.parse_punctuation(",")
    result = DescriptorType(*_elided(parser, DescriptorType))
    types = [pointer, *([i32] * len(sizes)), *([i64] * len(strides))]
    values = parser.resolve_operands([base, *sizes, *strides], types, parser.pos)
    return cls.made(values, [result], attributes)  # type: ignore[no-any-return]


def _elided(parser: Parser, kind: Any) -> Sequence[Attribute]:
    """The parameters of a type whose name may be left out."""
    if parser._current_token.text.startswith("!"):
        parser._consume_token()
    found: Sequence[Attribute] = kind.parse_parameters(parser)
    return found


def _descriptor_load(cls: Any, parser: Parser) -> Operation:
    from xdsl.dialects.builtin import i32

    base, indices = parser.parse_unresolved_operand(), _indices(parser)
    attributes = _words(parser)
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    parser.parse_punctuation("->")
    result = parser.parse_type()
    values = parser.resolve_operands([base, *indices], [kind, *([i32] * len(indices))], parser.pos)
    return cls.made(values, [result], attributes)  # type: ignore[no-any-return]


def _descriptor_store(cls: Any, parser: Parser) -> Operation:
    from xdsl.dialects.builtin import i32

    base, indices = parser.parse_unresolved_operand(), _indices(parser)
    parser.parse_punctuation(",")
    value = parser.parse_unresolved_operand()
    attributes = _words(parser)
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    parser.parse_punctuation(",")
    types = [kind, *([i32] * len(indices)), parser.parse_type()]
    return cls.made(parser.resolve_operands([base, *indices, value], types, parser.pos), [], attributes)  # type: ignore[no-any-return]


def _descriptor_scatter(cls: Any, parser: Parser) -> Operation:
    base, indices = parser.parse_unresolved_operand(), _indices(parser)
    parser.parse_punctuation(",")
    value = parser.parse_unresolved_operand()
    attributes = _words(parser)
    parser.parse_punctuation(":")
    return cls.made(parser.resolve_operands([base, *indices, value], _types(parser), parser.pos), [], attributes)  # type: ignore[no-any-return]


def _descriptor_gather(cls: Any, parser: Parser) -> Operation:
    base, indices = parser.parse_unresolved_operand(), _indices(parser)
    attributes = _words(parser)
    parser.parse_punctuation(":")
    kind = parser.parse_function_type()
    values = parser.resolve_operands([base, *indices], list(kind.inputs), parser.pos)
    return cls.made(values, list(kind.outputs), attributes)  # type: ignore[no-any-return]


def _descriptor_reduce(cls: Any, parser: Parser) -> Operation:
    kind = parser.parse_identifier()
    parser.parse_punctuation(",")
    made = _descriptor_store(cls, parser)
    made.attributes["kind"] = StringAttr(kind)
    return made


GetProgramIdOp = _define("get_program_id", _axis)
GetNumProgramsOp = _define("get_num_programs", _axis)
MakeRangeOp = _define("make_range", _no_operands)
SplatOp = _define("splat", _arrow)
BroadcastOp = _define("broadcast", _arrow)
ExpandDimsOp = _define("expand_dims", _arrow)
ReshapeOp = _define("reshape", _arrow)
TransOp = _define("trans", _arrow)
AddPtrOp = _define("addptr", _addptr)
LoadOp = _define("load", _load)
StoreOp = _define("store", _store)
BaseOp = _define("base", _arrow, "The pointer of a launch argument whose base address is an index; not of Triton's.")
ReduceOp = _define("reduce", _functional)  # printed in generic form
MakeTensorDescriptorOp = _define("make_tensor_descriptor", _descriptor)
ReduceReturnOp = _define("reduce.return", _returned)

AssertOp = _define("assert", _assert)

OPERATIONS = (
    GetProgramIdOp,
    GetNumProgramsOp,
    MakeRangeOp,
    SplatOp,
    BroadcastOp,
    ExpandDimsOp,
    AddPtrOp,
    BaseOp,
    LoadOp,
    StoreOp,
    ReduceOp,
    ReduceReturnOp,
    ReshapeOp,
    TransOp,
    *(_define(name, _arrow) for name in ("bitcast", "fp_to_fp", "unsplat")),
    *(_define(name, _same) for name in ("clampf", "precise_sqrt", "precise_divf", "mulhiui")),
    *(_define(name, _arrow) for name in ("join", "cat")),
    _define("split", _split),
    _define("gather", _gather),
    _define("histogram", _histogram),
    _define("call", _call),
    AssertOp,
    _define("scan", _functional),  # printed in generic form
    _define("scan.return", _returned),
    _define("dot", _dot),
    _define("extern_elementwise", _functional),
    _define("atomic_rmw", _functional),
    _define("atomic_cas", _functional),
    MakeTensorDescriptorOp,
    _define("descriptor_load", _descriptor_load),
    _define("descriptor_store", _descriptor_store),
    _define("descriptor_gather", _descriptor_gather),
    _define("descriptor_scatter", _descriptor_scatter),
    _define("descriptor_reduce", _descriptor_reduce),
)

Tt = Dialect("tt", list(OPERATIONS), [PointerType, DescriptorType])
KNOWN = frozenset(op.name for op in OPERATIONS)
