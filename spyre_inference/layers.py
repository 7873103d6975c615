# SPDX-License-Identifier: Apache-2.0
"""Layers of vLLM in the form that the compiler traces; vLLM puts them in the place of its own."""

from __future__ import annotations

import functools
from typing import Any

import torch

from spyre_inference.vllm_api import RMSNorm


class SpyreRMSNorm(RMSNorm):
    """vLLM's own formula, without its table of implementations."""

    def forward_oot(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is not None:
            x = residual = x + residual
        wide = x.to(torch.float32)
        part = wide if self.variance_size_override is None else wide[..., : self.variance_size_override]
        normal = (wide * torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)).to(x.dtype)
        if self.has_weight:
            normal = normal * self.weight
        return normal if residual is None else (normal, residual)


@functools.cache
def register() -> None:
    """Once in each process, before a model is made."""
    RMSNorm.register_oot(SpyreRMSNorm, name="RMSNorm")
