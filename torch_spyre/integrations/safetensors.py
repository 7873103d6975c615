# SPDX-License-Identifier: Apache-2.0
"""safetensors: files onto the card."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch_spyre.device import serialization


def open_onto_the_card(module: ModuleType) -> None:
    """``safetensors.safe_open(device="spyre")``, and with it ``safetensors.torch.load_file``. safetensors knows a fixed
    list of device names. Missing hook: a name registered with PyTorch."""
    original: Any = getattr(module, "safe_open", None)
    if original is None or hasattr(original, "_spyre_patched"):
        return

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        if not serialization.is_card(device):
            return original(filename, framework, device, **options)
        return serialization.CardFile(original(filename, framework, "cpu", **options), device)

    safe_open._spyre_patched = True  # type: ignore[attr-defined]
    module.safe_open = safe_open  # type: ignore[attr-defined]
