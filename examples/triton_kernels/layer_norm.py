# SPDX-License-Identifier: Apache-2.0
# python examples/triton_kernels/layer_norm.py
"""Layer normalisation of rows of any length: three passes over blocks of a row, sums in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def normalise_rows(source, weight, bias, out, means, scales, stride, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    source += row * stride
    out += row * stride
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        place = start + tl.arange(0, BLOCK)
        sums += tl.load(source + place, mask=place < columns, other=0.0).to(tl.float32)
    mean = tl.sum(sums, axis=0) / columns
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        place = start + tl.arange(0, BLOCK)
        value = tl.load(source + place, mask=place < columns, other=0.0).to(tl.float32)
        distance = tl.where(place < columns, value - mean, 0.0)
        squares += distance * distance
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    for start in range(0, columns, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < columns
        value = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
        gain = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(bias + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + place, ((value - mean) * scale * gain + shift).to(out.dtype.element_ty), mask=inside)


def layer_norm(
    source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5, block: int = 512
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The normalised rows, and mean and scale of each row, which a backward pass needs."""
    rows, columns = source.shape
    out = torch.empty_like(source)
    means, scales = (torch.empty(rows, dtype=torch.float32, device=source.device) for _ in range(2))
    normalise_rows[(rows,)](source, weight, bias, out, means, scales, source.stride(0), columns, eps, BLOCK=block)
    return out, means, scales


def main() -> None:
    source = torch.randn(100, 1000).half().to("spyre")
    weight, bias = torch.rand(1000).half().to("spyre"), torch.rand(1000).half().to("spyre")
    out, _, _ = layer_norm(source, weight, bias)
    host = (source.cpu().double(), (1000,), weight.cpu().double(), bias.cpu().double())
    print(f"largest difference to float64: {(out.cpu().double() - torch.layer_norm(*host)).abs().max():.2e}")


if __name__ == "__main__":
    main()
