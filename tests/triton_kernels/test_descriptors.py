# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_descriptors.py
"""Descriptors that the host makes, and gathers, scatters and reductions through descriptors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from torch_spyre.errors import UnsupportedOp


@triton.jit
def adds(left, right, out, factor, BM: tl.constexpr, BN: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    out.store([row, column], left.load([row, column]) + right.load([row, column]) * factor)


@triton.jit
def doubles(source, out, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK
    out.store([place], source.load([place]) * 2)


@triton.jit
def picks_rows(table, rows, out, column, COUNT: tl.constexpr):
    wanted = tl.load(rows + tl.program_id(0) * COUNT + tl.arange(0, COUNT))
    out.scatter(table.gather(wanted, column) + 1.0, wanted, column)


@triton.jit
def sums_blocks(source, out, BM: tl.constexpr):
    out.atomic_add([0, 0], source.load([tl.program_id(0) * BM, 0]))


@pytest.mark.parametrize("rows, columns", [(32, 64), (50, 104), (3, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_blocks(rows: int, columns: int, dtype: torch.dtype) -> None:
    left, right = (torch.randint(-50, 50, (rows, columns)).to(dtype) for _ in range(2))
    placed = [t.to("spyre") for t in (left, right, torch.zeros_like(left))]
    made = [TensorDescriptor.from_tensor(t, [16, 32]) for t in placed]
    adds[(triton.cdiv(rows, 16), triton.cdiv(columns, 32))](*made, 3.0, BM=16, BN=32)
    assert torch.equal(placed[2].cpu(), left + right * 3)


@pytest.mark.parametrize("length", [64, 100, 1])
def test_one_dim(length: int) -> None:
    source = torch.randn(length)
    placed, out = source.to("spyre"), torch.zeros(length, device="spyre")
    made = [TensorDescriptor.from_tensor(t, [32]) for t in (placed, out)]
    doubles[(triton.cdiv(length, 32),)](*made, BLOCK=32)
    assert torch.equal(out.cpu(), source * 2)


@pytest.mark.parametrize("column", [0, 32])
def test_rows_from_memory(column: int) -> None:
    """Rows and columns outside of the tensor read 0 and are not written."""
    table, rows = torch.randn(20, 52), torch.tensor([3, 19, 0, 20, 7, 25, 1, 2], dtype=torch.int32)
    out, placed = torch.zeros(20, 52, device="spyre"), table.to("spyre")
    made = [TensorDescriptor.from_tensor(t, [1, 32]) for t in (placed, out)]
    picks_rows[(1,)](made[0], rows.to("spyre"), made[1], column, COUNT=8)
    expected = torch.zeros(20, 52)
    inside = rows[rows < 20].long()
    expected[inside, column : column + 32] = table[inside, column : column + 32] + 1
    assert torch.equal(out.cpu(), expected)


def test_reductions() -> None:
    source = torch.randn(50, 20)
    out, placed = torch.ones(16, 20, device="spyre"), source.to("spyre")
    made = [TensorDescriptor.from_tensor(t, [16, 32]) for t in (placed, out)]
    sums_blocks[(4,)](*made, BM=16)
    padded = torch.cat((source, torch.zeros(14, 20))).unflatten(0, (4, 16))
    torch.testing.assert_close(out.cpu(), 1 + padded.sum(0), rtol=1e-6, atol=1e-6)


def test_padding_with_nan_is_refused() -> None:
    placed: Any = torch.zeros(32, device="spyre")
    made = TensorDescriptor(placed, [32], [1], [32], "nan")
    with pytest.raises(UnsupportedOp, match="pads with NaN"):
        doubles[(1,)](made, TensorDescriptor.from_tensor(torch.zeros(32, device="spyre"), [32]), BLOCK=32)
