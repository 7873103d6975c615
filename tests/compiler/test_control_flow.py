# SPDX-License-Identifier: Apache-2.0
"""`.venv/bin/python -m pytest -q tests/compiler/test_control_flow.py`

Control flow in a compiled graph: branches and loop bodies are functions of their own in the generated module, with
kernels of their own.
"""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from torch_spyre.constants import DEVICE_NAME


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def test_both_branches() -> None:
    def either(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.softmax(0), (x,)) + 1

    compiled = torch.compile(either, fullgraph=True)
    for sign in (1, -1):
        x = sign * torch.rand(6, 6)
        torch.testing.assert_close(compiled(x.to(DEVICE_NAME)).cpu(), either(x), atol=1e-2, rtol=1e-2)


def test_a_loop_ends_where_its_values_say() -> None:
    def grow(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return while_loop(lambda i, x: x.amax() < 100, lambda i, x: (i + 1, 2 * x), (torch.zeros_like(x[0, 0]), x))

    x = torch.rand(4, 5) + 1
    steps, grown = torch.compile(grow, fullgraph=True)(x.to(DEVICE_NAME))
    want_steps, want = torch.compile(grow, backend="eager")(x)
    assert steps.item() == want_steps.item() > 3
    torch.testing.assert_close(grown.cpu(), want)


@pytest.mark.slow
def test_scan_and_the_gradient_of_a_branch() -> None:
    def last(x: torch.Tensor) -> torch.Tensor:
        kept, products = scan(lambda c, x: (c + x, c * x), torch.zeros_like(x[0]), x)
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (kept + products.sum(0),)).sum()

    x = torch.rand(3, 6)
    grads = []
    for device, backend in (("cpu", "eager"), (DEVICE_NAME, "inductor")):
        leaf = x.to(device, copy=True).requires_grad_()
        torch.compile(last, fullgraph=True, backend=backend)(leaf).backward()
        assert leaf.grad is not None
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0], atol=1e-2, rtol=1e-2)
