# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of planned ops as KTIR: in which element type an op computes, and the operations it becomes.

A pointwise op computes in f16 when everything it touches is f16 (each f16 value is rounded to the card's format), in
i32 when everything is integer, and otherwise in f32 with one conversion at its end.
"""

from __future__ import annotations

import math as pymath
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import (
    AffineMapAttr,
    Float8E4M3FNType,
    Float8E5M2Type,
    IndexType,
    IntegerAttr,
    IntegerType,
    TensorType,
    _FloatType,
    f16,
    f32,
    i1,
    i8,
    i16,
    i32,
)
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.dialects.linalg.ops import GenericOp, IndexOp, YieldOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.ktir.dialect import arith_ops, spyreop
from torch_spyre.ir.ktir.dialect.affine_text import identity_map
from torch_spyre.ir.plan.tileops import Coord
from torch_spyre.optable import OPS, SELECT, Row, WithConstant

ELEMENT_TYPES: dict[str, Attribute] = {
    "SEN169_FP16": f16,
    "IEEE_FP32": f32,
    "IEEE_INT32": i32,
    "SENINT16": i16,
    "SENINT8": i8,
    "SENUINT32": i32,  # holds uint8: the same bits in a 32-bit word
    "SEN143_FP8": Float8E4M3FNType(),
    "SEN152_FP8": Float8E5M2Type(),
}

# KTIR's name of an op of the table -> the class that builds it.
OPERATIONS: dict[str, Any] = {
    op.name: op for dialect in (arith.Arith, math.Math, spyreop.SpyreOp) for op in dialect.operations
}

Add = Callable[[Operation], SSAValue]
Splat = Callable[[float, Attribute], SSAValue]


def is_float(element: Attribute) -> bool:
    return isinstance(element, _FloatType)


def is_eight_bit(element: Attribute) -> bool:
    return element == i8 or isinstance(element, (Float8E4M3FNType, Float8E5M2Type))


def fits_f16(value: float) -> bool:
    """Is the value the same as an f16 literal, as a number of the card's format (9 mantissa bits), and in fp32?"""
    if value == 0 or not pymath.isfinite(value):
        return True
    mantissa, _ = pymath.frexp(value)
    in_range = 2.0**-14 <= abs(value) <= 65504
    return in_range and (mantissa * 1024).is_integer() and struct.unpack("e", struct.pack("e", value))[0] == value


def compute_type(elements: Sequence[Attribute], immediates: Sequence[float], chooses: bool = True) -> Attribute:
    """Element type in which a pointwise op over tensors of `elements` computes.

    An op that chooses among its operands takes infinity for the largest number of the card's 16-bit format. Others
    compute with it, and a number that takes part in arithmetic is one of fp32.
    """
    if not chooses and any(pymath.isinf(v) for v in immediates):
        return f32
    if elements and not any(is_float(e) for e in elements) and all(float(v).is_integer() for v in immediates):
        return i32
    if all(e == f16 for e in elements) and all(fits_f16(v) for v in immediates):
        return f16
    return f32


def convert(add: Add, value: SSAValue, target: Attribute) -> SSAValue:
    """`value` with elements of type `target`; no op if it has them already."""
    source = arith_ops.element_type(value.type)
    if source == target:
        return value
    result = arith_ops.with_element(value.type, target)
    if is_float(source) and is_float(target):
        wider = target.bitwidth > source.bitwidth  # type: ignore[attr-defined]
        return add((arith.ExtFOp if wider else arith.TruncFOp)(value, result))
    if is_float(source):
        return add(arith_ops.FPToSIOp(value, result))
    if is_float(target):
        return add((arith_ops.UIToFPOp if source == i1 else arith_ops.SIToFPOp)(value, result))
    assert isinstance(source, IntegerType) and isinstance(target, IntegerType)
    if target.width.data < source.width.data:
        return add(arith_ops.TruncIOp(value, result))
    return add((arith_ops.ExtUIOp if source == i1 else arith_ops.ExtSIOp)(value, result))


def pointwise(add: Add, splat: Splat, row: Row, values: Sequence[SSAValue], empty: Callable[[], SSAValue]) -> SSAValue:
    """The value of an op; all `values` have one type, comparisons and where3 give or take truth as numbers."""
    element = arith_ops.element_type(values[-1].type)
    floating = is_float(element)
    if row.predicates:
        compare: Any = arith_ops.CmpfOp if floating else arith_ops.CmpiOp
        return add(compare(values[0], values[1], row.predicates[0 if floating else 1]))
    if row is SELECT:
        return _select(add, splat, values)
    spelling = row.floats if floating else row.integers
    if isinstance(spelling, WithConstant):
        constant = splat(spelling.constant, element)
        both = [constant, values[0]] if spelling.first else [values[0], constant]
        return pointwise(add, splat, OPS[spelling.op], both, empty)
    if not spelling:
        raise UnsupportedOp(f"opfunc {row.name} on elements of type {element}")
    operation = OPERATIONS[spelling]
    return add(
        _intrinsic(operation, values, empty()) if issubclass(operation, spyreop.IntrinsicOp) else operation(*values)
    )


def combiner(row: Row, element: Attribute) -> Any:
    """The operation that joins two partial results of a reduction."""
    joined = OPS[row.combine]
    return OPERATIONS[str(joined.floats if is_float(element) else joined.integers)]


def _select(add: Add, splat: Splat, values: Sequence[SSAValue]) -> SSAValue:
    condition, left, right = values
    element = arith_ops.element_type(condition.type)
    compare: Any = arith_ops.CmpfOp if is_float(element) else arith_ops.CmpiOp
    truth = add(compare(condition, splat(0, element), "une" if is_float(element) else "ne"))
    return add(arith_ops.SelectOp(truth, left, right))


def _intrinsic(function: type[spyreop.IntrinsicOp], values: Sequence[SSAValue], out: SSAValue) -> GenericOp:
    """linalg.generic that applies a spyreop to corresponding elements."""
    type_ = values[0].type
    assert isinstance(type_, TensorType)
    rank, element = type_.get_num_dims(), type_.element_type
    block = Block(arg_types=[element] * (len(values) + 1))
    scalar = function(*block.args[:-1])
    block.add_ops([scalar, YieldOp(scalar.result)])
    maps = [identity_map(rank)] * (len(values) + 1)
    return GenericOp(list(values), [out], Region(block), maps, [IteratorTypeAttr.parallel()] * rank, [type_])


def positions(value: Coord, offsets: Mapping[str, SSAValue], dims: Sequence[str], out: SSAValue) -> GenericOp:
    """An i32 tensor whose elements are computed from their position; `offsets` shift the dims of split ops."""
    block = Block(arg_types=[i32])

    def add(op: Operation) -> SSAValue:
        block.add_op(op)
        return op.results[0]

    def number(n: int) -> SSAValue:
        return add(arith.ConstantOp(IntegerAttr(n, IndexType())))

    total = number(value.const)
    for term in value.terms:
        part = add(IndexOp(dims.index(term.dim)))
        if term.dim in offsets:
            part = add(arith.AddiOp(part, offsets[term.dim]))
        if term.div != 1:
            part = add(arith.DivUIOp(part, number(term.div)))
        if term.mod:
            part = add(arith.RemUIOp(part, number(term.mod)))
        total = add(arith.AddiOp(total, add(arith.MuliOp(part, number(term.scale)))))
    block.add_op(YieldOp(add(arith_ops.IndexCastOp.build(operands=[total], result_types=[i32]))))
    iterators = [IteratorTypeAttr.parallel()] * len(dims)
    return GenericOp([], [out], Region(block), [identity_map(len(dims))], iterators, [out.type])


def contraction(batch: int, summed: int, a: SSAValue, b: SSAValue, out: SSAValue) -> GenericOp:
    """``out[b…, m, n] += a[b…, m, k…] * b[b…, k…, n]`` with any number of batch dims and dims of k."""
    dims = [AffineExpr.dimension(i) for i in range(batch + 2 + summed)]
    batches, (m, n), k = dims[:batch], dims[batch : batch + 2], dims[batch + 2 :]
    maps = [AffineMapAttr(AffineMap(len(dims), 0, (*batches, *rest))) for rest in ((m, *k), (*k, n), (m, n))]
    wide = arith_ops.element_type(out.type)
    block = Block(arg_types=[arith_ops.element_type(a.type), arith_ops.element_type(b.type), wide])

    def add(op: Operation) -> SSAValue:
        block.add_op(op)
        return op.results[0]

    left, right = (convert(add, arg, wide) for arg in block.args[:2])
    product = add((arith.MulfOp if is_float(wide) else arith.MuliOp)(left, right))
    total = add((arith.AddfOp if is_float(wide) else arith.AddiOp)(product, block.args[2]))
    block.add_op(YieldOp(total))
    iterators = [IteratorTypeAttr.parallel()] * (batch + 2) + [IteratorTypeAttr.reduction()] * summed
    return GenericOp([a, b], [out], Region(block), maps, iterators, [out.type])
