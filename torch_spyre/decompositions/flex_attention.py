# SPDX-License-Identifier: Apache-2.0
"""FlexAttention as a formula: scores, the caller's functions on each of them, softmax, product with the values.

PyTorch keeps the call whole until Inductor replaces it by a Triton template. Here it is traced into plain ops where
autograd meets it, so gradients, eager calls and compiled graphs all start from one formula, and the planner divides it
like any other attention. Blocks that the mask leaves out are computed and then masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, _AutoDispatchBelowAutograd, _ExcludeDispatchKeyGuard
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops.flex_attention import _permute_strides, flex_attention

_LN2 = math.log(2)
_AUTOCAST: DispatchKey = DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and the base-2 logarithms of the sums and the largest scores where `kernel_options` ask for them."""
    groups = query.size(1) // key.size(1)
    rows = query.size(2)
    queries = query.unflatten(1, (-1, groups)).flatten(2, 3)
    scores = torch.matmul(queries, key.transpose(-2, -1)).unflatten(2, (groups, rows)).flatten(1, 2)
    scores = _changed(
        scores.float() * scale, score_mod, block_mask[-1], score_mod_other_buffers, mask_mod_other_buffers
    )
    weights = torch._safe_softmax(scores, -1).to(query.dtype)
    result = torch.matmul(weights.unflatten(1, (-1, groups)).flatten(2, 3), value)
    result = result.unflatten(2, (groups, rows)).flatten(1, 2)
    none = scores.new_empty(0)
    sums = torch.logsumexp(scores, -1) / _LN2 if kernel_options.get("OUTPUT_LOGSUMEXP", True) else none
    largest = scores.amax(-1) / _LN2 if kernel_options.get("OUTPUT_MAX", True) else none
    return _permute_strides(result.contiguous(), query.stride()), sums, largest


def _changed(
    scores: Tensor,
    score_mod: Callable[..., Tensor],
    mask_mod: Callable[..., Tensor],
    score_buffers: tuple[Any, ...],
    mask_buffers: tuple[Any, ...],
) -> Tensor:
    # late: the module is the caller's; it need not be imported for others
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    places = [torch.arange(n, device=scores.device) for n in scores.shape]
    change = _vmap_for_bhqkv(score_mod, prefix=(0,), suffix=(None,) * len(score_buffers))
    visible = _vmap_for_bhqkv(mask_mod, prefix=(), suffix=(None,) * len(mask_buffers))
    with TransformGetItemToIndex():
        changed = change(scores, *places, *score_buffers)
        return torch.where(visible(*places, *mask_buffers), changed, -math.inf)


def _autocast(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.get_autocast_dtype(query.device.type)
    with _ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AUTOCAST)):
        result: tuple[Tensor, Tensor, Tensor] = flex_attention(query.to(dtype), key.to(dtype), value.to(dtype), *others)
        return result


def _without_gradient(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    with _AutoDispatchBelowAutograd():
        return dense(*args)


def register() -> None:
    """For cards; called once, when FlexAttention is imported."""
    flex_attention.py_impl(DispatchKey.AutogradPrivateUse1)(dense)
    flex_attention.py_impl(DispatchKey.PrivateUse1)(_without_gradient)
    flex_attention.py_impl(_AUTOCAST)(_autocast)
