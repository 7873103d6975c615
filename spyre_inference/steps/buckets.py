# SPDX-License-Identifier: Apache-2.0
"""The sizes of steps that are compiled: few, and one for everything that the scheduler may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spyre_inference.attention.tables import TILE, Batch, Sizes
from torch_spyre.errors import InvalidArgument

_FIRST_PAIRS = 2
_FIRST_ROWS = 16


@dataclass(frozen=True)
class Limits:
    """What the scheduler may ask for."""

    rows: int  # of a step
    sequences: int
    length: int  # keys of a sequence
    page: int
    cached: bool = True  # else a step has whole sequences, in tiles of a page

    @property
    def most(self) -> int:
        return -(-self.length // self.page)


def _steps(first: int, last: int, factor: int) -> list[int]:
    """Capacities from `first` on, each so much larger; the last one holds everything."""
    found = [first]
    while found[-1] < last:
        found.append(min(found[-1] * factor, last))
    return found


def _holding(capacities: list[int], size: int, what: str) -> int:
    for capacity in capacities:
        if size <= capacity:
            return capacity
    raise InvalidArgument(f"a step of {size} {what} is larger than the largest that is compiled, {capacities[-1]}")


class Buckets:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.single = _steps(1, limits.sequences, 4) if limits.cached else []  # sequences of one row each
        self.mixed = _steps(_FIRST_ROWS, max(limits.rows, _FIRST_ROWS), 2)
        self.heads = _steps(1, max(limits.sequences, 1), 4)  # rows of logits

    def sizes(self, batch: Batch) -> Sizes:
        tile = batch.tile()
        tiles, pairs = batch.counts(tile, self.limits.page)
        if tile == 1:
            rows = _holding(self.single, tiles, "sequences")
            return Sizes(rows, rows, 1, _holding(self._pairs(rows), pairs, "pages"), self.limits.most)
        rows = _holding(self.mixed, len(batch.slots), "rows")
        room = self._tiles(rows)
        return Sizes(rows, room, tile, _holding(self._mixed_pairs(rows), pairs, "pages"), self.limits.most)

    def _tiles(self, rows: int) -> int:
        return min(rows // TILE + self.limits.sequences, rows)

    def _pairs(self, tiles: int) -> list[int]:
        return _steps(max(_FIRST_PAIRS, tiles), tiles * self.limits.most, 4)

    def _mixed_pairs(self, rows: int) -> list[int]:
        """One of them is that of a prompt alone, from its start on, whose tiles see half of the square of its pages."""
        found, tiles = self._pairs(self._tiles(rows)), rows // TILE
        alone = tiles * (tiles + 1) // 2
        return sorted({*found, alone}) if found[0] < alone < found[-1] else found

    def logit_rows(self, count: int) -> int:
        return _holding(self.heads, count, "rows of logits")

    def all(self) -> Iterator[Sizes]:
        for rows in self.single:
            for pairs in self._pairs(rows):
                yield Sizes(rows, rows, 1, pairs, self.limits.most)
        for rows in self.mixed:
            for pairs in self._mixed_pairs(rows):
                yield Sizes(rows, self._tiles(rows), TILE, pairs, self.limits.most)
