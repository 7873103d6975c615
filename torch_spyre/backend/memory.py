# SPDX-License-Identifier: Apache-2.0
"""Handlers of loads, stores, constants and tensors without contents."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr
from xdsl.ir import Operation, SSAValue

from torch_spyre.backend import assembler as asm
from torch_spyre.backend.access import Tile
from torch_spyre.backend.affine import Affine
from torch_spyre.backend.assembler import DimMap, Extent, LayoutMap, Operand
from torch_spyre.backend.fold import element_name
from torch_spyre.backend.isa import IEEE_FP32, IEEE_INT32, Space, is_integer_type
from torch_spyre.backend.numbers import float_bits, round_to_type
from torch_spyre.backend.selector import Handler, Selector
from torch_spyre.backend.values import Splat, clobbers
from torch_spyre.errors import UnsupportedOp


def load(selector: Selector, op: Any) -> None:
    """A load is read in place by its users.

    It is copied to scratch now if its bytes may change before that, or if only a copy can address them.
    """
    tile = selector.accesses.tile(op.operands[0])
    copies_only = all(use.operation.name == "ktdp.store" for use in op.results[0].uses)
    in_place = selector.folding.reads_in_place(op)
    if not in_place or (isinstance(tile.operand.maps, LayoutMap) and not copies_only):
        copy = selector.new_scratch(tile.dims, tile.operand.format)
        selector.emit(asm.CopyInst(tile.dims, copy.operand, tile.operand, origin=selector.stream.origin))
        tile = copy
    selector.bind(op.results[0], tile)


def store(selector: Selector, op: Any) -> None:
    """A store that no instruction absorbed is a copy, or a fill."""
    value, target = op.operands[0], selector.accesses.tile(op.operands[1])
    pending = selector.pending.pop(value, None)
    if pending is not None:
        pending(target)
        return
    source = selector.value(value)
    if isinstance(source, Splat):
        _store_splat(selector, value, target)
        return
    if clobbers(target.operand, [source.operand], target.dims, selector.stream, True):
        copy = selector.new_scratch(source.dims, source.operand.format)
        selector.emit(asm.CopyInst(source.dims, copy.operand, source.operand, origin=selector.stream.origin))
        source = copy
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


def scalar_splat(selector: Selector, scalar: SSAValue, element: str, dims: tuple[Extent, ...] | None) -> Splat:
    """A tensor that holds one scalar: a constant or a launch scalar, perhaps converted."""
    narrowed: list[str] = []
    while isinstance(scalar.owner, Operation) and scalar.owner.name in ("arith.truncf", "arith.extf"):
        narrowed.append(element_name(scalar))
        scalar = scalar.owner.operands[0]
    if scalar in selector.launch_scalars:
        return Splat(element, scalar=selector.launch_scalars[scalar], dims=dims)
    owner = scalar.owner
    value = owner.properties.get("value") if isinstance(owner, Operation) and owner.name == "arith.constant" else None
    if isinstance(value, FloatAttr):
        number = round_to_type(value.value.data, element_name(scalar)) if narrowed else value.value.data
        for kind in reversed(narrowed):
            number = round_to_type(number, kind)
        return Splat(element, number, dims=dims)
    if isinstance(value, IntegerAttr):
        return Splat(element, value.value.data, dims=dims)
    raise UnsupportedOp(f"a tensor filled with scalar {scalar}; it must be a constant or a launch argument")


def _tensor_dims(selector: Selector, value: SSAValue, sizes: Any) -> tuple[Extent, ...]:
    dynamic = iter(sizes)
    shape = value.type.get_shape()  # type: ignore[attr-defined]
    return tuple(selector.scalars.extent(next(dynamic)) if size < 0 else Extent.of(size) for size in shape)


def _nothing(selector: Selector, op: Any) -> None:
    """Descriptors and terminators give no instruction."""


HANDLERS: dict[str, Handler] = {
    "ktdp.load": load,
    "ktdp.store": store,
    "arith.constant": constant,
    "tensor.empty": empty,
    "tensor.splat": splat,
    "linalg.fill": fill,
    "ktdp.construct_indirect_access_tile": _nothing,
    "func.return": _nothing,
    "scf.yield": _nothing,
}
