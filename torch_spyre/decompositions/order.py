# SPDX-License-Identifier: Apache-2.0
"""Order along a dim that has more elements than the card sorts at once: in parts that it can sort.

Equal elements keep their order throughout, so the result is that of one stable sort.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_spyre.errors import UnsupportedOp

aten = torch.ops.aten
MOST = 1 << 24  # elements of one SORT instruction
MOST_BLOCKS = 8  # of a sort, whose steps grow with their square
Run = tuple[Any, Any]  # sorted values and their places


def _is_long(x: Any, dim: int) -> bool:
    return x.dim() > 0 and isinstance(x.shape[dim], int) and x.shape[dim] > MOST


def _pieces(x: Any, dim: int, each: int) -> list[tuple[int, Any]]:
    size = x.shape[dim]
    return [(start, x.narrow(dim, start, min(each, size - start))) for start in range(0, size, each)]


def _sort(x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Blocks are sorted, then neighbours exchange what is on the wrong side, as often as there are blocks."""
    if not _is_long(x, dim):
        return NotImplemented
    blocks = _pieces(x, dim, MOST // 2)
    if len(blocks) > MOST_BLOCKS:
        raise UnsupportedOp(
            f"sort of {x.shape[dim]} elements along one dim: at most {MOST_BLOCKS * (MOST // 2)} are sorted; take "
            "torch.topk for the first of them, or sort on the host with .cpu()"
        )

    def sort(values: Any) -> Run:
        found: Run = aten.sort.stable(values, stable=True, dim=dim, descending=descending)
        return found

    runs = []
    for start, block in blocks:
        values, places = sort(block)
        runs.append((values, places + start))
    for turn in range(len(runs)):
        for left in range(turn % 2, len(runs) - 1, 2):
            runs[left], runs[left + 1] = _exchanged(runs[left], runs[left + 1], dim, sort)
    values, places = zip(*runs, strict=True)
    return torch.cat(values, dim), torch.cat(places, dim)


def _exchanged(left: Run, right: Run, dim: int, sort: Callable[[Any], Run]) -> tuple[Run, Run]:
    """Two runs as the first and the last of what they hold together."""
    values, order = sort(torch.cat([left[0], right[0]], dim))
    places = torch.cat([left[1], right[1]], dim).gather(dim, order)
    sizes = [left[0].shape[dim], right[0].shape[dim]]
    first, last = zip(values.split(sizes, dim), places.split(sizes, dim), strict=True)
    return first, last


def _sort_default(x: Any, dim: int = -1, descending: bool = False) -> Any:
    return _sort(x, dim=dim, descending=descending)


def _topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The first k of the first k of each part."""
    if not _is_long(x, dim) or not isinstance(k, int):
        return NotImplemented
    if k > MOST // 2:
        values, places = aten.sort.stable(x, stable=True, dim=dim, descending=largest)
        return values.narrow(dim, 0, k), places.narrow(dim, 0, k)
    runs = []
    for start, part in _pieces(x, dim, MOST):
        values, places = aten.topk(part, min(k, part.shape[dim]), dim, largest)
        runs.append((values, places + start))
    values, places = zip(*runs, strict=True)
    best, order = aten.topk(torch.cat(values, dim), k, dim, largest)
    return best, torch.cat(places, dim).gather(dim, order)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.sort.default: _sort_default,
    aten.sort.stable: _sort,
    aten.topk.default: _topk,
}
