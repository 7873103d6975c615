# SPDX-License-Identifier: Apache-2.0
"""Coordinates that are data: read from an index view, or computed by the program as an integer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_spyre.backend.addressing.clipping import range_of
from torch_spyre.backend.addressing.digits import Levels, Linear, Quasi, Subscripts
from torch_spyre.backend.addressing.memory_views import Part, View
from torch_spyre.backend.program.assembler import Extent
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.affine import Affine, is_data


@dataclass(frozen=True)
class IndexReads:
    """Which element of an index view a tile element reads."""

    view: View
    coordinates: tuple[Quasi, ...]

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Index:
    """An index adds `along` bytes per unit of its value, which must be below `limit`.

    It is read from a view (`reads`, then `access` once the box is known), is the integer of data symbol `symbol`, or
    `counts` the elements of a tiled sum, whose bytes are those of the `levels` of the count then.
    """

    reads: IndexReads | None = None
    access: Any = None
    symbol: int | None = None
    along: int = 0
    limit: int = 0
    counts: Linear | None = None
    levels: tuple[tuple[int, int], ...] = ()

    def within(self, part: Part, d: int) -> Index:
        if part.lows[d] != Affine() or not part.highs[d].is_const:
            raise UnsupportedOp(
                "an index view into a dim whose coordinates do not begin at 0 or whose end is known only at launch"
            )
        return replace(self, along=part.strides[d], limit=max(part.highs[d].const + 1, 0))

    def resolved(self, access: Any) -> Index:
        return replace(self, reads=None, access=access)


def split_data(
    coordinate: Quasi, part: Part, d: int, stream: Stream, dims: Sequence[Extent], what: str
) -> tuple[Quasi, list[Index]]:
    """The coordinate without the integers that are data, and these as indices."""
    if not coordinate.const.terms and not coordinate.digits:
        return coordinate, []
    for digit in coordinate.digits:
        if any(is_data(s) for s, _ in digit.linear.offset.terms):
            raise UnsupportedOp(f"{what}: a tiled subscript of an index that is read from a tensor")
    data = [(s, c) for s, c in coordinate.const.terms if is_data(s)]
    if not data:
        return coordinate, []
    if len(data) > 1 or data[0][1] <= 0:
        raise UnsupportedOp(f"{what}: one coordinate uses several indices that are read from tensors, or subtracts one")
    ((symbol, factor),) = data
    rest = coordinate.scaled(1)
    rest.const = rest.const - Affine.symbol(symbol, factor)
    low, high = range_of(rest, [extent.cap for extent in dims], stream)
    first, last = stream.bounds(part.lows[d])[1], stream.bounds(part.highs[d])[0]
    if low is None or high is None or first is None or last is None or low < first:
        raise UnsupportedOp(f"{what}: a coordinate that adds a read index to something without known bounds")
    return rest, [Index(symbol=symbol, along=part.strides[d] * factor, limit=max((last - high) // factor + 1, 0))]


def counted(
    linear: Linear, levels: Levels, along: Sequence[Quasi], part: Part, stream: Stream, caps: Sequence[int], what: str
) -> Index:
    """A tiled sum of a gather or scatter as an index: a slice that begins inside a stick, a stick out of two dims."""
    limit = _limit(linear, along, part, Subscripts(stream, caps))
    if limit is None:
        raise UnsupportedOp(f"{what}: a tiled subscript without a known end beside an index that is read")
    used = tuple(level for level in levels if level[0] < max(limit, 2))
    return Index(counts=linear, levels=used, limit=limit)


def _limit(linear: Linear, along: Sequence[Quasi], part: Part, ranges: Subscripts) -> int | None:
    """One past the largest value of the sum: by its own range, or because its highest digit stays within the view."""
    high = ranges.range_of(linear)[1]
    limits = [] if high is None else [high + 1]
    for d, coordinate in enumerate(along):
        if len(coordinate.digits) != 1 or any(coordinate.variables.values()) or coordinate.const != Affine():
            continue
        ((digit, factor),) = coordinate.digits.items()
        if digit.linear == linear and factor == 1 and not digit.moduli and part.highs[d].is_const:
            limits.append((part.highs[d].const + 1) * digit.div)
    return min(limits, default=None)
