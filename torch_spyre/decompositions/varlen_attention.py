# SPDX-License-Identifier: Apache-2.0
"""`torch.nn.attention.varlen`: sequences of any lengths behind one another, as one product.

All queries meet all keys, and what belongs to another sequence is masked. The places where sequences begin are data, so
one program serves every division of the same number of tokens; a page table is followed by a gather on the card.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.decompositions.collected import Decomposition
from torch_spyre.errors import InvalidArgument


class _Places(NamedTuple):
    """Of each token: which sequence it belongs to, and where it stands there. Of each sequence: how many there are."""

    sequence: Tensor
    position: Tensor
    lengths: Tensor


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The op `torch_attn::_varlen_attn`. Tokens that belong to no sequence give 0."""
    queries = _in_order(query.size(0), cu_seq_q)
    if block_table is not None:
        key, value, keys = _from_pages(key, value, block_table, seqused_k)
    else:
        if cu_seq_k is None:
            raise InvalidArgument("varlen_attn: cu_seq_k is None; it may be left out with block_table only")
        keys = _in_order(key.size(0), cu_seq_k)
        if seqused_k is not None:
            keys = keys._replace(lengths=seqused_k)
    visible = _visible(queries, keys, is_causal, window_size)
    scores = _scores(query, key, visible, scale)
    weights = torch._safe_softmax(scores, -1).to(query.dtype)
    result = _apart(torch.matmul(weights, value.transpose(0, 1)), query)
    sums = torch.logsumexp(scores, -1).reshape(query.size(1), query.size(0))
    return result, sums, torch.zeros(2, dtype=torch.int32, device=query.device)


def forward_into(out: Tensor, *args: object) -> Tensor:
    """The op `torch_attn::_varlen_attn_out`."""
    result, sums, _ = forward(*args)  # type: ignore[arg-type]
    out.copy_(result)
    return sums


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: Tensor,
    scale: float | None = None,
    window_size: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The op `torch_attn::_varlen_attn_backward`: the weights are made again from their sums."""
    queries, keys = _in_order(query.size(0), cu_seq_q), _in_order(key.size(0), cu_seq_k)
    scores = _scores(query, key, _visible(queries, keys, is_causal, window_size), scale)
    sums = _together(lse.transpose(0, 1).unsqueeze(-1), key.size(1))
    weights = torch.where(scores == -math.inf, 0.0, torch.exp(scores - sums))
    grad = _together(grad_out, key.size(1))
    grad_value = torch.matmul(weights.to(query.dtype).transpose(-2, -1), grad).transpose(0, 1)
    inner = (grad.float() * _together(out, key.size(1)).float()).sum(-1, keepdim=True)
    grad_weights = torch.matmul(grad, value.permute(1, 2, 0)).float()
    grad_scores = (weights * (grad_weights - inner) * _factor(query, scale)).to(query.dtype)
    grad_query = _apart(torch.matmul(grad_scores, key.transpose(0, 1)), query)
    grad_key = torch.matmul(grad_scores.transpose(-2, -1), _together(query, key.size(1))).transpose(0, 1)
    return grad_query, grad_key.contiguous(), grad_value.contiguous()


def _factor(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.size(-1)) if scale is None else scale


def _together(x: Tensor, heads: int) -> Tensor:
    """[tokens, query heads, n] -> [key heads, group * tokens, n]: heads of one key head are rows of one product."""
    return x.unflatten(1, (heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)


def _apart(x: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_together`."""
    return x.reshape(like.size(1), like.size(0), like.size(2)).transpose(0, 1).contiguous()


def _scores(query: Tensor, key: Tensor, visible: Tensor, scale: float | None) -> Tensor:
    """[key heads, group * tokens, keys] in fp32."""
    group = query.size(1) // key.size(1)
    products = torch.matmul(_together(query, key.size(1)), key.permute(1, 2, 0)).float() * _factor(query, scale)
    heads = products.unflatten(1, (group, -1))
    return torch.where(visible, heads, -math.inf).flatten(1, 2)


def _in_order(tokens: int, starts: Tensor) -> _Places:
    place = torch.arange(tokens, dtype=torch.int32, device=starts.device)
    ends = starts[1:].to(torch.int32)
    sequence = (place.unsqueeze(1) >= ends.unsqueeze(0)).sum(1, dtype=torch.int32)
    # Tokens behind the last sequence have the number behind its, and start where it ends.
    return _Places(sequence, place - starts.to(torch.int32)[sequence], ends - starts[:-1].to(torch.int32))


def _from_pages(key: Tensor, value: Tensor, table: Tensor, used: Tensor | None) -> tuple[Tensor, Tensor, _Places]:
    if used is None:
        raise InvalidArgument("varlen_attn: block_table needs seqused_k, the number of valid keys of each sequence")
    sequences, longest = table.size(0), table.size(1) * key.size(1)
    rows = table.reshape(-1)
    pages = [x.index_select(0, rows).flatten(0, 1) for x in (key, value)]
    sequence = torch.arange(sequences, dtype=torch.int32, device=key.device).repeat_interleave(longest)
    position = torch.arange(longest, dtype=torch.int32, device=key.device).repeat(sequences)
    return pages[0], pages[1], _Places(sequence, position, used.to(torch.int32))


def _visible(queries: _Places, keys: _Places, is_causal: bool, window: list[int] | None) -> Tensor:
    """Which keys a query sees: those of its sequence, within the window that ends where both sequences end."""
    left, right = (-1, -1) if window is None else window
    right = 0 if is_causal else right
    sequence, position = queries.sequence.unsqueeze(1), keys.position.unsqueeze(0)
    last = torch.nn.functional.pad(keys.lengths, (0, 1))  # for tokens that belong to no sequence
    visible = (sequence == keys.sequence) & (position < last[keys.sequence])
    if left >= 0 or right >= 0:
        ahead = last - torch.nn.functional.pad(queries.lengths, (0, 1))
        own = (queries.position + ahead[queries.sequence]).unsqueeze(1)
        if left >= 0:
            visible = visible & (position >= own - left)
        if right >= 0:
            visible = visible & (position <= own + right)
    return visible


def register() -> None:
    """Eager calls on cards; called once, when `torch.nn.attention.varlen` is imported."""
    ops = torch.ops.torch_attn
    for op, kernel in (
        (ops._varlen_attn, forward),
        (ops._varlen_attn_out, forward_into),
        (ops._varlen_attn_backward, backward),
    ):
        torch.library.register_kernel(op.default, DEVICE_NAME, kernel)


def in_graphs() -> dict[Any, Decomposition]:
    """The formulas for the compiler."""
    import torch.nn.attention.varlen

    ops = torch.ops.torch_attn
    return {ops._varlen_attn.default: forward, ops._varlen_attn_backward.default: backward}
