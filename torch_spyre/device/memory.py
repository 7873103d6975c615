# SPDX-License-Identifier: Apache-2.0
"""Memory of a card, in bytes. Freed by reference count; nothing is cached, so reserved equals allocated."""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre.device.index import device_index


def memory_stats(device: Any = None) -> dict[str, Any]:
    return dict(torch.accelerator.memory_stats(device_index(device)))


def memory_allocated(device: Any = None) -> int:
    return int(torch.accelerator.memory_allocated(device_index(device)))


def max_memory_allocated(device: Any = None) -> int:
    return int(torch.accelerator.max_memory_allocated(device_index(device)))


def memory_reserved(device: Any = None) -> int:
    return int(torch.accelerator.memory_reserved(device_index(device)))


def max_memory_reserved(device: Any = None) -> int:
    return int(torch.accelerator.max_memory_reserved(device_index(device)))


def reset_peak_memory_stats(device: Any = None) -> None:
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def empty_cache() -> None:
    """There is no cache to empty; exists for code that is written for several devices."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the card."""
    free, total = torch.accelerator.get_memory_info(device_index(device))
    return int(free), int(total)
