# SPDX-License-Identifier: Apache-2.0
"""Events: points in a stream that others can wait for, with their time on the device clock."""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import UnsupportedOp


class _EventType(type):
    def __instancecheck__(cls, event: Any) -> bool:
        return isinstance(event, torch.Event) and event.device.type == DEVICE_NAME


class Event(metaclass=_EventType):
    """Makes a ``torch.Event`` of this device; not a subclass, because torch.Event.elapsed_time accepts no subclass.

    Its `elapsed_time` is in milliseconds of the device clock, which counts what the card would take and not what its
    simulation takes; it needs ``enable_timing=True`` on both events.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
        if interprocess:
            raise UnsupportedOp("Event(interprocess=True): a card belongs to its process; no other one can wait for it")
        return torch.Event(device=DEVICE_NAME, enable_timing=enable_timing, blocking=blocking)
