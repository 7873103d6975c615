# SPDX-License-Identifier: Apache-2.0
"""The module ``torch.spyre``."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.device import memory
from torch_spyre.device.index import device_index
from torch_spyre.device.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch_spyre.device.properties import SpyreDeviceProperties, get_device_name, get_device_properties
from torch_spyre.device.random import get_rng_state, initial_seed, manual_seed, manual_seed_all, set_rng_state
from torch_spyre.device.streams import Stream, current_stream, default_stream, stream, synchronize

__all__ = [
    "SpyreDeviceProperties",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "init",
    "initial_seed",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state",
    "stream",
    "synchronize",
]

# Inductor asks the device module for these when something is first compiled; importing the registration answers it.
_INDUCTOR_NAMES = ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen")


def is_available() -> bool:
    return device_count() > 0


def device_count() -> int:
    """AIU_WORLD_SIZE cards (default 1), of which SPYRE_DEVICES may select some."""
    return _C.device_count()


def current_device() -> int:
    return _C.current_device()


def set_device(device: Any) -> None:
    _C.set_device(device_index(device))


class device:
    """Context manager: the current device inside the block. A negative index or None changes nothing."""

    def __init__(self, device: Any) -> None:
        keep = device is None or (isinstance(device, int) and device < 0)
        self._index = None if keep else device_index(device)
        self._outer = 0

    def __enter__(self) -> None:
        self._outer = _C.current_device()
        if self._index is not None:
            _C.set_device(self._index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C.set_device(self._outer)


def init() -> None:
    """Opens the card of the current device; the first allocation would do it anyway."""
    _C.start_runtime()


_lazy_init = init


def is_initialized() -> bool:
    """True once a card is open in this process."""
    return _C.is_initialized()


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def _is_compiled() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def __getattr__(name: str) -> Any:
    if name in _INDUCTOR_NAMES:
        from torch_spyre._inductor import registration

        return getattr(registration, name)
    if not name.startswith("__") and hasattr(_C, name):
        return getattr(_C, name)
    raise AttributeError(f"module 'torch.spyre' has no attribute {name!r}")
