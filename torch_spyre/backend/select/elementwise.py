# SPDX-License-Identifier: Apache-2.0
"""Handlers of functions of corresponding elements: each is one vector operation of the card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from torch_spyre.backend.addressing.access_tiles import Tile
from torch_spyre.backend.program.assembler import Extent, Operand
from torch_spyre.backend.program.isa import IEEE_INT32, Compute, Space, format_of_type, is_integer_type
from torch_spyre.backend.schedule.fold import Sink, element_name
from torch_spyre.backend.schedule.values import Splat, embed
from torch_spyre.backend.select.selector import Handler, Selector
from torch_spyre.optable import OPS

# Operation of KTIR to vector operation of the card. The operands are the tensors of the operation, in order.
VECTOR_OPS: dict[str, str] = {spelling: row.vector for row in OPS.values() for spelling in row.spellings}
NAMED_OPS: dict[str, str] = {row.linalg: row.vector for row in OPS.values() if row.linalg}


# Bits of the elements that the card holds narrower than it computes; what these operations give there wraps around.
NARROW_BITS = {"i8": 8, "i16": 16}
_WRAPPING = ("add", "sub", "mul", "neg", "shl", "abs", "div")
_OF_TRUTH = {row.vector: row.truth_vector for row in OPS.values() if row.truth_vector}


def apply(
    selector: Selector,
    name: str,
    inputs: Sequence[SSAValue],
    result: SSAValue,
    dims: tuple[Extent, ...],
    sink: Sink | None = None,
) -> None:
    """One vector operation over `dims`. What constants alone give is computed once."""
    element = element_name(result)
    if element == "i1":
        name = _OF_TRUTH.get(name, name)
    if element in NARROW_BITS and name in _WRAPPING:
        _wrapping(selector, name, inputs, result, dims)
        return
    if dims and result.uses and all(isinstance(selector.value(value), Splat) for value in inputs):
        once = selector.new_scratch((), format_of_type(element_name(result)))
        _emit_once(selector, name, inputs, once)
        selector.bind(result, Tile(embed(once.operand, (), len(dims)), dims))
        return
    rank = len(dims)
    # With a launch scalar on both sides there may be no tensor among the inputs; the first then says the type.
    compute = Compute.I32 if is_integer_type(element_name(inputs[-1])) else Compute.F32
    operands = tuple(selector.input(value, range(rank), rank) for value in inputs)
    selector.result(
        result,
        dims,
        lambda out: selector.vop(name, compute, dims, out, operands),
        operands,
        element_for_element=True,
        sink=sink,
    )


def _wrapping(
    selector: Selector, name: str, inputs: Sequence[SSAValue], result: SSAValue, dims: tuple[Extent, ...]
) -> None:
    """A narrow integer keeps the low bits of what int32 gives; a plain store would saturate."""
    spare = Operand(Space.IMM, IEEE_INT32, bits=32 - NARROW_BITS[element_name(result)])
    operands = tuple(selector.input(value, range(len(dims)), len(dims)) for value in inputs)
    wide, high = (selector.new_scratch(dims, IEEE_INT32).operand for _ in range(2))
    selector.emit(selector.vop(name, Compute.I32, dims, wide, operands))
    selector.emit(selector.vop("shl", Compute.I32, dims, high, (wide, spare)))
    selector.result(
        result,
        dims,
        lambda out: selector.vop("shr", Compute.I32, dims, out, (high, spare)),
        (high,),
        element_for_element=True,
    )


def _emit_once(selector: Selector, name: str, inputs: Sequence[SSAValue], out: Tile) -> None:
    compute = Compute.I32 if is_integer_type(element_name(inputs[-1])) else Compute.F32
    operands = tuple(selector.input(value, (), 0) for value in inputs)
    selector.emit(selector.vop(name, compute, (), out.operand, operands))


def vector(selector: Selector, op: Any) -> None:
    values = list(op.operands)
    apply(selector, VECTOR_OPS[op.name], values, op.results[0], selector.dims_for(values, op.results[0]))


def named(selector: Selector, op: Any) -> None:
    """linalg.add and friends: inputs, then one output that only gives the shape."""
    values = list(op.operands)[:-1]
    apply(selector, NAMED_OPS[op.name], values, op.results[0], selector.dims_for(list(op.operands), op.results[0]))


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(VECTOR_OPS, vector),
    **dict.fromkeys(NAMED_OPS, named),
}
