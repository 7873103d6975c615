# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_expert_tables.py
"""A mixture of experts against a loop over rows in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torch_spyre.ops.kernels.experts import chosen_experts, experts


def between(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def block(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, count: int) -> Tensor:
    shares, numbers = chosen_experts(x @ gate, count, True)
    return experts(x, shares, numbers, up, down, between)


def row_by_row(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, count: int) -> Tensor:
    shares, numbers = torch.softmax((x @ gate).half().double(), -1).topk(count, -1)
    shares = shares / shares.sum(-1, keepdim=True)
    return torch.stack(
        [
            sum(s * (between(row @ up[n]) @ down[n]) for s, n in zip(ss, ns, strict=True))
            for row, ss, ns in zip(x, shares, numbers.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("rows, one_expert", [(1, False), (4, False), (40, False), (40, True)])
def test_experts(rows: int, one_expert: bool) -> None:
    torch.manual_seed(0)
    count, width, middle = 8, 128, 64
    x, up = torch.randn(rows, width).half(), (torch.randn(count, width, 2 * middle) * 0.08).half()
    gate, down = torch.randn(width, count).half(), (torch.randn(count, middle, width) * 0.08).half()
    if one_expert:  # all rows choose the same two: other tiles stay empty
        gate = torch.zeros(width, count).half()
        x[:, 0], gate[0, 3], gate[0, 5] = 8.0, 4.0, 3.0
    wanted = row_by_row(*(t.double() for t in (x, gate, up, down)), 2)
    compiled = torch.compile(block, dynamic=False)
    made = compiled(*(t.to("spyre") for t in (x, gate, up, down)), 2).cpu().double()
    assert (made - wanted).abs().max() <= 2.0**-7 * wanted.abs().max()


def test_a_row_does_not_depend_on_the_others() -> None:
    torch.manual_seed(1)
    x, gate = torch.randn(40, 128).half().to("spyre"), torch.randn(128, 4).half().to("spyre")
    up, down = ((torch.randn(4, *s) * 0.08).half().to("spyre") for s in ((128, 128), (64, 128)))
    compiled = torch.compile(block, dynamic=False)
    together = compiled(x, gate, up, down, 2).cpu()
    alone = compiled(x[7:9].contiguous(), gate, up, down, 2).cpu()
    assert torch.equal(together[7:9], alone)
