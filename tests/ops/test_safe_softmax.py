# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_safe_softmax.py
"""Softmax with 0 for lines without a number: the bits of the long formula; attention whose mask hides whole rows."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def lines(dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(3, 70, 130, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 3] = -math.inf
    x[1, 5, 7:] = -math.inf
    x[2, 0, 4], x[2, 1, 4] = math.nan, math.inf
    x[2, 2], x[2, 3] = 0.0, -0.0
    x[2, 4, 5:] = -math.inf
    x[2, 4, 2] = math.nan
    x[0, 5] *= 60_000 if dtype == torch.float16 else 1e5
    return x


def by_the_long_formula(x: torch.Tensor, dim: int) -> torch.Tensor:
    nothing = (x == -math.inf).all(dim, keepdim=True)
    return torch.where(nothing, 0.0, torch.softmax(x, dim))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [-1, 1])
def test_bits_of_the_long_formula(dtype: torch.dtype, dim: int) -> None:
    x = lines(dtype).transpose(-1, dim).contiguous()
    on_card = x.to("spyre")
    compiled = torch.compile(lambda t: torch.ops.aten._safe_softmax.default(t, dim))(on_card)
    expected = by_the_long_formula(on_card, dim)
    eager = torch.ops.aten._safe_softmax.default(on_card, dim)
    for got in (compiled.cpu(), eager.cpu()):
        assert torch.equal(got.view(torch.uint8), expected.cpu().view(torch.uint8))
    reference = torch.ops.aten._safe_softmax.default(x.float(), dim)
    usual = reference.isnan().logical_not()
    torch.testing.assert_close(compiled.cpu().float()[usual], reference[usual], atol=2e-3, rtol=0)


@pytest.mark.parametrize("masked", ["bool", "float"])
def test_rows_that_see_nothing_attend_to_nothing(masked: str) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, h, 20, 32, generator=generator).half() for h in (4, 2, 2))
    mask = torch.rand(1, 1, 20, 20, generator=generator) > 0.5
    mask[..., 7, :] = False
    mask[..., 8, :] = True
    given = mask if masked == "bool" else torch.zeros(mask.shape).half().masked_fill(~mask, -math.inf)
    expected = F.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), given if masked == "bool" else given.float(), enable_gqa=True
    )

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*tensors, enable_gqa=True)

    on_card = [t.to("spyre") for t in (q, k, v, given)]
    for got in (attend(*on_card).cpu(), torch.compile(attend)(*on_card).cpu()):
        assert torch.all(got[..., 7, :] == 0)
        torch.testing.assert_close(got.float(), expected.nan_to_num(0.0), atol=2e-2, rtol=2e-2)


def test_gradient_of_compiled_attention_with_hidden_rows() -> None:
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 12, 16, generator=generator) for _ in range(3))
    mask = torch.ones(12, 12, dtype=torch.bool).tril()
    mask[5] = False

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask).square().sum()

    def gradients(run: object, device: str) -> list[torch.Tensor]:
        leaves = [t.detach().to(device).requires_grad_() for t in (q, k, v)]
        run(*leaves, mask.to(device)).backward()  # type: ignore[operator]
        return [t.grad.cpu() for t in leaves if t.grad is not None]

    expected = gradients(loss, "cpu")
    for got, want in zip(gradients(torch.compile(loss), "spyre"), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-3)
