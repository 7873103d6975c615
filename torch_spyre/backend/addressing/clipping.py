# SPDX-License-Identifier: Apache-2.0
"""Clipping: the part of a tile that is inside a box of coordinates.

First it is proved, core by core, that a coordinate stays inside; most tiles need no more. What cannot be proved cuts
the iteration box: the least and the greatest value of the one variable in the coordinate become affine forms.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from torch_spyre.backend.addressing.digits import Digit, Linear, Quasi
from torch_spyre.backend.addressing.memory_views import View
from torch_spyre.backend.program.assembler import Extent
from torch_spyre.backend.program.isa import Sop
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.affine import ZERO, Affine

Range = tuple[int | None, int | None]


class Clipper:
    """Cuts the box `dims` until every coordinate given to `clip` stays within its bounds."""

    def __init__(self, stream: Stream, dims: tuple[Extent, ...], what: str) -> None:
        self._stream = stream
        self._dims = dims
        self._what = what
        self._caps = [extent.cap for extent in dims]
        self._first: list[Affine] = [ZERO] * len(dims)
        self._end: list[Affine | None] = [None] * len(dims)
        self._conditions: list[Affine] = []  # the tile exists where all are at or above 0
        self.untouched = True

    def clip(self, coordinate: Quasi, low: Affine, high: Affine) -> None:
        above, below = self._inside(coordinate, low, high)
        if above and below:
            return
        self.untouched = False
        if coordinate.is_const:
            self._conditions += [] if above else [coordinate.const - low]
            self._conditions += [] if below else [high - coordinate.const]
            return
        variable, scale, offset, low, high = self._one_variable(coordinate, low, high)
        if scale < 0:  # offset - s*v within [low, high] is s*v within [offset - high, offset - low]
            scale, offset, low, high = -scale, ZERO, offset - high, offset - low
            above, below = below, above
        scalar = self._stream.scalar
        if not above:
            first = -scalar(Sop.FLOORDIV, offset - low, Affine(scale))
            self._first[variable] = scalar(Sop.MAX, self._first[variable], first)
        if not below:
            end = scalar(Sop.FLOORDIV, high - offset, Affine(scale)) + 1
            last = self._end[variable]
            self._end[variable] = end if last is None else scalar(Sop.MIN, last, end)

    def _one_variable(self, coordinate: Quasi, low: Affine, high: Affine) -> tuple[int, int, Affine, Affine, Affine]:
        """variable, scale, offset and bounds such that ``offset + scale * variable`` decides."""
        terms = [(v, c) for v, c in coordinate.variables.items() if c]
        digits = [(d, c) for d, c in coordinate.digits.items() if c]
        if len(terms) == 1 and not digits:
            return *terms[0], coordinate.const, low, high
        if not terms and len(digits) == 1 and digits[0][1] == 1:
            digit = digits[0][0]
            if not digit.moduli and len(digit.linear.terms) == 1:
                div = digit.div
                low, high = low - coordinate.const, high - coordinate.const
                return *digit.linear.terms[0], digit.linear.offset, low * div, high * div + (div - 1)
        raise UnsupportedOp(
            f"{self._what}: a coordinate of several tile dims may leave the coordinate set; take tiles that stay inside"
        )

    # -- results -----------------------------------------------------------------------------------------------------

    def starts(self) -> tuple[Affine, ...]:
        return tuple(self._first)

    def dims(self) -> tuple[Extent, ...]:
        if self.untouched:
            return self._dims
        dims = []
        for extent, first, end in zip(self._dims, self._first, self._end, strict=True):
            size = extent.affine
            if end is not None:
                limit = self._stream.scalar(Sop.MIN, Affine(extent.cap), extent.affine)
                size = self._stream.scalar(Sop.MIN, limit, end)
            elif first != ZERO:
                size = self._stream.scalar(Sop.MIN, Affine(extent.cap), extent.affine)
            size = size - first
            dims.append(Extent.of(max(0, size.const)) if size.is_const else Extent(size, extent.cap))
        if self._conditions:
            if not dims:
                raise UnsupportedOp(
                    f"{self._what}: a tile without dims may leave the coordinate set; give it a dim of 1"
                )
            condition = self._conditions[0]
            for other in self._conditions[1:]:
                condition = self._stream.scalar(Sop.MIN, condition, other)
            # Positive only where the tile exists, and then at least as large as the extent.
            gate = (condition + 1) * max(dims[0].cap, 1)
            dims[0] = Extent(self._stream.scalar(Sop.MIN, dims[0].affine, gate), dims[0].cap)
        return tuple(dims)

    def moved(self, coordinate: Quasi) -> Quasi:
        """The coordinate as a function of variables that count from the first kept point."""
        if all(first == ZERO for first in self._first):
            return coordinate
        result = coordinate.scaled(1)
        for variable, coefficient in coordinate.variables.items():
            result.const = result.const + self._first[variable] * coefficient
        result.digits = {}
        for digit, coefficient in coordinate.digits.items():
            offset = digit.linear.offset
            for variable, factor in digit.linear.terms:
                offset = offset + self._first[variable] * factor
            moved = Digit(Linear(offset, digit.linear.terms), digit.div, digit.mod, digit.prefix)
            result.digits[moved] = result.digits.get(moved, 0) + coefficient
        return result

    # -- proof -------------------------------------------------------------------------------------------------------

    def _inside(self, coordinate: Quasi, low: Affine, high: Affine) -> tuple[bool, bool]:
        """Whether the coordinate is proved to be at least `low`, and at most `high`."""
        least, greatest = range_of(coordinate, self._caps, self._stream)
        above = least is not None and _is_at_most(low, least, self._stream)
        below = greatest is not None and _is_at_least(high, greatest, self._stream)
        if above and below:
            return True, True
        active = self._stream.active_cores()
        cores = range(self._stream.cores) if active is None else active
        answers = [self._inside_on(coordinate, low, high, core) for core in cores]
        return above or all(a for a, _ in answers), below or all(b for _, b in answers)

    def _inside_on(self, coordinate: Quasi, low: Affine, high: Affine, core: int) -> tuple[bool, bool]:
        bounds_on = self._stream.bounds_on
        caps = []
        for extent in self._dims:
            size = bounds_on(extent.affine, core)[1]
            caps.append(extent.cap if size is None else min(extent.cap, size))
        if min(caps, default=1) <= 0:
            return True, True
        below = _below_on(self._stream, coordinate, high, self._dims, core)
        least, greatest = range_of(coordinate, caps, self._stream, core)
        first, last = bounds_on(low, core)[1], bounds_on(high, core)[0]
        above = least is not None and first is not None and least >= first
        return above, below or (greatest is not None and last is not None and greatest <= last)


def _below_on(stream: Stream, coordinate: Quasi, high: Affine, dims: Sequence[Extent], core: int) -> bool:
    """True if an extent that was computed from the end of the set keeps the coordinate below it.

    Offset and extent then contain the same registers, which cancel: offset + (extent - 1) <= high.
    """
    if len(coordinate.variables) != 1 or any(coordinate.digits.values()):
        return False
    ((variable, coefficient),) = coordinate.variables.items()
    if coefficient != 1 or dims[variable].is_const:
        return False
    last = coordinate.const + dims[variable].affine - 1 - high
    greatest = stream.bounds_on(last, core)[1]
    return greatest is not None and greatest <= 0


def _is_at_most(affine: Affine, number: int, stream: Stream) -> bool:
    high = stream.bounds(affine)[1]
    return high is not None and high <= number


def _is_at_least(affine: Affine, number: int, stream: Stream) -> bool:
    low = stream.bounds(affine)[0]
    return low is not None and low >= number


class Coverage(enum.Enum):
    """How much of a tile the parts of a distributed view hold, on one core."""

    ALL = enum.auto()
    CUT = enum.auto()  # the rest of the tile is past the end of the view
    HOLE = enum.auto()  # a point inside the view belongs to no part
    UNKNOWN = enum.auto()


def part_coverage(
    view: View, coordinates: Sequence[Quasi], dims: Sequence[Extent], core: int, stream: Stream
) -> Coverage:
    """Counts points; parts are taken to be disjoint, or copies of each other."""
    starts, sizes = [], []
    for coordinate in coordinates:
        terms = [(v, c) for v, c in coordinate.variables.items() if c]
        low, high = stream.bounds_on(coordinate.const, core)
        if (
            low is None
            or low != high
            or any(coordinate.digits.values())
            or len(terms) > 1
            or any(c != 1 for _, c in terms)
        ):
            return Coverage.UNKNOWN
        extent = stream.bounds_on(dims[terms[0][0]].affine, core)[1] if terms else 1
        if extent is None:
            return Coverage.UNKNOWN
        starts.append(low)
        sizes.append(max(0, min(extent, dims[terms[0][0]].cap)) if terms else 1)
    total = math.prod(sizes)
    held = 0
    for part in view.parts:
        held += _shared(
            starts, sizes, [_exact(x, core, stream) for x in part.lows], [_exact(x, core, stream) for x in part.highs]
        )
    if held >= total:
        return Coverage.ALL
    ends = [size - 1 if size is not None else None for size in view.sizes]
    inside = _shared(starts, sizes, [0] * len(starts), ends)
    return Coverage.HOLE if held < inside else Coverage.CUT


def _exact(affine: Affine, core: int, stream: Stream) -> int | None:
    low, high = stream.bounds_on(affine, core)
    return low if low == high else None


def _shared(
    starts: Sequence[int], sizes: Sequence[int], lows: Sequence[int | None], highs: Sequence[int | None]
) -> int:
    """Points of a box that are within bounds."""
    points = 1
    for start, size, low, high in zip(starts, sizes, lows, highs, strict=True):
        first = start if low is None else max(start, low)
        last = start + size - 1 if high is None else min(start + size - 1, high)
        points *= max(0, last - first + 1)
    return points


def range_of(coordinate: Quasi, caps: Sequence[int], stream: Stream, core: int | None = None) -> Range:
    """Least and greatest value of a coordinate over the box, on one core or on all."""
    total = _linear_range(coordinate.const, list(coordinate.variables.items()), caps, stream, core)
    for digit, coefficient in coordinate.digits.items():
        low, high = _digit_range(digit, caps, stream, core)
        ends = (low, high) if coefficient >= 0 else (high, low)
        total = tuple(  # type: ignore[assignment]
            None if t is None or e is None else t + coefficient * e for t, e in zip(total, ends, strict=True)
        )
    return total


def _linear_range(
    const: Affine, terms: Sequence[tuple[int, int]], caps: Sequence[int], stream: Stream, core: int | None
) -> Range:
    low, high = stream.bounds(const) if core is None else stream.bounds_on(const, core)
    for variable, coefficient in terms:
        span = coefficient * max(caps[variable] - 1, 0)
        low = None if low is None else low + min(span, 0)
        high = None if high is None else high + max(span, 0)
    return low, high


def _digit_range(digit: Digit, caps: Sequence[int], stream: Stream, core: int | None) -> Range:
    low, high = _linear_range(digit.linear.offset, digit.linear.terms, caps, stream, core)
    for modulus in digit.prefix:
        if low is None or high is None or low // modulus != high // modulus:
            low, high = 0, modulus - 1
        else:
            low, high = low % modulus, high % modulus
    low, high = (None if x is None else x // digit.div for x in (low, high))
    if digit.mod and (low is None or high is None or low // digit.mod != high // digit.mod):
        return 0, digit.mod - 1
    if digit.mod:
        assert low is not None and high is not None
        return low % digit.mod, high % digit.mod
    return low, high
