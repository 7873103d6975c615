# SPDX-License-Identifier: Apache-2.0
"""Pooling, interpolation and padding whose gradients the card's PyTorch lacks.

Along each dim they are linear maps: a weight for each pair of an output and an input, so that the gradient is a
product with the same weights; where each output has one source, a scatter that adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from torch_spyre.decompositions.custom import matmul

aten = torch.ops.aten


def along_last_dims(x: Any, maps: Sequence[Any]) -> Any:
    """x with each of its last dims multiplied by a matrix [new, old]; sums and steps in fp32."""
    wide = x.to(torch.float32)
    for i, weights in enumerate(reversed(maps)):
        if i == 1:
            wide = matmul(weights, wide)
            continue
        dim = wide.dim() - 1 - i
        moved = wide.movedim(dim, -1)
        wide = matmul(moved.reshape(1, -1, moved.shape[-1]), weights.t().unsqueeze(0))
        wide = wide.reshape(*moved.shape[:-1], weights.shape[0]).movedim(-1, dim)
    return wide.to(x.dtype)


def without_spreading(x: Any, maps: Sequence[Any]) -> Any:
    """The same for weights of 0 and above: an infinite value or a NaN reaches only what it has a weight for, where
    a product with 0 would carry it everywhere."""
    wide = x.to(torch.float32)
    infinite, nan = torch.isinf(wide), torch.isnan(wide)
    parts = [torch.where(infinite | nan, 0.0, wide), (infinite & (wide > 0)) | nan, (infinite & (wide < 0)) | nan]
    total, above, below = along_last_dims(torch.stack([p.to(torch.float32) for p in parts]), maps).unbind(0)
    total = torch.where(above > 0, math.inf, total)
    return torch.where(below > 0, torch.where(above > 0, math.nan, -math.inf), total).to(x.dtype)


def _to_places(dims: int) -> Callable[..., Any]:
    """The gradient of a maximum pooling whose indices are places in the last dims."""

    def backward(grad: Any, x: Any, *form: Any) -> Any:
        places = form[-1].flatten(-dims)
        flat = torch.zeros_like(x).flatten(-dims)
        return aten.scatter_add(flat, -1, places, grad.flatten(-dims)).reshape(x.shape)

    return backward


# Interpolation: the forward op itself, on the unit vectors of a dim, tells the weights.

_LINES: dict[str, Callable[..., Any]] = {
    "nearest": lambda x, n, scale, *_: aten.upsample_nearest1d(x, [n], scale),
    "exact": lambda x, n, scale, *_: aten._upsample_nearest_exact1d(x, [n], scale),
    "linear": lambda x, n, scale, corners: aten.upsample_linear1d(x, [n], corners, scale),
    "cubic": lambda x, n, scale, corners: aten.upsample_bicubic2d(
        x.unsqueeze(-1), [n, 1], corners, scale, None
    ).squeeze(-1),
}


def _interpolation_backward(kind: str, grad: Any, size: Sequence[int], corners: bool, scales: Sequence[Any]) -> Any:
    dims = size[2:]
    maps = []
    for old, new, scale in zip(dims, grad.shape[2:], scales, strict=True):
        unit = torch.eye(old, device=grad.device, dtype=torch.float32).unsqueeze(0)
        maps.append(_LINES[kind](unit, new, scale, corners).squeeze(0))
    return along_last_dims(grad, maps)


def _smoothed(filter_width: int, kind: str) -> Callable[..., Any]:
    """Weights of an interpolation that takes in as many elements as an output covers (antialiasing)."""

    def weights(size: int, output: int, scale: float | None, corners: bool, like: Any) -> Any:
        if corners:
            step = (size - 1) / (output - 1) if output > 1 else 0.0
        else:
            step = 1 / scale if scale else size / output
        support, narrow = filter_width / 2 * max(step, 1.0), 1 / max(step, 1.0)
        center = (torch.arange(output, device=like.device, dtype=torch.float32).unsqueeze(-1) + 0.5) * step
        first = torch.floor(center - support + 0.5).clamp(min=0)
        end = torch.floor(center + support + 0.5).clamp(max=size)
        here = torch.arange(size, device=like.device, dtype=torch.float32)
        value = _FILTERS[kind](((here - center + 0.5) * narrow).abs())
        value = torch.where((here >= first) & (here < end), value, 0.0)
        return value / value.sum(-1, keepdim=True)

    return weights


def _cubic(x: Any) -> Any:
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


_FILTERS: dict[str, Callable[[Any], Any]] = {"linear": lambda x: (1 - x).clamp(min=0), "cubic": _cubic}
_SMOOTHED = {"linear": _smoothed(2, "linear"), "cubic": _smoothed(4, "cubic")}


def _antialiased(kind: str) -> Callable[..., Any]:
    def forward(x: Any, size: Sequence[int], corners: bool, *scales: Any) -> Any:
        lines = zip(x.shape[2:], size, _filled(scales, 2), strict=True)
        maps = [_SMOOTHED[kind](old, new, scale, corners, x) for old, new, scale in lines]
        if x.dtype == torch.uint8:  # a cubic filter leaves its range
            result = along_last_dims(x.to(torch.float32), maps).round().clamp(0, 255).to(torch.uint8)
        else:
            result = along_last_dims(x, maps)
        return result.contiguous(memory_format=suggest_memory_format(x))

    return forward


def _antialiased_backward(kind: str) -> Callable[..., Any]:
    def backward(grad: Any, output: Sequence[int], size: Sequence[int], corners: bool, *scales: Any) -> Any:
        lines = zip(size[2:], output, _filled(scales, 2), strict=True)
        return along_last_dims(grad, [_SMOOTHED[kind](old, new, scale, corners, grad).t() for old, new, scale in lines])

    return backward


def _weighted(kind: str) -> Callable[..., Any]:
    def backward(grad: Any, _: Any, size: Sequence[int], corners: bool, *scales: Any) -> Any:
        return _interpolation_backward(kind, grad, size, corners, _filled(scales, len(size) - 2))

    return backward


def _single(kind: str) -> Callable[..., Any]:
    """Every output is one input: gradients add up there, also those that are infinite."""

    def backward(grad: Any, _: Any, size: Sequence[int], *scales: Any) -> Any:
        sources = []
        for old, new, scale in zip(size[2:], grad.shape[2:], _filled(scales, len(size) - 2), strict=True):
            here = torch.arange(old, device=grad.device, dtype=torch.float32).reshape(1, 1, old)
            sources.append(_LINES[kind](here, new, scale).reshape(new).to(torch.int64))
        return _added(grad, size, sources)

    return backward


def _filled(scales: Sequence[Any], n: int) -> list[Any]:
    return [*scales, *([None] * (n - len(scales)))]


def _added(grad: Any, size: Sequence[int], sources: Sequence[Any]) -> Any:
    """Each element of grad added to its source in the last dims."""
    n = len(sources)
    places = [s.reshape([-1] + [1] * (n - 1 - d)) for d, s in enumerate(sources)]
    start = torch.zeros(size, dtype=grad.dtype, device=grad.device)
    return aten.index_put(start, [*([None] * (len(size) - n)), *places], grad, True)


def _replication_backward(grad: Any, x: Any, padding: Sequence[int]) -> Any:
    n = len(padding) // 2
    sources = []
    for d in range(n):
        size, before = x.shape[x.dim() - n + d], padding[2 * (n - 1 - d)]
        new = grad.shape[grad.dim() - n + d]
        sources.append((torch.arange(new, device=x.device) - before).clamp(0, size - 1))
    return _added(grad, x.shape, sources)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.adaptive_max_pool2d_backward.default: _to_places(2),
    aten.adaptive_max_pool3d_backward.default: _to_places(3),
    aten.max_pool3d_with_indices_backward.default: _to_places(3),
    aten.upsample_nearest1d_backward.default: _single("nearest"),
    aten.upsample_nearest3d_backward.default: _single("nearest"),
    aten._upsample_nearest_exact1d_backward.default: _single("exact"),
    aten._upsample_nearest_exact2d_backward.default: _single("exact"),
    aten._upsample_nearest_exact3d_backward.default: _single("exact"),
    aten.upsample_linear1d_backward.default: _weighted("linear"),
    aten.upsample_bilinear2d_backward.default: _weighted("linear"),
    aten.upsample_trilinear3d_backward.default: _weighted("linear"),
    aten.upsample_bicubic2d_backward.default: _weighted("cubic"),
    aten._upsample_bilinear2d_aa.default: _antialiased("linear"),
    aten._upsample_bicubic2d_aa.default: _antialiased("cubic"),
    aten._upsample_bilinear2d_aa_backward.default: _antialiased_backward("linear"),
    aten._upsample_bicubic2d_aa_backward.default: _antialiased_backward("cubic"),
    aten.replication_pad1d_backward.default: _replication_backward,
    aten.replication_pad2d_backward.default: _replication_backward,
    aten.replication_pad3d_backward.default: _replication_backward,
}
