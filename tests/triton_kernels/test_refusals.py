# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_refusals.py
"""What cannot be said is refused with the user's line, the operation, the reason and what to write instead."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from torch_spyre.errors import UnsupportedOp


@triton.jit
def compares_and_swaps(index, x, out, B: tl.constexpr):
    tl.atomic_cas(index + tl.arange(0, B), tl.zeros((B,), tl.int32), tl.full((B,), 1, tl.int32))  # here


@triton.jit
def writes_one_place(index, x, out, B: tl.constexpr):
    tl.store(out + tl.zeros((B,), dtype=tl.int32), tl.load(x + tl.arange(0, B)))  # here


@triton.jit
def wide_numbers(index, x, out, B: tl.constexpr):
    place = tl.arange(0, B)
    tl.store(out + place, (tl.load(x + place).to(tl.float64) * 2).to(tl.float32))  # here


@triton.jit
def reads_bits(index, x, out, B: tl.constexpr):
    place = tl.arange(0, B)
    half = tl.load(x + place).to(tl.float16)
    tl.store(index + place, half.to(tl.int16, bitcast=True).to(tl.int32))  # here


def line_of(kernel: Any) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize(
    "kernel, words",
    [
        (compares_and_swaps, ("tt.atomic_cas", "one place at a time")),
        (writes_one_place, ("tt.store", "one place", "reduce first")),
        (wide_numbers, ("float64", "float32")),
        (reads_bits, ("tt.bitcast", "f16", "format of its own")),
    ],
)
def test_refusals(kernel: Any, words: tuple[str, ...]) -> None:
    x = torch.zeros(256, device="spyre")
    index, out = torch.zeros(64, dtype=torch.int32, device="spyre"), torch.full((64,), 5.0, device="spyre")
    with pytest.raises(UnsupportedOp) as caught:
        kernel[(1,)](index, x, out, B=16)
    message = str(caught.value)
    assert f"{Path(__file__).name}:{line_of(kernel)}:" in message, message
    for word in words:
        assert word in message, message
    assert torch.equal(out.cpu(), torch.full((64,), 5.0))  # nothing ran
