# SPDX-License-Identifier: Apache-2.0
"""What Dynamo and Inductor ask of a device at compile time."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface

from torch_spyre.device.properties import SpyreDeviceProperties

# What PyTorch's own interfaces keep for their compile workers.
caching_worker_device_properties: dict[str, Any] = {}
caching_worker_current_devices: dict[str, int] = {}


def get_raw_stream(device_index: int) -> int:
    """Number of the stream that launches of this thread go to: 0 is the default stream. Generated code calls it too."""
    return int(torch.spyre.current_stream(device_index).stream_id)


class SpyreInterface(DeviceInterface):
    """Device queries without starting a card; the rest delegates to torch.spyre."""

    class Worker:
        """Compile workers see the properties of a card, never a card."""

        @staticmethod
        def set_device(device: int) -> None:
            raise NotImplementedError("compile workers do not open cards")

        @staticmethod
        def current_device() -> int:
            return 0

        @staticmethod
        def get_device_properties(device: Any = None) -> SpyreDeviceProperties:
            return SpyreDeviceProperties()

    @staticmethod
    def is_available() -> bool:
        return bool(torch.spyre.is_available())

    @staticmethod
    def device_count() -> int:
        return int(torch.spyre.device_count())

    @staticmethod
    def current_device() -> int:
        return int(torch.spyre.current_device())

    @staticmethod
    def set_device(device: Any) -> None:
        torch.spyre.set_device(device)

    @staticmethod
    def synchronize(device: Any = None) -> None:
        torch.spyre.synchronize(device)

    @staticmethod
    def get_device_properties(device: Any = None) -> SpyreDeviceProperties:
        index = torch.device(device).index if device is not None else None
        return SpyreDeviceProperties(index=index or 0)

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return ""

    @staticmethod
    def get_raw_stream(device_idx: Any) -> int:
        return get_raw_stream(device_idx)

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        return False

    @staticmethod
    def exchange_device(device: int) -> int:
        previous = SpyreInterface.current_device()
        if device >= 0:
            SpyreInterface.set_device(device)
        return previous

    maybe_exchange_device = exchange_device
