# SPDX-License-Identifier: Apache-2.0
"""Layers that PyTorch calls as one op in eval mode without gradients: self-attention and the encoder layer around it.

Their steps, which have operations on the card. PyTorch would also pack a padded batch into a nested tensor, which has
no place on the card: the padded batch is computed as it is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from torch_spyre.decompositions.attention import attention
from torch_spyre.errors import UnsupportedOp

aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")


def _attention_mask(mask: Any, mask_type: int | None, like: Any) -> Any:
    """True where a score is left out, to broadcast over [batch, heads, rows, columns]."""
    if mask is None:
        return None
    left_out = mask if mask.dtype == torch.bool else mask != 0
    if mask_type == 1 or (mask_type is None and left_out.dim() == 2 and left_out.shape[0] == like.shape[0]):
        return left_out[:, None, None, :]  # of keys, for each batch
    return left_out if left_out.dim() == 4 else left_out[None, None]


def self_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """A row that leaves out every key is NaN where weights are asked for, else 0, as with gradients on every device."""
    if query is key and key is value:
        parts = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        both = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        parts = tuple(F.linear(x, weight, bias) for x, weight, bias in both)
    q, k, v = (x.unflatten(-1, (num_head, -1)).transpose(1, 2) for x in parts)
    left_out = _attention_mask(mask, mask_type, query)
    if not need_weights:
        result, weights = attention(q, k, v, None if left_out is None else left_out.logical_not()), None
    else:
        scores = torch.matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(-2, -1))
        scores = scores if left_out is None else torch.where(left_out, -math.inf, scores)
        weights = torch.softmax(scores, -1)
        result = torch.matmul(weights, v)
        weights = weights.mean(1) if average_attn_weights else weights
    return F.linear(result.transpose(1, 2).flatten(-2), proj_weight, proj_bias), weights


def encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    def normed(x: Any, weight: Any, bias: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    def attended(x: Any) -> Any:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return self_attention(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)[0]

    def fed(x: Any) -> Any:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else torch.relu(hidden), ffn_weight_2, ffn_bias_2)

    first, second = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)
    if norm_first:
        x = src + attended(normed(src, *first))
        return x + fed(normed(x, *second))
    x = normed(src + attended(src), *first)
    return normed(x + fed(x), *second)


def _stays_padded(x: Any, mask: Any) -> bool:
    """Asked before a batch is packed into a nested tensor, which is done for a mask of the right form only."""
    return False


def _nested(x: Any, mask: Any, mask_check: bool = True) -> Any:
    raise UnsupportedOp("nested tensors have no place on the card: pass enable_nested_tensor=False or mask_check=True")


def register() -> None:
    """Called once, when the device is loaded."""
    _library.impl("_native_multi_head_attention", self_attention, "PrivateUse1")
    _library.impl("_transformer_encoder_layer_fwd", encoder_layer, "PrivateUse1")
    _library.impl("_nested_tensor_from_mask_left_aligned", _stays_padded, "PrivateUse1")
    _library.impl("_nested_tensor_from_mask", _nested, "PrivateUse1")


TABLE: dict[Any, Any] = {
    aten._native_multi_head_attention.default: self_attention,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
