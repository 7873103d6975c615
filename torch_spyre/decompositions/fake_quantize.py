# SPDX-License-Identifier: Apache-2.0
"""Training with simulated quantization: values rounded to steps of an integer format, and where they fit into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _rounded(x: Any, scale: Any, zero_point: Any, low: int, high: int) -> Any:
    code = torch.round(x.to(torch.float32) * (1.0 / scale)) + zero_point
    return ((code.clamp(low, high) - zero_point) * scale).to(x.dtype), (code >= low) & (code <= high)


def _per_tensor(x: Any, scale: Any, zero_point: Any, enabled: Any, low: int, high: int) -> Any:
    """With the parameters in tensors, and a switch in one."""
    value, inside = _rounded(x, scale.to(torch.float32), zero_point.to(torch.float32), low, high)
    on = enabled != 0
    return torch.where(on, value, x), torch.where(on, inside, True)


def _per_channel(x: Any, scale: Any, zero_point: Any, axis: int, low: int, high: int) -> Any:
    view = [1] * x.dim()
    view[axis] = x.shape[axis]
    return _rounded(x, scale.to(torch.float32).reshape(view), zero_point.to(torch.float32).reshape(view), low, high)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: _rounded,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _per_tensor,
    aten.fake_quantize_per_channel_affine_cachemask.default: _per_channel,
}
