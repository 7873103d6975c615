# SPDX-License-Identifier: Apache-2.0
# python examples/triton_kernels/matmul.py
"""A matrix product in blocks, with sums in float32. Programs are numbered so that neighbours share rows and columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def grouped_place(program, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile: `GROUP` rows of tiles are gone through column by column before the next rows begin."""
    per_group = GROUP * tiles_n
    first = program // per_group * GROUP
    height = min(tiles_m - first, GROUP)
    within = program % per_group
    return first + within % height, within // height


@triton.jit
def multiply_blocks(
    left, right, out, M, N, K, left_m, left_k, right_k, right_n, out_m, out_n,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    tile_m, tile_n = grouped_place(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    row, column, inner = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    # Rows and columns beyond the end wrap around; they are computed and not stored.
    a = left + (row % M)[:, None] * left_m + inner[None, :] * left_k
    b = right + inner[:, None] * right_k + (column % N)[None, :] * right_n
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for done in range(0, K, BK):
        x = tl.load(a, mask=inner[None, :] < K - done, other=0.0)
        y = tl.load(b, mask=inner[:, None] < K - done, other=0.0)
        total = tl.dot(x, y, total)
        a += BK * left_k
        b += BK * right_k
    if RELU:
        total = tl.maximum(total, 0.0)
    inside = (row[:, None] < M) & (column[None, :] < N)
    tl.store(out + row[:, None] * out_m + column[None, :] * out_n, total.to(out.dtype.element_ty), mask=inside)


def multiply(left: torch.Tensor, right: torch.Tensor, relu: bool = False, block: int = 64) -> torch.Tensor:
    (M, K), N = left.shape, right.shape[1]
    out = torch.empty(M, N, dtype=left.dtype, device=left.device)
    grid = (triton.cdiv(M, block) * triton.cdiv(N, block),)
    strides = (*left.stride(), *right.stride(), *out.stride())
    sizes = {"BM": block, "BN": block, "BK": 64, "GROUP": 4, "RELU": relu}
    multiply_blocks[grid](left, right, out, M, N, K, *strides, **sizes)
    return out


def main() -> None:
    left, right = torch.randn(300, 200).half().to("spyre"), torch.randn(200, 250).half().to("spyre")
    exact = left.cpu().double() @ right.cpu().double()
    error = (multiply(left, right).cpu().double() - exact).abs().max() / exact.abs().max()
    print(f"largest difference to float64, of the largest value: {error:.2e}")


if __name__ == "__main__":
    main()
