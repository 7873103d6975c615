# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of planned ops as KTIR: which arith, math or spyreop op an opfunc becomes, and in which element type.

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

FLOAT_BINARY: dict[str, Any] = {
    "add": arith.AddfOp,
    "sub": arith.SubfOp,
    "mul": arith.MulfOp,
    "realdiv": arith.DivfOp,
    "maximum": arith.MaximumfOp,
    "minimum": arith.MinimumfOp,
    "pow": math.PowFOp,
    "atan2": math.Atan2Op,
}
INTEGER_BINARY: dict[str, Any] = {
    "add": arith.AddiOp,
    "sub": arith.SubiOp,
    "mul": arith.MuliOp,
    "truncdiv": arith.DivSIOp,
    "maximum": arith.MaxSIOp,
    "minimum": arith.MinSIOp,
    "floordiv": arith.FloorDivSIOp,
    "fmod": arith.RemSIOp,
    "bit_and": arith.AndIOp,
    "bit_or": arith.OrIOp,
    "bit_xor": arith.XOrIOp,
    "shl": arith.ShLIOp,
    "shr": arith.ShRSIOp,
}
FLOAT_UNARY: dict[str, Any] = {
    "neg": arith.NegfOp,
    "abs": math.AbsFOp,
    "exp": math.ExpOp,
    "log": math.LogOp,
    "sqrt": math.SqrtOp,
    "rsqrt": math.RsqrtOp,
    "tanh": math.TanhOp,
    "floor": math.FloorOp,
    "ceil": math.CeilOp,
    "trunc": math.TruncOp,
    "round": math.RoundEvenOp,
    "erf": math.ErfOp,
    "sin": math.SinOp,
    "cos": math.CosOp,
    "tan": math.TanOp,
    "asin": math.AsinOp,
    "acos": math.AcosOp,
    "atan": math.AtanOp,
    "sinh": math.SinhOp,
    "cosh": math.CoshOp,
    "log2": math.Log2Op,
    "log1p": math.Log1pOp,
    "expm1": math.ExpM1Op,
    "exp2": math.Exp2Op,
}
# Opfuncs that are a binary op with a constant: (op, constant, constant is the left side).
WITH_CONSTANT: dict[str, tuple[str, float, bool]] = {
    "relufwd": ("maximum", 0.0, False),
    "reciprocal": ("realdiv", 1.0, True),
}
# (predicate of cmpf, predicate of cmpi)
COMPARISONS: dict[str, tuple[str, str]] = {
    "equal": ("oeq", "eq"),
    "notequal": ("une", "ne"),
    "greaterthan": ("ogt", "sgt"),
    "greaterequal": ("oge", "sge"),
    "lesserthan": ("olt", "slt"),
    "lesserequal": ("ole", "sle"),
}
# Opfuncs that are a scalar function of `spyreop` inside linalg.generic: on floats, and on integers.
FLOAT_INTRINSICS: dict[str, str] = {
    "sigmoid": "sigmoid",
    "gelufwd": "gelu",
    "gelu_tanh": "gelu_tanh",
    "silu": "silu",
    "softplus": "softplus",
    "mish": "mish",
    "sign": "sign",
    "clip": "clip",
    "fmod": "fmod",
    "remainder": "remainder",
    "floordiv": "floordiv",
    "isnan": "isnan",
    "isinf": "isinf",
}
INTEGER_INTRINSICS: dict[str, str] = {
    "remainder": "remainder",
    "sign": "sign",
    "clip": "clip",
    "random": "random",
    "pow": "pow",
}

# reduction -> (float combiner, integer combiner, float neutral element, int32 neutral element)
REDUCTIONS: dict[str, tuple[Any, Any, float, int]] = {
    "sum": (arith.AddfOp, arith.AddiOp, 0.0, 0),
    "mean": (arith.AddfOp, arith.AddiOp, 0.0, 0),
    "max": (arith.MaximumfOp, arith.MaxSIOp, -pymath.inf, -(2**31)),
    "min": (arith.MinimumfOp, arith.MinSIOp, pymath.inf, 2**31 - 1),
    "prod": (arith.MulfOp, arith.MuliOp, 1.0, 1),
}

SCANS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}

Add = Callable[[Operation], SSAValue]
Splat = Callable[[float, Attribute], SSAValue]


def is_float(element: Attribute) -> bool:
    return isinstance(element, _FloatType)


def fits_f16(value: float) -> bool:
    """Is the value the same as an f16 literal, as a number of the card's format (9 mantissa bits), and in fp32?"""
    if value == 0 or not pymath.isfinite(value):
        return True
    mantissa, _ = pymath.frexp(value)
    in_range = 2.0**-14 <= abs(value) <= 65504
    return in_range and (mantissa * 1024).is_integer() and struct.unpack("e", struct.pack("e", value))[0] == value


# Ops that compare their operands or pass one of them on: infinity is the largest number of the card's 16-bit format
# there. Others compute with it, and a number that takes part in arithmetic is one of fp32.
_CHOOSING = frozenset(("where3", "maximum", "minimum", "clip", "identity", "relufwd", *COMPARISONS))


def compute_type(elements: Sequence[Attribute], immediates: Sequence[float], op: str = "identity") -> Attribute:
    """Element type in which a pointwise op over tensors of `elements` computes."""
    if op not in _CHOOSING and any(pymath.isinf(v) for v in immediates):
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


def pointwise(add: Add, splat: Splat, op: str, values: Sequence[SSAValue], empty: Callable[[], SSAValue]) -> SSAValue:
    """The value of opfunc `op`; all `values` have one type, comparisons and where3 give or take truth as numbers."""
    element = arith_ops.element_type(values[-1].type)
    floating = is_float(element)
    if op in COMPARISONS:
        compare: Any = arith_ops.CmpfOp if floating else arith_ops.CmpiOp
        return add(compare(values[0], values[1], COMPARISONS[op][0 if floating else 1]))
    if op == "where3":
        return _select(add, splat, values)
    if op in WITH_CONSTANT:
        binary, constant, left = WITH_CONSTANT[op]
        other = splat(constant, element)
        return pointwise(add, splat, binary, [other, values[0]] if left else [values[0], other], empty)
    binary_table = FLOAT_BINARY if floating else INTEGER_BINARY
    if op in binary_table:
        return add(binary_table[op](values[0], values[1]))
    if floating and op in FLOAT_UNARY:
        return add(FLOAT_UNARY[op](values[0]))
    intrinsics = FLOAT_INTRINSICS if floating else INTEGER_INTRINSICS
    if op in intrinsics:
        return add(_intrinsic(intrinsics[op], values, empty()))
    if floating and op == "fma":
        return add(math.FmaOp.build(operands=list(values), result_types=[values[0].type]))
    if op == "bit_not":
        return add(arith.XOrIOp(values[0], splat(-1, element)))
    if op == "neg":
        return add(arith.SubiOp(splat(0, element), values[0]))
    if op == "abs":
        return add(math.AbsIOp(values[0]))
    raise UnsupportedOp(f"opfunc {op} on elements of type {element}")


def _select(add: Add, splat: Splat, values: Sequence[SSAValue]) -> SSAValue:
    condition, left, right = values
    element = arith_ops.element_type(condition.type)
    compare: Any = arith_ops.CmpfOp if is_float(element) else arith_ops.CmpiOp
    truth = add(compare(condition, splat(0, element), "une" if is_float(element) else "ne"))
    return add(arith_ops.SelectOp(truth, left, right))


def _intrinsic(name: str, values: Sequence[SSAValue], out: SSAValue) -> GenericOp:
    """linalg.generic that applies a spyreop to corresponding elements."""
    type_ = values[0].type
    assert isinstance(type_, TensorType)
    rank, element = type_.get_num_dims(), type_.element_type
    block = Block(arg_types=[element] * (len(values) + 1))
    scalar = spyreop.OPS[name](*block.args[:-1])
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


def contraction(batch: int, a: SSAValue, b: SSAValue, out: SSAValue) -> GenericOp:
    """``out[b…, m, n] += a[b…, m, k] * b[b…, k, n]`` with any number of batch dims."""
    dims = [AffineExpr.dimension(i) for i in range(batch + 3)]
    *batches, m, n, k = dims
    maps = [AffineMapAttr(AffineMap(len(dims), 0, (*batches, *pair))) for pair in ((m, k), (k, n), (m, n))]
    narrow, wide = arith_ops.element_type(a.type), arith_ops.element_type(out.type)
    block = Block(arg_types=[narrow, narrow, wide])

    def add(op: Operation) -> SSAValue:
        block.add_op(op)
        return op.results[0]

    left, right = (convert(add, arg, wide) for arg in block.args[:2])
    product = add((arith.MulfOp if is_float(wide) else arith.MuliOp)(left, right))
    total = add((arith.AddfOp if is_float(wide) else arith.AddiOp)(product, block.args[2]))
    block.add_op(YieldOp(total))
    iterators = [IteratorTypeAttr.parallel()] * (batch + 2) + [IteratorTypeAttr.reduction()]
    return GenericOp([a, b], [out], Region(block), maps, iterators, [out.type])
