# SPDX-License-Identifier: Apache-2.0
"""Tensors in card memory as KTIR views see it: plain strided memory, elements of one type one after the other.

A tensor of the shape of the view at the start of its argument takes that view's strides; any other tensor is stored
row by row. A tensor that is already stored so is used in place; every other one is copied in, and back if it was
written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import InvalidArgument, Overflow, UnsupportedOp
from torch_spyre.formats import BYTES, ELEMS_PER_STICK

if TYPE_CHECKING:
    from torch_spyre.ir.ktir.signatures import Shape  # it imports xDSL, which launches do without

# Element type of a view to the host dtype of a tensor that the card stores in the same format.
_DTYPES: dict[str, torch.dtype] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "!spyreop.df16": torch.float16,
    "f32": torch.float32,
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "si32": torch.int32,
    "ui32": torch.int32,
    "i64": torch.int64,
    "si64": torch.int64,
    "index": torch.int64,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2fnuz,
}


_INT32 = torch.iinfo(torch.int32)


def dtype_of(element: str) -> torch.dtype:
    try:
        return _DTYPES[element]
    except KeyError:
        raise UnsupportedOp(f"views of {element}; a tensor can be given for {', '.join(_DTYPES)}") from None


def format_name(dtype: torch.dtype) -> str:
    """The format in which the card stores a host dtype."""
    return str(_C.get_device_dtype(dtype).name)


def linear_layout(elements: int, dtype: torch.dtype) -> _C.SpyreTensorLayout:
    """Elements one after the other."""
    fmt = _C.get_device_dtype(dtype)
    per_stick = ELEMS_PER_STICK[fmt.name]
    return _C.SpyreTensorLayout([max(1, -(-elements // per_stick)), per_stick], [per_stick, 1], fmt)


def empty_linear(elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    layout = linear_layout(elements, dtype)
    with torch.spyre.device(device.index):
        return _C.spyre_empty_with_layout([max(elements, 1)], [1], dtype, layout)


@dataclass(frozen=True)
class Placement:
    """Where the elements of a tensor are stored: at `strides`, in memory of `elements` elements of `dtype`."""

    strides: tuple[int, ...]
    elements: int
    dtype: torch.dtype


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def choose(
    name: str, tensor: torch.Tensor, element: str, views: Sequence[Shape], needed: int, strict: bool
) -> Placement:
    """How these views need `tensor` to be stored, which reach `needed` elements."""
    shape = tuple(tensor.shape)
    dense = row_major(shape)
    found = {v.strides for v in views if v.offset == 0 and v.sizes == shape}
    strides = found.pop() if len(found) == 1 else dense
    if not _injective(shape, strides):
        strides = dense
    span = _span(shape, strides)
    if needed > span and (strict or any(v.offset == 0 and not v.is_dense for v in views)):
        raise InvalidArgument(
            f"argument {name} is a tensor of shape {list(shape)}, which fills {span} elements; the views of the "
            f"function reach {needed}; give a tensor of the view's shape"
        )
    return Placement(strides, max(span, needed), dtype_of(element))


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    if 0 in shape:
        return 0
    return sum((s - 1) * t for s, t in zip(shape, strides, strict=True)) + 1


def _injective(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """No two elements share a place, and none precedes the first."""
    reach = 0
    for stride, size in sorted((t, s) for s, t in zip(shape, strides, strict=True) if s > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def lies_so(tensor: torch.Tensor, placement: Placement) -> bool:
    """True if the tensor's own storage is that memory."""
    if tensor.device.type != DEVICE_NAME or tensor.storage_offset() != 0:
        return False
    strides = [(t, p) for s, t, p in zip(tensor.shape, tensor.stride(), placement.strides, strict=True) if s > 1]
    if any(t != p for t, p in strides):
        return False
    layout = _C.get_spyre_tensor_layout(tensor)
    per_stick = layout.elems_per_stick()
    fmt = _C.get_device_dtype(placement.dtype)
    if layout.device_dtype.name != fmt.name or layout.device_size[-1] != per_stick:
        return False
    step = 1
    for size, stride in zip(reversed(layout.device_size), reversed(layout.stride_map), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return layout.device_bytes() >= placement.elements * BYTES[fmt.name]


def check_integers(name: str, tensor: torch.Tensor) -> None:
    """The card stores 64-bit integers of the host in 32 bits."""
    if tensor.dtype is not torch.int64 or not tensor.is_cpu or not tensor.numel():
        return
    array = tensor.detach().numpy()
    least, most = int(array.min()), int(array.max())
    if least < _INT32.min or most > _INT32.max:
        raise Overflow(
            f"argument {name} holds {most if most > _INT32.max else least}, which lies outside int32, which is how the "
            f"card stores integers; keep values in [{_INT32.min}, {_INT32.max}]"
        )


def put(name: str, tensor: torch.Tensor, placement: Placement, device: torch.device) -> torch.Tensor:
    """A linear buffer on the card that holds the tensor; the gaps between its elements are 0."""
    check_integers(name, tensor)
    buffer = empty_linear(placement.elements, placement.dtype, device)
    if placement.elements > tensor.numel():
        buffer.zero_()
    if tensor.numel():
        buffer.as_strided(tensor.shape, placement.strides).copy_(tensor)
    return buffer


def take(buffer: torch.Tensor, tensor: torch.Tensor, placement: Placement) -> None:
    """Writes the contents of the buffer back into the tensor."""
    if tensor.numel():
        tensor.copy_(buffer.as_strided(tensor.shape, placement.strides))


def as_array(name: str, value: Any) -> Any:
    """What is given for an address: a tensor or a NumPy array."""
    if not isinstance(value, torch.Tensor | np.ndarray):
        raise InvalidArgument(
            f"argument {name} is a base address: give a tensor or a NumPy array, not {type(value).__name__}"
        )
    return value


def as_tensor(name: str, value: Any) -> torch.Tensor:
    """The tensor behind an argument. A NumPy array shares its memory, except where PyTorch cannot express that."""
    value = as_array(name, value)
    if isinstance(value, torch.Tensor):
        return value
    try:
        return torch.from_numpy(value if is_shared(value) else value.copy())
    except TypeError as error:
        raise InvalidArgument(f"argument {name}: {error}") from None


def is_shared(array: np.ndarray) -> bool:
    """True if a tensor can share the array's own memory."""
    return bool(array.flags.writeable) and all(stride >= 0 for stride in array.strides)


def write_back(name: str, value: Any, tensor: torch.Tensor) -> None:
    """Copies a tensor that does not share the memory of an array into it."""
    if isinstance(value, np.ndarray) and not is_shared(value):
        if not value.flags.writeable:
            raise InvalidArgument(f"argument {name} is a read-only array, and the function stores to it")
        np.copyto(value, tensor.numpy())


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors may share bytes. Tensors of slices of one array have storages of their own."""
    if a.device != b.device or math.prod(a.shape) == 0 or math.prod(b.shape) == 0:
        return False
    if not a.is_cpu and a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (a0, a1), (b0, b1) = (_range(t) for t in (a, b))
    return a0 < b1 and b0 < a1


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr() if tensor.is_cpu else tensor.storage_offset() * tensor.element_size()
    return start, start + _span(tensor.shape, tensor.stride()) * tensor.element_size()
