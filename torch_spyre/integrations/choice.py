# SPDX-License-Identifier: Apache-2.0
"""Which device a library takes when nobody names one, and how its functions are replaced."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME

# What a library hands to init_process_group: collectives on tensors of the host and of cards.
GROUP_BACKEND = f"cpu:gloo,{DEVICE_NAME}:spyreccl"
_LIBRARIES = ("accelerate", "diffusers", "peft", "sentence_transformers", "transformers", "trl")


def card() -> torch.device | None:
    """The current card, if cards are the accelerator of this process."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != DEVICE_NAME:
        return None
    return torch.device(DEVICE_NAME, torch.accelerator.current_device_index())


def is_card(device: Any) -> bool:
    return isinstance(device, torch.device) and device.type == DEVICE_NAME


def replace_function(module: ModuleType, name: str, make: Callable[[Any], Any]) -> None:
    """Puts ``make(original)`` in the place of a function, also where a module imported it by name already."""
    original = getattr(module, name)
    if hasattr(original, "_spyre_patched"):
        return
    new: Any = functools.wraps(original)(make(original))
    new._spyre_patched = True
    for other in _modules_of_libraries():
        for key, value in list(vars(other).items()):
            if value is original:
                setattr(other, key, new)
    setattr(module, name, new)


def replace_method(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    if not hasattr(original, "_spyre_patched"):
        new: Any = functools.wraps(original)(make(original))
        new._spyre_patched = True
        setattr(owner, name, new)


def _modules_of_libraries() -> list[ModuleType]:
    found = list(sys.modules.items())
    return [module for name, module in found if name.split(".")[0] in _LIBRARIES and isinstance(module, ModuleType)]


# Beside the libraries' own files, which hold the states of the devices that they know.
_STATES = "spyre_rng_state.pth"


def save_random_state(folder: str | Path) -> None:
    if card() is not None:
        torch.save(torch.get_device_module(DEVICE_NAME).get_rng_state_all(), Path(folder) / _STATES)


def load_random_state(folder: str | Path) -> None:
    file = Path(folder) / _STATES
    if card() is not None and file.is_file():
        torch.get_device_module(DEVICE_NAME).set_rng_state_all(torch.load(file, weights_only=True))
