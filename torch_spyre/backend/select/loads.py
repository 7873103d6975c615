# SPDX-License-Identifier: Apache-2.0
"""Handlers of loads, stores, constants and tensors without contents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr
from xdsl.ir import SSAValue

from torch_spyre.backend.addressing import transfers
from torch_spyre.backend.addressing.access_tiles import Tile
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import DimMap, Extent, LayoutMap, Operand
from torch_spyre.backend.program.isa import IEEE_FP32, IEEE_INT32, Space, is_integer_type
from torch_spyre.backend.program.numbers import float_bits, round_to_type
from torch_spyre.backend.schedule.fold import element_name
from torch_spyre.backend.schedule.values import Splat, Value, clobbers, embed
from torch_spyre.backend.select.selector import Handler, Selector
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.affine import Affine


def load(selector: Selector, op: Any) -> None:
    """A load is read in place by its users.

    It is copied to scratch now if its bytes may change before that, if no instruction can use them where they are, or
    if it is `kept`: several users would each read them from memory.
    """
    access = selector.accesses.access(op.operands[0])
    tile = access.tile
    if tile is None:
        selector.bind(op.results[0], transfers.fetch(selector, access, "masked" in op.attributes))
        return
    copies_only = all(use.operation.name == "ktdp.store" for use in op.results[0].uses)
    in_place = selector.folding.reads_in_place(op) and "kept" not in op.attributes
    if not in_place or (isinstance(tile.operand.maps, LayoutMap) and not copies_only):
        tile = selector.copied(tile)
    selector.bind(op.results[0], tile)


def store(selector: Selector, op: Any) -> None:
    """A store that no instruction absorbed is a copy, or a fill."""
    value, access = op.operands[0], selector.accesses.access(op.operands[1])
    target = access.tile
    accumulate = "accumulate" in op.attributes
    pending = selector.pending.pop(value, None)
    if pending is not None:
        if target is not None and not accumulate:
            pending(target)
            return
        held = selector.new_scratch(access.dims, access.view.format)
        pending(held)
        selector.bind(value, held)
    if target is None or accumulate:
        transfers.put(selector, value, access, accumulate, "masked" in op.attributes)
        return
    if target.operand.space is Space.LX:
        selector.note_local_store()
    source = selector.value(value)
    if isinstance(source, Splat):
        _store_splat(selector, value, target)
        return
    if clobbers(target.operand, [source.operand], target.dims, selector.stream, True):
        source = selector.copied(source)
    selector.emit(asm.CopyInst(target.dims, target.operand, source.operand, origin=selector.stream.origin))


def _store_splat(selector: Selector, value: SSAValue, target: Tile) -> None:
    if not isinstance(target.operand.maps, LayoutMap):
        selector.fill(target, value)
        return
    source = selector.tile(value, target.dims)
    selector.emit(asm.CopyInst(target.dims, target.operand, source.operand, origin=selector.stream.origin))


def constant(selector: Selector, op: Any) -> None:
    attr = op.properties["value"]
    result = op.results[0]
    if isinstance(attr, FloatAttr | IntegerAttr):
        selector.bind(result, Splat(element_name(result), attr.value.data))
        return
    if not isinstance(attr, DenseIntOrFPElementsAttr):
        raise UnsupportedOp(f"constant {attr} of type {result.type}; use dense<…>")
    values = list(attr.get_values())
    element = element_name(result)
    shape = result.type.get_shape()
    dims = tuple(Extent.of(size) for size in shape)
    if attr.is_splat() or len(set(values)) == 1:
        selector.bind(result, Splat(element, values[0], dims=dims))
        return
    # Constants are kept as fp32 or int32, which hold every narrower value exactly.
    integer = is_integer_type(element)
    offset = len(selector.constants)
    for value in values:
        bits = int(value) & 0xFFFFFFFF if integer else float_bits(round_to_type(float(value), element))
        selector.constants += bits.to_bytes(4, "little")
    maps = []
    stride = 4
    for size in reversed(shape):
        maps.append(DimMap(stride))
        stride *= size
    fmt = IEEE_INT32 if integer else IEEE_FP32
    selector.bind(result, Tile(Operand(Space.CONST, fmt, Affine(offset), tuple(reversed(maps))), dims))


def empty(selector: Selector, op: Any) -> None:
    result = op.results[0]
    selector.bind(result, Splat(element_name(result), dims=_tensor_dims(selector, result, op.operands)))


def splat(selector: Selector, op: Any) -> None:
    """tensor.splat %scalar[%sizes]."""
    result = op.results[0]
    dims = _tensor_dims(selector, result, op.operands[1:])
    selector.bind(result, scalar_splat(selector, op.operands[0], element_name(result), dims))


def fill(selector: Selector, op: Any) -> None:
    """linalg.fill ins(%scalar) outs(%tensor)."""
    scalar, target = op.operands
    dims = selector.value(target).dims
    selector.bind(op.results[0], scalar_splat(selector, scalar, element_name(op.results[0]), dims))


def scalar_splat(selector: Selector, scalar: SSAValue, element: str, dims: tuple[Extent, ...] | None) -> Value:
    """A tensor that holds one scalar."""
    found = selector.value(scalar)
    if isinstance(found, Splat):
        return replace(found, dims=dims)
    if dims is None:
        raise UnsupportedOp(f"a tensor of unknown extents filled with scalar {scalar}")
    return Tile(embed(found.operand, (), len(dims)), dims)


def _tensor_dims(selector: Selector, value: SSAValue, sizes: Any) -> tuple[Extent, ...]:
    dynamic = iter(sizes)
    shape = value.type.get_shape()  # type: ignore[attr-defined]
    return tuple(selector.scalars.extent(next(dynamic)) if size < 0 else Extent.of(size) for size in shape)


def runtime_argument(selector: Selector, op: Any) -> None:
    """The value of a float runtime argument is the launch scalar itself."""
    result = op.results[0]
    selector.bind(result, Splat(element_name(result), scalar=selector.launch_scalars[op.operands[0]]))


def _nothing(selector: Selector, op: Any) -> None:
    """Descriptors and terminators give no instruction."""


HANDLERS: dict[str, Handler] = {
    "ktdp.load": load,
    "ktdp.store": store,
    "arith.constant": constant,
    "tensor.empty": empty,
    "tensor.splat": splat,
    "linalg.fill": fill,
    "ktdp.runtime_arg_extract": runtime_argument,
    "ktdp.construct_indirect_access_tile": _nothing,
    "tensor.yield": _nothing,
    "linalg.yield": _nothing,
    "func.return": _nothing,
    "scf.yield": _nothing,
}
