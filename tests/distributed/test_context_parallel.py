# SPDX-License-Identifier: Apache-2.0
"""pytest tests/distributed/test_context_parallel.py: attention over a sequence that two cards share.

PyTorch's ``context_parallel`` splits the sequence, in two parts or, so that a causal mask leaves each rank as much
to do, in four, of which each rank has the n-th from either end.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import Ranks
from torch.distributed.device_mesh import init_device_mesh

from torch_spyre.errors import UnsupportedOp


def tensors(key_heads: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Queries, keys, values, and the gradient of the result."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, 24, 16, generator=generator).to(dtype) for heads in (4, key_heads, key_heads, 4)]


def split_attention(balanced: bool, rotate: str, dtype: torch.dtype, **how: Any) -> list[torch.Tensor]:
    """The result and three gradients, put together again."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard, set_rotate_method
    from torch.distributed.tensor.experimental._context_parallel._attention import _cp_options

    mesh = init_device_mesh("spyre", (dist.get_world_size(),))
    _cp_options.enable_load_balance = balanced
    set_rotate_method(rotate)
    parts = [x.to("spyre") for x in tensors(2 if how.get("enable_gqa") else 4, dtype)]
    with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 4):
        inputs = [x.detach().requires_grad_() for x in parts[:3]]
        result = F.scaled_dot_product_attention(*inputs, **how)
        result.backward(parts[3])
        found = [result.detach(), *(x.grad for x in inputs)]
        return [x.cpu() for x in context_parallel_unshard(mesh, found, [2] * 4)]


def whole_attention(dtype: torch.dtype, **how: Any) -> list[torch.Tensor]:
    *inputs, grad = (x.double() for x in tensors(2 if how.get("enable_gqa") else 4, dtype))
    result = F.scaled_dot_product_attention(*(x.requires_grad_() for x in inputs), **how)
    result.backward(grad)
    return [result.detach(), *(x.grad for x in inputs)]


# Sums of 24 products in fp32; in the card's half precision, results and what comes by are rounded to ten bits.
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 4e-6), (torch.float16, 2e-2)])
@pytest.mark.parametrize("rotate", ["allgather", "alltoall"])
@pytest.mark.parametrize(
    ("balanced", "how"),
    [
        (True, {"is_causal": True}),
        (False, {"is_causal": True}),
        (False, {}),
        (True, {"is_causal": True, "enable_gqa": True, "scale": 0.3}),
    ],
)
def test_parts_of_a_sequence(
    ranks: Ranks, balanced: bool, how: dict[str, Any], rotate: str, dtype: torch.dtype, error: float
) -> None:
    expected = whole_attention(dtype, **how)
    for found in ranks.run(2, split_wrapped, balanced, rotate, dtype, how):
        for x, y in zip(found, expected, strict=True):
            assert torch.allclose(x.double(), y, rtol=error, atol=error), float((x.double() - y).abs().max())


def split_wrapped(balanced: bool, rotate: str, dtype: torch.dtype, how: dict[str, Any]) -> list[torch.Tensor]:
    return split_attention(balanced, rotate, dtype, **how)


def refused(how: str) -> None:
    words = {
        "mask": {"attn_mask": torch.ones(2, 4, 12, 24, dtype=torch.bool, device="spyre")},
        "dropout": {"dropout_p": 0.5},
    }
    split_attention(False, "allgather", torch.float32, **words[how])


@pytest.mark.parametrize(("how", "told"), [("mask", "attn_mask inside context_parallel"), ("dropout", "dropout_p=0.5")])
def test_what_the_ring_does_not_take(ranks: Ranks, how: str, told: str) -> None:
    for outcome in ranks.outcomes(2, refused, how):
        assert outcome is not None and isinstance(outcome.error, UnsupportedOp), outcome
        assert told in str(outcome.error)
