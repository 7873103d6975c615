# SPDX-License-Identifier: Apache-2.0
"""Handlers of the tensor operations of `spyreop`: running totals, places of extremes, sorting."""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue

from torch_spyre.backend.addressing.access_tiles import Tile
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import Extent, Operand
from torch_spyre.backend.program.isa import Compute, Rop, format_of_type, is_integer_type
from torch_spyre.backend.schedule.fold import element_name
from torch_spyre.backend.schedule.values import embed
from torch_spyre.backend.select.selector import Handler, Selector

_KINDS = {"sum": Rop.SUM, "prod": Rop.PROD, "max": Rop.MAX, "min": Rop.MIN}


def _source(selector: Selector, value: SSAValue) -> Tile:
    dims = selector.dims_for([value], value)
    return selector.tile(value, dims)


def scan(selector: Selector, op: Any) -> None:
    """Accumulates in fp32 or int32; every element is rounded once."""
    source = _source(selector, op.operands[0])
    rop, dim = _KINDS[op.properties["kind"].data], op.properties["dimension"].value.data
    compute = Compute.I32 if is_integer_type(element_name(op.operands[0])) else Compute.F32
    origin = selector.stream.origin
    selector.result(
        op.results[0],
        source.dims,
        lambda out: asm.ScanInst(rop, compute, dim, source.dims, out, source.operand, origin=origin),
        [source.operand],
    )


def _output(selector: Selector, result: SSAValue, dims: tuple[Extent, ...]) -> Operand | None:
    """A place for a result, if somebody uses it."""
    if not result.uses:
        return None
    tile = selector.new_scratch(dims, format_of_type(element_name(result)))
    selector.bind(result, tile)
    return tile.operand


def arg_reduce(selector: Selector, op: Any) -> None:
    source = _source(selector, op.operands[0])
    rop, dim = _KINDS[op.properties["kind"].data], op.properties["dimension"].value.data
    rank = len(source.dims)
    kept = [d for d in range(rank) if d != dim]
    outs = [_output(selector, result, tuple(source.dims[d] for d in kept)) for result in op.results]
    if outs == [None, None]:
        return
    index, value = (None if out is None else embed(out, kept, rank) for out in outs)
    origin = selector.stream.origin
    selector.emit(asm.ArgReduceInst(rop, dim, source.dims, index, value, source.operand, origin=origin))


def sort(selector: Selector, op: Any) -> None:
    source = _source(selector, op.operands[0])
    properties = op.properties
    dim, k = properties["dimension"].value.data, properties["k"].value.data
    dims = tuple(Extent.of(k) if d == dim else extent for d, extent in enumerate(source.dims))
    descending, stable = (bool(properties[name].value.data) for name in ("descending", "stable"))
    origin = selector.stream.origin

    def make(value: Operand | None, index: Operand | None) -> asm.Instruction:
        return asm.SortInst(dim, descending, stable, k, source.dims, value, index, source.operand, origin=origin)

    used = [result for result in op.results if result.uses]
    if selector.spare_scratch and len(used) == 1:  # a row may be longer than a scratchpad: it goes where it is stored
        first = used[0] is op.results[0]
        sorted_into = (lambda out: make(out, None)) if first else (lambda out: make(None, out))
        selector.result(used[0], dims, sorted_into, [source.operand])
    elif used:
        selector.emit(make(*(_output(selector, result, dims) for result in op.results)))


HANDLERS: dict[str, Handler] = {
    "spyreop.scan": scan,
    "spyreop.arg_reduce": arg_reduce,
    "spyreop.sort": sort,
}
