# SPDX-License-Identifier: Apache-2.0
"""Random numbers: each device has its own generator, seeded by torch.manual_seed or here."""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.device.index import device_index


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    _C.manual_seed(int(seed) & 0xFFFF_FFFF_FFFF_FFFF)


def manual_seed_all(seed: int) -> None:
    """Seeds every device."""
    _C.manual_seed_all(int(seed) & 0xFFFF_FFFF_FFFF_FFFF)


def initial_seed(device: Any = "spyre") -> int:
    return _C.initial_seed(device_index(device))


def get_rng_state(device: Any = "spyre") -> torch.Tensor:
    return _C.get_rng_state(device_index(device))


def set_rng_state(new_state: torch.Tensor, device: Any = "spyre") -> None:
    _C.set_rng_state(new_state, device_index(device))
