# SPDX-License-Identifier: Apache-2.0
"""pytest tests/tiny

Proof of life in ten seconds: the device is there and a tensor comes back from it.
"""

from __future__ import annotations

import torch


def test_device_exists() -> None:
    assert torch.spyre.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("spyre")


def test_tensor_round_trips() -> None:
    host = torch.arange(-300, 300, dtype=torch.float16).reshape(20, 30)
    device = host.to("spyre")
    assert device.device == torch.device("spyre", 0)
    assert torch.equal(device.cpu(), host)
    assert torch.equal(device[3:, ::2].t().cpu(), host[3:, ::2].t())
