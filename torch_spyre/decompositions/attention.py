# SPDX-License-Identifier: Apache-2.0
"""Scaled dot product attention as the compiler likes it.

Query heads that share a key head stand together as rows of one product, so that grouped attention reads keys and
values where they are instead of repeating them; the scale is applied once, to the queries. Made of differentiable ops:
eager, compiled and backward all start here.

PyTorch's context parallelism calls ``_scaled_dot_product_flash_attention`` instead, once for each part of the keys that
comes by; its ring puts the parts together by their logarithms of sums.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch

from torch_spyre.errors import UnsupportedOp

_FLASH = "_scaled_dot_product_flash_attention"
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
    if type(query) is not torch.Tensor and _is_split_by_sequence(query):
        if attn_mask is not None:
            raise UnsupportedOp(
                "attn_mask inside context_parallel: its ring takes no mask; use is_causal=True, or none"
            )
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
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


def _is_split_by_sequence(query: torch.Tensor) -> bool:
    """Is it a DTensor inside ``context_parallel``? Then positions of its rows are not those that its parts count."""
    tensors: Any = sys.modules.get("torch.distributed.tensor")
    if tensors is None or not isinstance(query, tensors.DTensor):
        return False
    handlers = tensors.DTensor._op_dispatcher._custom_op_handlers
    return torch.ops.aten._scaled_dot_product_flash_attention.default in handlers


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    if dropout_p:
        raise UnsupportedOp(
            f"{_FLASH} with dropout_p={dropout_p}: its backward pass would need the same numbers; use 0"
        )
    result, sums, *_ = fused_attention(query, key, value, None, 0.0, is_causal, return_debug_mask, scale=scale)
    # What only other kernels keep; numbers, because the ring takes what has no sharding of its own for one.
    none = [torch.zeros((), dtype=torch.int32, device=query.device) for _ in range(5)]
    return result, sums, *none[:2], query.shape[-2], key.shape[-2], *none[2:]


def flash_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor,
    cum_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights follow from the logarithms of the sums, which may be those of more keys than are here."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    groups = query.shape[-3] // key.shape[-3]
    keys, values = (x.float().repeat_interleave(groups, -3) if groups > 1 else x.float() for x in (key, value))
    queries, grad = query.float(), grad_out.float()
    weights = torch.exp(torch.matmul(queries, keys.transpose(-2, -1)) * factor - logsumexp.unsqueeze(-1))
    if is_causal:
        kept = torch.ones(weights.shape[-2:], dtype=torch.bool, device=query.device).tril()
        weights = torch.where(kept, weights, 0.0)
    of_weights = torch.matmul(grad, values.transpose(-2, -1)) - (grad * out.float()).sum(-1, keepdim=True)
    scores = weights * of_weights * factor
    of_keys = torch.matmul(scores.transpose(-2, -1), queries)
    of_values = torch.matmul(weights.transpose(-2, -1), grad)
    if groups > 1:
        of_keys, of_values = (x.unflatten(-3, (-1, groups)).sum(-3) for x in (of_keys, of_values))
    return torch.matmul(scores, keys).to(query.dtype), of_keys.to(key.dtype), of_values.to(value.dtype)


def register() -> None:
    """For recorded and for plain calls; called once, when the device is loaded."""
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        _library.impl("scaled_dot_product_attention", attention, key)
        _library.impl("_scaled_dot_product_fused_attention_overrideable", fused_attention, key)
    _library.impl(_FLASH, flash_attention, "PrivateUse1")
    _library.impl(f"{_FLASH}_backward", flash_attention_backward, "PrivateUse1")
