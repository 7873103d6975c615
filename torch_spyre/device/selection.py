# SPDX-License-Identifier: Apache-2.0
"""Which device a caller means."""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import InvalidArgument


def device_index(device: Any = None) -> int:
    """Index of a device given as None (the current one), int, str or torch.device."""
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        index: int = device
    else:
        parsed = torch.device(device)
        if parsed.type != DEVICE_NAME:
            raise InvalidArgument(f"expected a {DEVICE_NAME} device, got {parsed}")
        index = _C.current_device() if parsed.index is None else parsed.index
    if not 0 <= index < _C.device_count():
        raise InvalidArgument(
            f"Device index {index} out of range [0, {_C.device_count()}); AIU_WORLD_SIZE says how many cards there "
            "are, and SPYRE_DEVICES which of them are seen; set them before the process starts"
        )
    return index
