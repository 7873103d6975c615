# SPDX-License-Identifier: Apache-2.0
"""Matrix products of 8-bit operands: codes are multiplied, sums are fp32 (of int8 codes int32), scales come after.

A scale belongs to a whole operand, to each of its rows (of the right operand: columns), or to blocks of 128 along k, in
which a block has one row or 128. Blocks are products of their own, whose scaled results are added in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import ScalingType

from torch_spyre.decompositions.custom import matmul
from torch_spyre.errors import InvalidArgument

aten = torch.ops.aten
_BLOCK = 128
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e5m2fnuz)
_RECIPES = (ScalingType.TensorWise, ScalingType.RowWise, ScalingType.BlockWise1x128, ScalingType.BlockWise128x128)
_KNOWN = [int(recipe.value) for recipe in _RECIPES]  # as the schema passes them


def _blocks(n: int) -> int:
    return -(-n // _BLOCK)


def _scales(scale: Any, rows: int, depth: int, name: str) -> Any:
    """Scales as [rows or 1, blocks of k or 1], in fp32; `scale` has a row for each row of the operand, or for 128."""
    if scale.dtype != torch.float32:
        raise InvalidArgument(f"_scaled_mm: {name} is {scale.dtype}, expected torch.float32: convert it")
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    size, blocks = tuple(scale.shape), _blocks(depth)
    if size in ((rows, 1), (rows, blocks)):
        return scale
    if size == (_blocks(rows), blocks):
        whole = scale.unsqueeze(1).expand(-1, _BLOCK, -1).reshape(-1, blocks)
        return whole[:rows]
    raise InvalidArgument(
        f"_scaled_mm: {name} has size {size} for {rows} rows and k = {depth}; expected one number, one for each row "
        f"{(rows, 1)}, or one for each {_BLOCK} along k, {(rows, blocks)} or {(_blocks(rows), blocks)} "
        f"(of the right operand: transposed)"
    )


def _scaled(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    """The scaled product in fp32; scales as `_scales` gives them, those of b transposed."""
    if scale_a.shape[1] == 1 and scale_b.shape[0] == 1:
        return matmul(a, b, out_dtype=torch.float32) * scale_a * scale_b
    depth, total = a.shape[1], None
    whole = depth // _BLOCK
    if whole:
        left = a[:, : whole * _BLOCK].reshape(-1, whole, _BLOCK).transpose(0, 1)
        right = b[: whole * _BLOCK].reshape(whole, _BLOCK, -1)
        products = matmul(left, right, out_dtype=torch.float32)
        of_a, of_b = _per_block(scale_a.t(), whole).unsqueeze(2), _per_block(scale_b, whole).unsqueeze(1)
        total = (products * of_a * of_b).sum(0)
    if depth % _BLOCK:
        rest = matmul(a[:, whole * _BLOCK :], b[whole * _BLOCK :], out_dtype=torch.float32)
        rest = rest * scale_a[:, -1:] * scale_b[-1:]
        total = rest if total is None else total + rest
    return total


def _per_block(scales: Any, count: int) -> Any:
    """The first dim has an entry for each of `count` blocks, or one for all."""
    return scales if scales.shape[0] == 1 else scales[:count]


def _finished(product: Any, bias: Any, scale_result: Any, dtype: torch.dtype) -> Any:
    if bias is not None:
        product = product + bias
    if scale_result is not None:
        product = product * scale_result
    return product.to(dtype)


def _checked(a: Any, b: Any) -> None:
    for x, name in ((a, "self"), (b, "mat2")):
        if x.dim() != 2 or x.dtype not in _FP8:
            raise InvalidArgument(
                f"_scaled_mm: {name} is {x.dtype} of {x.dim()} dims; expected two dims of "
                f"{', '.join(str(d).removeprefix('torch.') for d in _FP8)}"
            )
    if a.shape[1] != b.shape[0]:
        raise InvalidArgument(f"_scaled_mm: self has {a.shape[1]} columns, mat2 {b.shape[0]} rows")


def _scaled_mm(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Any:
    _checked(a, b)
    left = _scales(scale_a, a.shape[0], a.shape[1], "scale_a")
    right = _scales(scale_b.t() if scale_b.dim() == 2 else scale_b, b.shape[1], b.shape[0], "scale_b").t()
    return _finished(_scaled(a, b, left, right), bias, scale_result, out_dtype or a.dtype)


def _scaled_mm_of_recipes(
    a: Any,
    b: Any,
    scale_a: Any,
    recipe_a: Any,
    swizzle_a: Any,
    scale_b: Any,
    recipe_b: Any,
    swizzle_b: Any,
    bias: Any = None,
    out_dtype: torch.dtype | None = None,
    contraction_dim: Any = (),
    use_fast_accum: bool = False,
) -> Any:
    """`torch.nn.functional.scaled_mm`: sizes tell the recipes apart, so they only have to be known."""
    for recipes, scales, swizzles in ((recipe_a, scale_a, swizzle_a), (recipe_b, scale_b, swizzle_b)):
        if len(recipes) != 1 or len(scales) != 1 or recipes[0] not in _KNOWN:
            names = [ScalingType(r).name for r in recipes]
            raise InvalidArgument(
                f"scaled_mm with the recipe {names}: the card scales whole tensors, rows, and blocks of {_BLOCK}; use "
                "TensorWise, RowWise, BlockWise1x128 or BlockWise128x128"
            )
        if any(swizzles):
            raise InvalidArgument("scaled_mm with swizzled scales: pass them row by row (SwizzleType.NO_SWIZZLE)")
    return _scaled_mm(a, b, scale_a[0], scale_b[0], bias, None, out_dtype)


def _int_mm(a: Any, b: Any) -> Any:
    if a.dtype != torch.int8 or b.dtype != torch.int8:  # uint8, which the card keeps in words
        a, b = a.to(torch.int32), b.to(torch.int32)
    return matmul(a, b, out_dtype=torch.int32)


def _weight_int8pack_mm(x: Any, weight: Any, scales: Any) -> Any:
    """x times the transposed int8 weight, whose rows have a scale each."""
    product = matmul(x, weight.t().to(x.dtype), out_dtype=torch.float32)
    return (product * scales).to(x.dtype)


TABLE: dict[Any, Callable[..., Any]] = {
    aten._scaled_mm.default: _scaled_mm,
    aten._scaled_mm_v2.default: _scaled_mm_of_recipes,
    aten._int_mm.default: _int_mm,
    aten._weight_int8pack_mm.default: _weight_int8pack_mm,
}
