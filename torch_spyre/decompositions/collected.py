# SPDX-License-Identifier: Apache-2.0
"""The table of all decompositions of this device. Eager ops and compiled graphs use the same one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torch_spyre.constants import FLOAT16_TOP
from torch_spyre.decompositions import (
    eight_bit,
    embedding_bags,
    fake_quantize,
    fixed_steps,
    fused_layers,
    losses,
    norms,
    optimisers,
    order,
    packed_weights,
    random_words,
    recurrent,
    scatters,
)
from torch_spyre.decompositions.attention import safe_softmax
from torch_spyre.decompositions.images import grid_sampling, pooling, resampling
from torch_spyre.decompositions.images.convolution import convolution, convolution_backward
from torch_spyre.errors import UnsupportedOp

aten = torch.ops.aten
Decomposition = Callable[..., Any]


def keep(*args: Any, **kwargs: Any) -> Any:
    """The op stays as it is."""
    return NotImplemented


def _baddbmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if not x.dtype.is_floating_point:
        beta, alpha = int(beta), int(alpha)
    product = torch.bmm(a, b)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return (x if beta == 1 else x * beta) + product


def _bucketize(x: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """How many boundaries are below each value."""
    values = x.unsqueeze(-1)
    below = boundaries <= values if right else boundaries < values
    return below.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _histc(x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """Counts of values in equal steps from `min` to `max`, or from the least to the largest value."""
    if min == max and x.dtype.is_floating_point and x.numel():
        min, max = x.amin().to(torch.float32), x.amax().to(torch.float32)
        single = min == max
        min, max = torch.where(single, min - 1, min), torch.where(single, max + 1, max)
    elif not min < max or not (x.dtype.is_floating_point or (float(min).is_integer() and float(max).is_integer())):
        return NotImplemented
    values = x.reshape(-1, 1)
    if x.dtype.is_floating_point:
        place = torch.floor((values.float() - min) * bins / (max - min))
    else:
        place = (values - int(min)) * bins // int(max - min)
    place = torch.where(values == max, bins - 1, place)
    inside = (values >= min) & (values <= max)
    return (inside & (place == torch.arange(bins, device=x.device))).sum(0, dtype=torch.int32).to(x.dtype)


def _take(x: Any, index: Any) -> Any:
    return x.reshape(-1)[index.reshape(-1)].reshape(index.shape)


def _nonzero_static(x: Any, *, size: int, fill_value: int = -1) -> Any:
    """The first `size` places whose value is not 0: each counts those before it, and writes its number there."""
    if x.numel() == 0:
        return torch.full((size, x.dim()), fill_value, dtype=torch.int64, device=x.device)
    chosen = (x != 0).reshape(-1)
    place = chosen.to(torch.int32).cumsum(0, dtype=torch.int32).to(torch.int64) - 1
    place = torch.where(chosen & (place < size), place, size)  # what is left over goes past the end
    numbers = torch.arange(x.numel(), device=x.device)
    found = torch.full((size + 1,), -1, dtype=torch.int64, device=x.device).scatter(0, place, numbers)[:size]
    columns = [found // math.prod(x.shape[d + 1 :]) % n for d, n in enumerate(x.shape)]
    if not columns:
        return torch.empty((size, 0), dtype=torch.int64, device=x.device)
    return torch.where((found < 0).unsqueeze(-1), fill_value, torch.stack(columns, -1))


def _searchsorted(
    boundaries: Any, x: Any, *, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None
) -> Any:
    if sorter is not None:
        boundaries = boundaries.gather(-1, sorter)
    rows = boundaries if boundaries.dim() == 1 else boundaries.unsqueeze(-2)
    return _bucketize(x, rows, out_int32=out_int32, right=right or side == "right")


def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, places = torch.topk(x, k, dim, largest=False)
    results = (values.narrow(dim, k - 1, 1), places.narrow(dim, k - 1, 1))
    return results if keepdim else tuple(r.squeeze(dim) for r in results)


def _median(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The lower of the two in the middle; NaN if there is one."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    _, place = _kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim=True)
    if x.dtype.is_floating_point:
        nan = x.isnan()
        place = torch.where(nan.any(dim, keepdim=True), nan.to(torch.int32).argmax(dim, keepdim=True), place)
    value = x.gather(dim, place)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _median_of_all(x: Any) -> Any:
    return _median(x.reshape(-1), 0)[0]


def _cdist(a: Any, b: Any, p: float, compute_mode: int | None = None) -> Any:
    difference = a.unsqueeze(-2) - b.unsqueeze(-3)
    return torch.linalg.vector_norm(difference, p, -1)


def _cdist_backward(grad: Any, a: Any, b: Any, p: float, distance: Any) -> Any:
    difference = a.unsqueeze(-2) - b.unsqueeze(-3)
    grad, distance = grad.unsqueeze(-1), distance.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(a)
    if p == 1:
        part = difference.sign() * grad
    elif p == float("inf"):
        part = difference.sign() * (difference.abs() == distance) * grad
    else:
        size = difference.abs()
        slope = difference * (size ** (p - 2) if p != 2 else 1) * (grad / distance ** (p - 1))
        part = torch.where((distance == 0) | (size == 0), 0.0, slope)
    return part.sum(-2)


def _addbmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """The sum over the batch is part of one product."""
    if not x.dtype.is_floating_point:
        beta, alpha = int(beta), int(alpha)
    product = torch.mm(a.transpose(0, 1).reshape(a.shape[1], -1), b.reshape(-1, b.shape[2]))
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return (x if beta == 1 else x * beta) + product


def _trilinear(
    i1: Any, i2: Any, i3: Any, expand1: Any, expand2: Any, expand3: Any, sumdim: Any, unroll_dim: int = 1
) -> Any:
    """The product of three tensors, each without some dims, summed over others."""
    letters = "abcdefghijklmnop"[: i1.dim() + len(expand1)]
    names = ["".join(c for d, c in enumerate(letters) if d not in gone) for gone in (expand1, expand2, expand3, sumdim)]
    return torch.einsum(f"{names[0]},{names[1]},{names[2]}->{names[3]}", i1, i2, i3)


def _weight_norm_backward(grad: Any, v: Any, g: Any, norms: Any, dim: int) -> Any:
    """Of g * v / |v|, where norms are taken over all dims but one."""
    others = [d for d in range(v.dim()) if d != dim % v.dim()]
    direction, steps = v.to(torch.float32) / norms.to(torch.float32), grad.to(torch.float32)
    along = (steps * direction).sum(others, keepdim=True)
    turned = (steps - direction * along) * (g.to(torch.float32) / norms.to(torch.float32))
    return turned.to(v.dtype), along.to(g.dtype)


def _hardshrink_backward(grad: Any, x: Any, bound: float) -> Any:
    return torch.where((x >= -bound) & (x <= bound), 0, grad)


def _nanmedian(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The lower of the two in the middle of the numbers; they sort before NaN."""
    if x.dim() == 0 or not x.dtype.is_floating_point:
        return _median(x, dim, keepdim)
    values, places = torch.sort(x, dim=dim, stable=True)
    middle = ((x.isnan().logical_not().sum(dim, keepdim=True) - 1) // 2).clamp(min=0)
    results = (values.gather(dim, middle), places.gather(dim, middle))
    return results if keepdim else tuple(r.squeeze(dim) for r in results)


def _nanmedian_of_all(x: Any) -> Any:
    return _nanmedian(x.reshape(-1), 0)[0]


def _linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """Whole numbers, where float64, in which the host takes its steps, would give the same."""
    if dtype is None or dtype.is_floating_point or steps < 2:
        return NotImplemented
    first, last, count = int(start), int(end), steps - 1
    step = (float(last) - float(first)) / count
    for i in range(steps):
        exact = first * count + (last - first) * i
        in_floats = first + step * i if i < steps // 2 else last - step * (count - i)
        if int(in_floats) != int(math.copysign(abs(exact) // count, exact)) or abs(exact) >= 2**31:
            raise UnsupportedOp(f"linspace from {start} to {end} in {steps} whole numbers needs float64 steps")
    place = torch.arange(steps, device=device, dtype=torch.int32)
    return torch.div(place * (last - first) + first * count, count, rounding_mode="trunc").to(dtype)


def _round_decimals(x: Any, *, decimals: int = 0) -> Any:
    """In fp32: in 16 bits the scaled number may become a tie when it is stored."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    scale, wide = 10.0 ** abs(decimals), x.to(torch.float32)
    whole = torch.round(wide * scale) / scale if decimals >= 0 else torch.round(wide / scale) * scale
    return whole.to(x.dtype)


# The largest numbers of 16-bit floats that the host reads back as finite: 0x5DFF, which float16 holds, and 0x7FFD, the
# code below the one that means infinity.
_MOST_FINITE = {torch.float16: FLOAT16_TOP, torch.bfloat16: 8564768768.0}


def _nan_to_num(x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    """In 16 bits the largest code means infinity, and only `isinf` knows; a replacement must not round to it."""
    most = _MOST_FINITE.get(x.dtype)
    if most is None:
        return NotImplemented

    def kept(value: float) -> float:
        return min(max(value, -most), most) if math.isfinite(value) else value

    high, low = kept(most if posinf is None else posinf), kept(-most if neginf is None else neginf)
    ends = torch.where(x > 0, high, low)
    number = torch.where(torch.isnan(x), kept(nan or 0.0), torch.where(torch.isinf(x), ends, x))
    return number.to(x.dtype)


def _clamp(x: Any, min: float | None = None, max: float | None = None) -> Any:
    """In 16 bits without PyTorch's detour through fp32: the bounds are operands of x's dtype."""
    if x.dtype not in _MOST_FINITE:
        return NotImplemented
    low = x if min is None else aten.clamp_min(x, min)
    return low if max is None else aten.clamp_max(low, max)


def _shift_of_bools(shift: Any) -> Decomposition:
    """PyTorch's shape function of ``x << 1`` refuses bools, which its kernels take as whole numbers."""

    def shifted(x: Any, count: Any) -> Any:
        given = [v.dtype for v in (x, count) if isinstance(v, torch.Tensor)]
        return shift(x, count) if torch.bool in given else NotImplemented

    return shifted


TABLE: dict[Any, Decomposition] = {
    **eight_bit.TABLE,
    **embedding_bags.TABLE,
    **fake_quantize.TABLE,
    **packed_weights.TABLE,
    **fused_layers.TABLE,
    **grid_sampling.TABLE,
    **losses.TABLE,
    **norms.TABLE,
    **optimisers.DECOMPOSITIONS,
    **order.TABLE,
    **pooling.TABLE,
    **random_words.TABLE,
    **recurrent.TABLE,
    **fixed_steps.TABLE,
    **resampling.TABLE,
    **scatters.TABLE,
    aten.__lshift__.Scalar: _shift_of_bools(torch.bitwise_left_shift),
    aten.__lshift__.Tensor: _shift_of_bools(torch.bitwise_left_shift),
    aten.__rshift__.Scalar: _shift_of_bools(torch.bitwise_right_shift),
    aten.__rshift__.Tensor: _shift_of_bools(torch.bitwise_right_shift),
    aten._safe_softmax.default: safe_softmax,
    aten.addbmm.default: _addbmm,
    aten.clamp.default: _clamp,
    aten.round.decimals: _round_decimals,
    aten._trilinear.default: _trilinear,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten.hardshrink_backward.default: _hardshrink_backward,
    aten.softshrink_backward.default: _hardshrink_backward,
    aten.nan_to_num.default: _nan_to_num,
    aten.nanmedian.dim: _nanmedian,
    aten.nanmedian.default: _nanmedian_of_all,
    aten.linspace.default: _linspace,
    aten._cdist_backward.default: _cdist_backward,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.baddbmm.default: _baddbmm,
    aten.bucketize.Tensor: _bucketize,
    aten.histc.default: _histc,
    aten.searchsorted.Tensor: _searchsorted,
    aten.take.default: _take,
    aten.index_select.default: keep,
    aten.nonzero_static.default: _nonzero_static,
    aten._cdist_forward.default: _cdist,
    aten.kthvalue.default: _kthvalue,
    aten.median.dim: _median,
    aten.median.default: _median_of_all,
}
