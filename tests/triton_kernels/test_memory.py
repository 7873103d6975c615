# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_memory.py
"""Places, conditions and orders that a program reads from memory, against the interpreter and PyTorch."""

from __future__ import annotations

import memory_kernels as k
import pytest
import torch
from interpreted import Interpreter
from test_features import check, launch


@pytest.mark.parametrize("n", [1, 100, 640])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_gathers(interpreter: Interpreter, n: int, dtype: torch.dtype) -> None:
    index, x = torch.randint(0, 500, (n,), dtype=dtype), torch.randn(500)
    check(interpreter, k.gathers, (5,), index, x, torch.zeros(n), n, BLOCK=128)
    *_, out, _ = launch(k.gathers, (5,), index, x, torch.zeros(n), n, BLOCK=128)
    assert torch.equal(out, x[index.long()])


@pytest.mark.parametrize("n", [1, 100, 256])
def test_scatters(interpreter: Interpreter, n: int) -> None:
    check(interpreter, k.scatters, (2,), torch.randperm(n).int(), torch.randn(n), torch.zeros(300), n, BLOCK=128)


def test_row_from_memory(interpreter: Interpreter) -> None:
    index, x = torch.randint(0, 20, (37,)), torch.randn(20, 50)
    check(interpreter, k.row_from_memory, (37,), index, x, torch.zeros(37, 50), 50, BLOCK=64)


def test_products_of_positions(interpreter: Interpreter) -> None:
    check(interpreter, k.squares_positions, (1,), torch.randn(1024), torch.zeros(32), BLOCK=32)


def test_branches_on_data(interpreter: Interpreter) -> None:
    flags = torch.tensor([0, 5, 2, 3], dtype=torch.int32)
    check(interpreter, k.branches_on_data, (4,), flags, torch.randn(256), torch.zeros(256), BLOCK=64)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans(interpreter: Interpreter, reverse: bool) -> None:
    shape = (8, 64)
    arguments = torch.randn(shape) / 8, torch.zeros(shape), torch.zeros(shape)
    check(interpreter, k.scans, (1,), *arguments, roundings=64, BLOCK=64, REVERSE=reverse)


def test_scans_of_pairs(interpreter: Interpreter) -> None:
    gate, x = torch.rand(128), torch.randn(128)
    check(interpreter, k.pairs_scanned, (1,), gate, x, torch.zeros(128), roundings=64, BLOCK=128)
    h, expected = torch.tensor(0.0, dtype=torch.float64), []
    for g, v in zip(gate.double(), x.double(), strict=True):
        h = g * h + v
        expected.append(h)
    out = launch(k.pairs_scanned, (1,), gate, x, torch.zeros(128), BLOCK=128)[2]
    torch.testing.assert_close(out.double(), torch.stack(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("descending", [False, True])
def test_sorts(interpreter: Interpreter, descending: bool) -> None:
    x = torch.randn(4, 64)
    arguments = x, torch.zeros(4, 64), torch.zeros(4, 8), torch.zeros(4, 64)
    check(interpreter, k.sorts, (1,), *arguments, BLOCK=64, DESCENDING=descending)
    out = launch(k.sorts, (1,), *arguments, BLOCK=64, DESCENDING=descending)[1]
    assert torch.equal(out, x.sort(-1, descending=descending).values)


def test_rearranges(interpreter: Interpreter) -> None:
    n = 64
    x, y, index = torch.randn(n), torch.randn(n), torch.randint(0, n, (n,), dtype=torch.int32)
    outs = torch.zeros(n, 2), torch.zeros(n), torch.zeros(2 * n), torch.zeros(n)
    check(interpreter, k.rearranges, (1,), x, y, index, *outs, BLOCK=n)


@pytest.mark.parametrize("n", [1, 100, 128])
def test_histograms(n: int) -> None:
    x = torch.randint(0, 16, (128,), dtype=torch.int32)
    _, out, _ = launch(k.histogram, (1,), x, torch.zeros(16, dtype=torch.int32), n, BLOCK=128, BINS=16)
    assert torch.equal(out.long(), torch.bincount(x[:n], minlength=16))


def test_tickets(interpreter: Interpreter) -> None:
    counter, peak, least = (torch.tensor([v], dtype=torch.int32) for v in (3, -1, 100))
    check(interpreter, k.tickets, (40,), counter, peak, least, torch.zeros(40, dtype=torch.int32))
