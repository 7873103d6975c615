# SPDX-License-Identifier: Apache-2.0
"""Pooling over windows too large to be written out element by element: one dim after the other.

Windows of fixed steps are views (unfold); cells of an adaptive pooling differ in size, so they are gathered, with what
is past their end filled with the neutral element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decompositions
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten
_WRITTEN_OUT = 25  # elements of a window that Inductor unrolls


def _each(values: Any, n: int) -> list[int]:
    values = [values] if isinstance(values, int) else list(values)
    return values * n if len(values) == 1 else values


def _average(dims: int) -> Callable[..., Any]:
    """A window is summed in fp32 and rounded once."""
    op = {2: aten.avg_pool2d, 3: aten.avg_pool3d}[dims].default

    def pool(
        x: Any,
        kernel: Any,
        stride: Any = (),
        pad: Any = 0,
        ceil_mode: bool = False,
        padded: bool = True,
        divisor: int | None = None,
    ) -> Any:
        form = (kernel, stride, pad, ceil_mode, padded, divisor)
        kernel, stride, pad = (_each(v, dims) for v in (kernel, stride or kernel, pad))
        if math.prod(kernel) <= _WRITTEN_OUT or kernel == stride:
            if x.dtype not in (torch.float16, torch.bfloat16):
                return NotImplemented
            return op(x.to(torch.float32), *form).to(x.dtype)
        total = x.to(torch.float32)
        count = torch.ones((), dtype=torch.float32, device=x.device)
        for d in range(dims):
            at, size = x.dim() - dims + d, x.shape[d - dims]
            output = _outputs(size, kernel[d], stride[d], pad[d], ceil_mode)
            total = _sums(total, at, output, kernel[d], stride[d], pad[d])
            inside = _counts(output, size, kernel[d], stride[d], pad[d], padded, x)
            count = count.unsqueeze(-1) * inside
        return (total / (divisor or count)).to(x.dtype)

    return pool


def _outputs(size: int, kernel: int, stride: int, pad: int, ceil_mode: bool) -> int:
    room = size + 2 * pad - kernel
    if not ceil_mode:
        return room // stride + 1
    output = -(-room // stride) + 1
    return output - 1 if (output - 1) * stride >= size + pad else output  # the last window begins inside


def _sums(x: Any, dim: int, output: int, kernel: int, stride: int, pad: int) -> Any:
    end = (output - 1) * stride + kernel - pad - x.shape[dim]  # below 0: elements that no window reaches
    if pad or end > 0:
        x = torch.constant_pad_nd(x, [*[0, 0] * (x.dim() - 1 - dim), pad, max(end, 0)])
    return x.unfold(dim, kernel, stride).sum(-1)


def _counts(output: int, size: int, kernel: int, stride: int, pad: int, padded: bool, like: Any) -> Any:
    """Elements of each window; `padded` counts the padding, but not what ceil_mode adds past it."""
    first = torch.arange(output, device=like.device) * stride - pad
    end = (first + kernel).clamp(max=size + pad)
    count = end - first if padded else end.clamp(max=size) - first.clamp(min=0)
    return count.to(torch.float32)


# Adaptive pooling


def _cells(x: Any, dim: int, output: int) -> tuple[Any, Any, Any, int]:
    """(x with `dim` as [output, elements of the largest cell], is it inside, first element of each cell, last size)."""
    size = x.shape[dim]
    widest = max(-(-(i + 1) * size // output) - i * size // output for i in range(output))
    cell = torch.arange(output, device=x.device).unsqueeze(-1)
    first, end = cell * size // output, ((cell + 1) * size + output - 1) // output
    place = first + torch.arange(widest, device=x.device)
    gathered = x[(*[slice(None)] * dim, place.clamp(max=size - 1))]
    shape = [output, widest, *[1] * (x.dim() - 1 - dim)]
    return gathered, (place < end).reshape(shape), first.reshape(output, *shape[2:]), dim + 1


def _adaptive_average(x: Any, output_size: Sequence[int]) -> Any:
    if not x.numel() or 0 in output_size or _unrolled(x, output_size):
        return NotImplemented
    total = x.to(torch.float32)
    for d, output in enumerate(output_size):
        gathered, inside, _, within = _cells(total, x.dim() - len(output_size) + d, output)
        count = inside.to(torch.float32).sum(1)
        total = torch.where(inside, gathered, 0.0).sum(within) / count
    return total.to(x.dtype)


def _unrolled(x: Any, output_size: Sequence[int]) -> bool:
    sizes = x.shape[-len(output_size) :]
    if all(n % out == 0 for n, out in zip(sizes, output_size, strict=True)):
        return True  # windows of fixed steps
    return math.prod(-(-(n + out - 1) // out) for n, out in zip(sizes, output_size, strict=True)) <= _WRITTEN_OUT


def _adaptive_maximum(x: Any, output_size: Sequence[int]) -> Any:
    """The largest value of each cell and its place; of equal ones the first, as rows go before columns."""
    n = len(output_size)
    if not x.numel() or 0 in output_size or (n == 2 and _unrolled(x, output_size)):
        return NotImplemented
    sizes, value, place = x.shape[-n:], x, None
    for d in reversed(range(n)):  # the last dim first, so that among equals the first row is taken
        dim = x.dim() - n + d
        gathered, inside, first, within = _cells(value, dim, output_size[d])
        gathered = torch.where(inside, gathered, -math.inf)
        value, chosen = gathered.max(within)
        here = (first + chosen) * math.prod(sizes[d + 1 :])
        if place is not None:
            before = _cells(place, dim, output_size[d])[0]
            here = here + before.gather(within, chosen.unsqueeze(within)).squeeze(within)
        place = here
    return value, place


def _max_unpool2d(x: Any, indices: Any, output_size: Any) -> Any:
    """PyTorch's, in the memory format of its operand, as the CPU has it."""
    result = decompositions.max_unpool2d(x, indices, output_size)
    return result.contiguous(memory_format=suggest_memory_format(x))


TABLE: dict[Any, Callable[..., Any]] = {
    aten.max_unpool2d.default: _max_unpool2d,
    aten.avg_pool2d.default: _average(2),
    aten.avg_pool3d.default: _average(3),
    aten._adaptive_avg_pool2d.default: _adaptive_average,
    aten.adaptive_max_pool2d.default: _adaptive_maximum,
    aten.adaptive_max_pool3d.default: _adaptive_maximum,
}
