# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays to and from the bytes of a tensor: number formats, and the layouts that a SuperDSC describes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from torch_spyre import dl16
from torch_spyre.errors import InvalidArgument, UnsupportedOp
from torch_spyre.ir.superdsc.schema import Geometry

_CODES = {
    "SEN169_FP16": np.uint16,
    "IEEE_FP16": np.uint16,
    "IEEE_FP32": np.uint32,
    "IEEE_INT32": np.int32,
    "SENUINT32": np.int32,
    "SENINT16": np.int16,
    "SENINT8": np.int8,
    "SEN143_FP8": np.uint8,
    "SEN152_FP8": np.uint8,
}
_PIECE = 1 << 20
_FP8 = {"SEN143_FP8": (4, 3, 448.0), "SEN152_FP8": (5, 2, 57344.0)}  # exponent bits, mantissa bits, largest


def code_type(format: str) -> np.dtype:
    if format not in _CODES:
        raise UnsupportedOp(f"tensors of format {format} have no NumPy form; known: {', '.join(_CODES)}")
    return np.dtype(_CODES[format])


def is_integer(format: str) -> bool:
    return "INT" in format


def encode(values: np.ndarray, format: str) -> np.ndarray:
    """Bits as the card stores them: DL16 rounds ties away and saturates, NaN is 0x7FFF."""
    kind = code_type(format)
    if is_integer(format):
        limits = np.iinfo(kind)
        whole = np.rint(np.asarray(values, dtype=np.float64))
        if np.isnan(whole).any() or (whole < limits.min).any() or (whole > limits.max).any():
            raise InvalidArgument(f"values outside {limits.min}..{limits.max}, the range of {format}")
        return whole.astype(kind)
    single = np.array(values, dtype=np.float32, order="C")
    if format == "IEEE_FP32":
        return single.view(np.uint32)
    if format == "IEEE_FP16":
        return single.astype(np.float16).view(np.uint16)
    if format in _FP8:
        return _encode_fp8(single, format)
    codes = np.empty(single.shape, dtype=np.uint16)
    source, target = single.reshape(-1), codes.reshape(-1)
    for start in range(0, source.size, _PIECE):
        target[start : start + _PIECE] = dl16.encode(source[start : start + _PIECE])
    return codes


def decode(codes: np.ndarray, format: str) -> np.ndarray:
    """Values as float64 (integers for integer formats); the largest DL16 codes stay finite, as the card computes."""
    if is_integer(format):
        return codes.astype(np.int64)
    if format == "IEEE_FP32":
        return codes.view(np.float32).astype(np.float64)
    if format == "IEEE_FP16":
        return codes.view(np.float16).astype(np.float64)
    if format in _FP8:
        return np.asarray(_fp8_table(format)[codes])
    return dl16.decode(codes)


@cache
def _fp8_table(format: str) -> np.ndarray:
    """Values of the 256 codes: e4m3fn, and e5m2 without infinities and negative zero (fnuz)."""
    exponent_bits, mantissa_bits, _ = _FP8[format]
    bias = (1 << (exponent_bits - 1)) - (format == "SEN143_FP8")
    code = np.arange(256)
    exponent, mantissa = (code >> mantissa_bits) & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    value = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))
    value = np.where(code >> 7, -value, value)
    nan = (code & 0x7F) == 0x7F if format == "SEN143_FP8" else code == 0x80
    return np.where(nan, math.nan, value)


def _encode_fp8(values: np.ndarray, format: str) -> np.ndarray:
    """Nearest, ties to even, saturating at the largest finite number."""
    table = _fp8_table(format)[:128]
    finite = table[np.isfinite(table)]
    magnitude = np.minimum(np.abs(values.astype(np.float64)), _FP8[format][2])
    above = np.searchsorted(finite, magnitude).clip(1, len(finite) - 1)
    below = above - 1
    middle = (finite[below] + finite[above]) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (above % 2 == 0))
    code = np.where(up, above, below)
    signed = np.signbit(values) & ((code != 0) | (format == "SEN143_FP8"))
    code = np.where(signed, code | 0x80, code)
    return np.where(np.isnan(values), 0x7F if format == "SEN143_FP8" else 0x80, code).astype(np.uint8)


def _axes(geometry: Geometry, dims: Sequence[str], shape: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Padded shape, and sizes and strides (elements) of the blocked view: a dim is (blocks, elements of a block)."""
    lanes = {level.dim: level.stride for level in geometry.sticks}
    padded, sizes, strides = [], [], []
    for dim, size in zip(dims, shape, strict=True):
        unit = geometry.unit(dim)
        blocks = -(-size // unit)
        padded.append(blocks * unit)
        sizes += [blocks, unit]
        strides += [geometry.strides[dim], lanes.get(dim, 0)]
    return padded, sizes, strides


def view_span(geometry: Geometry, dims: Sequence[str], shape: Sequence[int]) -> int:
    """Elements from the first to the last that `shape` touches, in whole sticks."""
    _, sizes, strides = _axes(geometry, dims, shape)
    last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True) if n)
    return -(-(last + 1) // geometry.stick_elements) * geometry.stick_elements


def _blocked(buffer: np.ndarray, geometry: Geometry, dims: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    _, sizes, strides = _axes(geometry, dims, shape)
    step = buffer.itemsize
    return np.lib.stride_tricks.as_strided(buffer, sizes, [s * step for s in strides])


def pack(codes: np.ndarray, buffer: np.ndarray, geometry: Geometry, dims: Sequence[str]) -> None:
    """Write a logical array into a buffer that starts at its first element; padding of blocks becomes 0."""
    padded, sizes, _ = _axes(geometry, dims, codes.shape)
    full = np.zeros(padded, dtype=codes.dtype)
    full[tuple(slice(n) for n in codes.shape)] = codes
    _blocked(buffer, geometry, dims, codes.shape)[...] = full.reshape(sizes)


def write(codes: np.ndarray, buffer: np.ndarray, geometry: Geometry, dims: Sequence[str]) -> None:
    """Like `pack`, but leaves the padding as it is."""
    padded, sizes, _ = _axes(geometry, dims, codes.shape)
    view = _blocked(buffer, geometry, dims, codes.shape)
    full = view.copy(order="C").reshape(padded)
    full[tuple(slice(n) for n in codes.shape)] = codes
    view[...] = full.reshape(sizes)


def unpack(buffer: np.ndarray, geometry: Geometry, dims: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    padded, _, _ = _axes(geometry, dims, shape)
    full = _blocked(buffer, geometry, dims, shape).reshape(padded)
    return np.array(full[tuple(slice(n) for n in shape)], order="C")


def check_shape(array: np.ndarray, shape: Sequence[int], name: str, dims: Mapping[str, int] | Sequence[str]) -> None:
    if tuple(array.shape) != tuple(shape):
        raise InvalidArgument(f"{name} has shape {tuple(array.shape)}, it must be {tuple(shape)} ({', '.join(dims)})")
