# SPDX-License-Identifier: Apache-2.0
"""Handlers of conversions between element types. The result type decides; every value is rounded to its type.

A conversion costs nothing where the instruction that reads the value converts anyway.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from torch_spyre.backend.addressing.access_tiles import Tile
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import Operand
from torch_spyre.backend.program.isa import IEEE_FP32, IEEE_INT32, Compute, Space, format_of_type, is_integer_type
from torch_spyre.backend.program.numbers import float_bits, round_to_type
from torch_spyre.backend.schedule.fold import element_name
from torch_spyre.backend.schedule.values import Splat, embed
from torch_spyre.backend.select.elementwise import VECTOR_OPS
from torch_spyre.backend.select.selector import Handler, Selector
from torch_spyre.errors import UnsupportedOp

_WIDE_INTEGERS = ("i32", "si32", "ui32", "i64", "si64", "index")


def widen(selector: Selector, op: Any) -> None:
    """Conversions that users do when they read: extf, uitofp of truth values, and integers to what they compute in."""
    source, result = selector.value(op.operands[0]), op.results[0]
    if op.name != "arith.extf" and not _read_as(op):
        convert(selector, op)
    elif isinstance(source, Splat):
        _convert_splat(selector, op, source)
    else:
        selector.bind(result, source)


def _convert_splat(selector: Selector, op: Any, source: Splat) -> None:
    """A launch scalar is an integer or an fp32 number; as the other kind it has to be computed, once."""
    result = op.results[0]
    given, wanted = source.element, element_name(result)
    if source.scalar is None or is_integer_type(given) == is_integer_type(wanted):
        selector.bind(result, converted_splat(source, wanted))
        return
    compute = Compute.I32 if is_integer_type(given) else Compute.F32
    operand, once = selector.input(op.operands[0], (), 0), selector.new_scratch((), format_of_type(wanted))
    selector.emit(selector.vop("identity", compute, (), once.operand, (operand,)))
    dims = source.dims or ()
    selector.bind(result, Tile(embed(once.operand, (), len(dims)), dims))


def _read_as(op: Any) -> bool:
    """True if every user turns its inputs into fp32 or int32 anyway."""
    given, wanted = element_name(op.operands[0]), element_name(op.results[0])
    if given == "i1":
        return bool(op.name == "arith.uitofp")
    wide = wanted == "f32" or wanted in _WIDE_INTEGERS
    return wide and all(use.operation.name in VECTOR_OPS for use in op.results[0].uses)


def convert(selector: Selector, op: Any) -> None:
    """A conversion that is not folded into the computation before it is a copy."""
    source, result = selector.value(op.operands[0]), op.results[0]
    given = element_name(op.operands[0])
    if isinstance(source, Splat):
        _convert_splat(selector, op, source)
        return
    if given == "i1" and op.name in ("arith.sitofp", "arith.extsi"):  # a true i1 is -1
        _vector(selector, op, source, "neg", Compute.F32)
        return
    dims = source.dims or selector.context
    origin = selector.stream.origin
    operand = source.operand if source.dims else selector.input(op.operands[0], range(len(dims)), len(dims))
    selector.result(
        result,
        dims,
        lambda out: asm.CopyInst(dims, out, operand, origin=origin),
        [operand],
        element_for_element=True,
    )


def _vector(selector: Selector, op: Any, source: Tile, name: str, compute: Compute, *more: Operand) -> None:
    dims = source.dims or selector.context
    operand = selector.input(op.operands[0], range(len(dims)), len(dims))
    selector.result(
        op.results[0],
        dims,
        lambda out: selector.vop(name, compute, dims, out, (operand, *more)),
        [operand],
        element_for_element=True,
    )


def same(selector: Selector, op: Any) -> None:
    """index_cast and extensions between integers that the card holds alike."""
    source, result = selector.value(op.operands[0]), op.results[0]
    if element_name(op.operands[0]) == "i1" and op.name != "arith.extui":
        convert(selector, op)
    elif isinstance(source, Splat):
        selector.bind(result, converted_splat(source, element_name(result)))
    elif element_name(result) in _WIDE_INTEGERS and selector.is_integer(source.operand.format):
        selector.bind(result, source)
    else:
        convert(selector, op)


def truncate(selector: Selector, op: Any) -> None:
    """trunci keeps low bits."""
    source, result = selector.value(op.operands[0]), op.results[0]
    wanted = element_name(result)
    if isinstance(source, Splat):
        selector.bind(result, converted_splat(source, wanted))
        return
    if wanted in _WIDE_INTEGERS:
        selector.bind(result, source)
        return
    if wanted == "i1":
        _vector(selector, op, source, "bit_and", Compute.I32, Operand(Space.IMM, IEEE_INT32, bits=1))
        return
    shift = Operand(Space.IMM, IEEE_INT32, bits={"i8": 24, "i16": 16}[wanted])
    dims = source.dims or selector.context
    operand = selector.input(op.operands[0], range(len(dims)), len(dims))
    high = selector.new_scratch(dims, IEEE_INT32).operand
    selector.emit(selector.vop("shl", Compute.I32, dims, high, (operand, shift)))
    selector.result(
        result,
        dims,
        lambda out: selector.vop("shr", Compute.I32, dims, out, (high, shift)),
        [high],
        element_for_element=True,
    )


def bitcast(selector: Selector, op: Any) -> None:
    """The same 32 bits as another type. The bits of 16-bit floats are the card's own and mean nothing elsewhere."""
    source, result = selector.value(op.operands[0]), op.results[0]
    given, wanted = element_name(op.operands[0]), element_name(result)
    formats = {"f32": IEEE_FP32} | dict.fromkeys(("i32", "si32", "ui32"), IEEE_INT32)
    if given == wanted or (given in formats and formats.get(wanted) == formats[given]):
        selector.bind(result, source if isinstance(source, Tile) else replace(source, element=wanted))
        return
    if given not in formats or wanted not in formats:
        raise UnsupportedOp(f"arith.bitcast from {given} to {wanted}; bits are only kept between f32 and i32")
    if isinstance(source, Splat):
        if source.value is None:
            raise UnsupportedOp("arith.bitcast of a launch scalar or of an empty tensor; store it first")
        bits = float_bits(source.value) if given == "f32" else int(source.value) & 0xFFFFFFFF
        kind = "<f" if wanted == "f32" else "<i"
        selector.bind(result, replace(source, element=wanted, value=struct.unpack(kind, struct.pack("<I", bits))[0]))
        return
    if source.operand.format != formats[given]:  # a value that has not been converted yet
        tile = selector.new_scratch(source.dims, formats[given])
        selector.emit(asm.CopyInst(tile.dims, tile.operand, source.operand, origin=selector.stream.origin))
        source = tile
    selector.bind(result, replace(source, operand=replace(source.operand, format=formats[wanted])))


def converted_splat(source: Splat, element: str) -> Splat:
    if source.value is None:
        return replace(source, element=element)
    value: float | int = round_to_type(source.value, source.element)
    if is_integer_type(element):
        value = int(value)
        bits = {"i8": 8, "i16": 16}.get(element, 32)
        value = (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    elif element == "i1":
        value = int(value) & 1
    else:
        value = float(value)
    return replace(source, value=value, element=element)


HANDLERS: dict[str, Handler] = {
    "arith.extf": widen,
    "arith.truncf": convert,
    "arith.sitofp": widen,
    "arith.fptosi": convert,
    "arith.extsi": same,
    "arith.trunci": truncate,
    "arith.index_cast": same,
    "arith.bitcast": bitcast,
}
