# SPDX-License-Identifier: Apache-2.0
"""Weights of four bits: two of a row in a byte, the first in the upper half, and four bytes in an int32.

How a device orders its packed words is its own affair; they only have the number and shape that PyTorch gives them.
Here word i of the row-major result holds bytes 4i to 4i + 3 of the row-major weight, the first lowest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
_ROWS, _STEP = 8, 16  # rows and pairs of columns of a tile, in the shape of a packed weight


def _pack(weight: Any, inner_k_tiles: int) -> Any:
    rows, columns = weight.shape[0], weight.shape[1] * 2
    tile = inner_k_tiles * _STEP
    if inner_k_tiles not in (2, 4, 8):
        raise RuntimeError(f"_convert_weight_to_int4pack: innerKTiles is {inner_k_tiles}, expected 2, 4 or 8")
    if rows % _ROWS or columns % tile:
        raise RuntimeError(
            f"_convert_weight_to_int4pack: {rows} rows of {columns} weights, expected multiples of {_ROWS} and {tile}"
        )
    a, b, c, d = weight.to(torch.int32).reshape(-1, 4).unbind(1)
    words = a | b << 8 | c << 16 | d << 24
    return words.reshape(rows // _ROWS, columns // tile, 32, inner_k_tiles // 2)


def _unpacked(packed: Any) -> Any:
    """Numbers from 0 to 15, a row for each row of the weight."""
    rows = packed.shape[0] * _ROWS
    words = packed.reshape(-1, 1)
    halves = [words >> shift & 15 for byte in range(4) for shift in (8 * byte + 4, 8 * byte)]
    return torch.cat(halves, 1).reshape(rows, -1)


def _product(x: Any, packed: Any, group: int, scales_and_zeros: Any) -> Any:
    """A group of columns has a scale and a zero: the value that the number 8 stands for."""
    numbers = _unpacked(packed)
    rows, columns = numbers.shape
    if x.shape[1] != columns:
        raise RuntimeError(f"_weight_int4pack_mm: x has {x.shape[1]} columns, the packed weight {columns}")
    if scales_and_zeros.shape != (columns // group, rows, 2):
        raise RuntimeError(
            f"_weight_int4pack_mm: scales and zeros of size {tuple(scales_and_zeros.shape)}, "
            f"expected {(columns // group, rows, 2)}"
        )
    scale, zero = (part.to(torch.float32).t().unsqueeze(-1) for part in scales_and_zeros.unbind(2))
    steps = numbers.reshape(rows, columns // group, group).to(torch.float32) - 8
    weight = (steps * scale + zero).reshape(rows, columns).to(x.dtype)
    return x @ weight.t()


TABLE: dict[Any, Callable[..., Any]] = {
    aten._convert_weight_to_int4pack.default: _pack,
    aten._weight_int4pack_mm.default: _product,
}
