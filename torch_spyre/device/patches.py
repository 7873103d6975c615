# SPDX-License-Identifier: Apache-2.0
"""Every change to a function of PyTorch, each with the upstream hook that is missing."""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME


def _print_from_host() -> None:
    """Printing computes on the tensor (abs, isfinite, masked_select). PyTorch copies tensors of a fixed list of devices
    to the host first; a device cannot put itself on that list."""
    original = torch._tensor_str._tensor_str

    def tensor_str(self: torch.Tensor, indent: int) -> Any:
        return original(self.cpu() if self.device.type == DEVICE_NAME else self, indent)

    torch._tensor_str._tensor_str = tensor_str


def apply() -> None:
    _print_from_host()
