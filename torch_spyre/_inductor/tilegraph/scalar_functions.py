# SPDX-License-Identifier: Apache-2.0
"""Inductor's scalar functions as ops of the card: direct ones by the op table, the rest as short formulas.

A formula computes in fp32 whatever the dtype, so that only its result is rounded. Truth values are stored as 1 and 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch_spyre._inductor.tilegraph.errata import reproduced
from torch_spyre._inductor.tilegraph.expr import NARROW, Expr, cast, const, is_float
from torch_spyre._inductor.tilegraph.graph import Const
from torch_spyre.errors import UnsupportedOp
from torch_spyre.optable import BY_INDUCTOR, SELECT, Gives, Kind

# What operations on bits are on truth values; the last one compares with false.
_LOGICAL = {"bit_and": "mul", "bit_or": "maximum", "bit_xor": "notequal", "bit_not": "equal"}
_INTEGER_IDENTITY = ("floor", "ceil", "trunc", "round")


def apply(name: str, args: tuple[Any, ...], where: str) -> Expr:
    """One scalar op of Inductor on traced values. `where` names the buffer, for messages."""
    if not all(isinstance(a, Expr) for a in args):
        raise UnsupportedOp(f"{name} in {where} has no device operation with arguments {args}")
    row = BY_INDUCTOR.get(name)
    if name == "square":
        return _same_dtype("mul", (args[0], args[0]))
    if name in FORMULAS:
        return _formula(FORMULAS[name], args)
    if row is None or row.kind is not Kind.POINTWISE:
        raise UnsupportedOp(
            f"{name} in {where} has no device operation yet: move the tensor with .cpu() first to run it there"
        )
    if row.name in _LOGICAL and (name.startswith("logical_") or all(a.dtype == "bool" for a in args)):
        return _logical(row.name, [cast(a, "bool") for a in args])
    if row.predicates:
        return _compare(row.name, *args)
    if row.gives is Gives.TRUTH:
        return Expr(row.name, "bool", args) if is_float(args[0].dtype) else const(False, "bool")
    if row.name in _INTEGER_IDENTITY and not is_float(args[0].dtype):
        return args[0]
    return reproduced(_same_dtype(row.name, args))


def _logical(op: str, args: list[Expr]) -> Expr:
    both = args if len(args) == 2 else [*args, const(False, "bool")]
    return Expr(_LOGICAL[op], "bool", tuple(both))


def _compare(opfunc: str, a: Expr, b: Expr) -> Expr:
    if a.dtype in NARROW:
        a, b = cast(a, "int32"), cast(b, "int32")
    return Expr(opfunc, "bool", (a, b))


def _same_dtype(opfunc: str, args: tuple[Expr, ...]) -> Expr:
    values = args[1:] if opfunc == SELECT.name else args
    dtype = values[0].dtype
    if dtype in NARROW:  # computed in int32 and brought back to the dtype's range, as PyTorch wraps
        wide = tuple(cast(v, "int32") for v in values)
        return cast(Expr(opfunc, "int32", (*args[: -len(wide)], *wide)), dtype)
    if opfunc == "minimum" and args[0].op == "maximum" and _number(args[1]) and _number(args[0].args[1]):
        return Expr("clip", dtype, (*args[0].args, args[1]))
    return Expr(opfunc, dtype, args)


def _number(x: Expr) -> bool:
    return isinstance(x.leaf, Const)


# Formulas: on fp32 values, with operators as in arithmetic.


class _F:
    """An fp32 (or bool) expression with operators. `stored` is an operand before it was converted to fp32."""

    def __init__(self, expr: Expr, stored: Expr | None = None) -> None:
        self.expr = expr
        self.stored = stored or expr

    def _binary(self, opfunc: str, other: _F | float, dtype: str = "float32", swap: bool = False) -> _F:
        value = other.expr if isinstance(other, _F) else const(other, self.expr.dtype)
        return _F(Expr(opfunc, dtype, (value, self.expr) if swap else (self.expr, value)))

    def __add__(self, other: _F | float) -> _F:
        return self._binary("add", other)

    def __sub__(self, other: _F | float) -> _F:
        return self._binary("sub", other)

    def __rsub__(self, other: float) -> _F:
        return self._binary("sub", other, swap=True)

    def __mul__(self, other: _F | float) -> _F:
        return self._binary("mul", other)

    def __truediv__(self, other: _F | float) -> _F:
        return self._binary("realdiv", other)

    def __rtruediv__(self, other: float) -> _F:
        return self._binary("realdiv", other, swap=True)

    def __lt__(self, other: _F | float) -> _F:
        return self._binary("lesserthan", other, "bool")

    def __gt__(self, other: _F | float) -> _F:
        return self._binary("greaterthan", other, "bool")

    def equals(self, other: _F | float) -> _F:
        return self._binary("equal", other, "bool")

    def __neg__(self) -> _F:
        return _call("neg", self)


def _call(opfunc: str, *args: _F) -> _F:
    return _F(Expr(opfunc, "float32", tuple(a.expr for a in args)))


def _where(condition: _F, a: _F | float, b: _F | float) -> _F:
    left, right = (x.expr if isinstance(x, _F) else const(x, "float32") for x in (a, b))
    return _F(Expr("where3", "float32", (condition.expr, left, right)))


def _polynomial(x: _F, coefficients: tuple[float, ...]) -> _F:
    """Highest power first."""
    total = _F(const(coefficients[0], "float32"))
    for c in coefficients[1:]:
        total = _call("fma", total, x, _F(const(c, "float32")))
    return total


def _asinh(x: _F) -> _F:
    size = _call("abs", x)
    square = size * size
    near = _call("log1p", size + square / (_call("sqrt", square + 1.0) + 1.0))
    far = _call("log", size) + math.log(2)
    return _copysign(_where(size > 1e9, far, near), x)


def _acosh(x: _F) -> _F:
    t = x - 1.0
    near = _call("log1p", t + _call("sqrt", t * t + t * 2.0))
    return _where(x > 1e9, _call("log", x) + math.log(2), near)


def _atanh(x: _F) -> _F:
    size = _call("abs", x)
    return _copysign(_call("log1p", size * 2.0 / (1.0 - size)) * 0.5, x)


def _negative(x: _F) -> _F:
    """The sign bit: -0 is told from +0 by its reciprocal."""
    return _where(x.equals(0.0), 1.0 / x, x) < 0.0


def _copysign(x: _F, sign: _F) -> _F:
    size = _call("abs", x)
    return _where(_negative(sign), -size, size)


def _infinite(x: _F) -> _F:
    """Asked of the operand as it is stored: in 16 bits infinity is a code, which becomes a finite number in fp32."""
    return _F(Expr("isinf", "bool", (x.stored,)))


def _hypot(x: _F, y: _F) -> _F:
    """Infinite if either side is, even if the other one is NaN."""
    a, b = _call("abs", x), _call("abs", y)
    large, small = _call("maximum", a, b), _call("minimum", a, b)
    ratio = small / large
    whole = large * _call("sqrt", ratio * ratio + 1.0)
    finite = _where(large.equals(small), large * math.sqrt(2), _where(large.equals(0.0), 0.0, whole))
    return _where(_infinite(x), math.inf, _where(_infinite(y), math.inf, finite))


# Chebyshev fit of log(erfc(x) / t) + x^2 in t = 1 / (1 + x / 2), relative error 1.2e-7 (Numerical Recipes, erfcc).
ERFC = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
    -1.26551223,
)  # fmt: skip


def _erfc(x: _F) -> _F:
    size = _call("abs", x)
    t = 1.0 / (size * 0.5 + 1.0)
    tail = t * _call("exp", _polynomial(t, ERFC) - size * size)
    small = 1.0 - _call("erf", x)
    return _where(x < 0.5, small, tail)


# Giles, "Approximating the erfinv function": single precision, in w = -log(1 - x^2).
_ERFINV_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_ERFINV_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def _erfinv(x: _F) -> _F:
    w = -_call("log1p", -(x * x))
    centre = _polynomial(w - 2.5, _ERFINV_CENTRE)
    tail = _polynomial(_call("sqrt", w) - 3.0, _ERFINV_TAIL)
    inside = _where(w < 5.0, centre, tail) * x
    return _where(_call("abs", x).equals(1.0), x * math.inf, inside)


FORMULAS: dict[str, Callable[..., _F]] = {
    "log10": lambda x: _call("log2", x) * math.log10(2),
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
    "erfc": _erfc,
    "erfinv": _erfinv,
    "hypot": _hypot,
    "signbit": _negative,
    "copysign": _copysign,
}


def _formula(formula: Callable[..., _F], args: tuple[Expr, ...]) -> Expr:
    dtype = args[0].dtype
    result = formula(*(_F(cast(a, "float32"), a) for a in args)).expr
    return result if result.dtype == "bool" else cast(result, dtype)
