# SPDX-License-Identifier: Apache-2.0
"""Values at the places that a grid names (grid_sample), and the gradients of that.

Each place takes a few neighbours with weights that are products of one weight per dim: two neighbours, or four for a
cubic. Reads outside are 0, moved to the border or reflected (`padding`); the gradient with respect to the values adds
at the same places, the one with respect to the grid uses the slopes of the weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_spyre.decompositions.custom import kept

aten = torch.ops.aten
_LINEAR, _NEAREST, _CUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_SHARPNESS = -0.75  # of PyTorch's cubic


@dataclass(frozen=True)
class _Tap:
    """A neighbour along one dim: its place, its weight there, the slope of the weight, and whether it exists."""

    place: Any
    weight: Any
    slope: Any
    inside: Any


def _reflected(at: Any, low: float, high: float) -> tuple[Any, Any]:
    """`at` mirrored at both ends until it is between them, and the sign of its slope."""
    if low == high:
        return torch.zeros_like(at), torch.zeros_like(at)
    span, away = high - low, at - low
    sign = torch.where(away < 0, -1.0, 1.0)
    away = away.abs()
    flips, rest = torch.floor(away / span), torch.fmod(away, span)
    even = torch.fmod(flips, 2) == 0
    return torch.where(even, rest, span - rest) + low, torch.where(even, sign, -sign)


def _within(at: Any, size: int, padding: int, corners: bool) -> tuple[Any, Any]:
    """A position moved inside as `padding` wants it, and the slope of that."""
    slope = torch.ones_like(at)
    if padding == _ZEROS:
        return at, slope
    if padding == _REFLECTION:
        at, slope = _reflected(at, *((0.0, size - 1.0) if corners else (-0.5, size - 0.5)))
    slope = torch.where((at <= 0) | (at >= size - 1), 0.0, slope)
    return at.clamp(0, size - 1), slope


def _taps(grid: Any, size: int, mode: int, padding: int, corners: bool) -> list[_Tap]:
    """The neighbours along one dim, for grid values from -1 to 1."""
    steps = (size - 1) / 2 if corners else size / 2
    at = (grid + 1) * steps - (0.0 if corners else 0.5)
    if mode == _CUBIC:
        first = torch.floor(at)
        return [_cubic_tap(first + i - 1, at - first, i, size, padding, corners, steps) for i in range(4)]
    at, slope = _within(at, size, padding, corners)
    at = kept(at)
    if mode == _NEAREST:
        return [_tap(torch.round(at), size, torch.ones_like(at), torch.zeros_like(at))]
    first = torch.floor(at)
    right, slope = at - first, slope * steps
    return [_tap(first, size, 1 - right, -slope), _tap(first + 1, size, right, slope)]


def _tap(place: Any, size: int, weight: Any, slope: Any) -> _Tap:
    inside = (place >= 0) & (place < size)
    return _Tap(kept(torch.where(inside, place, 0).to(torch.int32)), kept(weight), kept(slope), inside)


def _cubic_tap(place: Any, t: Any, i: int, size: int, padding: int, corners: bool, steps: float) -> _Tap:
    a = _SHARPNESS
    x = (t + 1, t, 1 - t, 2 - t)[i]
    sign = 1 if i < 2 else -1
    if i in (1, 2):
        weight = ((a + 2) * x - (a + 3)) * x * x + 1
        slope = (3 * (a + 2) * x - 2 * (a + 3)) * x
    else:
        weight = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        slope = (3 * a * x - 10 * a) * x + 8 * a
    return _tap(_within(place, size, padding, corners)[0], size, weight, slope * (sign * steps))


def _corners(x: Any, grid: Any, mode: int, padding: int, corners: bool) -> Iterator[tuple[Any, Any, list[Any]]]:
    """(place in the flattened dims, weight, slope per dim of the grid) of every neighbour, each [N, 1, places]."""
    sizes = x.shape[2:]
    n, dims = grid.shape[0], len(sizes)
    # The grid names dims from the last to the first.
    flat = [kept(grid[..., d].reshape(n, 1, -1).to(torch.float32)) for d in reversed(range(dims))]
    lines = [_taps(g, size, mode, padding, corners) for g, size in zip(flat, sizes, strict=True)]
    for taps in itertools.product(*lines):
        place, inside = taps[0].place, taps[0].inside
        for tap, size in zip(taps[1:], sizes[1:], strict=True):
            place, inside = place * size + tap.place, inside & tap.inside
        weights = [t.weight for t in taps]
        slopes = [
            torch.where(inside, _product([*weights[:d], taps[d].slope, *weights[d + 1 :]]), 0.0) for d in range(dims)
        ]
        yield kept(place.to(torch.int64)), kept(torch.where(inside, _product(weights), 0.0)), slopes


def _product(factors: Sequence[Any]) -> Any:
    return math.prod(factors[1:], start=factors[0])


def _values(x: Any, grid: Any, mode: int, padding: int, corners: bool) -> Any:
    lines, total = x.flatten(2), torch.zeros((), dtype=torch.float32, device=x.device)
    for place, weight, _ in _corners(x, grid, mode, padding, corners):
        part = lines.gather(2, place.expand(-1, lines.shape[1], -1)).to(torch.float32)
        part = torch.where(weight == 0, 0.0, part * weight)  # what is outside has no value
        total = total + part
    return total.reshape(*x.shape[:2], *grid.shape[1:-1]).to(x.dtype)


def _gradients(
    grad: Any, x: Any, grid: Any, mode: int, padding: int, corners: bool, wanted: Sequence[bool]
) -> tuple[Any, Any]:
    lines, wide = x.flatten(2), kept(grad.flatten(2).to(torch.float32))
    of_values = torch.zeros(lines.shape, dtype=torch.float32, device=x.device)
    of_grid: list[Any] = [0.0] * (x.dim() - 2)
    for place, weight, slopes in _corners(x, grid, mode, padding, corners):
        places = place.expand(-1, lines.shape[1], -1)
        if wanted[0]:
            of_values = aten.scatter_add(of_values, 2, places, wide * weight)
        if wanted[1] and mode != _NEAREST:
            change = kept((lines.gather(2, places).to(torch.float32) * wide).sum(1, keepdim=True))
            of_grid = [total + change * slope for total, slope in zip(of_grid, slopes, strict=True)]
    if mode == _NEAREST or not wanted[1]:
        at_grid = torch.zeros_like(grid)
    else:
        at_grid = torch.stack([g.reshape(grid.shape[:-1]) for g in reversed(of_grid)], -1).to(grid.dtype)
    return of_values.reshape(x.shape).to(x.dtype), at_grid


TABLE: dict[Any, Callable[..., Any]] = {
    aten.grid_sampler_2d.default: _values,
    aten.grid_sampler_3d.default: _values,
    aten.grid_sampler_2d_backward.default: _gradients,
    aten.grid_sampler_3d_backward.default: _gradients,
}
