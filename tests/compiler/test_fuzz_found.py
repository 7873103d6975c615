# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_fuzz_found.py
"""What random graphs have found (graph_fuzz.py), each as a small program: right, and compiled equals eager by bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph_fuzz_oracle import Lockstep, host_values
from torch.nn import functional

from torch_spyre import _C
from torch_spyre._inductor import config, inspect
from torch_spyre.ops import fallbacks


def half(*size: int) -> torch.Tensor:
    return torch.randn(*size).half().to("spyre")


def check(fn: Callable[..., Any], *args: torch.Tensor) -> list[torch.Tensor]:
    """Results of `fn`: every op of the eager run is right, and the compiled run has the same bits."""
    torch._dynamo.reset()
    with fallbacks.disabled():
        with Lockstep():
            eager = fn(*args)
        compiled = torch.compile(fn, dynamic=False, fullgraph=True)(*args)
    pairs = list(zip(eager, compiled, strict=True)) if isinstance(eager, tuple) else [(eager, compiled)]
    for one, two in pairs:
        assert torch.equal(host_values(one), host_values(two))
    return [two for _, two in pairs]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: functional.layer_norm(x, (70,), w[0], w[1]),
        lambda x, w: functional.group_norm(x, 7),
        lambda x, w: torch.logsumexp(x, -1),
        lambda x, w: functional.celu(x, 0.7),
        lambda x, w: functional.binary_cross_entropy_with_logits(x, w.sigmoid()),
        lambda x, w: torch.addr(x, w[:, 0], w[0]),
        lambda x, w: torch.lerp(torch.relu(x), w, 0.3),
        lambda x, w: torch.addcmul(x, x, w.abs(), value=0.5),
        lambda x, w: torch.add(x, w.abs(), alpha=0.3),
        lambda x, w: functional.avg_pool2d(torch.stack([x, w]), 2),
    ],
    ids=["layer_norm", "group_norm", "logsumexp", "celu", "bce", "addr", "lerp", "addcmul", "alpha", "avg_pool2d"],
)
def test_eager_and_compiled_ops_round_once(fn: Callable[..., Any]) -> None:
    """PyTorch's composite kernels and Inductor's decompositions go step by step; each step would store its result."""
    check(fn, half(6, 70), half(6, 70))


def test_neighbours_do_not_change_the_order_of_a_sum() -> None:
    """How often k is cut follows from the matmul's shape, not from what would suit the ops around it."""
    a, b, c = (torch.randn(*size).to("spyre") for size in ((31, 256), (256, 80), (31, 80)))
    check(lambda a, b, c: (a @ b) + torch.sigmoid(c) * c.abs(), a, b, c)


def test_knobs_reach_eager_plans() -> None:
    _C.clear_eager_cache()
    inspect.start()
    try:
        with config.patch(sencores=3):
            half(60, 200) * half(60, 200)
        plan = inspect.records()[-1].plan
    finally:
        inspect.stop()
        _C.clear_eager_cache()
    assert 1 < max(op.cores for op in plan.kernel.ops) <= 3


@pytest.mark.parametrize("op", ["sort", "cumsum", "argmax", "topk"])
def test_along_a_dim_that_a_reshape_joined(op: str) -> None:
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "sort": lambda x: torch.sort(x.reshape(1, -1), dim=-1, stable=True),
        "cumsum": lambda x: x.reshape(1, -1).cumsum(-1),
        "argmax": lambda x: x.reshape(1, -1).argmax(-1),
        "topk": lambda x: torch.topk(x.t().reshape(-1), 5)[0],
    }
    check(calls[op], half(3, 256))


@pytest.mark.parametrize(("n", "start"), [(63, 3), (64, 5), (130, 7)])
def test_repeats_of_a_tensor_that_starts_inside_a_stick(n: int, start: int) -> None:
    x = half(n + 9).narrow(0, start, n)
    check(lambda x: (x.repeat([3]), x.repeat([2, 2]) * 2), x)
