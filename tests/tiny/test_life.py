# SPDX-License-Identifier: Apache-2.0
"""pytest tests/tiny

Proof of life in ten seconds: a tensor comes back from the device, an op runs, a function compiles, a KTIR file runs.
"""

from __future__ import annotations

from pathlib import Path

import torch

from torch_spyre import ktir

ADD = Path(__file__).parents[1] / "support" / "ktir" / "vector_add.mlir"


def test_device_exists() -> None:
    assert torch.spyre.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("spyre")


def test_tensor_round_trips() -> None:
    host = torch.arange(-300, 300, dtype=torch.float16).reshape(20, 30)
    device = host.to("spyre")
    assert device.device == torch.device("spyre", 0)
    assert torch.equal(device.cpu(), host)
    assert torch.equal(device[3:, ::2].t().cpu(), host[3:, ::2].t())


def test_an_op_runs() -> None:
    x = torch.arange(64, dtype=torch.float16)
    assert torch.equal((x.to("spyre") + 1).cpu(), x + 1)


def test_a_function_compiles() -> None:
    x = torch.arange(-32, 32, dtype=torch.float16)
    compiled = torch.compile(lambda a: torch.relu(a) * 2)
    assert torch.equal(compiled(x.to("spyre")).cpu(), torch.relu(x) * 2)


def test_a_ktir_file_runs() -> None:
    a, b = torch.arange(4096).remainder(7).half(), torch.arange(4096).remainder(5).half()
    c = torch.zeros(4096, dtype=torch.float16, device="spyre")
    ktir.load(ADD).run("vector_add", a.to("spyre"), b.to("spyre"), c)
    assert torch.equal(c.cpu(), a + b)
