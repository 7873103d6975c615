# SPDX-License-Identifier: Apache-2.0
"""Forms of linalg and scf that KTIR uses and xDSL lacks: batch_matmul, f16 matmul into f32, short reduce, scf.for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, cast

from xdsl.dialects import arith, linalg, scf
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    MemRefType,
    TensorType,
    _FloatType,
    i64,
)
from xdsl.dialects.linalg.abstract_ops import NamedOperation
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    AttrSizedOperandSegments,
    BaseAttr,
    IRDLOperation,
    irdl_op_definition,
    prop_def,
    region_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import SingleBlockImplicitTerminator, ensure_terminator
from xdsl.utils.exceptions import VerifyException

SHAPED = BaseAttr(TensorType) | BaseAttr(MemRefType)


def _maps(*functions: object) -> ArrayAttr[AffineMapAttr]:
    return ArrayAttr([AffineMapAttr(AffineMap.from_callable(f)) for f in functions])  # type: ignore[arg-type]


class _ContractionOp(NamedOperation):
    """Matmul whose inputs may be narrower floats than its accumulator."""

    PRINT_ATTRS_IN_FRONT: ClassVar[bool] = True

    @property
    def maps(self) -> tuple[AffineMap, ...]:
        return tuple(m.data for m in cast(ArrayAttr[AffineMapAttr], self.properties["indexing_maps"]).data)

    def __init__(self, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> None:
        types = [o.type for o in outputs if isinstance(o.type, TensorType)]
        super().__init__(
            ins=inputs,
            outs=outputs,
            result_types=[types],
            hidden_region=self.get_hidden_region(inputs, outputs),
        )

    @classmethod
    def get_hidden_region(cls, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> Region:
        types = cls.body_arg_types((*inputs, *outputs))
        block = Block(arg_types=types)
        left: SSAValue = block.args[0]
        right: SSAValue = block.args[1]
        is_float = isinstance(types[-1], _FloatType)
        if is_float and types[0] != types[-1]:
            widened = arith.ExtFOp(left, types[-1]), arith.ExtFOp(right, types[-1])
            block.add_ops(widened)
            left, right = (w.result for w in widened)
        product = (arith.MulfOp if is_float else arith.MuliOp)(left, right)
        total = (arith.AddfOp if is_float else arith.AddiOp)(product.result, block.args[2])
        block.add_ops([product, total, YieldOp(total.result)])
        return Region(block)

    def verify_(self) -> None:
        rank = len(self.maps[0].results)
        values = (*self.inputs, *self.outputs)
        if len(values) != 3:
            raise VerifyException(f"{self.name}: expected two inputs and one output")
        if any(cast("TensorType | MemRefType", v.type).get_num_dims() != rank for v in values):
            raise VerifyException(f"{self.name}: operands must have rank {rank}")
        a, b, c = (cast("TensorType | MemRefType", v.type) for v in values)
        if a.element_type != b.element_type:
            raise VerifyException(f"{self.name}: inputs have element types {a.element_type} and {b.element_type}")
        self._verify_sizes([a.get_shape(), b.get_shape(), c.get_shape()])

    def _verify_sizes(self, shapes: Sequence[Sequence[int]]) -> None:
        sizes: dict[object, int] = {}
        for map_, shape in zip(self.maps, shapes, strict=True):
            for expr, size in zip(map_.results, shape, strict=True):
                if size >= 0 and sizes.setdefault(expr, size) != size:
                    raise VerifyException(f"{self.name}: sizes {sizes[expr]} and {size} of {expr} do not agree")

    def get_default_indexing_maps(self) -> Sequence[AffineMap]:
        return self.maps

    def get_iterator_types(self) -> ArrayAttr[IteratorTypeAttr]:
        parallel = [IteratorTypeAttr.parallel()] * (self.maps[0].num_dims - 1)
        return ArrayAttr([*parallel, IteratorTypeAttr.reduction()])


@irdl_op_definition
class MatmulOp(_ContractionOp):
    """``c[m, n] += a[m, k] * b[k, n]``"""

    name = "linalg.matmul"

    indexing_maps = prop_def(
        ArrayAttr[AffineMapAttr],
        default_value=_maps(lambda m, n, k: (m, k), lambda m, n, k: (k, n), lambda m, n, k: (m, n)),
    )


@irdl_op_definition
class BatchMatmulOp(_ContractionOp):
    """``c[b, m, n] += a[b, m, k] * b[b, k, n]``"""

    name = "linalg.batch_matmul"

    indexing_maps = prop_def(
        ArrayAttr[AffineMapAttr],
        default_value=_maps(lambda b, m, n, k: (b, m, k), lambda b, m, n, k: (b, k, n), lambda b, m, n, k: (b, m, n)),
    )


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
        block = Block(arg_types=[element, element])
        combine = op(block.args[0], block.args[1])
        block.add_ops([combine, YieldOp(combine.results[0])])
        return Region(block)

    def short_op(self) -> Operation | None:
        """The only op of the body, if the short form can express it."""
        ops = list(self.combiner.block.ops)
        if len(ops) != 2 or len(self.inputs) != 1 or ops[0].attributes:
            return None
        is_plain = tuple(ops[0].operands) == tuple(self.combiner.block.args) and len(ops[0].results) == 1
        return ops[0] if is_plain and tuple(ops[1].operands) == tuple(ops[0].results) else None

    def verify_(self) -> None:
        dims = self.dimensions.get_values()
        if not self.inputs or len(self.inputs) != len(self.inits):
            raise VerifyException("linalg.reduce: as many inits as inputs are needed, at least one")
        for source, init in zip(self.inputs, self.inits, strict=True):
            source_type, init_type = (cast("TensorType | MemRefType", v.type) for v in (source, init))
            if source_type.element_type != init_type.element_type:
                raise VerifyException(
                    f"linalg.reduce: element types {source_type.element_type} and {init_type.element_type} differ"
                )
            kept = tuple(s for i, s in enumerate(source_type.get_shape()) if i not in dims)
            if kept != tuple(init_type.get_shape()):
                raise VerifyException(f"linalg.reduce: kept sizes are {kept}, the init has {init_type.get_shape()}")
        elements = [cast("TensorType | MemRefType", v.type).element_type for v in (*self.inputs, *self.inits)]
        if list(self.combiner.block.arg_types) != elements:
            raise VerifyException("linalg.reduce: the combiner takes one element per input, then one per init")

    @classmethod
    def parse(cls, parser: Parser) -> ReduceOp:
        short = None
        if parser.parse_optional_punctuation("{"):
            short = parser.ctx.get_op(parser.parse_identifier(), dialect_stack=("linalg",))
            parser.parse_optional_attr_dict()
            parser.parse_punctuation("}")
        inputs = _parse_group(parser, "ins")
        inits = _parse_group(parser, "outs")
        parser.parse_keyword("dimensions")
        parser.parse_punctuation("=")
        dims = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        if short is not None:
            element = cast("TensorType | MemRefType", inits[0].type).element_type
            combiner = cls.short_combiner(cast("Callable[[SSAValue, SSAValue], Operation]", short), element)
        else:
            args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
            combiner = parser.parse_region(args)
        if parser.parse_optional_punctuation("->") or parser.parse_optional_punctuation(":"):
            parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return cls(inputs, inits, dims, combiner)

    def print(self, printer: Printer) -> None:
        short = self.short_op()
        if short is not None:
            printer.print_string(f" {{ {short.name} }}")
        for keyword, values in (("ins", self.inputs), ("outs", self.inits)):
            printer.print_string(f" {keyword}(")
            printer.print_list(values, printer.print_ssa_value)
            printer.print_string(" : ")
            printer.print_list(values.types, printer.print_attribute)
            printer.print_string(")")
        printer.print_string(f" dimensions = [{', '.join(map(str, self.dimensions.get_values()))}]")
        if short is None:
            printer.print_string(" ")
            with printer.in_parens():
                printer.print_list(self.combiner.block.args, printer.print_block_argument)
            printer.print_string(" ")
            printer.print_region(self.combiner, print_entry_block_args=False)


def _parse_group(parser: Parser, keyword: str) -> Sequence[SSAValue]:
    pos = parser.pos
    parser.parse_keyword(keyword)
    parser.parse_punctuation("(")
    values = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    parser.parse_punctuation(")")
    return parser.resolve_operands(values, types, pos)


class ForOp(scf.ForOp):
    """scf.for whose result type may stand without parentheses."""

    @classmethod
    def parse(cls, parser: Parser) -> ForOp:
        induction = parser.parse_argument(expect_type=False)
        parser.parse_punctuation("=")
        bounds = [parser.parse_unresolved_operand()]
        for keyword in ("to", "step"):
            parser.parse_keyword(keyword)
            bounds.append(parser.parse_unresolved_operand())
        pos = parser.pos
        carried: list[tuple[Parser.UnresolvedArgument, UnresolvedOperand]] = []
        types: list[Attribute] = []
        if parser.parse_optional_keyword("iter_args"):
            carried = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: scf.parse_assignment(parser))
            parser.parse_punctuation("->")
            in_parens = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
            types = list(in_parens if in_parens is not None else [parser.parse_type()])
        values = parser.resolve_operands([v for _, v in carried], types, pos)
        counter = parser.parse_type() if parser.parse_optional_punctuation(":") else IndexType()
        resolved = [parser.resolve_operand(b, counter) for b in bounds]
        args = [induction.resolve(counter), *(a.resolve(t) for (a, _), t in zip(carried, types, strict=True))]
        body = parser.parse_region(args)
        attributes = parser.parse_optional_attr_dict()
        lower, upper, step = resolved
        loop = cls(lower, upper, step, values, body)
        loop.attributes |= attributes
        if not carried:
            for trait in loop.get_traits_of_type(SingleBlockImplicitTerminator):
                ensure_terminator(loop, trait)
        return loop


def replace_ops(dialect: Dialect, ops: Sequence[type[Operation]]) -> Dialect:
    """The dialect with `ops` added, or in place of those with the same names."""
    names = {op.name for op in ops}
    kept = [op for op in dialect.operations if op.name not in names]
    return Dialect(dialect.name, [*kept, *ops], list(dialect.attributes))


Linalg = replace_ops(linalg.Linalg, [MatmulOp, BatchMatmulOp, ReduceOp])
Scf = replace_ops(scf.Scf, [ForOp])
