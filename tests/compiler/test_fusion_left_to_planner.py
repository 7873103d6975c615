# SPDX-License-Identifier: Apache-2.0
"""pytest tests/compiler/test_fusion_left_to_planner.py: Inductor compares nodes of other devices, none of the card."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._inductor.scheduler import Scheduler


@pytest.mark.parametrize("device", ["spyre", "cpu"])
def test_pairs_of_nodes(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    original = Scheduler.can_fuse

    def can_fuse(self: Any, *nodes: Any, **options: Any) -> bool:
        compared.append(nodes)
        return original(self, *nodes, **options)

    monkeypatch.setattr(Scheduler, "can_fuse", can_fuse)
    x = torch.linspace(-2, 2, 192).reshape(3, 64)
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        found = torch.compile(lambda x: torch.softmax(x.exp(), 1).sum(0) + x.amax(1).sum())(x.to(device))
    assert torch.allclose(found.cpu(), torch.softmax(x.exp(), 1).sum(0) + x.amax(1).sum(), atol=1e-3)
    assert bool(compared) is (device == "cpu")
