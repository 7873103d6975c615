# SPDX-License-Identifier: Apache-2.0
"""Ops of this device made of others, where PyTorch's own formula for a device would go through the host."""

from __future__ import annotations

from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL")


def _prod(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Over one dim: the gradient of a product of everything asks for the places of its zeros."""
    return x.reshape(-1).prod(0, dtype=dtype)


def _zeros(size: Any, **options: Any) -> torch.Tensor:
    """PyTorch's zero that takes no memory exists for its own devices only."""
    return torch.zeros(size, **options)


def register() -> None:
    """Called once, when the device is loaded."""
    _library.impl("prod", _prod, "AutogradPrivateUse1")
    _library.impl("_efficientzerotensor", _zeros, "PrivateUse1")
