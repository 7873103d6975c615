# SPDX-License-Identifier: Apache-2.0
"""A warning for optimisers that keep means of squared gradients in 16 bits and divide by their roots plus a tiny eps.

The square of a small gradient vanishes in 16 bits, and what is left of the divisor is eps: with the usual 1e-8 the step
is far too long. The hook is PyTorch's own, called after each step of any optimiser.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from torch_spyre.constants import DEVICE_NAME

# As the optimisers of PyTorch, and most others, name the means (or sums) of squares in their state.
_SQUARES = ("exp_avg_sq", "square_avg", "sum")
_STORED_AS_DL16 = (torch.float16, torch.bfloat16)
_SMALLEST = 2.0**-31 * (1 + 2.0**-9)
_LEAST = math.sqrt(_SMALLEST)  # the smallest root of a square that is not 0
_looked_at: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling() or optimizer in _looked_at:
        return
    _looked_at.add(optimizer)
    for eps in _too_small(optimizer):
        warnings.warn(
            f"{type(optimizer).__name__} with eps={eps:g} keeps squares of gradients in 16 bits on the card: the "
            f"smallest number there is {_SMALLEST:.3g}, so squares of gradients below {_LEAST:.2g} are 0 and only eps "
            "is left to divide by. Use eps=1e-4, or keep the parameters in float32 and compute in 16 bits with "
            f'torch.autocast("{DEVICE_NAME}")',
            stacklevel=3,
        )
        return


def _too_small(optimizer: Optimizer) -> Iterator[float]:
    for group in optimizer.param_groups:
        eps = group.get("eps")
        if isinstance(eps, float) and eps < _LEAST and any(_holds_squares(optimizer, p) for p in group["params"]):
            yield eps


def _holds_squares(optimizer: Optimizer, parameter: torch.Tensor) -> bool:
    state = optimizer.state.get(parameter, {})
    squares = (state.get(name) for name in _SQUARES)
    return any(
        isinstance(x, torch.Tensor) and x.device.type == DEVICE_NAME and x.dtype in _STORED_AS_DL16 for x in squares
    )


def register() -> None:
    """Called once, when the device is loaded."""
    register_optimizer_step_post_hook(_after_step)
