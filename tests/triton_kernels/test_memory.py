# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_memory.py
"""Places, conditions and orders that a program reads from memory, against the interpreter and PyTorch."""

from __future__ import annotations

import itertools

import memory_kernels as k
import pytest
import torch
from interpreted import Interpreter
from test_features import check, launch

from torch_spyre.errors import UnsupportedOp


@pytest.mark.parametrize("n", [1, 100, 640])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
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


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_rearranges(interpreter: Interpreter, dtype: torch.dtype) -> None:
    n = 64
    x, y, index = torch.randn(n), torch.randn(n), torch.randint(0, n, (n,), dtype=dtype)
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


SEGMENTS = [[0, 3, 3, 10, 11], [0, 0, 0, 0, 0], [5, 12, 12, 13, 16], [0, 16, 16, 16, 16]]


@pytest.mark.parametrize("starts", SEGMENTS)
def test_loops_with_bounds_from_memory(interpreter: Interpreter, starts: list[int]) -> None:
    x, bounds = torch.randn(16, 32), torch.tensor(starts, dtype=torch.int32)
    found = check(interpreter, k.sums_segments, (4,), bounds, x, torch.zeros(4, 32), 16, roundings=16, BLOCK=32)
    expected = torch.stack([x[a:b].double().sum(0) for a, b in itertools.pairwise(starts)])
    torch.testing.assert_close(found[2].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("starts", [[0, 100, 100, 137, 300], [7, 8, 9, 200, 260]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_carried_pointers_with_bounds_from_memory(
    interpreter: Interpreter, starts: list[int], dtype: torch.dtype
) -> None:
    bounds = torch.tensor(starts, dtype=dtype)
    check(interpreter, k.copies_segments, (4,), bounds, torch.randn(300), torch.zeros(300), BLOCK=32)


@pytest.mark.parametrize("limits", [[4, 0, 15, -2], [1, 1, 1, 1], [0, 0, 0, 0]])
def test_while(interpreter: Interpreter, limits: list[int]) -> None:
    bounds = torch.tensor(limits, dtype=torch.int32)
    check(interpreter, k.counts_down, (4,), bounds, torch.randn(16, 32), torch.zeros(4, 32), roundings=16, BLOCK=32)


def test_while_without_memory(interpreter: Interpreter) -> None:
    check(interpreter, k.stores_four_times, (4,), torch.randn(100), torch.zeros(100), 100, BLOCK=32)


def test_nested_loops_with_bounds_from_memory(interpreter: Interpreter) -> None:
    rows, columns = (torch.tensor(v, dtype=torch.int32) for v in ([3, 0, 5, 1], [2, 0, 8, 1, 4]))
    check(interpreter, k.nested_bounds, (4,), rows, columns, torch.randn(5, 8), torch.zeros(4), roundings=32)


def test_a_bound_that_changes_is_read_again() -> None:
    x, bounds = torch.randn(16, 32), torch.tensor([0, 2, 2, 2, 2], dtype=torch.int32)
    out, placed, segments = (t.to("spyre") for t in (torch.zeros(4, 32), x, bounds))
    for end in (2, 16, 1):
        segments.copy_(torch.tensor([0, end, end, end, end], dtype=torch.int32))
        k.sums_segments[(4,)](segments, placed, out, 16, BLOCK=32)
        torch.testing.assert_close(out.cpu()[0], x[:end].sum(0), rtol=1e-5, atol=1e-5)


def test_bounds_that_the_kernel_writes_are_refused() -> None:
    x, out = torch.zeros(4, dtype=torch.int32, device="spyre"), torch.zeros(8, dtype=torch.int32, device="spyre")
    with pytest.raises(UnsupportedOp, match="a loop bound that the kernel itself may write"):
        k.bound_is_written[(1,)](x, out)


@pytest.mark.parametrize("columns", [100, 64, 7])
def test_blocks_of_rows_from_memory(interpreter: Interpreter, columns: int) -> None:
    index, x = torch.randperm(9).int(), torch.randn(9, columns)
    found = check(interpreter, k.blocks_of_rows, (9, 2), index, x, torch.zeros(9, columns), columns, BLOCK=64)
    assert torch.equal(found[2], x)


def test_bounds_that_are_reduced_from_a_tile(interpreter: Interpreter) -> None:
    lengths = torch.tensor([3, 0, 7, 1, 2], dtype=torch.int32)
    starts = torch.tensor([0, 3, 3, 10, 11], dtype=torch.int32)
    arguments = starts, lengths, torch.randn(13), torch.zeros(5), 5
    check(interpreter, k.longest_of_a_block, (2,), *arguments, roundings=16, BLOCK=4)


@pytest.mark.parametrize("programs", [1, 5, 40])
def test_loops_that_end_at_the_start_of_memory(interpreter: Interpreter, programs: int) -> None:
    """The first program's loop is empty and would begin before the memory; so would its load in the branch."""
    x = torch.randn(programs * 32)
    check(interpreter, k.blocks_before, (programs,), x, torch.zeros_like(x), roundings=64, BLOCK=32)
