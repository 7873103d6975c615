# SPDX-License-Identifier: Apache-2.0
"""Tensors with a chosen device layout.

The layout belongs to the storage: every view shares it, and copying into a tensor never changes it. These are plain
functions; ``Tensor.to(device_layout=…)``, ``torch.empty(device_layout=…)`` and ``Tensor.device_tensor_layout()`` call
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import InvalidArgument


def device_tensor_layout(tensor: torch.Tensor) -> Any:
    """The layout of a tensor on the card; None for every other tensor, fake ones included."""
    if tensor.device.type != DEVICE_NAME or not _is_real(tensor):
        return None
    return _C.get_spyre_tensor_layout(tensor)


def from_device(tensor: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """The tensor on the host; a tensor that is there is itself."""
    return tensor.to("cpu", non_blocking=non_blocking)


def empty_with_layout(
    size: Sequence[int], layout: Any, dtype: torch.dtype | None = None, device: Any = None, **options: Any
) -> torch.Tensor:
    """An uninitialised contiguous tensor in this layout."""
    target = _card(device)
    requires_grad = options.pop("requires_grad", False)
    made = _C.empty_with_layout(list(size), layout, dtype=dtype, device=target, **options)
    return made.requires_grad_(requires_grad)


def to_with_layout(
    tensor: torch.Tensor,
    layout: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
) -> torch.Tensor:
    """The tensor on a card in this layout; itself if it is there already, unless `copy` is set."""
    on_card = tensor.device.type == DEVICE_NAME
    target = tensor.device if device is None and on_card else _card(device)
    dtype = dtype or tensor.dtype
    format_ = _C.get_device_dtype(dtype)
    if layout.device_dtype != format_:
        raise InvalidArgument(f"{layout} does not store {dtype}: its format is {layout.device_dtype}, not {format_}")
    if on_card and not copy and (tensor.device, tensor.dtype) == (target, dtype):
        if device_tensor_layout(tensor) == layout:
            return tensor
    with torch.spyre.device(target):
        made = _C.spyre_empty_with_layout(list(tensor.shape), _strides(tensor), dtype, layout)
    return made.copy_(tensor, non_blocking=non_blocking)


def _strides(tensor: torch.Tensor) -> list[int]:
    """The tensor's own strides if it is dense, else those of a contiguous one, as ``clone`` does."""
    if torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return list(tensor.stride())
    strides, step = [], 1
    for n in reversed(tensor.shape):
        strides.append(step)
        step *= max(n, 1)
    return strides[::-1]


def _card(device: Any) -> torch.device:
    """The device with its index; None means the current card."""
    found = torch.device(DEVICE_NAME if device is None else device)
    if found.type != DEVICE_NAME:
        raise InvalidArgument(f"a device layout needs device '{DEVICE_NAME}', got '{found}'")
    return torch.device(DEVICE_NAME, _C.current_device() if found.index is None else found.index)


def _is_real(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) or tensor.untyped_storage().device.type == DEVICE_NAME
