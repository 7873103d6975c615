# SPDX-License-Identifier: Apache-2.0
# python examples/triton_kernels/layer_norm_backward.py
"""The gradients of layer normalisation. Each of 32 programs sums the gradients of weight and bias over rows of its own;
a second launch adds the 32 sums."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from layer_norm import layer_norm

PROGRAMS = 32


@triton.jit
def differentiate_rows(
    grad, source, weight, means, scales, grad_source, parts_weight, parts_bias, rows, columns,
    BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, BLOCK)
    inside = place < columns
    gain = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    sum_weight, sum_bias = tl.zeros((BLOCK,), dtype=tl.float32), tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(tl.program_id(0), rows, PROGRAMS):
        g = tl.load(grad + row * columns + place, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(source + row * columns + place, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        unit = tl.where(inside, (x - tl.load(means + row)) * scale, 0.0)
        shaped = g * gain
        along = tl.sum(shaped * unit, axis=0) / columns
        level = tl.sum(shaped, axis=0) / columns
        found = (shaped - level - unit * along) * scale
        tl.store(grad_source + row * columns + place, found.to(grad_source.dtype.element_ty), mask=inside)
        sum_weight += g * unit
        sum_bias += g
    tl.store(parts_weight + tl.program_id(0) * columns + place, sum_weight, mask=inside)
    tl.store(parts_bias + tl.program_id(0) * columns + place, sum_bias, mask=inside)


@triton.jit
def add_parts(parts, out, columns, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, PROGRAMS)[:, None] * columns + place[None, :]
    total = tl.sum(tl.load(parts + part, mask=place[None, :] < columns, other=0.0), axis=0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=place < columns)


class LayerNorm(torch.autograd.Function):
    """`LayerNorm.apply(source, weight, bias)`"""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        out, means, scales = layer_norm(source, weight, bias)
        ctx.save_for_backward(source, weight, means, scales)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        source, weight, means, scales = ctx.saved_tensors
        rows, columns = source.shape
        grad_source, grad_weight, grad_bias = (torch.empty_like(t) for t in (source, weight, weight))
        parts = [torch.empty(PROGRAMS, columns, dtype=torch.float32, device=source.device) for _ in range(2)]
        block = triton.next_power_of_2(columns)
        differentiate_rows[(PROGRAMS,)](
            grad.contiguous(), source, weight, means, scales, grad_source, *parts, rows, columns,
            BLOCK=block, PROGRAMS=PROGRAMS,
        )  # fmt: skip
        for part, total in zip(parts, (grad_weight, grad_bias), strict=True):
            add_parts[(triton.cdiv(columns, 64),)](part, total, columns, PROGRAMS=PROGRAMS, BLOCK=64)
        return grad_source, grad_weight, grad_bias


def main() -> None:
    source, weight, bias = torch.randn(100, 300), torch.rand(300), torch.rand(300)
    wide = [t.double().requires_grad_() for t in (source, weight, bias)]
    torch.layer_norm(wide[0], (300,), wide[1], wide[2]).square().sum().backward()
    placed = [t.to("spyre").requires_grad_() for t in (source, weight, bias)]
    LayerNorm.apply(*placed).square().sum().backward()
    for name, mine, exact in zip(("source", "weight", "bias"), placed, wide, strict=True):
        error = (mine.grad.cpu().double() - exact.grad).abs().max() / exact.grad.abs().max()
        print(f"gradient of {name}, largest difference to float64, of the largest value: {error:.2e}")


if __name__ == "__main__":
    main()
