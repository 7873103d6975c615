# SPDX-License-Identifier: Apache-2.0
"""Traced scalars, and what conversions between dtypes become on the card.

A dtype stored in the same device format is a new name for the same value; integers narrower than the card's words are
computed in int32 and wrapped, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torch_spyre._inductor.tilegraph.carried import Assertion, Ranking, Windows
from torch_spyre._inductor.tilegraph.graph import Const, Value
from torch_spyre.constants import FLOAT16_TOP
from torch_spyre.errors import UnsupportedOp
from torch_spyre.optable import OPS, Kind

SIXTEEN_BIT = ("float16", "bfloat16", "bool")
WIDE_INTEGERS = ("int32", "int64")
BITS = {"int64": 32, "int32": 32, "int16": 16, "int8": 8, "uint8": 8}  # of the values, as the card keeps them
NARROW = ("int16", "int8", "uint8")
FIVE_BIT_EXPONENTS = ("float8_e5m2", "float8_e5m2fnuz")  # on the card the same
EIGHT_BIT_FLOATS = ("float8_e4m3fn", *FIVE_BIT_EXPONENTS)
_CONVERTIBLE = (*SIXTEEN_BIT, *BITS, "float32", *EIGHT_BIT_FLOATS)
_INT32 = (-(2**31), 2**31 - 1)
_FLOAT16_INFINITE = 65520.0  # from here on float16 has infinity


@dataclass(frozen=True)
class Expr:
    """A traced scalar: ``op`` is load, const, position, assert, undefined, or a row of the op table.

    A gather has its table access as leaf, in which dims ``@0``, ``@1``, … stand for the values of its args; `limits`
    are their bounds.
    """

    op: str
    dtype: str
    args: tuple[Expr, ...] = ()
    leaf: Value | None = None
    limits: tuple[int, ...] = ()
    form: Ranking | Windows | Assertion | None = None

    @property
    def kind(self) -> Kind | None:
        return OPS[self.op].kind if self.op in OPS else None

    @property
    def is_leaf(self) -> bool:
        return self.op in ("load", "const", "position")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def const(value: float | int | bool, dtype: str) -> Expr:
    if isinstance(value, complex):
        raise UnsupportedOp(f"the constant {value} has no value as {dtype}: the card has no complex numbers")
    if "int" in dtype and not _INT32[0] <= value <= _INT32[1]:
        raise UnsupportedOp(f"the constant {value} does not fit into 32 bits, which is how the card keeps {dtype}")
    # As a float16 of the host on its way to the card: the next code would read back as infinity.
    if dtype == "float16" and FLOAT16_TOP < abs(value) < _FLOAT16_INFINITE:
        value = math.copysign(FLOAT16_TOP, value)
    return Expr("const", dtype, leaf=Const(value, dtype))


def held_as(dtype: str) -> str:
    """One name for the dtypes whose values the card holds alike."""
    return next((same[0] for same in (SIXTEEN_BIT, WIDE_INTEGERS, FIVE_BIT_EXPONENTS) if dtype in same), dtype)


def is_float(dtype: str) -> bool:
    return "float" in dtype


def cast(x: Expr, dtype: str, float_scalar: Callable[[Expr, str], Expr | None] = lambda x, dtype: None) -> Expr:
    """x in another dtype. `float_scalar` gives a launch scalar as one of a float dtype."""
    if x.dtype == dtype:
        return x
    scalar = float_scalar(x, dtype) if is_float(dtype) else None
    if scalar is not None:
        return Expr("load", dtype, leaf=scalar.leaf)
    if isinstance(x.leaf, Const):
        value = x.leaf.value
        if dtype != "bool" and not is_float(dtype):
            return _integer_const(float(value) if isinstance(value, float) else int(value), dtype)
        return const(bool(value) if dtype == "bool" else float(value), dtype)
    if x.dtype in SIXTEEN_BIT and dtype == "float32":
        return Expr("dl16tofp32", dtype, (x,))
    if x.dtype == "float32" and dtype in ("float16", "bfloat16"):
        return Expr("fp32todl16", dtype, (x,))
    if dtype == "bool":
        return Expr("notequal", dtype, (x, const(0, x.dtype)))
    if any(x.dtype in same and dtype in same for same in (SIXTEEN_BIT, WIDE_INTEGERS, FIVE_BIT_EXPONENTS)):
        return Expr("identity", dtype, (x,))
    if x.dtype in EIGHT_BIT_FLOATS and dtype in ("float16", "bfloat16"):
        return Expr("fp8todl16", dtype, (x,))
    if dtype == "uint8" and x.dtype not in BITS:  # -1.0 is 255, as on the host
        x = cast(x, "int32")
    if x.dtype in BITS and dtype in BITS:
        x = _wrapped(x, dtype)
    if x.dtype not in _CONVERTIBLE or dtype not in _CONVERTIBLE:
        raise UnsupportedOp(f"conversion of {x.dtype} to {dtype} has no device operation: convert on the host")
    return Expr("convert", dtype, (x,))


def _integer_const(value: float | int, dtype: str) -> Expr:
    if value != value or value in (float("inf"), float("-inf")):
        raise UnsupportedOp(f"the constant {value} has no value as {dtype}")
    return const(int(value), dtype)


def _wrapped(x: Expr, dtype: str) -> Expr:
    """The integer x modulo the range of a narrower dtype. The card saturates when it stores; PyTorch wraps."""
    bits, unsigned = BITS[dtype], dtype == "uint8"
    if BITS[x.dtype] < bits or (x.dtype == "uint8" and bits > 8):
        return x
    wide = x if x.dtype in WIDE_INTEGERS else Expr("convert", "int32", (x,))

    def apply(op: str, left: Expr, value: int) -> Expr:
        return Expr(op, "int32", (left, const(value, "int32")))

    # Shift left and back: the product wraps, and dividing it by the same power of two is exact.
    shift = 1 << (32 - bits)
    low = apply("truncdiv", apply("mul", wide, shift), shift)
    if not unsigned:
        return low
    borrow = apply("maximum", apply("minimum", low, 0), -1)  # -1 where the value is negative, else 0
    return Expr("sub", "int32", (low, apply("mul", borrow, 1 << bits)))


def decoded_by_products(factors: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The factors of a product of floats, with 8-bit elements in place of the floats that are made of them, each of
    which is exact: the card's array decodes as it reads. Of two int8 factors one stays a float, as the array would sum
    int8 products as integers."""
    left, right = (_eight_bit_source(x) or x for x in factors)
    if left.dtype == right.dtype == "int8":
        left = factors[0]
    return left, right


def _eight_bit_source(x: Expr) -> Expr | None:
    if x.op not in ("convert", "fp8todl16") or x.dtype not in ("float16", "bfloat16", "float32"):
        return None
    (source,) = x.args
    return source if source.op == "load" and source.dtype in ("int8", *EIGHT_BIT_FLOATS) else None
