# SPDX-License-Identifier: Apache-2.0
"""Random numbers: each device has its own generator, seeded by torch.manual_seed or here."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.device.selection import device_index

_SEED_MASK = 0xFFFF_FFFF_FFFF_FFFF


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    _C.manual_seed(int(seed) & _SEED_MASK)


def manual_seed_all(seed: int) -> None:
    """Seeds every device."""
    _C.manual_seed_all(int(seed) & _SEED_MASK)


def seed() -> None:
    """Seeds the current device with a random number."""
    manual_seed(secrets.randbits(64))


def seed_all() -> None:
    """Seeds every device with one random number."""
    manual_seed_all(secrets.randbits(64))


def initial_seed(device: Any = "spyre") -> int:
    """The seed of a card's generator."""
    return _C.initial_seed(device_index(device))


# Dynamo would trace the states as tensors of the graph, also in code that saves the states of all devices.
@torch._disable_dynamo
def get_rng_state(device: Any = "spyre") -> torch.Tensor:
    """The state of a card's generator: seed and number of draws."""
    return _C.get_rng_state(device_index(device))


@torch._disable_dynamo
def set_rng_state(new_state: torch.Tensor, device: Any = "spyre") -> None:
    """Puts a card's generator into a state of `get_rng_state`."""
    _C.set_rng_state(new_state, device_index(device))


@torch._disable_dynamo
def get_rng_state_all() -> list[torch.Tensor]:
    """The states of the generators of all cards."""
    return [_C.get_rng_state(i) for i in range(_C.device_count())]


@torch._disable_dynamo
def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Puts the generators of all cards into states of `get_rng_state_all`."""
    for i, state in enumerate(new_states):
        _C.set_rng_state(state, i)
