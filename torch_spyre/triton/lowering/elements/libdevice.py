# SPDX-License-Identifier: Apache-2.0
"""Functions of CUDA's libdevice, which Triton's own module names, as KTIR."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from xdsl.dialects.builtin import Float32Type, IntegerType, TensorType, i1, i32, i64
from xdsl.ir import Attribute

from torch_spyre.triton.lowering.accesses.ktir_lines import Text
from torch_spyre.triton.lowering.refusals import refusal

_F32 = Float32Type()


class _Lines:
    """KTIR over scalars or tiles of one shape; values are named by their text."""

    def __init__(self, kind: Attribute, text: Text) -> None:
        self._shape = tuple(kind.get_shape()) if isinstance(kind, TensorType) else None
        self._text = text

    def type(self, element: Attribute) -> str:
        return str(element if self._shape is None else TensorType(element, self._shape))

    def number(self, value: float, element: Attribute = _F32) -> str:
        what = str(int(value)) if isinstance(element, IntegerType) else f"{value:.9e}"
        if value == math.inf:
            what = "0x7F800000"  # of a scalar: among the elements of a tensor it would be an integer
        scalar = self._text.name(f"arith.constant {what} : {element}")
        return scalar if self._shape is None else self._text.name(f"tensor.splat {scalar} : {self.type(element)}")

    def __call__(self, operation: str, *operands: str, of: Attribute = _F32) -> str:
        return self._text.name(f"{operation} {', '.join(operands)} : {self.type(of)}")

    def convert(self, operation: str, value: str, given: Attribute, wanted: Attribute) -> str:
        return self._text.name(f"{operation} {value} : {self.type(given)} to {self.type(wanted)}")

    def truth(self, predicate: str, a: str, b: str, of: Attribute = _F32) -> str:
        """1 or 0 as i32, which is what libdevice gives for a truth value."""
        compare = "arith.cmpi" if isinstance(of, IntegerType) else "arith.cmpf"
        return self.convert("arith.extui", self(f"{compare} {predicate},", a, b, of=of), i1, i32)

    def choose(self, predicate: str, a: str, b: str, then: str, other: str) -> str:
        condition = self(f"arith.cmpf {predicate},", a, b)
        kinds = self.type(_F32) if self._shape is None else f"{self.type(i1)}, {self.type(_F32)}"
        return self._text.name(f"arith.select {condition}, {then}, {other} : {kinds}")


def _reciprocal(make: _Lines, a: str) -> str:
    return make("arith.divf", make.number(1), a)


def _rcbrt(make: _Lines, a: str) -> str:
    return _reciprocal(make, make("math.cbrt", a))


def _exp10(make: _Lines, a: str) -> str:
    return make("math.powf", make.number(10), a)


def _fdim(make: _Lines, a: str, b: str) -> str:
    return make("arith.maximumf", make("arith.subf", a, b), make.number(0))


def _hypot(make: _Lines, a: str, b: str) -> str:
    """The larger size times the root of 1 plus the square of the quotient, which does not overflow."""
    a, b = make("math.absf", a), make("math.absf", b)
    large, small = make("arith.maximumf", a, b), make("arith.minimumf", a, b)
    quotient = make("arith.divf", small, large)
    root = make("math.sqrt", make("math.fma", quotient, quotient, make.number(1)))
    zero = make.number(0)
    return make.choose("ogt", small, zero, make("arith.mulf", large, root), make("arith.addf", large, small))


def _saturate(make: _Lines, a: str) -> str:
    return make("arith.minnumf", make("arith.maxnumf", a, make.number(0)), make.number(1))


def _half_turns(function: str) -> Callable[..., str]:
    """sin or cos of pi times a number, of which whole turns are taken off first."""

    def rule(make: _Lines, a: str) -> str:
        turns = make("math.roundeven", make("arith.mulf", a, make.number(0.5)))
        rest = make("arith.subf", a, make("arith.mulf", turns, make.number(2)))
        return make(function, make("arith.mulf", rest, make.number(math.pi)))

    return rule


def _erfc(make: _Lines, a: str) -> str:
    """1 - erf, and beyond 1/2 the fit that compiled graphs use, whose relative error stays small."""
    from torch_spyre._inductor.tilegraph.scalar_functions import ERFC  # late: Inductor

    size = make("math.absf", a)
    t = make("arith.divf", make.number(1), make("math.fma", size, make.number(0.5), make.number(1)))
    power = make.number(ERFC[0])
    for coefficient in ERFC[1:]:
        power = make("math.fma", power, t, make.number(coefficient))
    tail = make("arith.mulf", t, make("math.exp", make("arith.subf", power, make("arith.mulf", size, size))))
    small = make("arith.subf", make.number(1), make("math.erf", a))
    return make.choose("olt", a, make.number(0.5), small, tail)


def _normcdf(make: _Lines, a: str) -> str:
    return make("arith.mulf", _erfc(make, make("arith.mulf", a, make.number(-math.sqrt(0.5)))), make.number(0.5))


def _isnan(make: _Lines, a: str) -> str:
    return make.truth("une", a, a)


def _isinf(make: _Lines, a: str) -> str:
    return make.truth("oeq", make("math.absf", a), make.number(math.inf))


def _isfinite(make: _Lines, a: str) -> str:
    return make.truth("olt", make("math.absf", a), make.number(math.inf))


def _signbit(make: _Lines, a: str) -> str:
    return make.truth("slt", make.convert("arith.bitcast", a, _F32, i32), make.number(0, i32), of=i32)


def _scaled(make: _Lines, a: str, n: str) -> str:
    return make("arith.mulf", a, make("math.exp2", make.convert("arith.sitofp", n, i32, _F32)))


def _to_integer(rounding: str | None, wanted: Attribute) -> Callable[..., str]:
    def rule(make: _Lines, a: str) -> str:
        whole = make(rounding, a) if rounding else a
        return make.convert("arith.fptosi", whole, _F32, wanted)

    return rule


def _converted(operation: str, given: Attribute, wanted: Attribute) -> Callable[..., str]:
    return lambda make, a: make.convert(operation, a, given, wanted)


def _named(operation: str, of: Attribute = _F32) -> Callable[..., str]:
    return lambda make, *operands: make(operation, *operands, of=of)


_ROUNDINGS = {"rn": "math.roundeven", "rd": "math.floor", "ru": "math.ceil", "rz": None}

_SAME_NAME = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos",
    "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "floor", "ceil", "trunc", "round",
    "cbrt", "copysign", "fma",
)  # fmt: skip

# By the names without `__nv_` and without the `f` of single precision. The card rounds to nearest: `…_rn`.
_FUNCTIONS: dict[str, Callable[..., str]] = {
    **{name: _named(f"math.{name}") for name in _SAME_NAME},
    "fabs": _named("math.absf"),
    "abs": _named("math.absi", i32),
    "rint": _named("math.roundeven"),
    "nearbyint": _named("math.roundeven"),
    "pow": _named("math.powf"),
    "powi": lambda make, a, n: make("math.powf", a, make.convert("arith.sitofp", n, i32, _F32)),
    "fmod": _named("arith.remf"),
    "fmax": _named("arith.maxnumf"),
    "fmin": _named("arith.minnumf"),
    "fdim": _fdim,
    "hypot": _hypot,
    "exp10": _exp10,
    "erfc": _erfc,
    "normcdf": _normcdf,
    "rcbrt": _rcbrt,
    "saturate": _saturate,
    "sinpi": _half_turns("math.sin"),
    "cospi": _half_turns("math.cos"),
    "ldexp": _scaled,
    "scalbn": _scaled,
    "isnan": _isnan,
    "isinf": _isinf,
    "finite": _isfinite,
    "signbit": _signbit,
    "fdivide": _named("arith.divf"),
    "fadd_rn": _named("arith.addf"),
    "fsub_rn": _named("arith.subf"),
    "fmul_rn": _named("arith.mulf"),
    "fdiv_rn": _named("arith.divf"),
    "fma_rn": _named("math.fma"),
    "frcp_rn": _reciprocal,
    "fsqrt_rn": _named("math.sqrt"),
    "frsqrt_rn": _named("math.rsqrt"),
    "float_as_int": _converted("arith.bitcast", _F32, i32),
    "float_as_uint": _converted("arith.bitcast", _F32, i32),
    "int_as_float": _converted("arith.bitcast", i32, _F32),
    "uint_as_float": _converted("arith.bitcast", i32, _F32),
    "int2float_rn": _converted("arith.sitofp", i32, _F32),
    "ll2float_rn": _converted("arith.sitofp", i64, _F32),
    "llrint": _to_integer("math.roundeven", i64),
    "llround": _to_integer("math.round", i64),
    **{f"float2int_{way}": _to_integer(op, i32) for way, op in _ROUNDINGS.items()},
    **{f"float2ll_{way}": _to_integer(op, i64) for way, op in _ROUNDINGS.items()},
}


def _rule(symbol: str) -> Callable[..., str] | None:
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    for spelled in (name, name.removesuffix("f"), name.replace("f_r", "_r")):
        if spelled in _FUNCTIONS:
            return _FUNCTIONS[spelled]
    return None


def ktir(op: Any) -> tuple[str, dict[str, Any]]:
    """What stands for a call: lines, the last of which gives its result, and the values that they name."""
    symbol = op.attributes["symbol"].data
    rule = _rule(symbol)
    elements = [str(v.type.element_type if isinstance(v.type, TensorType) else v.type) for v in op.operands]
    if rule is None or "f64" in elements:
        raise refusal(op, f"libdevice function {symbol}; there are {', '.join(sorted(_FUNCTIONS))} of float32")
    text = Text()
    rule(_Lines(op.results[0].type, text), *(text.value(value) for value in op.operands))
    return "\n".join(text.lines), text.values
