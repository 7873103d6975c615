# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements that TTIR has and KTIR spells otherwise. `arith` and `math` are the same in both."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Attribute

from torch_spyre.triton.lowering import splice
from torch_spyre.triton.lowering.refusals import refusal
from torch_spyre.triton.lowering.ttir_ops import PointerType


def run(module: ModuleOp) -> None:
    for op in list(module.walk()):
        rule = _RULES.get(op.name)
        if rule is not None and not isinstance(_element(op.results[0].type), PointerType):
            splice.instead(op, rule(op), {f"a{i}": value for i, value in enumerate(op.operands)})


def _element(type_: Attribute) -> Attribute:
    return type_.element_type if isinstance(type_, TensorType) else type_


def _clamp(op: Any) -> str:
    kind = op.results[0].type
    keeps_nan = "all" in str(op.attributes.get("propagateNan", ""))
    low, high = ("arith.maximumf", "arith.minimumf") if keeps_nan else ("arith.maxnumf", "arith.minnumf")
    return f"%l = {low} %a0, %a1 : {kind}\n%r = {high} %l, %a2 : {kind}"


def _sqrt(op: Any) -> str:
    return f"%r = math.sqrt %a0 : {op.results[0].type}"


def _divide(op: Any) -> str:
    return f"%r = arith.divf %a0, %a1 : {op.results[0].type}"


def _constant(value: int, kind: Attribute) -> str:
    return (
        f"arith.constant dense<{value}> : {kind}"
        if isinstance(kind, TensorType)
        else f"arith.constant {value} : {kind}"
    )


def _high_product(op: Any) -> str:
    """The upper 32 bits of a product of 32-bit numbers, from products of 16-bit halves, which fit 32 bits."""
    kind = op.results[0].type
    if str(_element(kind)) != "i32":
        raise refusal(op, f"the upper half of a product of {_element(kind)}; take 32-bit integers")
    lines = [f"%low = {_constant(0xFFFF, kind)}", f"%half = {_constant(16, kind)}"]

    def line(name: str, operation: str, *operands: str) -> None:
        lines.append(f"%{name} = arith.{operation} {', '.join(f'%{o}' for o in operands)} : {kind}")

    for name in ("a0", "a1"):
        line(f"{name}l", "andi", name, "low")
        line(f"{name}h", "shrui", name, "half")
    line("p", "muli", "a0l", "a1l")
    line("pc", "shrui", "p", "half")
    line("q", "muli", "a0h", "a1l")
    line("qs", "addi", "q", "pc")
    line("ql", "andi", "qs", "low")
    line("qh", "shrui", "qs", "half")
    line("s", "muli", "a0l", "a1h")
    line("ss", "addi", "s", "ql")
    line("sh", "shrui", "ss", "half")
    line("t", "muli", "a0h", "a1h")
    line("u", "addi", "t", "qh")
    line("r", "addi", "u", "sh")
    return "\n".join(lines)


def _convert_float(op: Any) -> str:
    given, wanted = (_element(v.type) for v in (op.operands[0], op.results[0]))
    widens = given.bitwidth < wanted.bitwidth  # type: ignore[attr-defined]
    name = "arith.extf" if widens else "arith.truncf"
    return f"%r = {name} %a0 : {op.operands[0].type} to {op.results[0].type}"


def _bitcast(op: Any) -> str:
    given, wanted = (str(_element(v.type)) for v in (op.operands[0], op.results[0]))
    if given != wanted and {given, wanted} != {"f32", "i32"}:  # equal: signed as unsigned
        raise refusal(op, f"the bits of {given} as {wanted}; the card keeps 16-bit floats in a format of its own")
    return f"%r = arith.bitcast %a0 : {op.operands[0].type} to {op.results[0].type}"


# libdevice functions by their names without `__nv_` and the `f` of single precision
_FUNCTIONS = {
    "exp": "math.exp",
    "exp2": "math.exp2",
    "expm1": "math.expm1",
    "log": "math.log",
    "log2": "math.log2",
    "log1p": "math.log1p",
    "sqrt": "math.sqrt",
    "rsqrt": "math.rsqrt",
    "sin": "math.sin",
    "cos": "math.cos",
    "tan": "math.tan",
    "tanh": "math.tanh",
    "erf": "math.erf",
    "fabs": "math.absf",
    "floor": "math.floor",
    "ceil": "math.ceil",
    "pow": "math.powf",
    "fmax": "arith.maxnumf",
    "fmin": "arith.minnumf",
}


def _library(op: Any) -> str:
    symbol = op.attributes["symbol"].data
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    function = _FUNCTIONS.get(name) or _FUNCTIONS.get(name.removesuffix("f"))
    if function is None or str(_element(op.results[0].type)) != "f32":
        raise refusal(op, f"libdevice function {symbol}; there are {', '.join(_FUNCTIONS)} of float32")
    operands = ", ".join(f"%a{i}" for i in range(len(op.operands)))
    return f"%r = {function} {operands} : {op.results[0].type}"


_RULES = {
    "tt.clampf": _clamp,
    "tt.precise_sqrt": _sqrt,
    "tt.precise_divf": _divide,
    "tt.mulhiui": _high_product,
    "tt.fp_to_fp": _convert_float,
    "tt.bitcast": _bitcast,
    "tt.extern_elementwise": _library,
}
