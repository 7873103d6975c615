# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_ops_host.py
"""Ops that run on the host: compiled graphs call them too, they are counted, and the page that lists them is right."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import torch_spyre
from torch_spyre.decompositions import host_ops
from torch_spyre.ops import fallbacks, operators

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fallbacks.reset()
    yield
    fallbacks.reset()


HOST = {
    "lgamma": torch.lgamma,
    "i0": torch.i0,
    "nonzero": lambda x: (x > 0).nonzero(),
    "unique": lambda x: (x > 0).unique(),
}


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("name", HOST)
def test_counted_and_right(name: str, mode: str) -> None:
    """After a graph break Dynamo must not trace the fallback itself."""
    call, x = HOST[name], torch.randn(5, 70)
    want = call(x)
    torch._dynamo.reset()
    got = (torch.compile(call, backend="spyre") if mode == "compiled" else call)(x.to("spyre"))
    torch.testing.assert_close(got.cpu(), want)
    assert torch_spyre.report()


def test_an_op_that_pytorch_cannot_trace_does_not_compile_itself() -> None:
    done: list[torch.Tensor] = []
    x = torch.randn(5, 70)
    work = threading.Thread(target=lambda: done.append(x.to("spyre").histogram(9).hist.cpu()), daemon=True)
    work.start()
    work.join(60)
    assert done and torch.equal(done[0], x.histogram(9).hist)


def test_random_numbers_in_compiled_graphs_come_from_the_device() -> None:
    call = torch.compile(lambda x: F.dropout(x, 0.5) + torch.rand_like(x), backend="spyre", dynamic=False)
    x = torch.ones(64, 64, device="spyre")
    torch.spyre.manual_seed(3)
    first = call(x).cpu()
    torch.spyre.manual_seed(3)
    assert torch.equal(call(x).cpu(), first) and not torch.equal(call(x).cpu(), first)


def test_the_page_is_what_the_tables_say() -> None:
    """python -m torch_spyre.ops.operators > docs/operators.md"""
    assert (Path(__file__).parents[2] / "docs" / "operators.md").read_text() == operators.page()


def test_every_reason_names_ops() -> None:
    assert all(row.names and row.reason for row in host_ops.HOST)
    assert host_ops.reason("lgamma") and host_ops.reason("add") is None
