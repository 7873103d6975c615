# SPDX-License-Identifier: Apache-2.0
# python examples/triton_kernels/persistent_matmul.py
"""A matrix product by 32 programs, one for each core, each of which computes every 32nd tile."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CORES = 32


@triton.jit
def multiply_tiles(
    left, right, out, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(N, BN)
    inner = tl.arange(0, BK)
    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * across, PROGRAMS):
        row = tile // across * BM + tl.arange(0, BM)
        column = tile % across * BN + tl.arange(0, BN)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for done in range(0, K, BK):
            k = done + inner
            a = tl.load(left + row[:, None] * K + k[None, :], mask=(row[:, None] < M) & (k[None, :] < K), other=0.0)
            b = tl.load(
                right + k[:, None] * N + column[None, :], mask=(k[:, None] < K) & (column[None, :] < N), other=0.0
            )
            total = tl.dot(a, b, total)
        inside = (row[:, None] < M) & (column[None, :] < N)
        tl.store(out + row[:, None] * N + column[None, :], total.to(out.dtype.element_ty), mask=inside)


def multiply(left: torch.Tensor, right: torch.Tensor, block: int = 64) -> torch.Tensor:
    """Of matrices whose rows lie one after the other."""
    (M, K), N = left.shape, right.shape[1]
    out = torch.empty(M, N, dtype=left.dtype, device=left.device)
    multiply_tiles[(CORES,)](left, right, out, M, N, K, BM=block, BN=block, BK=64, PROGRAMS=CORES)
    return out


def main() -> None:
    left, right = torch.randn(500, 200).half(), torch.randn(200, 700).half()
    exact = left.double() @ right.double()
    error = (multiply(left.to("spyre"), right.to("spyre")).cpu().double() - exact).abs().max() / exact.abs().max()
    print(f"largest difference to float64, of the largest value: {error:.2e}")


if __name__ == "__main__":
    main()
