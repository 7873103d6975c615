# SPDX-License-Identifier: Apache-2.0
# python examples/triton_kernels/grouped_gemm.py
"""Matrix products of several sizes in one launch: the rows of all left matrices lie one after the other, and memory
says where each group of them begins. This is the product of a mixture of experts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def multiply_groups(
    rows, weights, out, starts, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    group, column = tl.program_id(0), tl.program_id(1) * BN + tl.arange(0, BN)
    first, last = tl.load(starts + group), tl.load(starts + group + 1)
    inner = tl.arange(0, BK)
    for begin in range(first, last, BM):
        row = begin + tl.arange(0, BM)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for done in range(0, K, BK):
            k = done + inner
            a = tl.load(rows + row[:, None] * K + k[None, :], mask=(row[:, None] < last) & (k[None, :] < K), other=0.0)
            place = weights + group * K * N + k[:, None] * N + column[None, :]
            b = tl.load(place, mask=(k[:, None] < K) & (column[None, :] < N), other=0.0)
            total = tl.dot(a, b, total)
        inside = (row[:, None] < last) & (column[None, :] < N)
        tl.store(out + row[:, None] * N + column[None, :], total.to(out.dtype.element_ty), mask=inside)


def multiply(rows: torch.Tensor, weights: torch.Tensor, starts: torch.Tensor, block: int = 32) -> torch.Tensor:
    """`rows` (rows, K) by `weights` (groups, K, N); group g has the rows from `starts[g]` to `starts[g + 1]`."""
    groups, K, N = weights.shape
    out = torch.zeros(rows.shape[0], N, dtype=rows.dtype, device=rows.device)
    multiply_groups[(groups, triton.cdiv(N, 64))](rows, weights, out, starts, N, K, BM=block, BN=64, BK=64)
    return out


def main() -> None:
    sizes = [5, 0, 70, 33]
    starts = torch.tensor([0, *sizes]).cumsum(0).int()
    rows, weights = torch.randn(sum(sizes), 100).half(), torch.randn(len(sizes), 100, 130).half()
    parts = zip(rows.double().split(sizes), weights.double(), strict=True)
    exact = torch.cat([a @ b for a, b in parts])
    found = multiply(*(t.to("spyre") for t in (rows, weights, starts))).cpu().double()
    print(f"largest difference to float64, of the largest value: {(found - exact).abs().max() / exact.abs().max():.2e}")


if __name__ == "__main__":
    main()
