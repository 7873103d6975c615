# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products: rows sorted by group, each group times its own matrix. Experts of a model are such groups.

How many rows a group has is known on the card only, so the host reads it. PyTorch and transformers then multiply slice
by slice; a slice begins somewhere else in every call, and each place would be a program of its own. Here each group
gets the same room, so that programs depend on that room and on nothing else: matrices that all have rows are multiplied
in one product, and where many have none, the others one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_FEW = 16  # rows: a matrix streams as fast whether it meets one of them or all, and none is moved
_MOST = 512  # rows of a group at once: there the array takes as long as the matrix takes to arrive
_ROOMS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_BUSY = 0.75  # share of groups with rows from which on all matrices are read in one product

_aten = torch.library.Library("aten", "IMPL")
_transformers = torch.library.Library("transformers", "IMPL")


@dataclass(frozen=True)
class Group:
    number: int
    start: int  # of its rows
    end: int


def grouped_mm(x: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """(rows, k) times (groups, k, n): rows from ends[g - 1] up to ends[g] meet matrix g. Rows behind the last are 0."""
    bounds = ends.tolist()
    starts = itertools.chain([0], bounds)
    groups = [Group(g, start, end) for g, (start, end) in enumerate(zip(starts, bounds, strict=False)) if start < end]
    complete = bool(groups) and groups[-1].end == len(x)
    if complete and (len(x) <= _FEW or max(g.end - g.start for g in groups) <= _MOST):
        return _at_once(x, matrices, groups)
    given = x.new_zeros(len(x), matrices.shape[-1])
    while groups:
        part = [Group(g.number, g.start, min(g.end, g.start + _MOST)) for g in groups]
        places = [row for g in part for row in range(g.start, g.end)]
        given.index_copy_(0, _on_card(places, x), _at_once(x, matrices, part))
        groups = [Group(g.number, g.start + _MOST, g.end) for g in groups if g.start + _MOST < g.end]
    return given


def _at_once(x: Tensor, matrices: Tensor, groups: Sequence[Group]) -> Tensor:
    """The rows of the groups, one group after the other, each group in a room of the same size."""
    count, k, n = matrices.shape
    few = len(x) <= _FEW
    room = _room(len(x) if few else max(g.end - g.start for g in groups))
    if few:  # every matrix meets all rows
        given = _picked(x, _filled(range(len(x)), room)).expand(count, room, k)
        places = [g.number * room + row for g in groups for row in range(g.start, g.end)]
    else:
        rows = {g.number: range(g.start, g.end) for g in groups}
        picked = [row for g in range(count) for row in _filled(rows.get(g, range(1)), room)]
        given = _picked(x, picked).view(count, room, k)
        places = [g.number * room + row for g in groups for row in range(g.end - g.start)]
    # Rows of all groups in one matrix: a fresh 3-D tensor would have their sticks far apart.
    made = x.new_empty(count * room, n)
    into = made.view(count, room, n)
    if len(groups) >= _BUSY * count:
        torch.bmm(given, matrices, out=into)
    else:
        for g in groups:
            torch.mm(given[g.number], matrices[g.number], out=into[g.number])
    return made.index_select(0, _on_card(places, x))


def _room(rows: int) -> int:
    return next(r for r in _ROOMS if rows <= r)


def _filled(rows: range, room: int) -> list[int]:
    """As many as there is room for; what the last ones give is not looked at."""
    return [*rows, *itertools.repeat(rows[0], room - len(rows))]


def _picked(x: Tensor, rows: list[int]) -> Tensor:
    return x if rows == [*range(len(x))] else x.index_select(0, _on_card(rows, x))


def _on_card(places: list[int], x: Tensor) -> Tensor:
    return torch.tensor(places, dtype=torch.int64).to(x.device)


def _grouped_mm(
    x: Tensor,
    matrices: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    plain = bias is None and out_dtype in (None, x.dtype)
    if x.dim() == 2 and matrices.dim() == 3 and offs is not None and plain:
        return grouped_mm(x, matrices, offs)
    return torch.ops.aten._grouped_mm.default._op_dk(
        torch._C.DispatchKey.CompositeExplicitAutograd, x, matrices, offs, bias, out_dtype
    )


def register() -> None:
    """Called once, when the device is loaded; the op of transformers may be defined later, or never."""
    _aten.impl("_grouped_mm", _grouped_mm, "PrivateUse1")
    _transformers.impl("grouped_mm_fallback", grouped_mm, "PrivateUse1")
