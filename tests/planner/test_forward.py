# SPDX-License-Identifier: Apache-2.0
"""pytest tests/planner/test_forward.py: results go straight to their place, and never where an operand still is."""

from __future__ import annotations

import pytest
import torch

from torch_spyre import _C


def _launch_counters(action: object) -> dict[str, int]:
    torch.spyre.synchronize()
    before = _C._card_counters(0)
    action()  # type: ignore[operator]
    torch.spyre.synchronize()
    after = _C._card_counters(0)
    return {name: after[name] - before[name] for name in after}


def _card(*size: int) -> torch.Tensor:
    return torch.randint(-8, 8, size).half().to("spyre")


@pytest.mark.parametrize("name", ["in place", "out", "clone"])
def test_no_second_copy_of_a_result(name: str) -> None:
    a, b, out = (_card(64, 256) for _ in range(3))
    actions = {
        "in place": lambda: a.add_(b),
        "out": lambda: torch.add(a, b, out=out),
        "clone": lambda: a.clone(),
    }
    actions[name]()
    moved = _launch_counters(actions[name])
    assert moved["memory_write_bytes"] == a.numel() * 2
    assert moved["memory_read_bytes"] == a.numel() * 2 * (1 if name == "clone" else 2)


def test_a_target_that_is_an_operand_is_read_before_it_is_written() -> None:
    a, b, other = (_card(128, 128) for _ in range(3))
    expected = (a.cpu().double() @ b.cpu().double()).half()
    torch.mm(a, b, out=other)  # the plan for distinct tensors must not serve the next call
    assert torch.equal(other.cpu(), expected)
    torch.mm(a, b, out=a)
    assert torch.equal(a.cpu(), expected)


def test_views_of_one_tensor() -> None:
    x, y = _card(8, 256), _card(8, 256)
    x[:, 0:128].add_(y[:, 128:256])
    expected = x.cpu()
    expected[:, 0:128] += expected[:, 128:256]
    x[:, 0:128].add_(x[:, 128:256])
    assert torch.equal(x.cpu(), expected)
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
        x[0:4].add_(x[2:6])


def test_an_old_value_that_is_still_needed_is_kept() -> None:
    def swap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total = a + b
        a.copy_(b.t())
        return total + a

    a, b = _card(64, 64), _card(64, 64)
    expected_a = b.cpu().t().contiguous()
    expected = a.cpu() + b.cpu() + expected_a
    assert torch.equal(torch.compile(swap, dynamic=False)(a, b).cpu(), expected)
    assert torch.equal(a.cpu(), expected_a)


def test_a_transposed_update_reads_everything_first() -> None:
    def update(a: torch.Tensor) -> None:
        a.add_(a.t())

    a = _card(96, 96)
    expected = a.cpu() + a.cpu().t()
    torch.compile(update, dynamic=False)(a)
    assert torch.equal(a.cpu(), expected)
