# SPDX-License-Identifier: Apache-2.0
"""What a card is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_spyre.constants import CORES, DATA_SEGMENTS, LX_BYTES, SEGMENT_BYTES
from torch_spyre.device.index import device_index

NAME = "IBM Spyre (software card)"


@dataclass(frozen=True)
class SpyreDeviceProperties:
    """Sizes in bytes. `type` is the name Inductor's caches know the machine by."""

    index: int = 0
    name: str = NAME
    type: str = "dd2"
    multi_processor_count: int = CORES
    total_memory: int = DATA_SEGMENTS * SEGMENT_BYTES
    scratchpad_bytes: int = LX_BYTES


def get_device_properties(device: Any = None) -> SpyreDeviceProperties:
    return SpyreDeviceProperties(index=device_index(device))


def get_device_name(device: Any = None) -> str:
    return get_device_properties(device).name
