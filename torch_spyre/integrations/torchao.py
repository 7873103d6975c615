# SPDX-License-Identifier: Apache-2.0
"""torchao quantises models for the card, or on it."""

from __future__ import annotations

import functools
from typing import Any

import torch


def accept_cards(module: Any) -> None:
    """`torchao.float8.inference`: dynamic float8 asks for CUDA, ROCm or XPU by name and does not look at the weight's
    device. Scales of tensors and of rows also serve where a card is. Blocks of 128 stay refused: torchao multiplies
    them with a Triton kernel of its own. Missing hook: a list of devices with `_scaled_mm`."""
    original = module._check_hardware_support

    @functools.wraps(original)
    def check(granularities: Any) -> None:
        kinds = {type(g).__name__ for g in granularities}
        if kinds in ({"PerTensor"}, {"PerRow"}) and torch.spyre.is_available():
            return
        original(granularities)

    module._check_hardware_support = check
