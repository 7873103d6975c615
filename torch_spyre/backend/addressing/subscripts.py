# SPDX-License-Identifier: Apache-2.0
"""Coordinates that are data: read from an index view, or computed by the program as an integer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_spyre.backend.addressing.clipping import range_of
from torch_spyre.backend.addressing.digits import Quasi
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

    It is read from a view (`reads`, then `access` once the box is known), or is the integer of data symbol `symbol`.
    """

    reads: IndexReads | None = None
    access: Any = None
    symbol: int | None = None
    along: int = 0
    limit: int = 0

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
