# SPDX-License-Identifier: Apache-2.0
"""Tensors and modules: layouts as options of PyTorch's own functions, and the scale of gradients."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch.utils._device import _device_constructors

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device import modules, tensors


def with_own_signature(function: Any) -> Any:
    """The function, with a signature of what it takes itself: it wraps a builtin, of which `inspect` knows nothing."""
    function.__signature__ = inspect.signature(function, follow_wrapped=False)
    return function


def layout_of_a_tensor() -> None:
    """``Tensor.device_tensor_layout()``. Missing hook: attributes of a tensor that belong to its device."""
    torch.Tensor.device_tensor_layout = tensors.device_tensor_layout


def to_with_layout() -> None:
    """``Tensor.to(…, device_layout=…)``. Missing hook: options of a conversion that belong to the target device."""
    original = torch.Tensor.to

    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, device_layout: Any = None, **kwargs: Any) -> torch.Tensor:
        if device_layout is None:
            return original(self, *args, **kwargs)
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        return tensors.to_with_layout(self, device_layout, dtype, device, non_blocking, copy)

    torch.Tensor.to = with_own_signature(to)


def empty_with_layout() -> None:
    """``torch.empty(size, device_layout=…)``. Missing hook: options of a factory that belong to its device."""
    original = torch.empty
    # PyTorch remembers the functions that take `with torch.device(…)` when the first such block runs: it must see the
    # original, because that is what the wrapper calls.
    _device_constructors()

    @functools.wraps(original)
    def empty(*size: Any, device_layout: Any = None, **kwargs: Any) -> torch.Tensor:
        if device_layout is None:
            return original(*size, **kwargs)
        shape = kwargs.pop("size", size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
        return tensors.empty_with_layout(shape, device_layout, **kwargs)

    torch.empty = with_own_signature(empty)


def modules_in_matmul_layout() -> None:
    """``nn.Module.to`` lays out weights for matmul and keeps tied ones tied. Missing hook: a device's say in how a
    module's parameters are placed; PyTorch moves each one alone and replaces it by a new object."""
    original = torch.nn.Module.to

    @functools.wraps(original)
    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if device is None or device.type != DEVICE_NAME or memory_format is not None:
            return original(self, *args, **kwargs)
        return modules.load_to_spyre(self, device, dtype, non_blocking)

    def spyre(self: torch.nn.Module, device: Any = None) -> torch.nn.Module:
        index = device.index if isinstance(device, torch.device) else device
        return self.to(torch.device(DEVICE_NAME) if index is None else torch.device(DEVICE_NAME, index))

    to._spyre_patched = True  # type: ignore[attr-defined]  # published
    torch.nn.Module.to = to
    torch.nn.Module.spyre = spyre


class _Fp32(torch.Tensor):
    """A scale whose float64 is itself."""

    def double(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def scale_of_gradients() -> None:
    """``torch.amp.GradScaler("spyre")``. It takes the reciprocal of the scale in float64, except on one named device.
    Missing hook: a device's word that it has no float64."""
    original = torch.amp.GradScaler.unscale_

    @functools.wraps(original)
    def unscale_(self: Any, optimizer: Any) -> None:
        scale = getattr(self, "_scale", None)  # a disabled scaler has none
        if scale is None or scale.device.type != DEVICE_NAME:
            original(self, optimizer)
            return
        self._scale = scale.as_subclass(_Fp32)
        try:
            original(self, optimizer)
        finally:
            self._scale = scale

    torch.amp.GradScaler.unscale_ = unscale_
