# SPDX-License-Identifier: Apache-2.0
"""Linear layers with 8-bit weights: half the memory and half the bytes that a token streams.

`quantise` replaces the linear layers of a model. Each row of a weight (each output feature) has a scale in fp32, its
largest magnitude over the largest code, and the array of the card decodes the codes as it reads them. With
`activations`, the input's rows get scales and codes of the same kind on the card, and codes are multiplied with codes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.modules import weight_layout
from torch_spyre.device.tensors import to_with_layout
from torch_spyre.errors import InvalidArgument

# Name -> dtype of the codes and the largest one.
FORMATS = {"fp8": (torch.float8_e4m3fn, 448.0), "int8": (torch.int8, 127.0)}
HEAD = ("lm_head",)
_LEAST = 2.0**-24  # scale of a row of zeros


class EightBitLinear(nn.Linear):
    """``x @ weight.T * scale + bias`` with a weight of 8-bit codes."""

    def __init__(
        self, codes: torch.Tensor, scale: torch.Tensor, bias: nn.Parameter | None, activations: bool = False
    ) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = codes.shape
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.register_buffer("scale", scale)
        self.register_parameter("bias", bias)
        self.activations = activations

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        scale: torch.Tensor = self.scale
        if self.activations:
            rows = input.reshape(-1, self.in_features)
            product = _of_codes(rows, self.weight, scale).reshape(*input.shape[:-1], self.out_features)
        else:
            product = F.linear(input, self.weight.to(input.dtype)) * scale
        return (product if self.bias is None else product + self.bias).to(input.dtype)

    def extra_repr(self) -> str:
        kind = "codes by codes" if self.activations else "weights only"
        return f"{super().extra_repr()}, {self.weight.dtype}, {kind}"


def _of_codes(rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The product in fp32; each row of the input gets the scale that its largest magnitude asks for."""
    codes, by_row = encoded(rows, weight.dtype)
    if weight.dtype == torch.int8:
        return torch._int_mm(codes, weight.t()) * by_row * scale
    return torch._scaled_mm(codes, weight.t(), by_row, scale.unsqueeze(0), out_dtype=torch.float32)


def encoded(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of a matrix, and a scale for each of its rows as a column. The same steps on card and host."""
    most = next(most for codes, most in FORMATS.values() if codes == dtype)
    wide = rows.to(torch.float32)
    scale = (wide.abs().amax(1, keepdim=True) / most).clamp(min=_LEAST)
    steps = wide / scale
    if dtype == torch.int8:
        steps = steps.round()
    return steps.clamp(-most, most).to(dtype), scale


def quantise(model: nn.Module, weights: str, activations: bool = False, skip: tuple[str, ...] = HEAD) -> nn.Module:
    """Replaces linear layers in place, one after the other. `skip` names those that stay, in full or by their last
    part: by default the head, whose numbers are the model's answer and often those of its embedding."""
    if weights not in FORMATS:
        raise InvalidArgument(f"weights as {weights!r}: the choices are {', '.join(FORMATS)}")
    dtype, _ = FORMATS[weights]
    found = [
        (name, module)
        for name, module in model.named_modules()
        if type(module) is nn.Linear and name not in skip and name.rpartition(".")[2] not in skip
    ]
    if not found:
        raise InvalidArgument(f"{type(model).__name__} has no linear layers to quantise, or all are skipped")
    for name, module in found:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, quantised(module, dtype, activations))
    return model


@torch.no_grad()
def quantised(module: nn.Linear, dtype: torch.dtype, activations: bool = False) -> EightBitLinear:
    """One layer, where the module is. The weight passes through the host, where its codes are made."""
    codes, scale = encoded(module.weight.detach().cpu(), dtype)
    device: Any = module.weight.device
    if device.type == DEVICE_NAME:
        codes = to_with_layout(codes, weight_layout(codes.shape, dtype), dtype, device)
    return EightBitLinear(codes.to(device), scale.squeeze(1).to(device), module.bias, activations)
