# SPDX-License-Identifier: Apache-2.0
"""Weights of layers that several cards share, in the layout that matmul reads.

`parallelize_module` and transformers' ``tp_plan`` put a DTensor in the place of a layer's weight. Its part on this card
is cut from the whole, or read from a file, and is stored as any tensor is. It is laid out anew when the layer gets it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.modules import weight_layout
from torch_spyre.device.tensors import device_tensor_layout, to_with_layout


@functools.cache
def place_parts() -> None:
    """From now on, in this process."""
    nn.modules.module.register_module_parameter_registration_hook(_placed)


def _placed(module: nn.Module, name: str, parameter: Any) -> None:
    """Gives the same DTensor another local tensor: it may be the weight of other layers too."""
    from torch.distributed.tensor import DTensor

    if not isinstance(module, nn.Linear) or name != "weight" or not isinstance(parameter, DTensor):
        return
    part = parameter._local_tensor
    if part.device.type != DEVICE_NAME or part.dim() != 2 or part.numel() == 0:
        return
    layout = weight_layout(part.shape, part.dtype)
    if part.is_contiguous() and part.storage_offset() == 0 and device_tensor_layout(part) == layout:
        return
    with torch.no_grad():
        laid_out = to_with_layout(part.contiguous(), layout, copy=True)
    parameter._local_tensor = laid_out.requires_grad_(part.requires_grad)
