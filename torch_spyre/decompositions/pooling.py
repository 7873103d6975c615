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
from torch._prims_common import suggest_memory_format

from torch_spyre.decompositions.resampling import without_spreading

aten = torch.ops.aten
_WRITTEN_OUT = 25  # elements of a window that Inductor unrolls
_KERNEL_NAMES = {"bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long"}
_SLICES = 40  # of all dims together, of a window that is taken dim by dim


def _each(values: Any, n: int) -> list[int]:
    every: list[int] = [values] if isinstance(values, int) else list(values)
    return every * n if len(every) == 1 else every


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


def _maximum(dims: int) -> Callable[..., Any]:
    """The largest value of each window and its place, one dim after the other: a window of k elements along a dim is k
    strided slices. Of equal values the first counts, of several NaN the last, as rows go before columns.

    The neutral element of int64 has no place on the card, which keeps the values as int32.
    """
    op = {2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}[dims].default
    last = torch.channels_last_3d

    def pool(x: Any, kernel: Any, stride: Any = (), pad: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
        if x.dtype == torch.int64:
            values, places = op(x.to(torch.int32), kernel, stride, pad, dilation, ceil_mode)
            return values.to(torch.int64), places
        if x.dim() == 4 and dims == 3 and not x.is_contiguous() and x.unsqueeze(0).is_contiguous(memory_format=last):
            # Without a batch PyTorch's formula loses the order of dims that its kernels keep.
            pooled = op(x.unsqueeze(0), kernel, stride, pad, dilation, ceil_mode)
            return tuple(r.contiguous(memory_format=last).squeeze(0) for r in pooled)
        kernel, stride, pad, dilation = (_each(v, dims) for v in (kernel, stride or kernel, pad, dilation))
        if math.prod(kernel) <= _WRITTEN_OUT or sum(kernel) > _SLICES or not x.is_floating_point() or not x.numel():
            return NotImplemented
        sizes, value = x.shape[-dims:], x
        place = torch.zeros((), dtype=torch.int32, device=x.device).expand(x.shape)
        for d in reversed(range(dims)):
            reach = dilation[d] * (kernel[d] - 1) + 1
            output = _outputs(sizes[d], reach, stride[d], pad[d], ceil_mode)
            form = (x.dim() - dims + d, output, kernel[d], stride[d], pad[d], dilation[d])
            value, place = _largest(value, place, *form, math.prod(sizes[d + 1 :]))
        return value, place.to(torch.int64)

    return pool


def _largest(
    value: Any, place: Any, dim: int, output: int, kernel: int, stride: int, pad: int, dilation: int, step: int
) -> tuple[Any, Any]:
    """Along one dim, in which neighbours are `step` places apart."""
    size, last = value.shape[dim], (output - 1) * stride + dilation * (kernel - 1) + 1 - pad
    around = [*[0, 0] * (value.dim() - 1 - dim), pad, max(last - size, 0)]
    if pad or last > size:
        value, place = torch.constant_pad_nd(value, around, -math.inf), torch.constant_pad_nd(place, around, 0)
    first = torch.arange(output, dtype=torch.int32, device=value.device) * stride - pad
    first = first.reshape(-1, *[1] * (value.dim() - 1 - dim))

    def slice_of(tensor: Any, j: int) -> Any:
        start = j * dilation
        return tensor[(*[slice(None)] * dim, slice(start, start + (output - 1) * stride + 1, stride))]

    most, where = slice_of(value, 0), slice_of(place, 0) + first * step
    for j in range(1, kernel):
        here, at = slice_of(value, j), first + j * dilation
        better = (here > most) | torch.isnan(here)
        if pad:  # the first element that is inside takes the place of padding, even if all are -inf
            better = better | ((at >= 0) & (at < dilation))
        where = torch.where(better, slice_of(place, j) + at * step, where)
        most = torch.where(better, here, most)
    return most, where


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


def _demand_floats(x: Any, what: str) -> None:
    """As kernels of PyTorch do: Inductor's own lowerings would average whole numbers."""
    if not x.dtype.is_floating_point:
        name = str(x.dtype).removeprefix("torch.")
        raise NotImplementedError(f"\"{what}\" not implemented for '{_KERNEL_NAMES.get(name, name)}'")


def _adaptive_average(x: Any, output_size: Sequence[int]) -> Any:
    _demand_floats(x, f"adaptive_avg_pool{len(output_size)}d")
    if not x.numel() or 0 in output_size or (len(output_size) == 2 and _unrolled(x, output_size)):
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
    window: int = math.prod(-(-(n + out - 1) // out) for n, out in zip(sizes, output_size, strict=True))
    return window <= _WRITTEN_OUT


def _adaptive_maximum(x: Any, output_size: Sequence[int]) -> Any:
    """The largest value of each cell and its place; of equal ones the first, as rows go before columns."""
    n = len(output_size)
    _demand_floats(x, f"adaptive_max_pool{n}d")
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


# Gradients: each element gets a part of every window that covers it.


def _average_backward(dims: int) -> Callable[..., Any]:
    def backward(
        grad: Any, x: Any, kernel: Any, stride: Any, pad: Any, ceil_mode: bool, padded: bool, divisor: int | None
    ) -> Any:
        if not grad.numel():
            return torch.zeros_like(x)
        kernel, stride, pad = (_each(v, dims) for v in (kernel, stride or kernel, pad))
        outputs, sizes = grad.shape[-dims:], x.shape[-dims:]
        count = torch.ones((), dtype=torch.float32, device=x.device)
        for d in range(dims):
            count = count.unsqueeze(-1) * _counts(outputs[d], sizes[d], kernel[d], stride[d], pad[d], padded, x)
        parts = grad.to(torch.float32) / (divisor or count)
        if kernel == stride and not any(pad):
            return _repeated(parts, sizes, kernel).to(grad.dtype)
        maps = []
        for d in range(dims):
            first = torch.arange(outputs[d], device=x.device) * stride[d] - pad[d]
            maps.append(_covered(sizes[d], first, first + kernel[d]))
        return without_spreading(parts, maps).to(grad.dtype)

    return backward


def _adaptive_average_backward(dims: int) -> Callable[..., Any]:
    def backward(grad: Any, x: Any) -> Any:
        if not grad.numel():
            return torch.zeros_like(x)
        outputs, sizes = grad.shape[-dims:], x.shape[-dims:]
        parts, maps = grad.to(torch.float32), []
        if all(n % out == 0 for n, out in zip(sizes, outputs, strict=True)):
            kernel = [n // out for n, out in zip(sizes, outputs, strict=True)]
            return _repeated(parts / math.prod(kernel), sizes, kernel).to(grad.dtype)
        for d in range(dims):
            cell = torch.arange(outputs[d], device=x.device)
            first, end = cell * sizes[d] // outputs[d], ((cell + 1) * sizes[d] + outputs[d] - 1) // outputs[d]
            parts = parts / (end - first).to(torch.float32).reshape(-1, *[1] * (dims - 1 - d))
            maps.append(_covered(sizes[d], first, end))
        return without_spreading(parts, maps).to(grad.dtype)

    return backward


def _covered(size: int, first: Any, end: Any) -> Any:
    """[size, windows]: 1 where a window, from `first` to before `end`, covers an element."""
    here = torch.arange(size, device=first.device).unsqueeze(-1)
    return ((here >= first) & (here < end)).to(torch.float32)


def _repeated(x: Any, sizes: Sequence[int], times: Sequence[int]) -> Any:
    """Each element of the last dims so many times, then nothing more or zeros up to `sizes`."""
    for d, (size, n) in enumerate(zip(sizes, times, strict=True)):
        dim = x.dim() - len(sizes) + d
        x = x.unsqueeze(dim + 1).expand(*x.shape[: dim + 1], n, *x.shape[dim + 1 :]).flatten(dim, dim + 1)
        if x.shape[dim] > size:
            x = x.narrow(dim, 0, size)
        elif x.shape[dim] < size:
            x = torch.constant_pad_nd(x, [*[0, 0] * (x.dim() - 1 - dim), 0, size - x.shape[dim]])
    return x


def _max_unpool(x: Any, indices: Any, output_size: Sequence[int], *_: Any) -> Any:
    """Each element at the place of its plane that an index names, in the memory format of its operand."""
    n = len(output_size)
    planes = torch.zeros((*x.shape[:-n], math.prod(output_size)), dtype=x.dtype, device=x.device)
    filled = aten.scatter(planes, -1, indices.flatten(-n), x.flatten(-n))
    return filled.unflatten(-1, tuple(output_size)).contiguous(memory_format=suggest_memory_format(x))


TABLE: dict[Any, Callable[..., Any]] = {
    aten.max_unpool2d.default: _max_unpool,
    aten.max_unpool3d.default: _max_unpool,
    aten.max_pool2d_with_indices.default: _maximum(2),
    aten.max_pool3d_with_indices.default: _maximum(3),
    aten.avg_pool2d.default: _average(2),
    aten.avg_pool3d.default: _average(3),
    aten.avg_pool2d_backward.default: _average_backward(2),
    aten.avg_pool3d_backward.default: _average_backward(3),
    aten._adaptive_avg_pool2d.default: _adaptive_average,
    aten._adaptive_avg_pool3d.default: _adaptive_average,
    aten._adaptive_avg_pool2d_backward.default: _adaptive_average_backward(2),
    aten._adaptive_avg_pool3d_backward.default: _adaptive_average_backward(3),
    aten.adaptive_max_pool2d.default: _adaptive_maximum,
    aten.adaptive_max_pool3d.default: _adaptive_maximum,
}
