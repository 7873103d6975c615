# SPDX-License-Identifier: Apache-2.0
"""Handlers of functions without an instruction of their own: a few vector operations each, in fp32 temporaries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch_spyre.backend.program.assembler import Operand
from torch_spyre.backend.program.isa import IEEE_FP32, IEEE_INT32, Compute, Space
from torch_spyre.backend.program.numbers import float_bits
from torch_spyre.backend.select.comparisons import Steps, finish
from torch_spyre.backend.select.selector import Handler, Selector

Formula = Callable[..., tuple[str, tuple[Operand, ...]]]
_SIGN_BIT = Operand(Space.IMM, IEEE_INT32, bits=0x80000000)


def _number(value: float) -> Operand:
    return Operand(Space.IMM, IEEE_FP32, bits=float_bits(value))


class _Wide:
    """Steps whose results are fp32 (or int32)."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __call__(self, name: str, *inputs: Operand) -> Operand:
        return self._steps(name, *inputs, fmt=IEEE_FP32)

    def integer(self, name: str, *inputs: Operand) -> Operand:
        return self._steps(name, *inputs, compute=Compute.I32, fmt=IEEE_INT32)


def _composed(formula: Formula, compute: Compute = Compute.F32) -> Handler:
    """A handler for a formula over the operands; it gives the last vector operation."""

    def handler(selector: Selector, op: Any) -> None:
        values = list(op.operands)
        dims = selector.dims_for(values, op.results[0])
        rank = len(dims)
        inputs = [selector.input(value, range(rank), rank) for value in values]
        name, last = formula(_Wide(Steps(selector, dims)), *inputs)
        finish(selector, op, name, compute, dims, last)

    return handler


def _ceildiv(step: _Wide, a: Operand, b: Operand) -> tuple[str, tuple[Operand, ...]]:
    """One more than the floor where the division leaves a rest; negating would overflow for the least number."""
    floor = step.integer("floordiv", a, b)
    return "add", (floor, step.integer("ne", step.integer("mul", floor, b), a))


def _copysign(step: _Wide, a: Operand, b: Operand) -> tuple[str, tuple[Operand, ...]]:
    """The bits of fp32 hold both magnitude and sign."""
    magnitude, other = (replace(step(name, x), format=IEEE_INT32) for name, x in (("abs", a), ("identity", b)))
    joined = step.integer("bit_or", magnitude, step.integer("bit_and", other, _SIGN_BIT))
    return "identity", (replace(joined, format=IEEE_FP32),)


def _round(step: _Wide, a: Operand) -> tuple[str, tuple[Operand, ...]]:
    """Halves away from zero: the whole part, plus the sign where the rest is half or more."""
    whole = step("trunc", a)
    rest = step("abs", step("sub", a, whole))
    return "add", (whole, step("mul", step("ge", rest, _number(0.5)), step("sign", a)))


def _log10(step: _Wide, a: Operand) -> tuple[str, tuple[Operand, ...]]:
    return "mul", (step("log2", a), _number(0.30102999566398120))


def _asinh(step: _Wide, a: Operand) -> tuple[str, tuple[Operand, ...]]:
    """sign(x) log1p(|x| + x^2 / (1 + sqrt(1 + x^2))): no cancellation near 0; log(2 |x|) where squares may overflow."""
    size = step("abs", a)
    square = step("mul", a, a)
    root = step("add", step("sqrt", step("add", square, _number(1))), _number(1))
    near = step("log1p", step("add", size, step("div", square, root)))
    far = step("add", step("log", size), _number(0.69314718055994531))
    return "mul", (step("select", step("gt", size, _number(1e10)), far, near), step("sign", a))


def _acosh(step: _Wide, a: Operand) -> tuple[str, tuple[Operand, ...]]:
    """log1p(t + sqrt(t) sqrt(t + 2)) with t = x - 1; two roots, so that numbers below 1 give NaN."""
    t = step("sub", a, _number(1))
    root = step("mul", step("sqrt", t), step("sqrt", step("add", t, _number(2))))
    return "log1p", (step("add", t, root),)


def _atanh(step: _Wide, a: Operand) -> tuple[str, tuple[Operand, ...]]:
    """sign(x) / 2 log1p(2 |x| / (1 - |x|))."""
    size = step("abs", a)
    ratio = step("div", step("add", size, size), step("sub", _number(1), size))
    return "mul", (step("log1p", ratio), step("mul", step("sign", a), _number(0.5)))


def _cbrt(step: _Wide, a: Operand) -> tuple[str, tuple[Operand, ...]]:
    """A power of the size, and one Newton step that removes the rounding of 1/3."""
    size = step("abs", a)
    first = step("pow", size, _number(1 / 3))
    error = step("sub", first, step("div", size, step("mul", first, first)))
    better = step("sub", first, step("mul", error, _number(1 / 3)))
    ok = step("lt", step("abs", error), _number(math.inf))  # not of 0 and of infinity
    return "mul", (step("select", ok, better, first), step("sign", a))


def _fpowi(step: _Wide, a: Operand, n: Operand) -> tuple[str, tuple[Operand, ...]]:
    return "pow", (a, step("identity", n))


HANDLERS: dict[str, Handler] = {
    "arith.ceildivsi": _composed(_ceildiv, Compute.I32),
    "math.copysign": _composed(_copysign),
    "math.round": _composed(_round),
    "math.log10": _composed(_log10),
    "math.asinh": _composed(_asinh),
    "math.acosh": _composed(_acosh),
    "math.atanh": _composed(_atanh),
    "math.cbrt": _composed(_cbrt),
    "math.fpowi": _composed(_fpowi),
}
