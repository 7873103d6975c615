# SPDX-License-Identifier: Apache-2.0
"""Convolution and its gradients as matrix products over the windows of the input.

Windows of a dense or depthwise convolution of one or two dims are read in place (`custom.windows`). Others are views
(unfold), which one copy lays out for the product. A transposed convolution is a convolution of the input with zeros
between its elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch._prims_common import suggest_memory_format

from torch_spyre.decompositions.custom import matmul, windows

Ints = Sequence[int]


def _each(values: Ints, n: int) -> list[int]:
    return list(values) * n if len(values) == 1 else list(values)


def _windows(x: torch.Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> torch.Tensor:
    """[N, C, *input] -> [N, C, *output, *kernel]; negative padding cuts."""
    n = len(kernel)
    if any(padding):
        x = torch.constant_pad_nd(x, [p for p in reversed(padding) for _ in range(2)])
    for d in range(n):
        x = x.unfold(2 + d, dilation[d] * (kernel[d] - 1) + 1, stride[d])
    for d in range(n):
        if dilation[d] > 1:
            x = _every(x, 2 + n + d, dilation[d])
    return x


def _every(x: torch.Tensor, dim: int, step: int) -> torch.Tensor:
    return torch.ops.aten.slice.Tensor(x, dim, 0, x.shape[dim], step)


def _correlate(
    x: torch.Tensor, weight: torch.Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> torch.Tensor:
    depthwise = groups == x.shape[1] == weight.shape[0]
    if (groups == 1 or depthwise) and len(stride) < 3:
        return _in_place(x, weight, stride, padding, dilation, groups)
    n, kernel, out_channels = weight.dim() - 2, weight.shape[2:], weight.shape[0]
    windows = _windows(x, kernel, stride, padding, dilation)
    batch, channels, *rest = windows.shape
    output, inner = rest[:n], channels // groups
    columns = windows.reshape(batch, groups, inner, *rest)
    order = [0, 1, 2, *range(3 + n, 3 + 2 * n), *range(3, 3 + n)]
    columns = columns.permute(order).reshape(batch, groups, inner * math.prod(kernel), math.prod(output))
    rows = weight.reshape(1, groups, out_channels // groups, inner * math.prod(kernel))
    return matmul(rows, columns).reshape(batch, out_channels, *output)


def _in_place(
    x: torch.Tensor, weight: torch.Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> torch.Tensor:
    """The windows are read where they are, with channels in the sticks."""
    last = x.movedim(1, -1)
    if any(padding):
        last = torch.constant_pad_nd(last, [0, 0, *(p for p in reversed(padding) for _ in range(2))])
    return windows(last, weight, list(stride), list(dilation), groups)


def _spread(x: torch.Tensor, stride: Ints) -> torch.Tensor:
    """Zeros between the elements of the last dims, stride - 1 of them."""
    if all(s == 1 for s in stride):
        return x
    n = len(stride)
    apart = x.reshape([*x.shape[:2], *(m for size in x.shape[2:] for m in (size, 1))])
    apart = torch.constant_pad_nd(apart, [m for s in reversed(stride) for m in (0, s - 1, 0, 0)])
    spread = apart.reshape([*x.shape[:2], *(size * s for size, s in zip(x.shape[2:], stride, strict=True))])
    for d in range(n):
        spread = spread.narrow(2 + d, 0, (x.shape[2 + d] - 1) * stride[d] + 1)
    return spread


def _transposed(
    x: torch.Tensor, weight: torch.Tensor, stride: Ints, padding: Ints, dilation: Ints, extra: Ints, groups: int
) -> torch.Tensor:
    """Weight is [in, out / groups, *kernel]."""
    kernel = weight.shape[2:]
    n = len(kernel)
    spread = _spread(x, stride)
    pads: list[int] = []
    for d in reversed(range(n)):
        edge = dilation[d] * (kernel[d] - 1) - padding[d]
        pads += [edge, edge + extra[d]]
    spread = torch.constant_pad_nd(spread, pads)
    inner, outer = weight.shape[0] // groups, weight.shape[1]
    turned = weight.reshape(groups, inner, outer, *kernel).transpose(1, 2).flip(list(range(3, 3 + n)))
    turned = turned.reshape(groups * outer, inner, *kernel)
    return _correlate(spread, turned, [1] * n, [0] * n, dilation, groups)


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> torch.Tensor:
    n = weight.dim() - 2
    stride, padding, dilation, extra = (_each(v, n) for v in (stride, padding, dilation, output_padding))
    whole = x if x.dim() == n + 2 else x.unsqueeze(0)
    if transposed:
        result = _transposed(whole, weight, stride, padding, dilation, extra, groups)
    else:
        result = _correlate(whole, weight, stride, padding, dilation, groups)
    if bias is not None:
        result = result + bias.reshape(-1, *([1] * n))
    result = result.contiguous(memory_format=_memory_format(x, weight))
    return result if x.dim() == n + 2 else result.squeeze(0)


def _memory_format(*tensors: torch.Tensor) -> torch.memory_format:
    """channels_last, if one of them is."""
    formats = [suggest_memory_format(t) for t in tensors if t.dim() in (4, 5)]
    return next((f for f in formats if f != torch.contiguous_format), torch.contiguous_format)


def _weight_gradient(
    grad: torch.Tensor, x: torch.Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> torch.Tensor:
    """Sum over batch and output of grad times window: [out, in / groups, *kernel]."""
    n = len(kernel)
    windows = _windows(x, kernel, stride, padding, dilation)
    for d in range(n):  # windows past the last one that was used
        windows = windows.narrow(2 + d, 0, grad.shape[2 + d])
    batch, channels = x.shape[:2]
    inner, outer, length = channels // groups, grad.shape[1] // groups, math.prod(grad.shape[2:])
    columns = windows.reshape(batch, groups, inner, *grad.shape[2:], *kernel)
    order = [1, 0, *range(3, 3 + n), 2, *range(3 + n, 3 + 2 * n)]
    columns = columns.permute(order).reshape(groups, batch * length, inner * math.prod(kernel))
    rows = grad.reshape(batch, groups, outer, length).permute(1, 2, 0, 3).reshape(groups, outer, batch * length)
    return matmul(rows, columns).reshape(groups * outer, inner, *kernel)


def _input_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> torch.Tensor:
    n = weight.dim() - 2
    extra = [
        x.shape[2 + d]
        - ((grad.shape[2 + d] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.shape[2 + d] - 1) + 1)
        for d in range(n)
    ]
    return _transposed(grad, weight, stride, padding, dilation, extra, groups)


def convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Ints | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    n = weight.dim() - 2
    stride, padding, dilation = (_each(v, n) for v in (stride, padding, dilation))
    results: list[torch.Tensor | None] = [None, None, None]
    kernel = weight.shape[2:]
    if output_mask[0]:
        if transposed:
            whole = _correlate(grad, weight, stride, padding, dilation, groups)
            for d in range(n):  # output padding beyond the stride makes windows that no input has
                whole = whole.narrow(2 + d, 0, x.shape[2 + d])
            results[0] = whole
        else:
            results[0] = _input_gradient(grad, x, weight, stride, padding, dilation, groups)
    if output_mask[1]:
        pair = (x, grad) if transposed else (grad, x)
        results[1] = _weight_gradient(*pair, kernel, stride, padding, dilation, groups)
    if output_mask[2]:
        results[2] = grad.sum([0, *range(2, 2 + n)])
    return tuple(results)
