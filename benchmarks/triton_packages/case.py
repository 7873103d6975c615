# SPDX-License-Identifier: Apache-2.0
"""A kernel of somebody's package, what it is called with, and the same as a formula of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Values = list[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """`call` runs the package's function on the inputs, `formula` says the same; both give their outputs."""

    name: str
    inputs: Callable[[], Values]
    call: Callable[..., Any]
    formula: Callable[..., Any]
    gradients: bool = True
    tolerance: float = 2e-4


def outputs(function: Callable[..., Any], inputs: Sequence[torch.Tensor], gradients: bool) -> Values:
    """What a function gives, and the gradients of its floating inputs for the same weights of its outputs each time."""
    held = [t.clone().requires_grad_(gradients and t.is_floating_point()) for t in inputs]
    # A leaf may not be changed in place, which several of these functions do.
    found = function(*[t * 1 if t.requires_grad else t for t in held])
    values = [v for v in (found if isinstance(found, tuple | list) else (found,)) if isinstance(v, torch.Tensor)]
    kept = [v.detach().clone() for v in values]
    if not gradients:
        return kept
    generator = torch.Generator().manual_seed(5)
    total = [(v, torch.randn(v.shape, generator=generator).to(v)) for v in values if v.requires_grad]
    torch.autograd.backward([v for v, _ in total], [g for _, g in total])
    return [*kept, *(t.grad if t.grad is not None else torch.zeros_like(t) for t in held if t.requires_grad)]
