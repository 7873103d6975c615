# SPDX-License-Identifier: Apache-2.0
# python examples/triton_kernels/softmax.py
"""Softmax of rows that fit the scratchpad: read once, written once. Each program takes every so many rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_rows(out, source, out_stride, source_stride, rows, columns, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    inside = place < columns
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        value = tl.load(source + row * source_stride + place, mask=inside, other=-float("inf")).to(tl.float32)
        power = tl.exp(value - tl.max(value, axis=0))
        share = power / tl.sum(power, axis=0)
        tl.store(out + row * out_stride + place, share.to(out.dtype.element_ty), mask=inside)


def softmax(source: torch.Tensor, programs: int = 32) -> torch.Tensor:
    rows, columns = source.shape
    out = torch.empty_like(source)
    block = triton.next_power_of_2(columns)
    softmax_rows[(min(programs, rows),)](out, source, out.stride(0), source.stride(0), rows, columns, BLOCK=block)
    return out


def main() -> None:
    source = torch.randn(500, 781, device="spyre", dtype=torch.float16)
    error = (softmax(source).cpu().double() - source.cpu().double().softmax(-1)).abs().max()
    print(f"largest difference to float64: {error:.2e}")


if __name__ == "__main__":
    main()
