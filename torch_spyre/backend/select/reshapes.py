# SPDX-License-Identifier: Apache-2.0
"""Handlers of tensor operations that rename, select or move elements and compute nothing.

Most only change the maps of the tile that holds the value. Where maps cannot say it, the value is copied to scratch
first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.ir import SSAValue

from torch_spyre.backend.addressing.access_tiles import Tile
from torch_spyre.backend.addressing.memory_views import kept_dims, mixed
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import DimMap, Extent, LayoutMap
from torch_spyre.backend.program.isa import Sop, format_of_type
from torch_spyre.backend.schedule.fold import element_name
from torch_spyre.backend.schedule.values import Splat, is_linear, sub_box
from torch_spyre.backend.select.selector import Handler, Selector
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.affine import ZERO, Affine, is_data


def shape_of(value: SSAValue) -> tuple[int, ...]:
    return tuple(value.type.get_shape())  # type: ignore[attr-defined]


def static_dims(selector: Selector, value: SSAValue) -> tuple[Extent, ...]:
    shape = shape_of(value)
    if DYNAMIC_INDEX in shape:
        raise UnsupportedOp(f"{selector.stream.origin}: a reshape to {value.type}; its sizes must be static")
    return tuple(Extent.of(size) for size in shape)


# -- shapes ------------------------------------------------------------------------------------------------------------


def collapse(selector: Selector, op: Any) -> None:
    """tensor.collapse_shape: each group of dims becomes one."""
    groups = [[i.value.data for i in group.data] for group in op.properties["reassociation"].data]
    source, result = selector.value(op.operands[0]), op.results[0]
    if isinstance(source, Splat):
        dims = None if DYNAMIC_INDEX in shape_of(result) else static_dims(selector, result)
        selector.bind(result, replace(source, dims=dims))
        return
    merged = [_merge(source, group) for group in groups]
    if any(m is None for m in merged):
        source = selector.copied(source)
        merged = [_merge(source, group) for group in groups]
    if any(m is None for m in merged):
        raise UnsupportedOp(f"{selector.stream.origin}: collapse of dims whose sizes are known only at launch")
    pairs = [m for m in merged if m is not None]
    maps, dims = tuple(m for m, _ in pairs), tuple(e for _, e in pairs)
    selector.bind(result, Tile(replace(source.operand, maps=maps), dims, source.view))


def _merge(tile: Tile, group: Sequence[int]) -> tuple[DimMap, Extent] | None:
    """One map for several dims, slowest first: strides that continue each other, or one stick."""
    maps = tile.operand.maps
    if isinstance(maps, LayoutMap):
        return None
    moving = [d for d in group if not (tile.dims[d].is_const and tile.dims[d].cap == 1)]
    if not moving:
        return DimMap(), Extent.of(1)
    inner = moving[-1]
    merged, extent = maps[inner], tile.dims[inner]
    for d in reversed(moving[:-1]):
        outer = maps[d]
        if not extent.is_const or outer.block:
            return None
        size = extent.cap
        if merged.block == 0 and outer.inner == merged.inner * size:
            pass
        elif merged.block == 0:
            merged = DimMap(merged.inner, size, outer.inner)
        elif size % merged.block or outer.inner != size // merged.block * merged.outer:
            return None
        limit = tile.dims[d]
        extent = Extent(limit.affine * size, limit.cap * size)
    return merged, extent


def expand(selector: Selector, op: Any) -> None:
    """tensor.expand_shape: one dim becomes several."""
    groups = [[i.value.data for i in group.data] for group in op.properties["reassociation"].data]
    source, result = selector.value(op.operands[0]), op.results[0]
    sizes = iter(op.operands[1:])
    static = op.properties["static_output_shape"].get_values()
    dims = tuple(selector.scalars.extent(next(sizes)) if s == DYNAMIC_INDEX else Extent.of(s) for s in static)
    if isinstance(source, Splat):
        selector.bind(result, replace(source, dims=dims))
        return
    maps = _split(source, groups, dims)
    if maps is None:
        source = selector.copied(source)
        maps = _split(source, groups, dims)
    if maps is None:
        raise UnsupportedOp(f"{selector.stream.origin}: expand of a dim whose size is known only at launch")
    selector.bind(result, Tile(replace(source.operand, maps=maps), dims, source.view))


def _split(tile: Tile, groups: Sequence[Sequence[int]], dims: tuple[Extent, ...]) -> tuple[DimMap, ...] | None:
    own = tile.operand.maps
    if isinstance(own, LayoutMap):
        return None
    maps = [DimMap()] * len(dims)
    for source_dim, group in enumerate(groups):
        below = 1
        for d in reversed(group):
            part = _part_of(own[source_dim], below, dims[d].cap)
            if part is None:
                return None
            maps[d] = part
            if not dims[d].is_const and d != group[0]:
                return None
            below *= dims[d].cap
    return tuple(maps)


def _part_of(dim_map: DimMap, below: int, size: int) -> DimMap | None:
    """The map of digit ``(v // below) % size`` of a dim."""
    if size == 1:
        return DimMap()
    if dim_map.block == 0:
        return DimMap(dim_map.inner * below)
    if below * size <= dim_map.block and dim_map.block % (below * size) == 0:
        return DimMap(dim_map.inner * below)
    if below >= dim_map.block and below % dim_map.block == 0:
        return DimMap(below // dim_map.block * dim_map.outer)
    if dim_map.block % below == 0 and (below * size) % dim_map.block == 0:
        return DimMap(dim_map.inner * below, dim_map.block // below, dim_map.outer)
    return None


def reshape(selector: Selector, op: Any) -> None:
    """tensor.reshape: row-major order stays."""
    source, result = selector.value(op.operands[0]), op.results[0]
    dims = static_dims(selector, result)
    if isinstance(source, Splat):
        selector.bind(result, replace(source, dims=dims))
        return
    if not all(extent.is_const for extent in source.dims):
        raise UnsupportedOp(
            f"{selector.stream.origin}: tensor.reshape of a tensor whose sizes are known only at launch"
        )
    flat = _merge(source, range(len(source.dims))) if source.dims else (DimMap(), Extent.of(1))
    maps = None if flat is None else _split_flat(flat[0], dims)
    if maps is None:
        source = selector.copied(source)
        merged = _merge(source, range(len(source.dims)))
        assert merged is not None  # a dense copy always merges
        maps = _split_flat(merged[0], dims)
        assert maps is not None
    selector.bind(result, Tile(replace(source.operand, maps=maps), dims, source.view))


def _split_flat(flat: DimMap, dims: tuple[Extent, ...]) -> tuple[DimMap, ...] | None:
    maps: list[DimMap] = []
    below = 1
    for extent in reversed(dims):
        part = _part_of(flat, below, extent.cap)
        if part is None:
            return None
        maps.append(part)
        below *= extent.cap
    return tuple(reversed(maps))


def cast(selector: Selector, op: Any) -> None:
    """tensor.cast only changes what the type says."""
    selector.bind(op.results[0], selector.value(op.operands[0]))


def dim(selector: Selector, op: Any) -> None:
    """tensor.dim and memref.dim."""
    source, which = op.operands
    d = selector.scalars.constant(which)
    if d is None:
        raise UnsupportedOp("the size of a dim that is known only at launch")
    size = shape_of(source)[d]
    if size != DYNAMIC_INDEX:
        selector.scalars.bind(op.results[0], Affine(size))
        return
    if not isinstance(source.type, TensorType):
        selector.scalars.bind(op.results[0], selector.accesses.views.view(source).parts[0].highs[d] + 1)
        return
    dims = selector.value(source).dims
    if dims is None:
        raise UnsupportedOp(f"the size of dim {d} of a {source.type} is not known")
    limited = selector.stream.scalar(Sop.MIN, dims[d].affine, Affine(dims[d].cap))
    selector.scalars.bind(op.results[0], selector.stream.scalar(Sop.MAX, limited, ZERO))


# -- parts -------------------------------------------------------------------------------------------------------------


def _slice_of(selector: Selector, op: Any) -> tuple[list[Affine], list[Extent], list[int]]:
    """Offsets, sizes and strides of a slice."""
    scalars = selector.scalars
    offsets = [
        Affine(v) if isinstance(v, int) else scalars.affine(v)
        for v in mixed(op.properties["static_offsets"].get_values(), op.offsets)
    ]
    sizes = [
        Extent.of(v) if isinstance(v, int) else scalars.extent(v)
        for v in mixed(op.properties["static_sizes"].get_values(), op.sizes)
    ]
    strides = [
        v if isinstance(v, int) else scalars.constant(v)
        for v in mixed(op.properties["static_strides"].get_values(), op.strides)
    ]
    if any(s is None for s in strides):
        raise UnsupportedOp(f"{op.name} with a stride that is known only at launch")
    return offsets, sizes, [s for s in strides if s is not None]


def _kept(sizes: Sequence[Extent], shape: Sequence[int]) -> list[int]:
    known = [e.cap if e.is_const else DYNAMIC_INDEX for e in sizes]
    if len(sizes) == len(shape):
        return list(range(len(shape)))
    return kept_dims(known, shape)


def _check_inside(
    selector: Selector, whole: Sequence[Extent], offsets: Sequence[Affine], sizes: Sequence[Extent]
) -> None:
    for d, (extent, offset, size) in enumerate(zip(whole, offsets, sizes, strict=True)):
        if any(is_data(symbol) for symbol, _ in offset.terms):
            raise UnsupportedOp(
                f"{selector.stream.origin}: a slice at an index that is read from a tensor; load through an index view"
            )
        low, high = selector.stream.bounds(offset)
        if (low is not None and low < 0) or (high is not None and size.is_const and high + size.cap > extent.cap):
            raise UnsupportedOp(
                f"{selector.stream.origin}: a slice from {offset} of {size} elements in dim {d} of {extent}; "
                "slices must stay inside the tensor"
            )


def _part(selector: Selector, tile: Tile, offsets: Sequence[Affine], strides: Sequence[int]) -> Tile:
    """The tile from `offsets` on with every stride-th element; dims unchanged."""
    moves = any(offset != ZERO for offset in offsets) or any(s != 1 for s in strides)
    if moves and not is_linear(tile.operand):
        tile = selector.copied(tile)
    if not moves:
        return tile
    operand = sub_box(tile.operand, offsets)
    maps = tuple(DimMap(m.inner * s) for m, s in zip(operand.maps, strides, strict=True))  # type: ignore[arg-type]
    return Tile(replace(operand, maps=maps), tile.dims, tile.view)


def extract_slice(selector: Selector, op: Any) -> None:
    offsets, sizes, strides = _slice_of(selector, op)
    result = op.results[0]
    kept = _kept(sizes, shape_of(result))
    dims = tuple(sizes[d] for d in kept)
    source = selector.value(op.operands[0])
    if isinstance(source, Splat):
        selector.bind(result, replace(source, dims=dims))
        return
    ends = [Extent.of((e.cap - 1) * s + 1) if e.is_const and e.cap else e for e, s in zip(sizes, strides, strict=True)]
    _check_inside(selector, source.dims, offsets, ends)
    part = _part(selector, source, offsets, strides)
    maps = tuple(part.operand.maps[d] for d in kept)  # type: ignore[index]
    selector.bind(result, Tile(replace(part.operand, maps=maps), dims, part.view))


def parallel_insert_slice(selector: Selector, op: Any) -> None:
    """Writes a slice of a shared output in place."""
    offsets, sizes, strides = _slice_of(selector, op)
    whole = selector.value(op.operands[1])
    assert isinstance(whole, Tile)  # scf.forall puts its outputs in scratch
    _insert(selector, op.operands[0], whole, offsets, sizes, strides)


def insert_slice(selector: Selector, op: Any) -> None:
    """A copy of the destination with a slice replaced."""
    offsets, sizes, strides = _slice_of(selector, op)
    whole = _own_copy(selector, op.operands[1])
    _insert(selector, op.operands[0], whole, offsets, sizes, strides)
    selector.bind(op.results[0], whole)


def _insert(
    selector: Selector,
    source: SSAValue,
    whole: Tile,
    offsets: Sequence[Affine],
    sizes: Sequence[Extent],
    strides: Sequence[int],
) -> None:
    _check_inside(selector, whole.dims, offsets, sizes)
    part = _part(selector, whole, offsets, strides)
    kept = _kept(sizes, shape_of(source))
    maps = tuple(part.operand.maps[d] for d in kept)  # type: ignore[index]
    write(selector, source, Tile(replace(part.operand, maps=maps), tuple(sizes[d] for d in kept)))


def _own_copy(selector: Selector, value: SSAValue) -> Tile:
    """The value in scratch that may be changed."""
    found = selector.value(value)
    dims = found.dims if found.dims is not None else static_dims(selector, value)
    tile = selector.new_scratch(dims, format_of_type(element_name(value)))
    if isinstance(found, Tile):
        selector.emit(asm.CopyInst(dims, tile.operand, found.operand, origin=selector.stream.origin))
    else:
        selector.fill(tile, value)
    return tile


def write(selector: Selector, value: SSAValue, target: Tile) -> None:
    """Copies or fills a value into a tile."""
    found = selector.value(value)
    if isinstance(found, Splat):
        selector.fill(target, value)
    else:
        source = found.operand if found.dims else replace(found.operand, maps=(DimMap(),) * len(target.dims))
        selector.emit(asm.CopyInst(target.dims, target.operand, source, origin=selector.stream.origin))


def extract(selector: Selector, op: Any) -> None:
    """tensor.extract: one element, as a scalar."""
    source = selector.value(op.operands[0])
    if isinstance(source, Splat):
        selector.bind(op.results[0], replace(source, dims=()))
        return
    offsets = [selector.scalars.affine(v) for v in op.operands[1:]]
    _check_inside(selector, source.dims, offsets, [Extent.of(1)] * len(offsets))
    part = _part(selector, source, offsets, [1] * len(offsets))
    selector.bind(op.results[0], Tile(replace(part.operand, maps=()), (), part.view))


def insert(selector: Selector, op: Any) -> None:
    """tensor.insert: a copy with one element replaced."""
    scalar, dest, *indices = op.operands
    whole = _own_copy(selector, dest)
    offsets = [selector.scalars.affine(v) for v in indices]
    _check_inside(selector, whole.dims, offsets, [Extent.of(1)] * len(offsets))
    write(selector, scalar, Tile(replace(sub_box(whole.operand, offsets), maps=()), ()))
    selector.bind(op.results[0], whole)


def from_elements(selector: Selector, op: Any) -> None:
    result = op.results[0]
    dims = static_dims(selector, result)
    tile = selector.new_scratch(dims, format_of_type(element_name(result)))
    shape = shape_of(result)
    for i, scalar in enumerate(op.operands):
        position = []
        for d in range(len(shape)):
            position.append(Affine(i // math.prod(shape[d + 1 :]) % shape[d]))
        write(selector, scalar, Tile(replace(sub_box(tile.operand, position), maps=()), ()))
    selector.bind(result, tile)


def concat(selector: Selector, op: Any) -> None:
    result = op.results[0]
    along = op.properties["dim"].value.data
    dims = static_dims(selector, result)
    tile = selector.new_scratch(dims, format_of_type(element_name(result)))
    position = 0
    for value in op.operands:
        shape = shape_of(value)
        start = [Affine(position if d == along else 0) for d in range(len(shape))]
        write(selector, value, Tile(sub_box(tile.operand, start), tuple(Extent.of(s) for s in shape)))
        position += shape[along]
    selector.bind(result, tile)


# -- renamed dims ------------------------------------------------------------------------------------------------------


def broadcast(selector: Selector, op: Any) -> None:
    """linalg.broadcast adds dims along which the value does not move."""
    source, init = selector.value(op.operands[0]), selector.value(op.operands[1])
    added = set(op.properties["dimensions"].get_values())
    if isinstance(source, Splat):
        selector.bind(op.results[0], replace(source, dims=init.dims))
        return
    if init.dims is None:
        raise UnsupportedOp("linalg.broadcast into a tensor of unknown extents")
    tile = selector.copied(source) if isinstance(source.operand.maps, LayoutMap) else source
    own = iter(tile.operand.maps)  # type: ignore[arg-type]
    maps = tuple(DimMap() if d in added else next(own) for d in range(len(init.dims)))
    selector.bind(op.results[0], Tile(replace(tile.operand, maps=maps), init.dims, tile.view))


def transpose(selector: Selector, op: Any) -> None:
    """linalg.transpose renames dims: dim i of the result is dim permutation[i] of the input."""
    source = selector.value(op.operands[0])
    permutation = op.properties["permutation"].get_values()
    if isinstance(source, Splat):
        selector.bind(op.results[0], replace(source, dims=selector.value(op.operands[1]).dims))
        return
    tile = selector.copied(source) if isinstance(source.operand.maps, LayoutMap) else source
    maps: Any = tile.operand.maps
    operand = replace(tile.operand, maps=tuple(maps[p] for p in permutation))
    selector.bind(op.results[0], Tile(operand, tuple(tile.dims[p] for p in permutation), tile.view))


def pad(selector: Selector, op: Any) -> None:
    """tensor.pad: the value of its body all around."""
    result = op.results[0]
    body = op.regions[0].block
    value = body.last_op.operands[0]
    if any(arg.uses for arg in body.args):
        raise UnsupportedOp("tensor.pad whose value depends on the position; use tensor.generate and insert_slice")
    low = mixed(op.properties["static_low"].get_values(), op.low)
    start = [Affine(v) if isinstance(v, int) else selector.scalars.affine(v) for v in low]
    source = selector.value(op.operands[0])
    tile = selector.new_scratch(static_dims(selector, result), format_of_type(element_name(result)))
    write(selector, value, tile)
    dims = source.dims if source.dims is not None else static_dims(selector, op.operands[0])
    _check_inside(selector, tile.dims, start, dims)
    write(selector, op.operands[0], Tile(sub_box(tile.operand, start), dims))
    selector.bind(result, tile)


HANDLERS: dict[str, Handler] = {
    "tensor.pad": pad,
    "linalg.broadcast": broadcast,
    "linalg.transpose": transpose,
    "tensor.collapse_shape": collapse,
    "tensor.expand_shape": expand,
    "tensor.reshape": reshape,
    "tensor.cast": cast,
    "linalg.copy": cast,
    "tensor.dim": dim,
    "memref.dim": dim,
    "tensor.extract_slice": extract_slice,
    "tensor.insert_slice": insert_slice,
    "tensor.parallel_insert_slice": parallel_insert_slice,
    "tensor.extract": extract,
    "tensor.insert": insert,
    "tensor.from_elements": from_elements,
    "tensor.concat": concat,
}
