# SPDX-License-Identifier: Apache-2.0
"""Views and access tiles: from `ktdp` constructors to operands.

A view says where a tensor lies, an access tile which of its coordinates a tile touches; together they are the address
of each tile element, which `address` turns into maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap, AffineSet

from torch_spyre.backend.address import operand_maps
from torch_spyre.backend.affine import Affine, arg_index, is_arg
from torch_spyre.backend.assembler import Extent, Operand
from torch_spyre.backend.boxes import box_of
from torch_spyre.backend.digits import Quasi, Subscripts
from torch_spyre.backend.isa import Space, format_bytes, format_of_type, type_name
from torch_spyre.backend.scalars import Scalars
from torch_spyre.backend.stream import Stream
from torch_spyre.errors import UnsupportedOp


@dataclass(frozen=True)
class View:
    """A tensor in launch argument `arg`, or in the core's own scratchpad if `arg` is None. Lengths in bytes."""

    arg: int | None
    offset: Affine
    strides: tuple[int, ...]
    sizes: tuple[int, ...]
    format: int

    @property
    def span(self) -> int:
        """Bytes from the first to past the last element."""
        reach = sum((size - 1) * abs(stride) for size, stride in zip(self.sizes, self.strides, strict=True))
        return reach + format_bytes(self.format)


@dataclass(frozen=True)
class Tile:
    """Where the elements of a tensor value are; `operand` has one map per dim of the value."""

    operand: Operand
    dims: tuple[Extent, ...]
    view: View | None = None


class Accesses:
    """Resolves access tiles; remembers what each launch argument needs."""

    def __init__(self, stream: Stream, scalars: Scalars) -> None:
        self._stream = stream
        self._scalars = scalars
        self._views: dict[SSAValue, View] = {}
        self.arg_bytes: dict[int, int] = {}
        self.lx_bytes = 0  # scratchpad that views name

    def view(self, value: SSAValue) -> View:
        if value not in self._views:
            self._views[value] = self._make_view(value)
        return self._views[value]

    def _make_view(self, value: SSAValue) -> View:
        op: Any = value.owner
        if getattr(op, "name", "") != "ktdp.construct_memory_view":
            name = getattr(op, "name", "a block argument")
            raise UnsupportedOp(f"a tile of {name}; tiles are taken of ktdp.construct_memory_view")
        view_type = cast(MemRefType, value.type)
        sizes = self._mixed(op.static_sizes.get_values(), op.sizes)
        strides = self._mixed(op.static_strides.get_values(), op.strides)
        fmt = format_of_type(type_name(view_type.element_type))
        width = format_bytes(fmt)
        offset = self._scalars.affine(op.offset)
        bases = [(s, c) for s, c in offset.terms if is_arg(s)]
        if op.memory_space.is_local:
            if op.memory_space.tile is not None:
                raise UnsupportedOp(
                    f"a view of the scratchpad of tile {op.memory_space.tile}; a tile reads its own only"
                )
            if bases:
                raise UnsupportedOp("a ct_local view at an offset that comes from a function argument; use a constant")
            arg = None
        else:
            if len(bases) != 1 or bases[0][1] != 1:
                raise UnsupportedOp(f"a global view at offset {offset}; it must be one index argument plus an offset")
            arg = arg_index(bases[0][0])
            offset = offset - Affine.symbol(bases[0][0])
        view = View(arg, offset * width, tuple(s * width for s in strides), sizes, fmt)
        self._note_extent(view)
        return view

    def _mixed(self, static: tuple[int, ...], dynamic: Any) -> tuple[int, ...]:
        values = iter(dynamic)
        result = []
        for size in static:
            known = self._scalars.constant(next(values)) if size == DYNAMIC_INDEX else size
            if known is None:
                raise UnsupportedOp("a view whose sizes or strides are known only at launch; make them constants")
            result.append(known)
        return tuple(result)

    def _note_extent(self, view: View) -> None:
        _, high = self._stream.bounds(view.offset)
        if high is None:
            raise UnsupportedOp(f"a view at offset {view.offset}, which has no upper bound; take tiles of one view")
        end = high + view.span
        if view.arg is None:
            self.lx_bytes = max(self.lx_bytes, end)
        else:
            self.arg_bytes[view.arg] = max(self.arg_bytes.get(view.arg, 0), end)

    def view_of_tile(self, tile: SSAValue) -> View:
        """The view under an access tile."""
        op: Any = tile.owner
        if not getattr(op, "name", "").startswith("ktdp.construct_"):
            raise UnsupportedOp("an access tile that is not constructed in the function that uses it")
        return self.view(op.base)

    # -- tiles -----------------------------------------------------------------------------------------------------

    def tile(self, value: SSAValue) -> Tile:
        op: Any = value.owner
        name = getattr(op, "name", "")
        if name == "ktdp.construct_access_tile":
            return self._direct_tile(op)
        if name == "ktdp.construct_indirect_access_tile":
            return self._subscript_tile(op)
        raise UnsupportedOp("an access tile that is not constructed in the function that uses it")

    def _direct_tile(self, op: Any) -> Tile:
        origin, dims = self._box(op.access_tile_set.data, op.symbols, op.tile.type.get_shape())
        order = _permutation(op.access_tile_order.data)
        dims = tuple(dims[d] for d in order)
        indices = [Quasi(self._scalars.affine(index)) for index in op.indices]
        evaluator = Subscripts(self._stream, [extent.cap for extent in dims])
        coordinates = []
        for d, expr in enumerate(op.base_map.data.results):
            coordinate = evaluator.evaluate(expr, indices).scaled(1)
            coordinate.add(Quasi(origin[d], {order.index(d): 1}))
            coordinates.append(coordinate)
        return self._make_tile(op, coordinates, dims)

    def _subscript_tile(self, op: Any) -> Tile:
        if any(op.is_indirect):
            raise UnsupportedOp("a gather or scatter through an index view; load the indices on the host instead")
        origin, dims = self._box(op.variables_space_set.data, op.symbols, op.tile.type.get_shape())
        order = _permutation(op.variables_space_order.data)
        dims = tuple(dims[d] for d in order)
        captured = [Quasi(self._scalars.affine(value)) for value in op.captured]
        variables = [Quasi(origin[d], {order.index(d): 1}) for d in range(len(order))]
        evaluator = Subscripts(self._stream, [extent.cap for extent in dims])
        exprs: list[AffineExpr] = [m.data.results[0] for m in op.per_dim_subscript_maps.data]
        return self._make_tile(op, [evaluator.evaluate(e, captured + variables) for e in exprs], dims)

    def _make_tile(self, op: Any, coordinates: list[Quasi], dims: tuple[Extent, ...]) -> Tile:
        view = self.view(op.base)
        address = Quasi(view.offset)
        for coordinate, stride in zip(coordinates, view.strides, strict=True):
            address.add(coordinate, stride)
        what = f"{self._stream.origin}: tile of a {'x'.join(map(str, view.sizes))} view"
        offset, maps = operand_maps(address, [extent.cap for extent in dims], self._stream, what)
        space = Space.LX if view.arg is None else Space.MEM
        return Tile(Operand(space, view.format, offset, maps, view.arg or 0), dims, view)

    def _box(
        self, points: AffineSet, symbols: Any, shape: tuple[int, ...]
    ) -> tuple[tuple[Affine, ...], tuple[Extent, ...]]:
        """First coordinate and extent per dim."""
        symbols = list(symbols)
        origin, dims = [], []
        for d, (low, high) in enumerate(box_of(points)):
            low_value = low.affine(symbols, self._scalars)
            symbol = high.minus_one_of(symbols)
            if shape[d] != DYNAMIC_INDEX:
                extent = Extent.of(shape[d])
            elif symbol is not None and low_value == Affine():
                extent = self._scalars.extent(symbol)
            else:
                extent = self._extent(high.affine(symbols, self._scalars) - low_value + 1)
            origin.append(low_value)
            dims.append(extent)
        return tuple(origin), tuple(dims)

    def _extent(self, size: Affine) -> Extent:
        low, high = self._stream.bounds(size)
        if high is None:
            raise UnsupportedOp(f"a tile of {size} elements, which has no upper bound; take arith.minsi with its size")
        return Extent.of(high) if low == high else Extent(size, high)


def _permutation(order: AffineMap) -> list[int]:
    dims = [expr.position for expr in order.results if isinstance(expr, AffineDimExpr)]
    if sorted(dims) != list(range(order.num_dims)):
        raise UnsupportedOp(f"tile order {order} is not a permutation of the dims")
    return dims
