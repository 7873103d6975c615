# SPDX-License-Identifier: Apache-2.0
"""Norms of images: sums over the plane first, channel by channel, so that channels may be in the sticks.

PyTorch's formula joins the channels of a group with the plane, and cuts the sticks of channels at every group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_spyre.decompositions.custom import kept

aten = torch.ops.aten


def _group_norm(x: Any, weight: Any, bias: Any, batch: int, channels: int, inner: int, groups: int, eps: float) -> Any:
    """The mean, then the mean square of the differences, in fp32; rounded once."""
    if x.dim() < 3 or not x.numel() or channels % groups:
        return NotImplemented
    plane, each = [*range(2, x.dim())], channels // groups
    ones = [1] * len(plane)

    def mean_of_groups(values: Any) -> Any:
        sums = values.sum(plane).reshape(batch, groups, each)
        return (sums if each == 1 else sums.sum(-1, keepdim=True)) / (each * inner)

    def for_channels(values: Any) -> Any:
        return values.expand(batch, groups, each).reshape(batch, channels, *ones)

    wide = x.to(torch.float32)
    mean = kept(mean_of_groups(wide))
    centred = wide - for_channels(mean)
    rstd = kept(torch.rsqrt(mean_of_groups(centred * centred) + eps))
    scale = for_channels(rstd)
    if weight is not None:
        scale = scale * weight.to(torch.float32).reshape(channels, *ones)
    result = centred * scale
    if bias is not None:
        result = result + bias.to(torch.float32).reshape(channels, *ones)
    return result.to(x.dtype), mean.squeeze(-1).to(x.dtype), rstd.squeeze(-1).to(x.dtype)


TABLE: dict[Any, Callable[..., Any]] = {aten.native_group_norm.default: _group_norm}
