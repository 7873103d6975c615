# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_compiled.py
"""Kernels within torch.compile, tuned ones too, and what a kernel asserts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from torch_spyre.errors import SpyreError


@triton.jit
def scales(x, out, n, factor, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n) * factor + 0.5 * factor
    tl.store(out + place, value, mask=place < n)


tuned = triton.autotune([triton.Config({"BLOCK": size}) for size in (64, 256)], key=["n"])(scales)


@triton.jit
def asserts(x, out, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    value = tl.load(x + place)
    tl.device_assert(value < 10.0, "too large")
    tl.store(out + place, value)


def test_kernel_in_a_compiled_function() -> None:
    @torch.compile(fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        y, out = x + 1, torch.empty_like(x)
        scales[(triton.cdiv(x.numel(), 64),)](y, out, x.numel(), 2.5, BLOCK=64)
        return out - 2

    x = torch.randn(300)
    torch.testing.assert_close(function(x.to("spyre")).cpu(), (x + 1) * 2.5 + 1.25 - 2)


def test_tuned_kernel_in_a_compiled_function() -> None:
    @torch.compile(fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), 2.5)
        return out.relu()

    x = torch.randn(300)
    torch.testing.assert_close(function(x.to("spyre")).cpu(), (x * 2.5 + 1.25).relu())


def test_operator_of_a_kernel() -> None:
    @triton_op("triton_kernels_test::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        wrap_triton(scales)[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), 2.5, BLOCK=64)
        return out

    x = torch.randn(300)
    placed = x.to("spyre")
    torch.testing.assert_close(scaled(placed).cpu(), x * 2.5 + 1.25)
    torch.testing.assert_close(torch.compile(scaled, fullgraph=True)(placed).cpu(), x * 2.5 + 1.25)


def test_assertions() -> None:
    x, out = torch.arange(16.0), torch.zeros(16, device="spyre")
    asserts[(1,)](x.clamp(max=9).to("spyre"), out, BLOCK=16, debug=True)
    assert torch.equal(out.cpu(), x.clamp(max=9))
    with pytest.raises(SpyreError, match="too large") as caught:
        asserts[(1,)](x.to("spyre"), out, BLOCK=16, debug=True)
        torch.spyre.synchronize()
    assert f"{Path(__file__).name}:" in str(caught.value)
    torch.spyre.reset()
    asserts[(1,)](x.to("spyre"), out, BLOCK=16)
    assert torch.equal(out.cpu(), x)  # without debug, Triton drops them
