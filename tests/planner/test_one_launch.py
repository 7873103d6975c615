# SPDX-License-Identifier: Apache-2.0
"""pytest tests/planner/test_one_launch.py

Host fusion: a graph on the card is one launch, whatever the number of its ops and arguments; a host op splits it once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_spyre import _C
from torch_spyre._inductor.debug import inspect

MANY_INPUTS, MANY_OPS = 320, 500


def launches(fn: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """The result of a second call, and how many programs that call launched."""
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="spyre", dynamic=False)
    compiled(*args)
    torch.spyre.synchronize()
    before = _C._card_counters(0)["launches"]
    result = compiled(*args)
    torch.spyre.synchronize()
    return result, _C._card_counters(0)["launches"] - before


def test_hundreds_of_inputs() -> None:
    host = [torch.randn(3, 70) for _ in range(MANY_INPUTS)]

    def total(*xs: torch.Tensor) -> torch.Tensor:
        result = xs[0]
        for x in xs[1:]:
            result = result + x
        return result

    got, count = launches(total, *(x.to("spyre") for x in host))
    assert count == 1
    torch.testing.assert_close(got.cpu(), torch.stack(host).double().sum(0).float(), atol=1e-4, rtol=1e-5)


@pytest.mark.slow
def test_hundreds_of_ops() -> None:
    """Alternating functions, so that nothing folds; each op rounds as an eager one, hence bit-equal to those."""

    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for i in range(MANY_OPS // 5):
            x = torch.tanh(x * (1 + i / 100)) + w
            x = torch.relu(x) - 0.25 * i
        return x

    x, w = torch.randn(5, 70).half().to("spyre"), torch.randn(70).half().to("spyre")
    got, count = launches(chain, x, w)
    assert count == 1 and torch.equal(got.cpu(), chain(x, w).cpu())


def test_many_results() -> None:
    def parts(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * i for i in range(40)]

    x = torch.randn(3, 70).to("spyre")
    got, count = launches(parts, x)
    assert count == 1 and all(torch.equal(g.cpu(), (x * i).cpu()) for i, g in enumerate(got))


@pytest.mark.filterwarnings("ignore:.*falling back to cpu")
def test_a_host_op_splits_only_what_depends_on_it() -> None:
    """Work beside a host op belongs to the launch before or after it, not to one of its own."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.exp(x) * 2
        found = torch.lgamma(first)
        beside = torch.tanh(y) @ y.t()
        return found * 3 + 1, torch.softmax(beside, -1) + 1

    _, count = launches(fn, torch.randn(9, 70).to("spyre"), torch.randn(9, 70).to("spyre"))
    assert count == 2


@pytest.mark.filterwarnings("ignore:.*falling back to cpu")
def test_what_a_host_op_reads_is_not_written_before() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.exp(x)
        found = torch.lgamma(y)
        y.mul_(0)
        again = torch.lgamma(y + 1)
        y.add_(found)
        return again - found, y

    x = torch.randint(0, 3, (9, 70)).float()
    got, count = launches(fn, x.to("spyre"))
    assert count <= 3
    for a, b in zip(got, fn(x), strict=True):
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.filterwarnings("ignore:.*falling back to cpu")
def test_host_ops_that_nothing_waits_for_share_a_split() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x)
        return torch.lgamma(y) + torch.i0(y).sum() + torch.lgamma(y * 2)

    _, count = launches(fn, torch.randn(9, 70).to("spyre"))
    assert count == 2


def test_products_of_one_activation_come_together() -> None:
    """Inductor would make the values of an attention after its scores; then x waits in memory until then."""

    def attention(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x = x * 2
        query, key, value = x @ q, x @ k, x @ v
        scores = torch.softmax(torch.tanh(query) @ torch.tanh(key).t(), -1)
        return scores @ torch.relu(value)

    host = [(torch.randn(shape) / 16).half() for shape in ((64, 128), (128, 64), (128, 64), (128, 64))]
    torch._dynamo.reset()
    inspect.start()
    known = len(inspect.records())
    try:
        got = torch.compile(attention, backend="spyre", dynamic=False)(*(t.to("spyre") for t in host))
    finally:
        inspect.stop()
    ops = [op.op for record in inspect.records()[known:] for op in record.plan.kernel.ops]
    first = ops.index("batchmatmul")
    assert ops[first : first + 3] == ["batchmatmul"] * 3 and ops.count("batchmatmul") == 5
    torch.testing.assert_close(got.cpu().float(), attention(*(t.float() for t in host)), atol=2e-3, rtol=0.01)
