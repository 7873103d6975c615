# SPDX-License-Identifier: Apache-2.0
"""Access tiles: which elements of a view a tile touches, as operands.

An access is one or several `Piece`s: boxes of the tile whose elements are in one part of the view. A tile that stays
inside the coordinate set of a view in one memory is a single piece that covers it, and instructions read and write it
in place. Where the set cuts the tile, where parts meet, and where coordinates come from index views, pieces are moved
one by one (`transfers`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap, AffineSet

from torch_spyre import constants
from torch_spyre.backend.addressing.address import indexed_maps, operand_maps
from torch_spyre.backend.addressing.clipping import Clipper, Coverage, part_coverage
from torch_spyre.backend.addressing.digits import Digit, Quasi, Subscripts
from torch_spyre.backend.addressing.memory_views import Part, View, Views, segments
from torch_spyre.backend.addressing.subscripts import Index, IndexReads, counted, split_data
from torch_spyre.backend.options import Options
from torch_spyre.backend.program.assembler import Extent, Operand
from torch_spyre.backend.program.isa import Space
from torch_spyre.backend.schedule.scalars import Scalars
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.errors import InvalidProgram, SpanExceeded, UnsupportedOp
from torch_spyre.ir.affine import Affine
from torch_spyre.ir.ktir.legality.boxes import box_of

_TILES = ("ktdp.construct_access_tile", "ktdp.construct_indirect_access_tile")


@dataclass(frozen=True)
class Tile:
    """Where the elements of a tensor value are; `operand` has one map per dim of the value."""

    operand: Operand
    dims: tuple[Extent, ...]
    view: View | None = None


@dataclass(frozen=True)
class Piece:
    """The box of a tile from `start` on, of extents `dims`, in one memory.

    `owner` is the core whose scratchpad it is in, if a view names one. Indices add to the address, element by element.
    """

    start: tuple[Affine, ...]
    dims: tuple[Extent, ...]
    operand: Operand
    owner: int | None = None
    indices: tuple[Index, ...] = ()


@dataclass(frozen=True)
class Access:
    """`complete`: the pieces cover the whole tile, always."""

    dims: tuple[Extent, ...]
    view: View
    pieces: tuple[Piece, ...]
    complete: bool

    @property
    def tile(self) -> Tile | None:
        """The tile as one operand, if an instruction can use it in place."""
        if len(self.pieces) != 1 or not self.complete:
            return None
        (piece,) = self.pieces
        if piece.owner is not None or piece.indices:
            return None
        return Tile(piece.operand, self.dims, self.view)


class Accesses:
    """Resolves access tiles."""

    def __init__(self, stream: Stream, scalars: Scalars, options: Options, memory_arg: int) -> None:
        self._stream = stream
        self._scalars = scalars
        self._options = options
        self.views = Views(stream, scalars, options, memory_arg)

    def view_of_tile(self, tile: SSAValue) -> View:
        """The view under an access tile."""
        return self.views.view(_constructor(tile).operands[0])

    def access(self, value: SSAValue) -> Access:
        op = _constructor(value)
        if op.name == _TILES[0]:
            dims, coordinates = self._direct(op)
            indices: list[Index | None] = [None] * len(coordinates)
        else:
            dims, coordinates, indices = self._subscripts(op)
        view = self.views.view(op.operands[0])
        self.views.note_use(view)
        pieces = []
        complete = False
        what = self._what(view)
        for part in view.parts:
            clipper = Clipper(self._stream, dims, what)
            own = [index if index is None else index.within(part, d) for d, index in enumerate(indices)]
            for d, coordinate in enumerate(coordinates):
                coordinate, data = split_data(coordinate, part, d, self._stream, dims, what)
                if own[d] is None and not data:
                    clipper.clip(coordinate, part.lows[d], part.highs[d])
            complete = complete or clipper.untouched
            pieces.append(self._piece(view, part, coordinates, own, clipper))
        if len(view.parts) > 1 and not complete:
            complete = self._parts_cover(view, coordinates, dims)
        self._check(view, complete)
        return Access(dims, view, tuple(pieces), complete)

    def _parts_cover(self, view: View, coordinates: list[Quasi], dims: tuple[Extent, ...]) -> bool:
        """True if the parts together hold every point of the tile. A hole between parts is an error."""
        coverage = [
            part_coverage(view, coordinates, dims, core, self._stream)
            for core in self._stream.active_cores() or range(self._stream.cores)
        ]
        if any(c is Coverage.HOLE for c in coverage):
            raise InvalidProgram(f"{self._what(view)}: no part of the distributed view holds some points of the tile")
        return all(c is Coverage.ALL for c in coverage)

    def _check(self, view: View, complete: bool) -> None:
        if complete or not self._options.strict:
            return
        raise InvalidProgram(
            f"{self._what(view)}: the tile may leave the coordinate set of the view, which strict mode does not allow"
        )

    def _what(self, view: View) -> str:
        sizes = "x".join("?" if s is None else str(s) for s in view.sizes)
        return f"{self._stream.origin}: tile of a {sizes} view"

    # -- coordinates -----------------------------------------------------------------------------------------------

    def _direct(self, op: Any) -> tuple[tuple[Extent, ...], list[Quasi]]:
        """Coordinates ``base_map(indices) + p``; the tile's dims follow the order, so p_d is variable order⁻¹(d)."""
        _, index_values, symbols = segments(op)
        origin, dims = self._box(op.properties["access_tile_set"].data, symbols)
        order = _permutation(op.properties["access_tile_order"].data)
        dims = tuple(dims[d] for d in order)
        _check_shape(dims, op)
        indices = [Quasi(self._scalars.affine(index)) for index in index_values]
        evaluator = Subscripts(self._stream, [extent.cap for extent in dims])
        coordinates = []
        for d, expr in enumerate(op.properties["base_map"].data.results):
            coordinate = evaluator.evaluate(expr, indices).scaled(1)
            coordinate.add(Quasi(origin[d], {order.index(d): 1}))
            coordinates.append(coordinate)
        return dims, coordinates

    def _subscripts(self, op: Any) -> tuple[tuple[Extent, ...], list[Quasi], list[Index | None]]:
        _, indirect_views, captured_values, symbols = segments(op)
        origin, dims = self._box(op.properties["variables_space_set"].data, symbols)
        order = _permutation(op.properties["variables_space_order"].data)
        dims = tuple(dims[d] for d in order)
        _check_shape(dims, op)
        captured = [Quasi(self._scalars.affine(value)) for value in captured_values]
        variables = [Quasi(origin[d], {order.index(d): 1}) for d in range(len(order))]
        evaluator = Subscripts(self._stream, [extent.cap for extent in dims])
        views = iter(indirect_views)
        coordinates: list[Quasi] = []
        indices: list[Index | None] = []
        maps = op.properties["per_dim_subscript_maps"].data
        for attr, indirect in zip(maps, op.is_indirect if indirect_views else (False,) * len(maps), strict=True):
            exprs: Sequence[AffineExpr] = attr.data.results
            values = [evaluator.evaluate(expr, captured + variables) for expr in exprs]
            if indirect:
                reads = IndexReads(self.views.view(next(views)), tuple(values))
                indices.append(Index(reads))
                coordinates.append(Quasi())
            else:
                indices.append(None)
                coordinates.append(values[0])
        return dims, coordinates, indices

    def _box(self, points: AffineSet, symbols: Sequence[SSAValue]) -> tuple[tuple[Affine, ...], tuple[Extent, ...]]:
        """First coordinate and extent per dim of the set."""
        origin, dims = [], []
        for low, high in box_of(points):
            first, last = low.affine(symbols, self._scalars, False), high.affine(symbols, self._scalars, True)
            if first is None or last is None:
                raise InvalidProgram(f"a tile over {points}, which does not bound every dim from both sides")
            only = high.only
            symbol = only.minus_one_of(symbols) if only is not None else None
            extent = last - first + 1
            if extent.is_const:
                dims.append(Extent.of(max(0, extent.const)))
            elif symbol is not None and first == Affine():
                dims.append(self._scalars.extent(symbol))
            else:
                dims.append(self._extent(extent))
            origin.append(first)
        return tuple(origin), tuple(dims)

    def _extent(self, size: Affine) -> Extent:
        low, high = self._stream.bounds(size)
        if high is None:
            raise UnsupportedOp(f"a tile of {size} elements, which has no upper bound; take arith.minsi with its size")
        return Extent.of(max(0, high)) if low == high else Extent(size, max(0, high))

    # -- addresses ---------------------------------------------------------------------------------------------------

    def _piece(
        self, view: View, part: Part, coordinates: list[Quasi], indices: list[Index | None], clipper: Clipper
    ) -> Piece:
        dims = clipper.dims()
        caps = [extent.cap for extent in dims]
        what = self._what(view)
        address = Quasi(part.offset)
        found: list[Index] = []
        along: list[Quasi] = []
        for d, (coordinate, stride) in enumerate(zip(coordinates, part.strides, strict=True)):
            moved, data = split_data(clipper.moved(coordinate), part, d, self._stream, dims, what)
            address.add(moved, stride)
            along.append(moved)
            found += data
            index = indices[d]
            if index is not None:
                found.append(self._index(index, clipper, dims, what))
        if found:
            offset, maps, left = indexed_maps(address, caps, self._stream, what)
            found += [counted(*group, along, part, self._stream, caps, what) for group in left]
        else:
            offset, maps = operand_maps(address, caps, self._stream, what)
        if part in self.views.long_parts and self._options.limit_span:
            self._check_span(part, address, along, dims, what)
        space = Space.LX if part.arg is None else Space.MEM
        operand = Operand(space, view.format, offset, maps, part.arg or 0)
        return Piece(clipper.starts(), dims, operand, part.owner, tuple(found))

    def _index(self, index: Index, clipper: Clipper, dims: tuple[Extent, ...], what: str) -> Index:
        """The index read over the clipped box, as pieces of its own."""
        assert index.reads is not None
        view = index.reads.view
        self.views.note_use(view)
        coordinates = [clipper.moved(c) for c in index.reads.coordinates]
        pieces = []
        complete = False
        for part in view.parts:
            inner = Clipper(self._stream, dims, f"{what}: index view")
            for d, coordinate in enumerate(coordinates):
                inner.clip(coordinate, part.lows[d], part.highs[d])
            complete = complete or inner.untouched
            pieces.append(self._piece(view, part, coordinates, [None] * len(coordinates), inner))
        self._check(view, complete)
        return index.resolved(Access(dims, view, tuple(pieces), complete))

    def _check_span(
        self, part: Part, address: Quasi, along: Sequence[Quasi], dims: tuple[Extent, ...], what: str
    ) -> None:
        """No core may reach further than the machine's span in one tensor, in one execution of an access. A loop
        executes its accesses anew in every iteration, each from a start of its own."""
        boxed = 0  # an access does not leave its view along any dim
        for d, coordinate in enumerate(along):
            _, most = self._stream.bounds(part.highs[d] - part.lows[d])
            steps = _way(coordinate, dims)
            boxed += abs(part.strides[d]) * (steps if most is None else min(steps, max(most, 0)))
        inside = min(boxed, _way(address, dims))
        if inside > constants.MAX_SPAN_BYTES:
            raise SpanExceeded(
                f"{what}: a core reaches over {inside} bytes; its span is {constants.MAX_SPAN_BYTES} "
                "(256 MiB), split the tensor so that each core stays within one, or loop over parts of it"
            )


def _way(form: Quasi, dims: tuple[Extent, ...]) -> int:
    """Greatest distance between two values of a form, over the box of its variables."""
    way = sum(abs(c) * max(dims[v].cap - 1, 0) for v, c in form.variables.items())
    return way + sum(abs(c) * _steps(digit, dims) for digit, c in form.digits.items())


def _steps(digit: Digit, dims: tuple[Extent, ...]) -> int:
    """How far a digit moves at most: a slice that starts at a whole stick reaches no further than its last stick."""
    way = sum(abs(factor) * max(dims[v].cap - 1, 0) for v, factor in digit.linear.terms)
    start = digit.linear.offset
    known = math.gcd(digit.div, start.const, *(c for _, c in start.terms))  # divides where the slice starts in a stick
    steps = (digit.div - known + way) // digit.div
    return min(steps, digit.mod - 1) if digit.mod else steps


def _constructor(tile: SSAValue) -> Any:
    op = tile.owner
    if not isinstance(op, Operation) or op.name not in _TILES:
        raise UnsupportedOp("an access tile that is not constructed in the function that uses it")
    return op


def _check_shape(dims: tuple[Extent, ...], op: Any) -> None:
    for d, (extent, size) in enumerate(zip(dims, op.results[0].type.get_shape(), strict=True)):
        if size != DYNAMIC_INDEX and extent.is_const and extent.cap != size:
            raise InvalidProgram(
                f"{op.name}: the set has {extent.cap} points along dim {d} of the tile, its type {size}"
            )


def _permutation(order: AffineMap) -> list[int]:
    """Dims of the set in the order in which the tile lists them, slowest first."""
    dims = [expr.position for expr in order.results if isinstance(expr, AffineDimExpr)]
    if sorted(dims) != list(range(order.num_dims)):
        raise UnsupportedOp(f"tile order {order} is not a permutation of the dims")
    return dims
