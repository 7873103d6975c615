# SPDX-License-Identifier: Apache-2.0
# python examples/triton_kernels/vector_add.py
"""The smallest kernel: each program adds one block of two vectors; the mask cuts off the last one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def add_blocks(left, right, total, length, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < length
    tl.store(total + place, tl.load(left + place, mask=inside) + tl.load(right + place, mask=inside), mask=inside)


def add(left: torch.Tensor, right: torch.Tensor, block: int = 4096) -> torch.Tensor:
    total = torch.empty_like(left)
    add_blocks[(triton.cdiv(left.numel(), block),)](left, right, total, left.numel(), BLOCK=block)
    return total


def main() -> None:
    left, right = (torch.randn(1_000_000).half().to("spyre") for _ in range(2))
    start, end = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
    add(left, right)
    start.record()
    total = add(left, right)
    end.record()
    torch.spyre.synchronize()
    same = torch.equal(total.cpu(), (left + right).cpu())
    print(f"equal to PyTorch on the card: {same}; {start.elapsed_time(end) * 1e3:.1f} us on the card's clock")


if __name__ == "__main__":
    main()
