# SPDX-License-Identifier: Apache-2.0
"""Every change to a function of PyTorch, each with the upstream hook that is missing."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._device import _device_constructors

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device import modules, serialization, tensors


def _print_from_host() -> None:
    """Printing computes on the tensor (abs, isfinite, masked_select). PyTorch copies tensors of a fixed list of devices
    to the host first; a device cannot put itself on that list."""
    original = torch._tensor_str._tensor_str

    def tensor_str(self: torch.Tensor, indent: int) -> Any:
        return original(self.cpu() if self.device.type == DEVICE_NAME else self, indent)

    torch._tensor_str._tensor_str = tensor_str


def _layout_of_a_tensor() -> None:
    """``Tensor.device_tensor_layout()``. Missing hook: attributes of a tensor that belong to its device."""
    torch.Tensor.device_tensor_layout = tensors.device_tensor_layout


def _to_with_layout() -> None:
    """``Tensor.to(…, device_layout=…)``. Missing hook: options of a conversion that belong to the target device."""
    original = torch.Tensor.to

    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, device_layout: Any = None, **kwargs: Any) -> torch.Tensor:
        if device_layout is None:
            return original(self, *args, **kwargs)
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        return tensors.to_with_layout(self, device_layout, dtype, device, non_blocking, copy)

    torch.Tensor.to = to


def _empty_with_layout() -> None:
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

    torch.empty = empty


def _modules_in_matmul_layout() -> None:
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

    to._spyre_patched = True  # type: ignore[attr-defined]
    torch.nn.Module.to = to
    torch.nn.Module.spyre = spyre


def _pickle_storages() -> None:
    """``pickle.dumps(tensor)`` reads storages at their data pointer. Missing hook: storage bytes of a device whose data
    pointer is no address."""
    for kind in (torch.storage.TypedStorage, torch.storage._StorageBase):
        _replace_reduce(kind)


def _replace_reduce(kind: Any) -> None:
    original = kind.__reduce__

    @functools.wraps(original)
    def __reduce__(self: Any) -> Any:
        untyped = getattr(self, "_untyped_storage", self)  # a typed one warns when it is asked for its device
        return serialization.reduce_storage(self) if untyped.device.type == DEVICE_NAME else original(self)

    kind.__reduce__ = __reduce__


def _refuse_dlpack() -> None:
    """PyTorch exports tensors of any renamed device with their data pointer. Missing hook: a device's refusal."""
    for owner, name in ((torch.Tensor, "__dlpack__"), (torch.Tensor, "__dlpack_device__")):
        _guard_dlpack(owner, name)
    for owner in (torch, torch.utils.dlpack, torch._C):
        for name in ("to_dlpack", "_to_dlpack", "_to_dlpack_versioned"):
            if hasattr(owner, name):
                _guard_dlpack(owner, name)


def _guard_dlpack(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def export(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == DEVICE_NAME:
            serialization.refuse_dlpack(tensor)
        return original(tensor, *args, **kwargs)

    setattr(owner, name, export)


def _safetensors_onto_the_card() -> None:
    """safetensors knows a fixed list of device names. Missing hook: a name registered with PyTorch."""
    serialization.WhenImported("safetensors", serialization.accept_cards).install()


def apply() -> None:
    _print_from_host()
    _layout_of_a_tensor()
    _to_with_layout()
    _empty_with_layout()
    _modules_in_matmul_layout()
    _pickle_storages()
    _refuse_dlpack()
    _safetensors_onto_the_card()
