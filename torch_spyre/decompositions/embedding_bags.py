# SPDX-License-Identifier: Apache-2.0
"""Embedding bags: sums, means or maxima of the table rows that are between two offsets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torch_spyre.errors import UnsupportedOp

aten = torch.ops.aten
_SUM, _MEAN, _MAX = range(3)


def _bags(indices: Any, offsets: Any, last: bool, padding: int) -> tuple[int, Any, Any, Any]:
    """(bags, the bag of each index, does it count, how many of each bag do)."""
    starts = offsets[:-1] if last else offsets
    count = starts.shape[0]
    here = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    bag = (starts.unsqueeze(0) <= here.unsqueeze(1)).sum(1, dtype=torch.int32).to(torch.int64) - 1
    real = indices != padding
    size = aten.scatter_add(torch.zeros(count, dtype=torch.int32, device=indices.device), 0, bag, real.to(torch.int32))
    return count, bag, real, size


def _forward(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """(result, bag of each index, elements of each bag, places of the maxima)."""
    count, bag, real, size = _bags(indices, offsets, include_last_offset, padding_idx)
    rows = aten.index_select(weight, 0, indices).to(torch.float32)  # unlike weight[indices], no row from the end
    columns = weight.shape[1]
    kinds = torch.promote_types(indices.dtype, offsets.dtype)
    if mode == _MAX and indices.shape[0] == 0:
        nothing = torch.zeros((count, columns), dtype=weight.dtype, device=weight.device)
        return nothing, bag.to(kinds), size.to(kinds), torch.full_like(nothing, -1, dtype=kinds)
    if mode == _MAX:
        # The largest of each column that belongs to the bag; the first of equals. Bags of no elements are 0.
        own = ((torch.arange(count, device=bag.device).unsqueeze(1) == bag) & real).unsqueeze(2)
        found, first = torch.where(own, rows, -math.inf).max(1)
        filled = (size > 0).unsqueeze(1)
        places = torch.where(filled, indices[first], -1).to(kinds)
        return torch.where(filled, found, 0.0).to(weight.dtype), bag.to(kinds), size.to(kinds), places
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.to(torch.float32).unsqueeze(1)
    rows = torch.where(real.unsqueeze(1), rows, 0.0)
    total = torch.zeros((count, columns), dtype=torch.float32, device=weight.device)
    total = aten.index_put(total, [bag], rows, True)
    if mode == _MEAN:
        total = total / size.clamp(min=1).unsqueeze(1).to(torch.float32)
    places = torch.zeros((0,), dtype=kinds, device=weight.device)
    return total.to(weight.dtype), bag.to(kinds), size.to(kinds), places


def _backward(
    grad: Any,
    indices: Any,
    offsets: Any,
    offset2bag: Any,
    bag_size: Any,
    maximum_indices: Any,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:
    if sparse:
        raise UnsupportedOp("embedding_bag(sparse=True): the card has no sparse tensors; leave sparse out")
    table = torch.zeros((num_weights, grad.shape[1]), dtype=torch.float32, device=grad.device)
    wide = grad.to(torch.float32)
    if mode == _MAX:
        there = maximum_indices >= 0
        places = torch.where(there, maximum_indices, 0).to(torch.int64)
        return aten.scatter_add(table, 0, places, torch.where(there, wide, 0.0)).to(grad.dtype)
    rows = wide[offset2bag]
    if mode == _MEAN:
        rows = rows / bag_size.clamp(min=1).to(torch.float32)[offset2bag].unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.to(torch.float32).unsqueeze(1)
    if scale_grad_by_freq:
        rows = rows / _occurrences(indices, num_weights).unsqueeze(1)
    rows = torch.where((indices != padding_idx).unsqueeze(1), rows, 0.0)
    return aten.index_put(table, [indices], rows, True).to(grad.dtype)


def _occurrences(indices: Any, num_weights: int) -> Any:
    """How often the index of each place occurs among all."""
    seen = torch.zeros(num_weights, dtype=torch.int32, device=indices.device)
    seen = aten.scatter_add(seen, 0, indices, torch.ones_like(indices, dtype=torch.int32))
    return seen[indices].to(torch.float32)


def _embedding_backward(grad: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    if not indices.numel() or not (scale_grad_by_freq or grad.dtype in (torch.float16, torch.bfloat16)):
        return NotImplemented
    places = indices.reshape(-1).to(torch.int64)
    if not scale_grad_by_freq:  # a sum at few places widens only these
        rows = grad.reshape(places.numel(), -1)
        if padding_idx >= 0:
            rows = torch.where((places != padding_idx).unsqueeze(1), rows, 0.0)
        table = torch.zeros((num_weights, rows.shape[1]), dtype=grad.dtype, device=grad.device)
        return aten.index_put(table, [places], rows, True)
    rows = grad.to(torch.float32).reshape(places.numel(), -1) / _occurrences(places, num_weights).unsqueeze(1)
    rows = torch.where((places != padding_idx).unsqueeze(1), rows, 0.0)
    table = torch.zeros((num_weights, rows.shape[1]), dtype=torch.float32, device=grad.device)
    return aten.index_put(table, [places], rows, True).to(grad.dtype)


def _weights_backward(
    grad: Any, weight: Any, indices: Any, offsets: Any, offset2bag: Any, mode: int, padding_idx: int = -1
) -> Any:
    products = (grad.to(torch.float32)[offset2bag] * weight[indices].to(torch.float32)).sum(1)
    return torch.where(indices != padding_idx, products, 0.0).to(grad.dtype)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.embedding_dense_backward.default: _embedding_backward,
    aten._embedding_bag.default: _forward,
    aten._embedding_bag_forward_only.default: _forward,
    aten._embedding_bag_backward.default: _backward,
    aten._embedding_bag_per_sample_weights_backward.default: _weights_backward,
}
