# SPDX-License-Identifier: Apache-2.0
"""Pooling over windows too large to be written out element by element: one dim after the other.

Windows of fixed steps are views (unfold); cells of an adaptive pooling differ in size, so they are gathered, with what
is past their end filled with the neutral element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from torch_spyre.decompositions.custom import kept
from torch_spyre.decompositions.images.resampling import without_spreading

aten = torch.ops.aten
_WRITTEN_OUT = 25  # elements of a window that Inductor unrolls
_KERNEL_NAMES = {"bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long"}
_MANY_CHANNELS = 16  # from here on they, and not the last dim, fill the sticks of a padded tensor
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
    """The largest value of each window and its place, one dim after the other: windows are views. Of equal values the
    first counts, of several NaN the last, as rows go before columns.

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
        form = [_each(v, dims) for v in (kernel, stride or kernel, pad, dilation)]
        if sum(form[0]) > _SLICES or not x.is_floating_point() or not x.numel():
            return NotImplemented
        windows = [Window(*f) for f in zip(x.shape[-dims:], *form, strict=True)]
        outputs = [w.outputs(ceil_mode) for w in windows]
        padded = _padded(x, windows, outputs, -math.inf)
        value, chosen = _largest(padded, windows, outputs)
        place = _places([c.to(torch.int32) for c in chosen], windows, outputs)
        broken = _last_nan(padded, windows, outputs)
        place = torch.where(broken >= 0, broken, place).to(torch.int64)
        memory_format = suggest_memory_format(x)
        return value.contiguous(memory_format=memory_format), place.contiguous(memory_format=memory_format)

    return pool


@dataclass(frozen=True)
class Window:
    """Of a pooling, along one dim of `size` elements."""

    size: int
    kernel: int
    stride: int
    pad: int
    dilation: int = 1

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    def outputs(self, ceil_mode: bool) -> int:
        return _outputs(self.size, self.reach, self.stride, self.pad, ceil_mode)

    def after(self, output: int) -> int:
        """Elements past the last one that the last of so many windows needs."""
        return max((output - 1) * self.stride + self.reach - self.pad - self.size, 0)

    def of(self, x: Any, dim: int, output: int) -> Any:
        """The windows of a padded tensor, their elements as a last dim."""
        windows = x.narrow(dim, 0, (output - 1) * self.stride + self.reach).unfold(dim, self.reach, self.stride)
        return windows if self.dilation == 1 else windows[..., :: self.dilation]

    def tap(self, x: Any, dim: int, output: int, j: int) -> Any:
        """Element j of each window of a padded tensor."""
        start = j * self.dilation
        return x[(*[slice(None)] * dim, slice(start, start + (output - 1) * self.stride + 1, self.stride))]


def _padded(x: Any, windows: Sequence[Window], outputs: Sequence[int], value: float) -> Any:
    """With the padding of all dims, as a tensor whose channels are side by side unless they are few."""
    around = [n for w, out in reversed([*zip(windows, outputs, strict=True)]) for n in (w.pad, w.after(out))]
    if not any(around):
        return x
    if x.dim() == len(windows) + 2 and x.shape[1] >= _MANY_CHANNELS:
        return torch.constant_pad_nd(x.movedim(1, -1), [0, 0, *around], value).movedim(-1, 1)
    return torch.constant_pad_nd(x, around, value)


def _largest(padded: Any, windows: Sequence[Window], outputs: Sequence[int]) -> tuple[Any, list[Any]]:
    """The largest value of each window, and which element of it that is, by dim: the first of equal ones."""
    value, chosen = padded, list[Any]()
    for d in reversed(range(len(windows))):
        dim, w = padded.dim() - len(windows) + d, windows[d]
        here = w.of(value, dim, outputs[d])
        best = here.argmax(-1)
        for i, inner in enumerate(chosen):
            taken = w.tap(inner, dim, outputs[d], 0)
            for j in range(1, w.kernel):
                taken = torch.where(best == j, w.tap(inner, dim, outputs[d], j), taken)
            chosen[i] = taken
        value, chosen = here.amax(-1), [best, *chosen]
    return value, chosen


def _places(chosen: Sequence[Any], windows: Sequence[Window], outputs: Sequence[int]) -> Any:
    """Places in the plane. A window of nothing but -inf chose padding, where its first element inside counts."""
    place = None
    for d, (taken, w) in enumerate(zip(chosen, windows, strict=True)):
        first = _steps(-w.pad, outputs[d], w.stride, len(windows) - d, taken)
        at = first + (taken if w.dilation == 1 else taken * w.dilation)
        if w.pad:
            at = at.clamp(min=0) if w.dilation == 1 else torch.where(at < 0, at % w.dilation, at)
        place = at if place is None else place * w.size + at
    return place


def _steps(first: int, count: int, step: int, dim: int, like: Any) -> Any:
    """first, first + step, … along a dim, which is counted from the last one."""
    steps = torch.arange(first, first + count * step, step, dtype=torch.int32, device=like.device)
    return steps.reshape(-1, *[1] * (dim - 1))


def _last_nan(padded: Any, windows: Sequence[Window], outputs: Sequence[int]) -> Any:
    """The place of the last NaN of each window; -1 if it has none."""
    place, step = None, 1
    for d, w in reversed([*enumerate(windows)]):
        at = _steps(-w.pad * step, padded.shape[d - len(windows)], step, len(windows) - d, padded)
        place, step = at if place is None else at + place, step * w.size
    found = kept(torch.where(torch.isnan(padded), place, -1))
    for d, w in enumerate(windows):
        found = w.of(found, padded.dim() - len(windows) + d, outputs[d])
    return found.amax([*range(-len(windows), 0)])


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


def demand_floats(x: Any, what: str) -> None:
    """As kernels of PyTorch do: Inductor's own lowerings would average whole numbers."""
    if not x.dtype.is_floating_point:
        name = str(x.dtype).removeprefix("torch.")
        raise NotImplementedError(f"\"{what}\" not implemented for '{_KERNEL_NAMES.get(name, name)}'")


def _adaptive_average(x: Any, output_size: Sequence[int]) -> Any:
    demand_floats(x, f"adaptive_avg_pool{len(output_size)}d")
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
    demand_floats(x, f"adaptive_max_pool{n}d")
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
