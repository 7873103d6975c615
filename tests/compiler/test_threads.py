# SPDX-License-Identifier: Apache-2.0
"""pytest tests/compiler/test_threads.py

Several threads compile, and call what is compiled, at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_spyre.ops import eager

WAIT = 600  # seconds that only a hang needs


def test_a_compiled_call_during_the_trace_of_an_eager_op(monkeypatch: pytest.MonkeyPatch, fresh_caches: Path) -> None:
    """FX's flag "tracing" belongs to the process; Dynamo refused what another thread called meanwhile."""
    x = torch.ones(4, 64).to("spyre")
    compiled = torch.compile(lambda v: torch.softmax(v * 2, -1))
    expected = compiled(x).cpu()

    tracing, called = threading.Event(), threading.Event()
    functional = eager._functional

    def paused(*args: Any) -> Callable[..., Any]:
        call = functional(*args)

        def wait_inside(*tensors: Any) -> Any:
            tracing.set()
            assert called.wait(WAIT)
            return call(*tensors)

        return wait_inside

    monkeypatch.setattr(eager, "_functional", paused)
    results: list[Tensor] = []
    other = threading.Thread(target=lambda: results.append(torch.tan(torch.ones(3, 5, 7).to("spyre")).cpu()))
    other.start()
    try:
        assert tracing.wait(WAIT)
        assert torch.fx._symbolic_trace._is_fx_tracing_flag
        assert torch.equal(compiled(x).cpu(), expected)
    finally:
        called.set()
        other.join(WAIT)
    assert len(results) == 1
    assert not torch.compiler.is_compiling()


def test_cold_calls_of_several_sizes(fresh_caches: Path) -> None:
    """Forward, backward and eager ops of four threads, all compiled for the first time, give what the CPU gives."""
    compiled = torch.compile(lambda x, w: torch.softmax(x @ w, -1).square().sum(), dynamic=False)
    start = threading.Barrier(4)
    failures: list[BaseException] = []

    def work(k: int) -> None:
        generator = torch.Generator().manual_seed(k)
        x, w = torch.randn(4 + k, 64, generator=generator), torch.randn(64, 32 * (k + 1), generator=generator)
        on_card, on_cpu = w.to("spyre").requires_grad_(), w.double().requires_grad_()
        try:
            start.wait(WAIT)
            compiled(x.to("spyre"), on_card).backward()
            torch.softmax(x.double() @ on_cpu, -1).square().sum().backward()
            assert on_card.grad is not None and on_cpu.grad is not None
            error = (on_card.grad.cpu() - on_cpu.grad).abs().max() / on_cpu.grad.abs().max()
            assert error < 64 * 2.0**-20, error  # sums of 64 products in fp32, and exp within some units
            assert torch.equal(torch.sign(on_card.detach()).cpu(), torch.sign(w))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not failures, failures
