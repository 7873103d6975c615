# SPDX-License-Identifier: Apache-2.0
# python examples/triton_kernels/dropout.py
"""Dropout without a stored mask: the same seed draws the same numbers, on this card as on any device of Triton's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def drop_blocks(source, out, length, probability, seed, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < length
    value = tl.load(source + place, mask=inside)
    kept = tl.rand(seed, place) > probability
    tl.store(out + place, tl.where(kept, value / (1.0 - probability), 0.0), mask=inside)


def dropout(source: torch.Tensor, probability: float, seed: int, block: int = 1024) -> torch.Tensor:
    out = torch.empty_like(source)
    grid = (triton.cdiv(source.numel(), block),)
    drop_blocks[grid](source, out, source.numel(), probability, seed, BLOCK=block)
    return out


def main() -> None:
    source = torch.ones(10_000, device="spyre")
    first, again, other = (dropout(source, 0.25, seed).cpu() for seed in (7, 7, 8))
    share = (first != 0).float().mean()
    print(f"kept {share:.1%}; same seed, same elements: {torch.equal(first, again)}; ", end="")
    print(f"other seed, same elements: {torch.equal(first, other)}")


if __name__ == "__main__":
    main()
