# SPDX-License-Identifier: Apache-2.0
"""The module ``torch.spyre``."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device import memory, publish
from torch_spyre.device.memory import (
    OutOfMemoryError,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch_spyre.device.properties import (
    SpyreDeviceProperties,
    can_device_access_peer,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_bf16_supported,
)
from torch_spyre.device.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_spyre.device.selection import device_index
from torch_spyre.device.streams import Event, Stream, current_stream, default_stream, stream, synchronize
from torch_spyre.device.tensors import empty_with_layout, from_device, to_with_layout

__all__ = [
    "Event",
    "OutOfMemoryError",
    "SpyreDeviceProperties",
    "Stream",
    "can_device_access_peer",
    "clock_ns",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "empty_with_layout",
    "from_device",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
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
    "memory_summary",
    "reset",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "to_with_layout",
]

# Inductor asks the device module for these when something is first compiled. The compiler, which answers, is imported
# only then; the package says how.
_INDUCTOR_NAMES = ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen")
_compiler: Callable[[], Any]


def is_available() -> bool:
    """Whether there is a card."""
    return device_count() > 0


def device_count() -> int:
    """AIU_WORLD_SIZE cards (default 1), of which SPYRE_DEVICES may select some."""
    return _C.device_count()


def current_device() -> int:
    """The index of the calling thread's current card."""
    return _C.current_device()


def set_device(device: Any) -> None:
    """Makes a card the current one of the calling thread."""
    _C.set_device(device_index(device))


def clock_ns(device: Any = None) -> int:
    """The card's virtual clock in nanoseconds, after all that was submitted so far; None: the current device."""
    return _C.clock_ns(device_index(device))


class device:
    """Context manager: the current device inside the block. A negative index or None changes nothing."""

    def __init__(self, device: Any) -> None:
        keep = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if keep else device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C.current_device()
        if self.idx >= 0:
            _C.set_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C.set_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of a tensor or storage; changes nothing if that is not on a card."""

    def __init__(self, obj: Any) -> None:
        found = getattr(obj, "device", None)
        super().__init__(found.index if found is not None and found.type == DEVICE_NAME else -1)


def set_stream(stream: Any) -> None:
    """Makes a stream, ours or a torch.Stream, the current one; None changes nothing."""
    if stream is not None:
        _C.set_current_stream(stream)


def init() -> None:
    """Opens the card of the current device; the first allocation would do it anyway."""
    _C.start_runtime()
    publish.start()


_lazy_init = init  # PyTorch calls it before a Python program's first use of the device


def reset(device: Any = None, *, drop_queued: bool = False) -> None:
    """Makes a card usable again after an error; None: every card of the process.

    Queued work of healthy streams runs first; with `drop_queued`, what has not begun never runs (after Ctrl-C, say).
    Tensors keep what had been computed; reading one that failed or dropped work would have written raises
    `UninitializedRead` until all of it is written.
    """
    indices = range(device_count()) if device is None else [device_index(device)]
    if _C.is_initialized():
        for index in indices:
            _C.reset(index, drop_queued)


_initialized = True  # torch.utils.checkpoint asks for it before it keeps the state of the device's generator


def is_initialized() -> bool:
    """True once a card is open in this process."""
    return _C.is_initialized()


def _set_compiler(load: Callable[[], Any]) -> None:
    global _compiler
    _compiler = load


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may use."""
    return [torch.float16, torch.bfloat16]


def _is_compiled() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def __getattr__(name: str) -> Any:
    if name in _INDUCTOR_NAMES:
        return getattr(_compiler(), name)
    if not name.startswith("__") and hasattr(_C, name):
        return getattr(_C, name)
    raise AttributeError(f"module 'torch.spyre' has no attribute {name!r}")
