# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_failing_steps.py: each allocation, copy and launch of a SmolLM2 step fails once.

The step raises, the card is reset, and the same step on a new cache gives the same logits: nothing of the model is
lost, and no memory stays behind.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import transformers

from torch_spyre import _C
from torch_spyre.models.blocks import compile_blocks
from torch_spyre.models.checkpoint import load
from torch_spyre.models.smollm2 import checkpoint

KINDS = ("allocation", "dma", "launch")


class Step:
    """One decode step of SmolLM2 after a short prompt."""

    def __init__(self, compiled: bool) -> None:
        self.model = load(checkpoint())
        if compiled:
            self.model = compile_blocks(self.model)
        self.prompt = torch.tensor([[1, 504, 3575, 282, 4649, 314]])
        self.cache = transformers.StaticCache(config=self.model.config, max_cache_len=64)

    @torch.inference_mode()
    def prefill(self) -> None:
        self.cache = transformers.StaticCache(config=self.model.config, max_cache_len=64)
        self._forward(self.prompt)

    @torch.inference_mode()
    def decode(self) -> torch.Tensor:
        return self._forward(torch.tensor([[7042]])).cpu()

    def _forward(self, ids: torch.Tensor) -> Any:
        return self.model(input_ids=ids.to("spyre"), past_key_values=self.cache, use_cache=True).logits[0, -1]


@pytest.fixture(scope="module", params=[False, True], ids=["eager", "compiled"])
def step(request: pytest.FixtureRequest) -> Any:
    made = Step(request.param)
    for _ in range(2):  # programs are compiled and replays are recorded
        made.prefill()
        made.decode()
    yield made
    torch.spyre.reset()


def _fails(step: Step, kind: str, nth: int) -> bool:
    """Whether the step has an nth event of this kind; if so, it raised, and nothing else happened."""
    step.prefill()
    torch.spyre.synchronize()
    _C._inject_fault(kind, nth)
    try:
        step.decode()
        torch.spyre.synchronize()
    except RuntimeError as error:  # named errors and torch.OutOfMemoryError are such
        assert "injected fault" in str(error) or "earlier work failed" in str(error), error
        return True
    finally:
        torch.spyre.reset()
    return False


def _check(step: Step, kind: str, stride: int) -> int:
    step.prefill()
    want = step.decode()
    gc.collect()
    memory = torch.spyre.memory_allocated()
    nth = 1
    while _fails(step, kind, nth):
        step.prefill()
        assert torch.equal(step.decode(), want), f"{kind} {nth}"
        gc.collect()
        assert torch.spyre.memory_allocated() == memory, f"{kind} {nth} left memory behind"
        nth += stride
    return nth


@pytest.mark.parametrize("kind", KINDS)
def test_some_failures(step: Step, kind: str) -> None:
    assert _check(step, kind, 150) > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_failure(step: Step, kind: str) -> None:
    assert _check(step, kind, 1) > 2
