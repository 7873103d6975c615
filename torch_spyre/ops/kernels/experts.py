# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts as one graph: which rows meet which expert is decided by values on the card.

The pairs of a row and an expert are put into tiles, each of one expert: a pair's place is the first place of its expert
plus the number of earlier pairs of that expert. There are as many tiles as the worst choice of experts fills, so one
program serves every choice. Few pairs are tiles of one row each, and read no more experts than were chosen. A row's
result does not depend on the tile it is in, as matrix products add in one order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TILE = 16  # rows that meet an expert together


def chosen_experts(logits: Tensor, count: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """Shares (fp32) and numbers of the `count` experts of each row: the largest of a softmax."""
    shares, numbers = torch.softmax(logits.to(torch.float32), -1).topk(count, -1)
    return (shares / shares.sum(-1, keepdim=True) if renormalize else shares), numbers.to(torch.int32)


def experts(
    rows: Tensor, shares: Tensor, numbers: Tensor, up: Tensor, down: Tensor, between: Callable[[Tensor], Tensor]
) -> Tensor:
    """[rows, d] -> [rows, d]. `up` [experts, d, n] and `down` [experts, m, d] with `between` from n to m features;
    `shares` and `numbers` [rows, experts of a row]."""
    each = numbers.reshape(-1)
    row = torch.arange(len(each), dtype=torch.int32, device=rows.device) // numbers.shape[1]
    if len(each) <= len(up):
        made = _products(rows.index_select(0, row).unsqueeze(1), each, up, down, between).squeeze(1)
    else:
        tiles = min(len(each), len(each) // TILE + len(up))
        place, expert_of_tile = _places(each, len(up), tiles)
        row_of_place = torch.zeros(tiles * TILE, dtype=torch.int32, device=rows.device).index_copy(0, place, row)
        given = rows.index_select(0, row_of_place).view(tiles, TILE, -1)
        made = _products(given, expert_of_tile, up, down, between).flatten(0, 1).index_select(0, place)
    made = made.view(*numbers.shape, -1).to(torch.float32) * shares.unsqueeze(-1)
    return made.sum(1).to(rows.dtype)


def _products(x: Tensor, each: Tensor, up: Tensor, down: Tensor, between: Callable[[Tensor], Tensor]) -> Tensor:
    wide = between(torch.bmm(x, up.index_select(0, each)))
    return torch.bmm(wide, down.index_select(0, each))


def _places(each: Tensor, count: int, tiles: int) -> tuple[Tensor, Tensor]:
    """The place of each pair among all rows of all tiles, and the expert of each tile."""
    numbers = torch.arange(count, dtype=torch.int32, device=each.device)
    own = (each[:, None] == numbers).to(torch.int32)
    so_far = own.cumsum(0, dtype=torch.int32)
    ends = ((so_far[-1] + (TILE - 1)) // TILE).cumsum(0, dtype=torch.int32)
    begins = torch.cat([torch.zeros(1, dtype=torch.int32, device=each.device), ends[:-1]])
    earlier = (so_far * own).sum(1, dtype=torch.int32) - 1
    tile = torch.arange(tiles, dtype=torch.int32, device=each.device)
    expert_of_tile = (tile[:, None] >= ends).sum(1, dtype=torch.int32).clamp(max=count - 1)
    return begins.index_select(0, each) * TILE + earlier, expert_of_tile
