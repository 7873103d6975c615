# SPDX-License-Identifier: Apache-2.0
"""Scaled dot product attention as the compiler likes it.

Query heads that share a key head stand together as rows of one product, so that grouped attention reads keys and
values where they are instead of repeating them; the scale is applied once, to the queries. Made of differentiable ops:
eager, compiled and backward all start here.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL")


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    _check(query, key, value, attn_mask, is_causal)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    groups = query.shape[-3] // key.shape[-3] if enable_gqa and query.dim() > 2 else 1
    rows, columns = query.shape[-2], key.shape[-2]
    queries = _grouped(query, groups) * factor
    scores = torch.matmul(queries, key.transpose(-2, -1))
    if is_causal:
        attn_mask = scores.new_ones(rows, columns, dtype=torch.bool).tril()  # a DTensor where scores are one
    if attn_mask is not None:
        heads = scores.unflatten(-2, (groups, rows)) if groups > 1 else scores
        mask = _of_groups(attn_mask, groups)
        if mask.dtype == torch.bool:
            heads = torch.where(mask, heads, -math.inf)
        else:
            heads = heads + mask
        weights = torch._safe_softmax(heads.flatten(-3, -2) if groups > 1 else heads, -1)
    else:
        weights = torch.softmax(scores, -1)
    if dropout_p:
        weights = torch.dropout(weights, dropout_p, True)
    result = torch.matmul(weights, value)
    return result.unflatten(-2, (groups, rows)).flatten(-4, -3) if groups > 1 else result


def safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Softmax with 0 for lines that are -inf throughout: those whose maximum is, so nothing but it is looked at.

    The maximum is taken before values widen, which is exact, and -inf is the lowest number where a format has none. For
    such a line any finite shift and divisor give 0, so the line itself needs no select.
    """
    x = x if dtype is None else x.to(dtype)
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    if x.dim() == 0 or x.numel() == 0 or wide.dtype != torch.float32:
        return NotImplemented
    top = x.amax(dim, keepdim=True)
    nothing = top == -math.inf
    powers = torch.exp(wide - torch.where(nothing, 0.0, top).to(wide.dtype))
    total = powers.sum(dim, keepdim=True)
    return (powers / torch.where(nothing, 1.0, total)).to(x.dtype)


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """PyTorch's op for devices with an attention of their own: the result, logarithms of the sums of exponentials, and
    what others keep for a backward pass, which here follows from the steps."""
    groups = key.shape[-3] != query.shape[-3]
    form = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": groups}
    result = attention(query, key, value, attn_bias, **form)
    with torch.no_grad():
        sums = _log_sums(query, key, attn_bias, is_causal, scale)
    none = torch.empty(0, dtype=torch.int64, device=query.device)
    mask = torch.empty(0, dtype=query.dtype, device=query.device)
    return result, sums, none, none.clone(), query.shape[-2], key.shape[-2], none.clone(), none.clone(), mask


def _log_sums(
    query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, is_causal: bool, scale: float | None
) -> torch.Tensor:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    keys = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = torch.matmul(query.to(torch.float32) * factor, keys.to(torch.float32).transpose(-2, -1))
    if is_causal:
        bias = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if bias is not None:
        scores = torch.where(bias, scores, -math.inf) if bias.dtype == torch.bool else scores + bias
    return torch.logsumexp(scores, -1)


def _grouped(x: torch.Tensor, groups: int) -> torch.Tensor:
    """[…, heads, rows, n] -> […, heads / groups, groups * rows, n]."""
    return x if groups == 1 else x.unflatten(-3, (-1, groups)).flatten(-3, -2)


def _of_groups(mask: torch.Tensor, groups: int) -> torch.Tensor:
    """The mask of all heads as one of heads / groups, groups."""
    if groups == 1 or mask.dim() < 3:
        return mask
    return mask.unsqueeze(-3) if mask.shape[-3] == 1 else mask.unflatten(-3, (-1, groups))


def _check(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
) -> None:
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
            f"{query.dim()}, key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if mask is not None and is_causal:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")


def register() -> None:
    """For recorded and for plain calls; called once, when the device is loaded."""
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        _library.impl("scaled_dot_product_attention", attention, key)
        _library.impl("_scaled_dot_product_fused_attention_overrideable", fused_attention, key)
