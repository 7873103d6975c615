# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements that TTIR has and KTIR spells otherwise. `arith` and `math` are the same in both."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp, TensorType, i32
from xdsl.ir import Attribute

from torch_spyre.triton.lowering import splice
from torch_spyre.triton.lowering.elements import libdevice
from torch_spyre.triton.lowering.refusals import refusal
from torch_spyre.triton.lowering.ttir_ops import PointerType


def run(module: ModuleOp) -> None:
    for op in list(module.walk()):
        if op.name == "tt.extern_elementwise":
            splice.instead(op, *libdevice.ktir(op))
            continue
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


def _to_narrow_integer(op: Any) -> str:
    """By way of 32 bits, the low ones of which are kept."""
    given, wanted = (v.type for v in (op.operands[0], op.results[0]))
    if _element(wanted).width.data >= 32:  # type: ignore[attr-defined]
        return f"%r = {op.name} %a0 : {given} to {wanted}"
    wide = TensorType(i32, wanted.get_shape()) if isinstance(wanted, TensorType) else i32
    return f"%w = {op.name} %a0 : {given} to {wide}\n%r = arith.trunci %w : {wide} to {wanted}"


_RULES = {
    "arith.fptosi": _to_narrow_integer,
    "arith.fptoui": _to_narrow_integer,
    "tt.clampf": _clamp,
    "tt.precise_sqrt": _sqrt,
    "tt.precise_divf": _divide,
    "tt.mulhiui": _high_product,
    "tt.fp_to_fp": _convert_float,
    "tt.bitcast": _bitcast,
}
