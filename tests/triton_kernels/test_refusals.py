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
def gathers(index, x, out, B: tl.constexpr):
    place = tl.arange(0, B)
    rows = tl.load(index + place)
    tl.store(out + place, tl.load(x + rows))  # here


@triton.jit
def squares_positions(index, x, out, B: tl.constexpr):
    place = tl.arange(0, B)
    tl.store(out + place, tl.load(x + place * place))  # here


@triton.jit
def compares_and_swaps(index, x, out, B: tl.constexpr):
    tl.atomic_cas(index, 0, 1)  # here


@triton.jit
def uses_old_value(index, x, out, B: tl.constexpr):
    old = tl.atomic_add(out, 1.0)  # here
    tl.store(out + 1, old)


@triton.jit
def writes_one_place(index, x, out, B: tl.constexpr):
    tl.store(out + tl.zeros((B,), dtype=tl.int32), tl.load(x + tl.arange(0, B)))  # here


@triton.jit
def waits(index, x, out, B: tl.constexpr):
    i = 0
    while i < tl.load(index):  # here
        i += 1
    tl.store(out, i * 1.0)


@triton.jit
def wide_numbers(index, x, out, B: tl.constexpr):
    place = tl.arange(0, B)
    tl.store(out + place, (tl.load(x + place).to(tl.float64) * 2).to(tl.float32))  # here


@triton.jit
def reads_bits(index, x, out, B: tl.constexpr):
    place = tl.arange(0, B)
    half = tl.load(x + place).to(tl.float16)
    tl.store(index + place, half.to(tl.int16, bitcast=True).to(tl.int32))  # here


@triton.jit
def scans(index, x, out, B: tl.constexpr):
    place = tl.arange(0, B)
    tl.store(out + place, tl.cumsum(tl.load(x + place), axis=0))  # here


@triton.jit
def row_from_memory(index, x, out, B: tl.constexpr):
    place = tl.arange(0, B)
    tl.store(out + place, tl.load(x + tl.load(index) * B + place))  # here


@triton.jit
def bound_from_memory(index, x, out, B: tl.constexpr):
    total = 0.0
    for i in range(tl.load(index)):
        total += tl.load(x + i)  # here
    tl.store(out, total)


@triton.jit
def condition_from_memory(index, x, out, B: tl.constexpr):
    if tl.load(index) > 2:
        tl.store(out, 1.0)  # here


def line_of(kernel: Any) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize(
    "kernel, words",
    [
        (gathers, ("tt.load", "from memory", "index_select")),
        (row_from_memory, ("tt.load", "from memory", "index_select")),
        (bound_from_memory, ("bounds are read from a tensor", "integer arguments")),
        (condition_from_memory, ("a condition that is read from a tensor",)),
        (squares_positions, ("tt.load", "multiplies positions")),
        (compares_and_swaps, ("tt.atomic_cas", "own output")),
        (uses_old_value, ("tt.atomic_rmw", "old value")),
        (writes_one_place, ("tt.store", "one place", "reduce first")),
        (waits, ("scf.while", "for loop")),
        (wide_numbers, ("float64", "float32")),
        (reads_bits, ("tt.bitcast", "f16", "format of its own")),
        (scans, ("tt.scan", "torch.cumsum")),
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
