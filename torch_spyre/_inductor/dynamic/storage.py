# SPDX-License-Identifier: Apache-2.0
"""How much room the storage of a tensor has along each of its dims, and storages with more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre._inductor.dynamic.space import Shape, coverage


def room_of(x: torch.Tensor, layout: Any, size: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """Elements that fit along each dim before another dim begins; None if the storage is laid out for other dims.

    Size and stride are those of the tensor, or of the dims that were joined to its dims.
    """
    found, rest = coverage(size, stride, layout.stride_map, layout.device_size), x.storage_offset()
    if found is None or not rest:
        return found
    for i in sorted((i for i, n in enumerate(size) if n > 1 and stride[i]), key=lambda i: -stride[i]):
        found[i] -= rest // stride[i]
        rest %= stride[i]
    return None if rest or any(room < n for room, n in zip(found, size, strict=True)) else found


def dense(x: torch.Tensor) -> bool:
    """Has every element an address of its own, without gaps between them?"""
    reach = 1
    for stride, size in sorted((t, n) for t, n in zip(x.stride(), x.size(), strict=True) if n != 1):
        if stride != reach:
            return False
        reach *= size
    return True


def roomy_layout(shape: Shape, x: torch.Tensor, values: Mapping[Any, int]) -> Any:
    """The usual layout of the capacity of the tensor, with the strides of its true size."""
    order = list(range(len(shape.room)))
    layout = _C.SpyreTensorLayout(shape.room, shape.room_stride, x.dtype, order)
    strides = shape.translated(layout.stride_map, layout.device_size, values, True)
    return _C.SpyreTensorLayout(layout.device_size, strides, layout.device_dtype)
