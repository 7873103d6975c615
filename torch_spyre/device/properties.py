# SPDX-License-Identifier: Apache-2.0
"""What a card is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_spyre.constants import CORES, DATA_SEGMENTS, LX_BYTES, SEGMENT_BYTES
from torch_spyre.device.selection import device_index

NAME = "IBM Spyre (software card)"


@dataclass(frozen=True)
class SpyreDeviceProperties:
    """Sizes in bytes. `type` is the name Inductor's caches know the machine by; `major` and `minor` number it."""

    index: int = 0
    name: str = NAME
    type: str = "dd2"
    major: int = 2
    minor: int = 0
    multi_processor_count: int = CORES
    total_memory: int = DATA_SEGMENTS * SEGMENT_BYTES
    scratchpad_bytes: int = LX_BYTES

    @property
    def cores(self) -> int:
        return self.multi_processor_count

    @property
    def lx_bytes(self) -> int:
        """Scratchpad of one core."""
        return self.scratchpad_bytes


def get_device_properties(device: Any = None) -> SpyreDeviceProperties:
    """Sizes and names of a card."""
    return SpyreDeviceProperties(index=device_index(device))


def get_device_name(device: Any = None) -> str:
    """The name of a card."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """(major, minor) of the card's design; torch.accelerator.get_device_capability lists the dtypes."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """bf16 tensors work; the card stores them as SEN169_FP16, like fp16."""
    return including_emulation


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """A program reads the memory of its own card only. Copies between cards work without it."""
    return device_index(device) == device_index(peer_device)
