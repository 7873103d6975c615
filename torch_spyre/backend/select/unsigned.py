# SPDX-License-Identifier: Apache-2.0
"""Handlers of unsigned integers. The card computes in signed int32, so each is a few vector operations.

Narrow elements fit as they are once their upper bits are cleared. 64-bit values and indices are held in 32 bits with
their sign, so for them the signed operation is the one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_spyre.backend.program.assembler import Operand
from torch_spyre.backend.program.isa import IEEE_FP32, IEEE_INT32, Compute, Space
from torch_spyre.backend.program.numbers import float_bits
from torch_spyre.backend.schedule.fold import element_name
from torch_spyre.backend.schedule.values import Splat
from torch_spyre.backend.select.comparisons import Steps, finish
from torch_spyre.backend.select.composed import HANDLERS as FUNCTIONS
from torch_spyre.backend.select.conversions import convert, converted_splat, same, widen
from torch_spyre.backend.select.elementwise import NARROW_BITS, vector
from torch_spyre.backend.select.selector import Handler, Selector

_FULL = ("i32", "ui32", "si32")
_ZERO, _ONE, _HALF = (Operand(Space.IMM, IEEE_INT32, bits=n) for n in (0, 1, 16))
_LOW_HALF, _ALL_BUT_SIGN, _SIGN = (Operand(Space.IMM, IEEE_INT32, bits=n) for n in (0xFFFF, 0x7FFFFFFF, 0x80000000))
_TWO_16, _TWO_31 = (Operand(Space.IMM, IEEE_FP32, bits=float_bits(2.0**n)) for n in (16, 31))

Formula = Callable[["_Bits", Operand, Operand], Operand]


class _Bits:
    """Steps on int32 values."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def __call__(self, name: str, *inputs: Operand) -> Operand:
        return self.steps(name, *inputs, compute=Compute.I32, fmt=IEEE_INT32)

    def at_least(self, a: Operand, b: Operand) -> Operand:
        """1 where a >= b as unsigned numbers: signed, with the sign bits turned around."""
        return self("ge", self("bit_xor", a, _SIGN), self("bit_xor", b, _SIGN))

    def low(self, value: Operand, element: str) -> Operand:
        """A narrow value without its sign."""
        if element not in NARROW_BITS:
            return value
        return self("bit_and", value, _mask(element))


def _mask(element: str) -> Operand:
    return Operand(Space.IMM, IEEE_INT32, bits=(1 << NARROW_BITS[element]) - 1)


def _quotient(step: _Bits, a: Operand, b: Operand) -> Operand:
    """Half of a divides like a signed number; its double misses by at most one. A top bit in b: once or never."""
    half = step("bit_and", step("shr", a, _ONE), _ALL_BUT_SIGN)
    guess = step("shl", step("div", half, b), _ONE)
    rest = step("sub", a, step("mul", guess, b))
    quotient = step("add", guess, step.at_least(rest, b))
    if b.space is Space.IMM and b.bits < 1 << 31:
        return quotient
    return step("select", step("lt", b, _ZERO), step.at_least(a, b), quotient)


def _remainder(step: _Bits, a: Operand, b: Operand) -> Operand:
    return step("sub", a, step("mul", _quotient(step, a, b), b))


def _ceiling(step: _Bits, a: Operand, b: Operand) -> Operand:
    quotient = _quotient(step, a, b)
    return step("add", quotient, step("ne", step("mul", quotient, b), a))


def _shift(step: _Bits, a: Operand, b: Operand) -> Operand:
    """An arithmetic shift without the copies of the sign."""
    return step("bit_and", step("shr", a, b), step("bit_not", step("shl", step("shr", _SIGN, b), _ONE)))


def _binary(formula: Formula, signed: Handler | None) -> Handler:
    """A handler of two unsigned operands; `signed` takes the types of which only 32 bits are held."""

    def handler(selector: Selector, op: Any) -> None:
        element = element_name(op.results[0])
        if signed is not None and element not in (*_FULL, *NARROW_BITS):
            signed(selector, op)
            return
        values = list(op.operands)[:2]
        dims = selector.dims_for(values, op.results[0])
        rank = len(dims)
        step = _Bits(Steps(selector, dims))
        a, b = (step.low(selector.input(value, range(rank), rank), element) for value in values)
        _finish_narrow(selector, op, step, element, formula(step, a, b))

    return handler


def _finish_narrow(selector: Selector, op: Any, step: _Bits, element: str, value: Operand) -> None:
    """Stores an int32 value as the result; of a narrow type the low bits, with the sign that they say."""
    dims = selector.dims_for(list(op.operands)[:2], op.results[0])
    if element in NARROW_BITS:
        spare = Operand(Space.IMM, IEEE_INT32, bits=32 - NARROW_BITS[element])
        finish(selector, op, "shr", Compute.I32, dims, (step("shl", value, spare), spare))
    else:
        finish(selector, op, "identity", Compute.I32, dims, (value,))


def to_float(selector: Selector, op: Any) -> None:
    """uitofp: both halves are exact, and their sum rounds once."""
    given = element_name(op.operands[0])
    if given not in (*_FULL, *NARROW_BITS) or isinstance(selector.value(op.operands[0]), Splat):
        _of_constant(selector, op, widen)
        return
    dims = selector.dims_for(list(op.operands), op.results[0])
    step = _Bits(Steps(selector, dims))
    value = selector.input(op.operands[0], range(len(dims)), len(dims))
    if given in NARROW_BITS:
        finish(selector, op, "identity", Compute.F32, dims, (step.low(value, given),))
        return
    high = step("bit_and", step("shr", value, _HALF), _LOW_HALF)
    finish(selector, op, "fma", Compute.F32, dims, (high, _TWO_16, step("bit_and", value, _LOW_HALF)))


def from_float(selector: Selector, op: Any) -> None:
    """fptoui: numbers from 2^31 on are converted without their top bit, which then goes back."""
    wanted = element_name(op.results[0])
    if wanted not in (*_FULL, *NARROW_BITS) or isinstance(selector.value(op.operands[0]), Splat):
        convert(selector, op)
        return
    dims = selector.dims_for(list(op.operands), op.results[0])
    steps = Steps(selector, dims)
    step = _Bits(steps)
    value = selector.input(op.operands[0], range(len(dims)), len(dims))
    if wanted in NARROW_BITS:
        _finish_narrow(selector, op, step, wanted, steps("trunc", value, fmt=IEEE_INT32))
        return
    large = steps("ge", value, _TWO_31)
    rest = steps("select", large, steps("sub", value, _TWO_31, fmt=IEEE_FP32), value, fmt=IEEE_FP32)
    low = steps("trunc", rest, fmt=IEEE_INT32)
    finish(selector, op, "bit_xor", Compute.I32, dims, (low, step("select", large, _SIGN, _ZERO)))


def extend(selector: Selector, op: Any) -> None:
    """extui of narrow elements clears the copies of their sign."""
    given = element_name(op.operands[0])
    if given not in NARROW_BITS or isinstance(selector.value(op.operands[0]), Splat):
        _of_constant(selector, op, same)
        return
    dims = selector.dims_for(list(op.operands), op.results[0])
    value = selector.input(op.operands[0], range(len(dims)), len(dims))
    finish(selector, op, "bit_and", Compute.I32, dims, (value, _mask(given)))


def _of_constant(selector: Selector, op: Any, otherwise: Handler) -> None:
    """A constant is read as the unsigned number of its bits."""
    source, given = selector.value(op.operands[0]), element_name(op.operands[0])
    bits = 32 if given in _FULL else NARROW_BITS.get(given)
    if not isinstance(source, Splat) or source.value is None or bits is None or source.value >= 0:
        otherwise(selector, op)
        return
    wide = Splat("i64", int(source.value) + (1 << bits), dims=source.dims)
    selector.bind(op.results[0], converted_splat(wide, element_name(op.results[0])))


HANDLERS: dict[str, Handler] = {
    "arith.divui": _binary(_quotient, vector),
    "arith.remui": _binary(_remainder, vector),
    "arith.ceildivui": _binary(_ceiling, FUNCTIONS["arith.ceildivsi"]),
    "arith.shrui": _binary(_shift, None),
    "arith.uitofp": to_float,
    "arith.fptoui": from_float,
    "arith.extui": extend,
    "arith.index_castui": extend,
}
