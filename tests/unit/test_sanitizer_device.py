# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/unit/test_sanitizer_device.py. The sanitizer under PyTorch: unwritten tensors and NaN origins."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from torch_spyre import sanitizer
from torch_spyre.errors import UninitializedRead


@pytest.fixture(autouse=True)
def checked() -> Iterator[None]:
    sanitizer.clear()
    with sanitizer.sanitize():
        yield
    sanitizer.clear()


def test_a_clean_model_has_no_reports() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(100, 130), torch.nn.GELU(), torch.nn.LayerNorm(130))
    x = torch.randn(7, 100)
    with torch.no_grad():
        expected = layers(x)
        result = torch.compile(layers.to("spyre", torch.float16))(x.to("spyre", torch.float16))
    assert (result.cpu().float() - expected).abs().max() < 0.1
    assert sanitizer.reports() == []


def test_an_empty_tensor_is_not_an_input() -> None:
    x = torch.empty(64, 64, dtype=torch.float16, device="spyre")
    with pytest.raises(UninitializedRead, match="nothing wrote since it was allocated"):
        torch.neg(x)
    x.copy_(torch.ones(64, 64, dtype=torch.float16))
    assert torch.neg(x).cpu().eq(-1).all()


def test_nan_warns_with_its_origin() -> None:
    @torch.compile
    def ratio(x: torch.Tensor) -> torch.Tensor:
        return (x - x) / (x - x) + 1

    x = torch.ones(64, 64, dtype=torch.float16).to("spyre")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ratio(x)
    (report,) = [r for r in sanitizer.reports() if r.kind == "NanProduced"]
    assert report.kernel.startswith("spyre_kernel") and "test_sanitizer_device.py" in report.origin
    assert any("NanProduced" in str(w.message) for w in caught)


def test_no_programs_for_buckets_of_sizes() -> None:
    """They read what nobody wrote, and mean nothing by it."""
    torch._dynamo.reset()
    scaled = torch.compile(lambda a, b: a @ b, dynamic=True)
    for n in (70, 75, 90):
        a, b = torch.rand(n, 64, dtype=torch.float16), torch.rand(64, 64, dtype=torch.float16)
        torch.testing.assert_close(scaled(a.to("spyre"), b.to("spyre")).cpu(), a @ b, atol=0.1, rtol=0.01)
    assert sanitizer.reports() == []
