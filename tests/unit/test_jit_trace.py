# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_jit_trace.py
"""`torch.jit.trace` on the card, with its own check of what it traced."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x).relu(), n + 1


@pytest.fixture(autouse=True)
def no_warnings_of_the_tracer() -> None:
    warnings.simplefilter("error", torch.jit.TracerWarning)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_module_is_traced_and_checked(dtype: torch.dtype, tmp_path: Path) -> None:
    layer = Layer().to(dtype).to("spyre")  # rounded on the host first: a file holds the host's format
    x, n = torch.randn(4, 8).to("spyre", dtype), torch.arange(4, dtype=torch.int32, device="spyre")
    traced = torch.jit.trace(layer, (x, n))
    expected = layer(x, n)
    for _ in range(3):  # the executor changes the graph after it has seen a call
        for found, want in zip(traced(x, n), expected, strict=True):
            assert type(found) is Tensor and torch.equal(found.cpu(), want.cpu())

    torch.jit.save(traced, tmp_path / "layer.pt")
    assert torch.equal(torch.jit.load(tmp_path / "layer.pt")(x, n)[0].cpu(), expected[0].cpu())


def test_a_function_with_further_inputs_to_check() -> None:
    x = torch.randn(4, 8).to("spyre")
    traced = torch.jit.trace(lambda a: a * 2 + 1, (x,), check_inputs=[(x * 3,), (x - 1,)])
    assert torch.equal(traced(x).cpu(), x.cpu() * 2 + 1)


def test_the_check_still_finds_what_differs() -> None:
    """A number that is drawn in each run is no constant of the function."""
    x = torch.randn(4, 8).to("spyre")
    with pytest.raises(torch.jit.TracerWarning, match="nondeterministic nodes"):
        torch.jit.trace(lambda a: a + torch.rand(4, 8).to("spyre"), (x,))


def test_the_cpu_is_traced_as_ever() -> None:
    x = torch.randn(3, 8, dtype=torch.float64)
    assert torch.jit.trace(torch.sin, (x,))(x).dtype is torch.float64
