# SPDX-License-Identifier: Apache-2.0
"""Linear layers with 8-bit weights: half the memory and half the bytes that a token streams.

`quantise` replaces the linear layers of a model. Each row of a weight (each output feature) has a scale in fp32, its
largest magnitude over the largest code, and the array of the card decodes the codes as it reads them. With
`activations`, the input's rows get scales and codes of the same kind on the card, and codes are multiplied with codes.
"""

from __future__ import annotations

from dataclasses import dataclass
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
_AT_ONCE = 1 << 18  # weights that are encoded together
BLOCK = 128  # rows and columns that share a scale, where scales belong to blocks


@dataclass(frozen=True)
class Form:
    """How a linear layer is quantised."""

    dtype: torch.dtype
    activations: bool = False  # inputs get codes too
    static: bool = False  # with one scale that is known beforehand
    blocks: bool = False  # a scale for each 128 x 128 weights, and for each 128 inputs of a row
    whole: bool = False  # files have one scale for the weight; here each row has it


class EightBitLinear(nn.Linear):
    """``x @ weight.T * scale + bias`` with a weight of 8-bit codes. `scale` has a number for each row of the weight, or
    for each of its blocks."""

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        bias: nn.Parameter | None,
        activations: bool = False,
        input_scale: torch.Tensor | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = codes.shape
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.register_buffer("scale", scale)
        self.register_buffer("input_scale", input_scale)
        self.register_parameter("bias", bias)
        self.activations = activations

    @classmethod
    def empty(cls, linear: nn.Linear, form: Form) -> EightBitLinear:
        """With the sizes and the bias of a layer, and codes that nobody wrote."""
        rows, columns = linear.weight.shape
        scales = (-(-rows // BLOCK), -(-columns // BLOCK)) if form.blocks else (rows,)
        known = torch.empty(1, dtype=torch.float32) if form.static else None
        codes, scale = torch.empty(rows, columns, dtype=form.dtype), torch.empty(scales, dtype=torch.float32)
        return cls(codes, scale, linear.bias, form.activations, known)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        scale: torch.Tensor = self.scale
        if self.activations:
            rows = input.reshape(-1, self.in_features)
            product = self._of_codes(rows, scale).reshape(*input.shape[:-1], self.out_features)
        else:
            product = F.linear(input, self.weight.to(input.dtype)) * scale
        return (product if self.bias is None else product + self.bias).to(input.dtype)

    def _of_codes(self, rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The product in fp32; each row of the input, or each block of it, gets the scale that its largest magnitude
        asks for."""
        width = BLOCK if scale.dim() == 2 and self.in_features % BLOCK == 0 else self.in_features
        codes, by_row = encoded(rows, self.weight.dtype, width, self.input_scale)
        if self.weight.dtype == torch.int8:
            return torch._int_mm(codes, self.weight.t()) * by_row * scale
        of_weight = scale.t() if scale.dim() == 2 else scale.unsqueeze(0)
        return torch._scaled_mm(codes, self.weight.t(), by_row, of_weight, out_dtype=torch.float32)

    def extra_repr(self) -> str:
        kind = "codes by codes" if self.activations else "weights only"
        return f"{super().extra_repr()}, {self.weight.dtype}, {kind}"


def encoded(
    rows: torch.Tensor, dtype: torch.dtype, width: int = 0, known: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of a matrix, and in a second one the scales of each row: one for all of it, or for each `width` columns.
    With a `known` scale, that one. The same steps on card and host."""
    most = next(most for codes, most in FORMATS.values() if codes == dtype)
    wide = rows.to(torch.float32)
    parts = wide if width in (0, wide.shape[1]) else wide.unflatten(1, (-1, width))
    if known is None:
        scale = (parts.abs().amax(-1, keepdim=True) / most).clamp(min=_LEAST)
    else:
        scale = known.reshape((1,) * parts.dim()).expand(*parts.shape[:-1], 1)
    steps = (parts / scale).reshape(wide.shape)
    if dtype == torch.int8:
        steps = steps.round()
    return steps.clamp(-most, most).to(dtype), scale.reshape(len(wide), -1)


def quantise(model: nn.Module, weights: str, activations: bool = False, skip: tuple[str, ...] = HEAD) -> nn.Module:
    """Replaces linear layers in place, one after the other. `skip` names those that stay, in full or by their last
    part: by default the head, whose numbers are the model's answer and often those of its embedding."""
    if weights not in FORMATS:
        raise InvalidArgument(f"weights as {weights!r}: the choices are {', '.join(FORMATS)}")
    for name, module in chosen(model, skip).items():
        replace(model, name, quantised(module, FORMATS[weights][0], activations))
    return model


def chosen(model: nn.Module, skip: tuple[str, ...] = HEAD) -> dict[str, nn.Linear]:
    """The linear layers of a model but those that `skip` names."""
    found = {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and name not in skip and name.rpartition(".")[2] not in skip
    }
    if not found:
        raise InvalidArgument(f"{type(model).__name__} has no linear layers to quantise, or all are skipped")
    return found


def replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)


@torch.no_grad()
def quantised(module: nn.Linear, dtype: torch.dtype, activations: bool = False) -> EightBitLinear:
    """One layer, where the module is. The weight passes through the host, where its codes are made."""
    codes, scale = encoded_weight(module.weight.detach().cpu(), dtype)
    device: Any = module.weight.device
    return EightBitLinear(codes_on(device, codes), scale.to(device), module.bias, activations)


def encoded_weight(weight: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of a weight on the host and the scale of each of its rows; a few rows at a time, which stay in caches."""
    codes, scale = torch.empty(weight.shape, dtype=dtype), torch.empty(len(weight))
    step = max(1, _AT_ONCE // weight.shape[1])
    for first in range(0, len(weight), step):
        made, by_row = encoded(weight[first : first + step], dtype)
        codes[first : first + step], scale[first : first + step] = made, by_row.squeeze(1)
    return codes, scale


def codes_on(device: Any, codes: torch.Tensor) -> torch.Tensor:
    """A weight of codes on a device, on a card in the layout that products read."""
    if torch.device(device).type == DEVICE_NAME:
        return to_with_layout(codes, weight_layout(codes.shape, codes.dtype), codes.dtype, device)
    return codes.to(device)
