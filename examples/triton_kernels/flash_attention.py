# SPDX-License-Identifier: Apache-2.0
# python examples/triton_kernels/flash_attention.py
"""Attention without the matrix of scores: a program goes through the keys of its block of queries, and rescales what it
has summed whenever a larger score appears."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def attend_blocks(
    queries, keys, values, out, head_stride, row_stride, length, scale,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    first, head = tl.program_id(0) * BLOCK_Q, tl.program_id(1)
    row, place, column = first + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K), tl.arange(0, DIM)
    start = head * head_stride
    inside = row[:, None] < length
    q = tl.load(queries + start + row[:, None] * row_stride + column[None, :], mask=inside, other=0.0)
    peak = tl.full((BLOCK_Q,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((BLOCK_Q,), dtype=tl.float32)
    total = tl.zeros((BLOCK_Q, DIM), dtype=tl.float32)
    end = tl.minimum(first + BLOCK_Q, length) if CAUSAL else length
    for done in range(0, end, BLOCK_K):
        key = done + place
        k = tl.load(keys + start + column[:, None] + key[None, :] * row_stride, mask=key[None, :] < length, other=0.0)
        v = tl.load(values + start + key[:, None] * row_stride + column[None, :], mask=key[:, None] < length, other=0.0)
        scores = tl.dot(q, k) * scale
        seen = key[None, :] < length
        if CAUSAL:
            seen = seen & (key[None, :] <= row[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        shrink = tl.exp(peak - higher)
        part = tl.exp(scores - higher[:, None])
        weight = weight * shrink + tl.sum(part, axis=1)
        total = total * shrink[:, None] + tl.dot(part.to(v.dtype), v)
        peak = higher
    found = (total / weight[:, None]).to(out.dtype.element_ty)
    tl.store(out + start + row[:, None] * row_stride + column[None, :], found, mask=inside)


def attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool = False, block: int = 64
) -> torch.Tensor:
    """Of tensors (heads, length, dim); dim is a power of two."""
    heads, length, dim = queries.shape
    out = torch.empty_like(queries)
    sizes = {"BLOCK_Q": block, "BLOCK_K": block, "DIM": dim, "CAUSAL": causal}
    strides = queries.stride(0), queries.stride(1)
    attend_blocks[(triton.cdiv(length, block), heads)](queries, keys, values, out, *strides, length, dim**-0.5, **sizes)
    return out


def main() -> None:
    queries, keys, values = (torch.randn(4, 300, 64).half() for _ in range(3))
    exact = torch.nn.functional.scaled_dot_product_attention(
        queries.double(), keys.double(), values.double(), is_causal=True
    )
    found = attention(*(t.to("spyre") for t in (queries, keys, values)), causal=True).cpu().double()
    print(f"largest difference to float64: {(found - exact).abs().max():.2e}")


if __name__ == "__main__":
    main()
