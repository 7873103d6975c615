# SPDX-License-Identifier: Apache-2.0
"""Eager reads and writes at places that truth values mark: ``x[:, mask]`` and ``x[:, mask] = values``.

The card lists the places that are marked, the host reads only how many there are. Places that are written are listed in
room for a power of two, in which the last one repeats: a program depends on that room and not on the number, and
writing the same value twice does no harm. A small tensor, or one with about as many elements as the mask, is written
whole instead, each element by its mark (`decompositions/scatters.py`): that is cheaper and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_spyre.decompositions.scatters import FEW, as_masks

aten = torch.ops.aten
_WRITES = (aten._index_put_impl_.default, aten.index_put_.default)
_LARGE = 1 << 18  # elements that are written in the time in which the host learns a number
_MASKS = (torch.bool, torch.uint8)


def takes(op: Any, args: Sequence[Any]) -> bool:
    """Is it a read or write at marked places that is done here?"""
    if op is aten.masked_select.default:
        return True
    if op is not aten.index.Tensor and op not in _WRITES:
        return False
    given = [i for i in args[1] if i is not None]
    masks = [i for i in given if i.dtype in _MASKS]
    if not masks or op is aten.index.Tensor or len(given) > 1:
        return bool(masks)
    return bool(args[0].numel() >= max(masks[0].numel() * FEW, _LARGE))


def run(op: Any, args: Sequence[Any]) -> torch.Tensor:
    if op is aten.masked_select.default:
        x, mask = torch.broadcast_tensors(*args[:2])
        if x.dim() == 0:  # a mask of no dims would add one to the tensor
            x, mask = x.reshape(1), mask.reshape(1)
        return aten.index.Tensor(x, [mask])
    x, indices = args[0], as_masks(args[1])
    _check(x, indices)
    if op is aten.index.Tensor:
        return aten.index.Tensor(x, _places(indices))
    values, accumulate = args[2], len(args) > 3 and args[3]
    given = [d for d, i in enumerate(indices) if i is not None]
    if len(given) > 1:
        return aten.index_put_(x, _places(indices), values, accumulate)
    return _put(x, given[0], indices[given[0]], values, accumulate)


def _check(x: torch.Tensor, indices: Sequence[Any]) -> None:
    at = 0
    for number, index in enumerate(indices):
        dims = index.dim() if index is not None and index.dtype == torch.bool else 1
        if index is not None and index.dtype == torch.bool and index.shape != x.shape[at : at + dims]:
            raise IndexError(
                f"The shape of the mask {list(index.shape)} at index {number} does not match the shape of the indexed "
                f"tensor {list(x.shape)} at index {at}"
            )
        at += dims


def _places(indices: Sequence[Any]) -> list[Any]:
    """The indices, with the places that a mask marks in its stead: one vector for each of its dims."""
    found: list[Any] = []
    for index in indices:
        if index is None or index.dtype != torch.bool:
            found.append(index)
            continue
        count = int(_count(index))
        found += _listed(index, count).unbind(1)
    return found


def _count(mask: torch.Tensor) -> torch.Tensor:
    return mask.sum(dtype=torch.int32)


def _room(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _listed(mask: torch.Tensor, count: int) -> torch.Tensor:
    if mask.dim() == 0:
        return _listed(mask.unsqueeze(0), count)[:, :0]
    return aten.nonzero_static(mask, size=_room(count), fill_value=0)[:count]


def _put(x: torch.Tensor, dim: int, mask: torch.Tensor, values: torch.Tensor, accumulate: bool) -> torch.Tensor:
    """At the places of one mask, which begins at a dim of x."""
    on_card = _count(mask)
    count = int(on_card)
    behind = x.dim() - dim - mask.dim()
    given = values.shape[-1 - behind] if values.dim() > behind else 1
    if given not in (1, count) or mask.dim() == 0:
        return aten.index_put_(x, _places([None] * dim + [mask]), values, accumulate)
    if count == 0:
        return x
    room = torch.minimum(torch.arange(_room(count), dtype=torch.int32, device=x.device), on_card - 1)
    places = aten.nonzero_static(mask, size=_room(count), fill_value=0).index_select(0, room)
    indices = [None] * dim + list(places.unbind(1))
    if given != 1:
        values = values.index_select(values.dim() - 1 - behind, room)
    if accumulate:  # no place is marked twice
        values = aten.index.Tensor(x, indices) + values
    return aten.index_put_(x, indices, values)
