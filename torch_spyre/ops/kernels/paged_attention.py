# SPDX-License-Identifier: Apache-2.0
"""Attention of a batch of sequences of any lengths over keys and values in pages, as one graph.

The work is a list of pairs: a tile of query rows of one sequence, and a page of that sequence's keys. Which tile and
which page are values in tables on the card, so one program serves every batch of about as many pairs: no loop over
sequences, no rectangle of sequences by lengths. Each pair gives sums of exponentials and of weighted values, relative
to the maximum over all pages of the row; the sums of a row are added page after page, in fp32. A row's result so
depends on its own sequence alone, bit by bit: not on what else is in the batch, nor on which rows share its tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass
class PagedTables:
    """What a step says about its sequences; int32 tensors on the card. T rows, N tiles, W pairs of tile and page."""

    slots: Tensor  # [T]: where each row's key and value go, page * page size + place in the page
    pages: Tensor  # [W]: the page of each pair
    tiles: Tensor  # [W]: the tile of each pair
    starts: Tensor  # [W]: position in the sequence of the page's first key
    tile_rows: Tensor  # [N * tile]: the rows of each tile; any row where a tile is not full
    limits: Tensor  # [N, tile]: position of the last key that a row sees, its own one if attention is causal
    pairs: Tensor  # [N, most pages of a sequence]: the pairs of each tile; one of its own again where it has fewer
    places: Tensor  # [T]: tile * tile size + place in the tile of each row
    at: Tensor | None = None  # [W * page]: where each key of each pair lies; see `located`
    away: Tensor | None = None  # [W, tile, page]: by how much each row follows each key; negative: it does not see it

    def located(self, page: int, work_out: Callable[..., tuple[Tensor, Tensor]] | None = None) -> PagedTables:
        """With what all layers of a step would work out anew. `work_out` is `places_and_distances`, compiled."""
        at, away = (work_out or places_and_distances)(self.pages, self.starts, self.tiles, self.limits, page)
        return replace(self, at=at, away=away)


def places_and_distances(
    pages: Tensor, starts: Tensor, tiles: Tensor, limits: Tensor, page: int
) -> tuple[Tensor, Tensor]:
    """`at` and `away` of tables."""
    offsets = torch.arange(page, dtype=torch.int32, device=pages.device)
    keys = starts[:, None] + offsets
    away = limits.index_select(0, tiles)[:, :, None] - keys[:, None, :]
    return (pages[:, None] * page + offsets).reshape(-1), away


@dataclass(frozen=True)
class Form:
    """What the compiler has to know."""

    page: int
    scale: float
    window: int | None = None  # keys that a row sees, itself included; None: all
    soft_cap: float | None = None


def write_pages(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Puts the rows of this step, [T, key heads, d], to their places in [pages * page size, key heads, d]."""
    key, value = with_nan_in_keys(key, value)
    keys.index_copy_(0, slots, key)
    values.index_copy_(0, slots, value)


def with_nan_in_keys(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Values in pages are never NaN: the value of a masked key is multiplied with 0, which NaN survives, and neither
    the next user of a page nor another one of this step must meet it. A row's NaN goes into its key instead, so who
    sees the row gets NaN, and nobody else."""
    whole = value.sum(-1, keepdim=True)
    return torch.where(whole == whole, key, math.nan), torch.where(value == value, value, 0.0)


def paged_attention(
    query: Tensor, keys: Tensor, values: Tensor, tables: PagedTables, form: Form, slopes: Tensor | None = None
) -> Tensor:
    """[T, heads, d] -> [T, heads, d of values]. `slopes` [heads] is ALiBi's."""
    if tables.at is None:
        tables = tables.located(form.page)
    heads, depth = query.shape[1:]
    shared, wide = values.shape[1:]
    group = heads // shared
    count, rows = tables.limits.shape
    pairs = tables.pages.shape[0]
    tiled = query.index_select(0, tables.tile_rows).view(count, rows, shared, group, depth) * form.scale
    tiled = tiled.permute(0, 2, 3, 1, 4).reshape(count, shared, group * rows, depth)
    queries = tiled.index_select(0, tables.tiles)
    at, away = tables.at, tables.away
    assert at is not None and away is not None
    some_keys = keys.index_select(0, at).view(pairs, form.page, shared, depth).permute(0, 2, 3, 1)
    some_values = values.index_select(0, at).view(pairs, form.page, shared, wide).permute(0, 2, 1, 3)
    scores = torch.matmul(queries, some_keys).view(pairs, shared, group, rows, form.page)
    if form.soft_cap:
        scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
    if slopes is not None:
        scores = scores - slopes.view(shared, group, 1, 1) * away[:, None, None].to(scores.dtype)
    seen = away >= 0
    if form.window is not None:
        seen = seen & (away < form.window)
    scores = torch.where(seen[:, None, None], scores, -math.inf)
    largest = _largest(scores.amax(-1).reshape(pairs, -1), tables)
    powers = torch.exp(scores - largest.view(pairs, shared, group, rows, 1))
    sums = powers.sum(-1).reshape(pairs, -1)
    weighted = torch.matmul(powers.reshape(pairs, shared, group * rows, form.page), some_values).reshape(pairs, -1)
    total = _added(sums, tables.tiles, count).view(count, shared, group, rows, 1)
    total = torch.where(total == 0, 1.0, total)  # a row that sees nothing is 0: NaN would go into the pages
    result = _added(weighted, tables.tiles, count).view(count, shared, group, rows, wide) / total
    return result.permute(0, 3, 1, 2, 4).reshape(count * rows, heads, wide).index_select(0, tables.places)


def _largest(of_pairs: Tensor, tables: PagedTables) -> Tensor:
    """The largest score of each row over all its pages, for each pair; 0 where a row sees nothing."""
    count, most = tables.pairs.shape
    largest = of_pairs.index_select(0, tables.pairs.reshape(-1)).view(count, most, -1).amax(1)
    return torch.where(largest == -math.inf, 0.0, largest).index_select(0, tables.tiles)


def _added(x: Tensor, tiles: Tensor, count: int) -> Tensor:
    """Sums of the pairs of each tile in fp32, in their order, rounded once."""
    return torch.zeros(count, x.shape[1], dtype=x.dtype, device=x.device).index_add(0, tiles, x)
