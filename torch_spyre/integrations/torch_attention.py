# SPDX-License-Identifier: Apache-2.0
"""Attention of PyTorch that knows a fixed list of devices."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch_spyre.constants import DEVICE_NAME


def accept_cards(module: ModuleType) -> None:
    """`torch.nn.attention.flex_attention` refuses tensors of a device that is not in its list, and its implementations
    are Triton templates. Missing hook: a registered device answers for itself."""
    from torch_spyre.decompositions import flex_attention  # late: with its user only

    original = module._validate_device

    def validate(query: Any, key: Any, value: Any) -> None:
        if query.device.type != DEVICE_NAME:
            original(query, key, value)

    module._validate_device = validate  # type: ignore[attr-defined]
    flex_attention.register()


def varlen_on_cards(module: ModuleType) -> None:
    """`torch.nn.attention.varlen` calls the flash attention of CUDA. Missing hook: none, its ops take kernels."""
    from torch_spyre.decompositions import varlen_attention  # late: with its user only

    varlen_attention.register()
