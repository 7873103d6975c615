# SPDX-License-Identifier: Apache-2.0
"""Linear layers of quantised checkpoints: 8-bit codes times 8-bit codes, where vLLM looks for a platform's kernels.

Inputs without a scale of their own get one for each row, also where a checkpoint asks for one for all rows: what is in
the other rows of a step must not matter.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from spyre_inference.vllm_api import (
    FP8ScaledMMLinearKernel,
    Int8ScaledMMLinearKernel,
    PlatformEnum,
    linear_kernels,
    quantise_on_host,
)
from torch_spyre.models.quantised_linear import FORMATS, encoded


def _set(layer: nn.Module, name: str, value: torch.Tensor) -> None:
    setattr(layer, name, nn.Parameter(value.contiguous(), requires_grad=False))


def _by_feature(scale: torch.Tensor, widths: list[int], features: int) -> torch.Tensor:
    """A scale for each output feature, of scales for them, for each merged layer, or for all."""
    scale = scale.detach().float().reshape(-1)
    if len(scale) == len(widths) != features:
        return torch.cat([s.expand(width) for s, width in zip(scale, widths, strict=True)])
    return scale.expand(features) if len(scale) == 1 else scale


def _codes(x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of rows, and the scale of each as a column."""
    if scale is None:
        return encoded(x, dtype)
    most = next(most for codes, most in FORMATS.values() if codes == dtype)
    steps = x.to(torch.float32) / scale
    steps = steps.round() if dtype == torch.int8 else steps
    return steps.clamp(-most, most).to(dtype), scale.reshape(1, 1).expand(len(x), 1).contiguous()


class _Product:
    """`x @ weight.T` with a weight of codes, [features, inputs], and `weight_scale` [features]."""

    def apply_weights(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        codes, by_row = _codes(rows, layer.weight.dtype, layer.input_scale)
        if layer.weight.dtype == torch.int8:
            product = torch._int_mm(codes, layer.weight.t()) * by_row * layer.weight_scale
        else:
            scale = layer.weight_scale.unsqueeze(0)
            product = torch._scaled_mm(codes, layer.weight.t(), by_row, scale, out_dtype=torch.float32)
        product = product if bias is None else product + bias
        return product.to(x.dtype).view(*x.shape[:-1], -1)

    @staticmethod
    def input_scale_of(layer: Any) -> None:
        """One number where the checkpoint has it, of the merged layers the largest."""
        scale = getattr(layer, "input_scale", None)
        if scale is not None:
            _set(layer, "input_scale", scale.detach().float().max().reshape(1))
        else:
            layer.input_scale = None

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None


class CardFp8(_Product, FP8ScaledMMLinearKernel):
    @classmethod
    def can_implement(cls, c: Any) -> tuple[bool, str | None]:
        if c.weight_quant_key.scale.group_shape.is_per_group():
            return False, "weights with scales for groups of inputs"
        return True, None

    def process_weights_after_loading(self, layer: Any) -> None:
        turned = layer.weight.detach().t()  # vLLM hands over [inputs, features]
        _set(layer, "weight", turned)
        _set(layer, "weight_scale", _by_feature(layer.weight_scale, layer.logical_widths, len(turned)))
        self.input_scale_of(layer)

    def apply_scaled_mm(self, **arguments: Any) -> torch.Tensor:
        raise AssertionError("apply_weights computes")


class CardInt8(_Product, Int8ScaledMMLinearKernel):
    @classmethod
    def can_implement(cls, c: Any) -> tuple[bool, str | None]:
        return (True, None) if c.input_symmetric else (False, "inputs with a zero point")

    def process_weights_after_loading(self, layer: Any) -> None:
        weight = layer.weight.detach()
        _set(layer, "weight", weight)
        _set(layer, "weight_scale", _by_feature(layer.weight_scale, layer.logical_widths, len(weight)))
        self.input_scale_of(layer)


@functools.cache
def register() -> None:
    """Once in each process, before a model is made."""
    quantise_on_host()
    linear_kernels.register_linear_kernel(CardFp8, PlatformEnum.OOT, "fp8")
    linear_kernels.register_linear_kernel(CardInt8, PlatformEnum.OOT, "int8")
