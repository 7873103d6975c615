# SPDX-License-Identifier: Apache-2.0
"""linalg contractions: matmul and its relatives, with inputs that may be narrower floats than the accumulator.

`indexing_maps` say which dims each operand has. `linalg.matmul` and `linalg.batch_matmul` may state them, which is how
a transposed operand is written; the older names with `_transpose_a` and `_transpose_b` are read as that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, MemRefType, TensorType, _FloatType
from xdsl.dialects.linalg.abstract_ops import NamedOperation
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.irdl import irdl_op_definition, prop_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from torch_spyre.ir.ktir.dialect.overrides import parse_group, parse_types, print_group


def _maps(*functions: Callable[..., Any]) -> ArrayAttr[AffineMapAttr]:
    return ArrayAttr([AffineMapAttr(AffineMap.from_callable(f)) for f in functions])


class ContractionOp(NamedOperation):
    """``out[…] += left[…] * right[…]``, summed over the last dim of the maps."""

    DEFAULT: ClassVar[ArrayAttr[AffineMapAttr]]

    def __init__(
        self,
        inputs: Sequence[SSAValue],
        outputs: Sequence[SSAValue],
        indexing_maps: ArrayAttr[AffineMapAttr] | None = None,
        attributes: dict[str, Attribute] | None = None,
    ) -> None:
        types = [o.type for o in outputs if isinstance(o.type, TensorType)]
        super().__init__(
            ins=inputs,
            outs=outputs,
            result_types=[types],
            properties={"indexing_maps": indexing_maps or self.DEFAULT},
            attributes=attributes,
            hidden_region=self.get_hidden_region(inputs, outputs),
        )

    @property
    def maps(self) -> tuple[AffineMap, ...]:
        """Of the two inputs and the output."""
        return tuple(m.data for m in cast(ArrayAttr[AffineMapAttr], self.properties["indexing_maps"]).data)

    @classmethod
    def get_hidden_region(cls, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> Region:
        if len(inputs) != 2 or len(outputs) != 1:
            raise VerifyException(f"{cls.name}: expected two inputs and one output")
        types = cls.body_arg_types((*inputs, *outputs))
        block = Block(arg_types=types)
        left: SSAValue = block.args[0]
        right: SSAValue = block.args[1]
        is_float = isinstance(types[-1], _FloatType)
        if types[0] != types[-1]:
            extend: Any = arith.ExtFOp if is_float else arith.ExtSIOp
            widened = extend(left, types[-1]), extend(right, types[-1])
            block.add_ops(widened)
            left, right = (w.result for w in widened)
        product = (arith.MulfOp if is_float else arith.MuliOp)(left, right)
        total = (arith.AddfOp if is_float else arith.AddiOp)(product.result, block.args[2])
        block.add_ops([product, total, YieldOp(total.result)])
        return Region(block)

    def verify_(self) -> None:
        values = (*self.inputs, *self.outputs)
        if len(self.inputs) != 2 or len(self.outputs) != 1:
            raise VerifyException(f"{self.name}: expected two inputs and one output")
        if len(self.maps) != 3 or any(m.num_symbols for m in self.maps):
            raise VerifyException(f"{self.name}: indexing_maps are three maps without symbols")
        types = [cast("TensorType | MemRefType", v.type) for v in values]
        for type_, map_, default in zip(types, self.maps, self.DEFAULT.data, strict=True):
            if type_.get_num_dims() != len(default.data.results):
                raise VerifyException(f"{self.name}: {type_} must have rank {len(default.data.results)}")
            if len(map_.results) != type_.get_num_dims() or map_.num_dims != self.DEFAULT.data[0].data.num_dims:
                raise VerifyException(f"{self.name}: indexing map {map_} does not fit {type_}")
            if not all(isinstance(e, AffineDimExpr) for e in map_.results):
                raise VerifyException(f"{self.name}: indexing map {map_} must name dims only")
        if types[0].element_type != types[1].element_type:
            raise VerifyException(
                f"{self.name}: inputs have element types {types[0].element_type} and {types[1].element_type}"
            )
        self._verify_sizes([t.get_shape() for t in types])

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

    @classmethod
    def parse(cls, parser: Parser) -> ContractionOp:
        return cls(*_parse_operands(parser, cls.DEFAULT))

    def print(self, printer: Printer) -> None:
        if self.properties["indexing_maps"] != self.DEFAULT:
            printer.print_string(" indexing_maps = ")
            printer.print_attribute(self.properties["indexing_maps"])
        printer.print_op_attributes(self.attributes)
        print_group(printer, "ins", self.inputs)
        print_group(printer, "outs", self.outputs)
        if self.res:
            printer.print_string(" -> ")
            printer.print_attribute(self.res[0].type)


def _parse_operands(parser: Parser, default: ArrayAttr[AffineMapAttr]) -> tuple[Any, ...]:
    maps: Attribute = default
    if parser.parse_optional_keyword("indexing_maps"):
        parser.parse_punctuation("=")
        maps = parser.parse_attribute()
    attributes = parser.parse_optional_attr_dict()
    # The signedness of a cast is the only meaning of `cast`, and floats have one kind of extension.
    attributes.pop("cast", None)
    maps = attributes.pop("indexing_maps", maps)
    inputs, outputs = parse_group(parser, "ins"), parse_group(parser, "outs")
    if parser.parse_optional_punctuation("->"):
        pos = parser.pos
        types = parse_types(parser)
        if types != [o.type for o in outputs]:
            parser.raise_error("the result must have the type of the output", pos)
    return inputs, outputs, maps, attributes


def _define(name: str, default: ArrayAttr[AffineMapAttr], text: str) -> Any:
    body = {
        "name": f"linalg.{name}",
        "DEFAULT": default,
        "indexing_maps": prop_def(ArrayAttr[AffineMapAttr], default_value=default),
        "__annotations__": {"indexing_maps": Any, "DEFAULT": ClassVar[Any]},
        "__doc__": text,
        "__module__": __name__,
    }
    class_name = "".join(part.capitalize() for part in name.split("_")) + "Op"
    return irdl_op_definition(type(class_name, (ContractionOp,), body))


MatmulOp: Any = _define(
    "matmul",
    _maps(lambda m, n, k: (m, k), lambda m, n, k: (k, n), lambda m, n, k: (m, n)),
    "``c[m, n] += a[m, k] * b[k, n]``",
)
BatchMatmulOp: Any = _define(
    "batch_matmul",
    _maps(lambda b, m, n, k: (b, m, k), lambda b, m, n, k: (b, k, n), lambda b, m, n, k: (b, m, n)),
    "``c[b, m, n] += a[b, m, k] * b[b, k, n]``",
)
MatvecOp: Any = _define(
    "matvec", _maps(lambda m, k: (m, k), lambda m, k: (k,), lambda m, k: (m,)), "``y[m] += a[m, k] * x[k]``"
)
VecmatOp: Any = _define(
    "vecmat", _maps(lambda n, k: (k,), lambda n, k: (k, n), lambda n, k: (n,)), "``y[n] += x[k] * b[k, n]``"
)
BatchMatvecOp: Any = _define(
    "batch_matvec",
    _maps(lambda b, m, k: (b, m, k), lambda b, m, k: (b, k), lambda b, m, k: (b, m)),
    "``y[b, m] += a[b, m, k] * x[b, k]``",
)
DotOp: Any = _define("dot", _maps(lambda k: (k,), lambda k: (k,), lambda k: ()), "``y[] += a[k] * b[k]``")


def _older_name(name: str, base: Any, operand: int) -> Any:
    """A name for `base` with the last two dims of one operand swapped."""
    maps = list(base.DEFAULT.data)
    results = list(maps[operand].data.results)
    results[-2:] = reversed(results[-2:])
    maps[operand] = AffineMapAttr(AffineMap(maps[operand].data.num_dims, 0, tuple(results)))
    swapped = ArrayAttr(maps)

    def parse(cls: Any, parser: Parser) -> Operation:
        op: Operation = base(*_parse_operands(parser, swapped))
        return op

    body = {"name": f"linalg.{name}", "parse": classmethod(parse), "DEFAULT": swapped, "__module__": __name__}
    return type(name, (base,), body)


CONTRACTIONS: list[type[Operation]] = [
    MatmulOp,
    BatchMatmulOp,
    MatvecOp,
    VecmatOp,
    BatchMatvecOp,
    DotOp,
    _older_name("matmul_transpose_a", MatmulOp, 0),
    _older_name("matmul_transpose_b", MatmulOp, 1),
    _older_name("batch_matmul_transpose_a", BatchMatmulOp, 0),
    _older_name("batch_matmul_transpose_b", BatchMatmulOp, 1),
]
