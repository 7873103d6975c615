# SPDX-License-Identifier: Apache-2.0
"""What `torch.amp.GradScaler` calls, made of ops of the device: the step stays on the card.

An overflow of the 16-bit format is stored as its largest code, which reads as infinity in fp32: gradients of fp32
parameters show it like on any device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_library = torch.library.Library("aten", "IMPL")


def _check_and_unscale(grads: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    if not grads:
        return
    largest = torch.stack(torch._foreach_norm(grads, math.inf)).amax()  # NaN if there is one
    found_inf.copy_(torch.where(largest < math.inf, found_inf, 1.0))
    torch._foreach_mul_(grads, inv_scale)


def _update_scale(
    scale: Tensor, tracker: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int
) -> Tensor:
    failed = found_inf != 0
    count = torch.where(failed, 0, tracker + 1)
    due = count == interval
    grown = torch.where(torch.isinf(scale * growth), scale, scale * growth)
    scale.copy_(torch.where(failed, scale * backoff, torch.where(due, grown, scale)))
    tracker.copy_(torch.where(due, 0, count))
    return scale


def register() -> None:
    """Called once, when the device is loaded."""
    _library.impl("_amp_foreach_non_finite_check_and_unscale_", _check_and_unscale, "PrivateUse1")
    _library.impl("_amp_update_scale_", _update_scale, "PrivateUse1")
