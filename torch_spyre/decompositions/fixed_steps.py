# SPDX-License-Identifier: Apache-2.0
"""Ops whose usual form is a loop over values, as a fixed number of steps over whole tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torch_spyre.decompositions.custom import kept

aten = torch.ops.aten
# Euclid's steps with the nearest multiple: each more than doubles what it takes to need one more (1 + sqrt 2).
_STEPS = {8: 6, 16: 12, 32: 24}


def _gcd(a: Any, b: Any) -> Any:
    dtype = torch.result_type(a, b)
    card = torch.int32 if dtype == torch.int64 else dtype  # as int64 is stored; no step leaves it
    a, b = torch.broadcast_tensors(a.to(card), b.to(card))
    for _ in range(2):  # abs() of the smallest int32 is none; what two steps leave is smaller
        done = b == 0
        a, b = torch.where(done, a, b), torch.where(done, 0, torch.fmod(a, torch.where(done, 1, b)))
    a, b = a.abs(), b.abs()
    for _ in range(_STEPS[torch.iinfo(card).bits]):
        rest = torch.fmod(a, b.clamp(min=1))  # 0 once b is
        a, b = kept(torch.where(b == 0, a, b)), kept(torch.minimum(rest, b - rest))
    return a.to(dtype).abs()  # of two of the smallest int64 that the card has, there is none


def _lcm(a: Any, b: Any) -> Any:
    divisor = torch.gcd(a, b)
    parts = torch.div(a, torch.where(divisor == 0, 1, divisor), rounding_mode="trunc")
    return torch.where(divisor == 0, 0, (parts * b).abs())


def _logcumsumexp(x: Any, dim: int) -> Any:
    """Each element takes in a neighbour 1, 2, 4, ... to its left, as stable as logaddexp itself."""
    if x.dim() == 0:
        return x.clone()
    wide, size = x.to(torch.float32), x.shape[dim]
    dim %= x.dim()
    step = 1
    while step < size:
        fill = [0, 0] * (x.dim() - 1 - dim) + [step, 0]
        left = torch.constant_pad_nd(wide.narrow(dim, 0, size - step), fill, -math.inf)
        wide = kept(torch.logaddexp(wide, left))
        step *= 2
    result = wide.to(x.dtype)
    # A new tensor, row by row, as PyTorch's own kernel makes it.
    return result if step > 1 and result.is_contiguous() else result.clone(memory_format=torch.contiguous_format)


def _mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The value of the longest run after sorting, the smallest of several; its last place."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, places = torch.sort(x, dim=dim, stable=True)
    size = x.shape[dim]
    here = torch.arange(size, device=x.device, dtype=torch.int32)
    here = here.reshape([size if d == dim % x.dim() else 1 for d in range(x.dim())])
    starts = torch.where(values != torch.roll(values, 1, dim), here, 0)  # the first is 0 either way
    length = here - torch.cummax(starts, dim).values
    end = length.argmax(dim, keepdim=True)
    results = (values.gather(dim, end), places.gather(dim, end))
    return results if keepdim else tuple(r.squeeze(dim) for r in results)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.gcd.default: _gcd,
    aten.lcm.default: _lcm,
    aten._logcumsumexp.default: _logcumsumexp,
    aten.logcumsumexp.default: _logcumsumexp,
    aten.mode.default: _mode,
}
