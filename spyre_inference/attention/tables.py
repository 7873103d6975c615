# SPDX-License-Identifier: Apache-2.0
"""A batch of sequences as tables of `torch_spyre.ops.kernels.paged_attention`, padded to a bucket."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TILE = 64  # query rows of a tile where sequences have more than one row
NOWHERE = 1 << 30  # a position behind every row: a page there is seen by none


@dataclass(frozen=True)
class Sizes:
    """Capacities of the tables: the key of a compiled step."""

    rows: int
    tiles: int
    tile: int
    pairs: int
    most: int  # pages of a sequence


@dataclass(frozen=True)
class Batch:
    """What vLLM's scheduler chose, on the host."""

    starts: np.ndarray  # [sequences + 1]: rows of each sequence begin there
    lengths: np.ndarray  # [sequences]: keys of each, with those of this step
    pages: np.ndarray  # [sequences, …]: page table
    slots: np.ndarray  # [rows]
    causal: bool = True  # else every row sees its whole sequence, which is all in this step

    def tile(self) -> int:
        return 1 if self.causal and (np.diff(self.starts) <= 1).all() else TILE

    def counts(self, tile: int, page: int) -> tuple[int, int]:
        """Tiles, and pairs of a tile and a page."""
        first, _, last = _tiles(self, tile)
        return len(first), int((last // page + 1).sum())

    def with_own_tiles_as_pages(self) -> Batch:
        """Without a cache, the keys of a step are the pages: those of a tile are one."""
        counts = -(-np.diff(self.starts) // TILE)
        pages = (np.cumsum(counts) - counts)[:, None] + np.arange(counts.max())
        return Batch(self.starts, self.lengths, pages, self.slots, causal=False)


def _tiles(batch: Batch, tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First row and sequence of each tile, and the position of the last key that its last row sees."""
    rows = np.diff(batch.starts)
    counts = -(-rows // tile)
    sequence = np.repeat(np.arange(len(rows)), counts)
    number = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = batch.starts[sequence] + number * tile
    if not batch.causal:
        return first, sequence, batch.lengths[sequence] - 1
    end = np.minimum(first + tile, batch.starts[sequence + 1])
    last = batch.lengths[sequence] - (batch.starts[sequence + 1] - end) - 1
    return first, sequence, last


def tables(batch: Batch, sizes: Sizes, page: int) -> dict[str, np.ndarray]:
    """The tables of `PagedTables`. What pads them writes to page 0, which belongs to no sequence, and reads a page that
    nobody sees."""
    first, sequence, last = _tiles(batch, sizes.tile)
    rows, count = len(batch.slots), len(first)
    filled = np.minimum(batch.starts[sequence + 1] - first, sizes.tile)
    counts = last // page + 1
    tiles = np.repeat(np.arange(count), counts)
    begins = np.cumsum(counts) - counts
    number = np.arange(len(tiles)) - np.repeat(begins, counts)
    within = np.arange(sizes.tile)
    row = first[:, None] + np.minimum(within, filled[:, None] - 1)
    limits = np.broadcast_to(last[:, None], row.shape)
    if batch.causal:
        limits = limits - filled[:, None] + 1 + np.minimum(within, filled[:, None] - 1)
    places = np.repeat(np.arange(count) * sizes.tile, filled) + np.arange(rows) - np.repeat(first, filled)
    pairs = begins[:, None] + np.minimum(np.arange(sizes.most), counts[:, None] - 1)
    spare = sizes.pairs - 1 if len(tiles) < sizes.pairs else 0
    return {
        "slots": _padded(batch.slots, (sizes.rows,), 0),
        "pages": _padded(batch.pages[sequence[tiles], number], (sizes.pairs,), 0),
        "tiles": _padded(tiles, (sizes.pairs,), min(count, sizes.tiles - 1)),
        "starts": _padded(number * page, (sizes.pairs,), NOWHERE),
        "tile_rows": _padded(row, (sizes.tiles, sizes.tile), 0).reshape(-1),
        "limits": _padded(limits, (sizes.tiles, sizes.tile), 0),
        "pairs": _padded(pairs, (sizes.tiles, sizes.most), spare),
        "places": _padded(places, (sizes.rows,), 0),
    }


def _padded(x: np.ndarray, shape: tuple[int, ...], filler: int) -> np.ndarray:
    made = np.full(shape, filler, np.int32)
    made[tuple(slice(n) for n in x.shape)] = x
    return made
