# SPDX-License-Identifier: Apache-2.0
"""linalg: reduce and map with their short forms, and the named elementwise operations that xDSL lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from xdsl.dialects import arith, linalg, math
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    MemRefType,
    StringAttr,
    TensorType,
    _FloatType,
    i64,
)
from xdsl.dialects.linalg.abstract_ops import ElementwiseOperation
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.dialects.linalg.ops import GenericOp as XdslGenericOp
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Attribute, Block, Operation, ParametrizedAttribute, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    BaseAttr,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from torch_spyre.ir.ktir.dialect.contraction_ops import CONTRACTIONS
from torch_spyre.ir.ktir.dialect.overrides import (
    parse_group,
    parse_group_after_keyword,
    parse_types,
    print_group,
    replace_ops,
)

SHAPED = BaseAttr(TensorType) | BaseAttr(MemRefType)


def _element(value: SSAValue) -> Attribute:
    return cast("TensorType | MemRefType", value.type).element_type


def _parse_short(parser: Parser) -> Callable[..., Operation] | None:
    """``{ arith.addf }``, which stands for a body of that one op."""
    if parser.parse_optional_punctuation("{") is None:
        return None
    op = parser.ctx.get_op(parser.parse_identifier(), dialect_stack=("linalg",))
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation("}")

    def make(*values: SSAValue) -> Operation:
        made: Operation = op(*values)
        for name, attribute in attributes.items():
            if name != "fastmath":  # permission to reorder, of which no use is made
                made.attributes[name] = attribute
        return made

    return make


def _short_op(block: Block) -> Operation | None:
    """The only op of a body that the short form can express."""
    ops = list(block.ops)
    if len(ops) != 2 or ops[0].attributes or set(ops[0].properties) - {"fastmath", "overflowFlags"}:
        return None
    is_plain = tuple(ops[0].operands) == tuple(block.args) and len(ops[0].results) == 1
    return ops[0] if is_plain and tuple(ops[1].operands) == tuple(ops[0].results) else None


def _body_of(make: Callable[..., Operation], elements: Sequence[Attribute]) -> Region:
    block = Block(arg_types=elements)
    op = make(*block.args)
    block.add_ops([op, YieldOp(op.results[0])])
    return Region(block)


def _print_body(printer: Printer, region: Region) -> None:
    printer.print_string(" ")
    with printer.in_parens():
        printer.print_list(region.block.args, printer.print_block_argument)
    printer.print_string(" ")
    printer.print_region(region, print_entry_block_args=False)


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """linalg.reduce of one or several inputs; prints the short form ``{ arith.addf }`` when the body is one such op."""

    name = "linalg.reduce"

    inputs = var_operand_def(SHAPED)
    inits = var_operand_def(SHAPED)
    combiner = region_def("single_block")
    dimensions = prop_def(DenseArrayBase.constr(i64))
    res = var_result_def(TensorType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self, inputs: Sequence[SSAValue], inits: Sequence[SSAValue], dimensions: Sequence[int], combiner: Region
    ) -> None:
        super().__init__(
            operands=[list(inputs), list(inits)],
            result_types=[[i.type for i in inits if isinstance(i.type, TensorType)]],
            regions=[combiner],
            properties={"dimensions": DenseArrayBase.from_list(i64, dimensions)},
        )

    @staticmethod
    def short_combiner(op: Callable[[SSAValue, SSAValue], Operation], element: Attribute) -> Region:
        """The body that the short form stands for: ``op(%in, %out)``."""
        return _body_of(op, [element, element])

    def short_op(self) -> Operation | None:
        """The only op of the body, if the short form can express it."""
        return _short_op(self.combiner.block) if len(self.inputs) == 1 else None

    def verify_(self) -> None:
        dims = self.dimensions.get_values()
        if not self.inputs or len(self.inputs) != len(self.inits):
            raise VerifyException("linalg.reduce: as many inits as inputs are needed, at least one")
        rank = cast("TensorType | MemRefType", self.inputs[0].type).get_num_dims()
        if list(dims) != sorted(set(dims)) or any(not 0 <= d < rank for d in dims):
            raise VerifyException(
                f"linalg.reduce: dimensions {list(dims)} must be ascending dims of a rank-{rank} input"
            )
        first = cast("TensorType | MemRefType", self.inputs[0].type).get_shape()
        for source, init in zip(self.inputs, self.inits, strict=True):
            source_type, init_type = (cast("TensorType | MemRefType", v.type) for v in (source, init))
            if source_type.get_shape() != first:
                raise VerifyException("linalg.reduce: all inputs must have one shape")
            if source_type.element_type != init_type.element_type:
                raise VerifyException(
                    f"linalg.reduce: element types {source_type.element_type} and {init_type.element_type} differ"
                )
            kept = tuple(s for i, s in enumerate(source_type.get_shape()) if i not in dims)
            if kept != tuple(init_type.get_shape()):
                raise VerifyException(f"linalg.reduce: kept sizes are {kept}, the init has {init_type.get_shape()}")
        elements = [_element(v) for v in (*self.inputs, *self.inits)]
        if list(self.combiner.block.arg_types) != elements:
            raise VerifyException("linalg.reduce: the combiner takes one element per input, then one per init")
        _verify_yield(self, self.combiner.block, [_element(v) for v in self.inits])

    @classmethod
    def parse(cls, parser: Parser) -> ReduceOp:
        short = _parse_short(parser)
        inputs, inits = parse_group(parser, "ins"), parse_group(parser, "outs")
        parser.parse_keyword("dimensions")
        parser.parse_punctuation("=")
        dims = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        attributes: dict[str, Attribute] = {}
        if short is not None:
            combiner = cls.short_combiner(short, _element(inits[0]))
        else:
            attributes = parser.parse_optional_attr_dict()
            args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
            combiner = parser.parse_region(args)
        _parse_result_types(parser, inits)
        op = cls(inputs, inits, dims, combiner)
        op.attributes |= attributes or parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        short = None if self.attributes else self.short_op()
        if short is not None:
            printer.print_string(f" {{ {short.name} }}")
        print_group(printer, "ins", self.inputs)
        print_group(printer, "outs", self.inits)
        printer.print_string(f" dimensions = [{', '.join(map(str, self.dimensions.get_values()))}]")
        printer.print_op_attributes(self.attributes)
        if short is None:
            _print_body(printer, self.combiner)


def _parse_result_types(parser: Parser, inits: Sequence[SSAValue]) -> None:
    """Result types are optional, after `->` or `:`; they repeat those of the inits."""
    if parser.parse_optional_punctuation("->") is None and parser.parse_optional_punctuation(":") is None:
        return
    pos = parser.pos
    if parse_types(parser) != [i.type for i in inits]:
        parser.raise_error("the results must have the types of the outs operands", pos)


def _verify_yield(op: Operation, block: Block, elements: Sequence[Attribute]) -> None:
    last = block.last_op
    if not isinstance(last, YieldOp) or [v.type for v in last.operands] != list(elements):
        raise VerifyException(f"{op.name}: the body must end with linalg.yield of {', '.join(map(str, elements))}")


@irdl_op_definition
class MapOp(IRDLOperation):
    """linalg.map: the body, applied to corresponding elements of the inputs, gives the elements of the result."""

    name = "linalg.map"

    inputs = var_operand_def(SHAPED)
    init = operand_def(SHAPED)
    mapper = region_def("single_block")
    res = var_result_def(TensorType)

    def __init__(self, inputs: Sequence[SSAValue], init: SSAValue, mapper: Region) -> None:
        results = [init.type] if isinstance(init.type, TensorType) else []
        super().__init__(operands=[list(inputs), init], result_types=[results], regions=[mapper])

    def verify_(self) -> None:
        shape = cast("TensorType | MemRefType", self.init.type).get_shape()
        for value in self.inputs:
            if cast("TensorType | MemRefType", value.type).get_shape() != shape:
                raise VerifyException(f"linalg.map: {value.type} and {self.init.type} differ in shape")
        if list(self.mapper.block.arg_types) != [_element(v) for v in self.inputs]:
            raise VerifyException("linalg.map: the body takes one element of each input")
        _verify_yield(self, self.mapper.block, [_element(self.init)])

    @classmethod
    def parse(cls, parser: Parser) -> MapOp:
        short = _parse_short(parser)
        inputs = parse_group(parser, "ins") if parser._current_token.text == "ins" else ()
        pos = parser.pos
        outs = parse_group(parser, "outs")
        if len(outs) != 1:
            parser.raise_error("linalg.map has one output", pos)
        attributes = parser.parse_optional_attr_dict()
        if short is not None:
            mapper = _body_of(short, [_element(v) for v in inputs])
        else:
            args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
            mapper = parser.parse_region(args)
            _drop_init_argument(parser, mapper.block, len(inputs))
        _parse_result_types(parser, outs)
        op = cls(inputs, outs[0], mapper)
        op.attributes |= attributes
        return op

    def print(self, printer: Printer) -> None:
        short = None if self.attributes else _short_op(self.mapper.block)
        if short is not None:
            printer.print_string(f" {{ {short.name} }}")
        if self.inputs:
            print_group(printer, "ins", self.inputs)
        print_group(printer, "outs", [self.init])
        printer.print_op_attributes(self.attributes)
        if short is None:
            _print_body(printer, self.mapper)


def _drop_init_argument(parser: Parser, block: Block, inputs: int) -> None:
    """Newer MLIR also hands the body the element of the output, which a map must not read."""
    if len(block.args) == inputs + 1:
        if block.args[-1].uses:
            parser.raise_error("linalg.map: the body reads the element of the output; use linalg.generic")
        block.erase_arg(block.args[-1])


# -- named elementwise operations ------------------------------------------------------------------------------------


def _one_over(x: SSAValue) -> list[Operation]:
    one = arith.ConstantOp(FloatAttr(1.0, cast(Any, x.type)))
    return [one, arith.DivfOp(one.result, x)]


# name -> number of inputs, ops on floats, ops on integers (None: not defined)
_Body = Callable[..., "Operation | list[Operation]"] | None
NAMED: dict[str, tuple[int, _Body, _Body]] = {
    "div": (2, arith.DivfOp, arith.DivSIOp),
    "div_unsigned": (2, None, arith.DivUIOp),
    "powf": (2, math.PowFOp, None),
    "abs": (1, math.AbsFOp, math.AbsIOp),
    "ceil": (1, math.CeilOp, None),
    "floor": (1, math.FloorOp, None),
    "negf": (1, arith.NegfOp, None),
    "reciprocal": (1, _one_over, None),
    "round": (1, math.RoundOp, None),
    "rsqrt": (1, math.RsqrtOp, None),
    "square": (1, lambda x: arith.MulfOp(x, x), None),
    "tanh": (1, math.TanhOp, None),
    "erf": (1, math.ErfOp, None),
}


class _NamedElementwiseOp(ElementwiseOperation):
    def __init__(self, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> None:
        super().__init__(
            ins=inputs,
            outs=outputs,
            result_types=[[o.type for o in outputs if isinstance(o.type, TensorType)]],
            hidden_region=self.get_hidden_region(inputs, outputs),
        )

    @classmethod
    def get_hidden_region(cls, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> Region:
        count, on_floats, on_integers = NAMED[cls.name.removeprefix("linalg.")]
        if len(inputs) != count or len(outputs) != 1:
            raise VerifyException(f"{cls.name}: expected {count} inputs and one output")
        block = Block(arg_types=cls.body_arg_types((*inputs, *outputs)))
        make = on_floats if isinstance(block.args[0].type, _FloatType) else on_integers
        if make is None:
            raise VerifyException(f"{cls.name}: not defined for {block.args[0].type}")
        made = make(*block.args[:count])
        ops = made if isinstance(made, list) else [made]
        block.add_ops([*ops, YieldOp(ops[-1].results[0])])
        return Region(block)


def _define(name: str) -> type[Operation]:
    body = {"name": f"linalg.{name}", "__module__": __name__}
    return irdl_op_definition(type(f"{name.capitalize()}Op", (_NamedElementwiseOp,), body))


@irdl_attr_definition
class TypeFnAttr(ParametrizedAttribute):
    """`#linalg.type_fn<cast_signed>`: how a contraction widens integers."""

    name = "linalg.type_fn"

    kind: StringAttr

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return (StringAttr(parser.parse_identifier()),)

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<{self.kind.data}>")


def _optional_group(parser: Parser, keyword: str) -> Sequence[SSAValue]:
    """``keyword(%a : type)`` or nothing."""
    if parser.parse_optional_keyword(keyword) is None:
        return ()
    return parse_group_after_keyword(parser)


class GenericOp(XdslGenericOp):
    """Parses what it prints: the types of several results stand in parentheses."""

    @classmethod
    def parse(cls, parser: Parser) -> GenericOp:
        start = parser.pos
        given = parser.parse_optional_attr_dict()
        maps, iterators = (given.get(name) for name in ("indexing_maps", "iterator_types"))
        if not isinstance(maps, ArrayAttr) or not isinstance(iterators, ArrayAttr):
            parser.raise_error("expected the arrays indexing_maps and iterator_types for linalg.generic", start)
        kinds = [_iterator(parser, kind, start) for kind in iterators]
        inputs, outputs = (_optional_group(parser, keyword) for keyword in ("ins", "outs"))
        more: dict[str, Attribute] = {}
        if parser.parse_optional_keyword("attrs"):
            parser.parse_punctuation("=")
            more = parser.parse_optional_attr_dict()
        body = parser.parse_region()
        results = parse_types(parser) if parser.parse_optional_punctuation("->") else []
        texts = [cast(StringAttr | None, given.get(name)) for name in ("doc", "library_call")]
        op = cls(inputs, outputs, body, cast(ArrayAttr[AffineMapAttr], maps), kinds, results, *texts)
        op.attributes |= more
        return op


def _iterator(parser: Parser, kind: Attribute, start: int) -> IteratorTypeAttr:
    if isinstance(kind, IteratorTypeAttr):
        return kind
    if not isinstance(kind, StringAttr) or kind.data not in list(IteratorType):
        names = ", ".join(IteratorType)
        parser.raise_error(f"iterator type {kind} of linalg.generic is none of {names}", start)
    return IteratorTypeAttr(IteratorType(kind.data))


Linalg = replace_ops(linalg.Linalg, [*CONTRACTIONS, GenericOp, ReduceOp, MapOp, *map(_define, NAMED)], [TypeFnAttr])
