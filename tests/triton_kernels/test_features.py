# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_features.py
"""Each feature of the language gives what Triton's interpreter gives, and what PyTorch gives in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import feature_kernels as kernels
import pytest
import torch
from interpreted import Interpreter
from oracle import assert_close_dl16, round_dl16


def launch(kernel: Any, grid: Sequence[int], *arguments: Any, **constants: Any) -> list[Any]:
    """The arguments on the host, after a launch on the card."""
    placed = [a.to("spyre") if isinstance(a, torch.Tensor) else a for a in arguments]
    kernel[tuple(grid)](*placed, **constants)
    return [a.cpu() if isinstance(a, torch.Tensor) else a for a in placed]


def check(
    interpreter: Interpreter,
    kernel: Any,
    grid: Sequence[int],
    *arguments: Any,
    roundings: float = 0,
    **constants: Any,
) -> list[Any]:
    """Launches on the card and in the interpreter; each float32 may differ by some roundings of the largest value."""
    found = launch(kernel, grid, *arguments, **constants)
    expected = interpreter(kernel, grid, *arguments, **constants)
    for mine, theirs in zip(found, expected, strict=True):
        if isinstance(mine, torch.Tensor):
            _compare(mine, theirs, roundings)
    return found


def _compare(mine: torch.Tensor, theirs: torch.Tensor, roundings: float) -> None:
    assert mine.dtype == theirs.dtype
    if mine.dtype in (torch.float16, torch.bfloat16):
        assert_close_dl16(mine, theirs.double(), extra=(roundings + 1) * 2.0**-9 * theirs.double().abs().numpy())
    elif mine.dtype.is_floating_point:
        room = roundings * 2.0**-23 * theirs.double().abs().nan_to_num().max().item()
        torch.testing.assert_close(mine, theirs, rtol=0, atol=room, equal_nan=True)
    else:
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("n, block, programs", [(1, 64, 1), (1000, 128, 8), (5000, 64, 79), (4096, 1024, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_vector_add(interpreter: Interpreter, n: int, block: int, programs: int, dtype: torch.dtype) -> None:
    x, y = (torch.randint(-50, 50, (n,)).to(dtype) for _ in range(2))
    launched = (kernels.add, (programs,), x, y, torch.zeros(n, dtype=dtype), n)
    # The interpreter adds the bits of bfloat16.
    found = launch(*launched, BLOCK=block) if dtype is torch.bfloat16 else check(interpreter, *launched, BLOCK=block)
    assert torch.equal(found[2], x + y)


def test_16_bit_sums_are_rounded_to_the_cards_format() -> None:
    x, y = torch.randn(2, 5000).half()
    found = launch(kernels.add, (5,), x, y, torch.zeros(5000).half(), 5000, BLOCK=1024)[2]
    stored = round_dl16(round_dl16(x.numpy()) + round_dl16(y.numpy()))
    assert torch.equal(found.double(), torch.from_numpy(stored).half().double())


@pytest.mark.parametrize("other", [0.0, -3.5, float("-inf")])
def test_other(interpreter: Interpreter, other: float) -> None:
    x = torch.randn(300)
    check(interpreter, kernels.copy_with_other, (5,), x, torch.zeros(320), 300, 320, OTHER=other, BLOCK=64)


@pytest.mark.parametrize("rows, columns", [(70, 90), (64, 64), (1, 130), (33, 1)])
def test_strides(interpreter: Interpreter, rows: int, columns: int) -> None:
    x = torch.randn(columns, rows)
    sizes = (rows, columns, 1, rows, columns, 1)
    grid = (-(-rows // 32), -(-columns // 32))
    found = check(interpreter, kernels.strided, grid, x, torch.zeros(rows, columns), *sizes, BM=32, BN=32)
    assert torch.equal(found[1], x.t() * 2)


@pytest.mark.parametrize("grid", [(1,), (7,), (40,), (3, 5), (40, 3), (2, 3, 4), (5, 1, 9), (1, 1, 33)])
def test_grids(interpreter: Interpreter, grid: tuple[int, ...]) -> None:
    count = torch.Size(grid).numel()
    check(interpreter, kernels.grid_ids, grid, torch.zeros(count * 16, dtype=torch.int32), BLOCK=16)


def test_empty_grid_does_nothing() -> None:
    assert not launch(kernels.grid_ids, (0,), torch.zeros(16, dtype=torch.int32), BLOCK=16)[0].any()


@pytest.mark.parametrize("low, high", [(0, 200), (13, 150), (70, 71), (100, 50), (64, 128)])
def test_window(interpreter: Interpreter, low: int, high: int) -> None:
    check(interpreter, kernels.window, (4,), torch.randn(200), torch.zeros(200), 200, low, high, BLOCK=64)


@pytest.mark.parametrize("shift", [0, 1, 5, 100])
def test_shifted_window(interpreter: Interpreter, shift: int) -> None:
    check(interpreter, kernels.shifted_window, (4,), torch.randn(200), torch.zeros(200), 200, shift, BLOCK=64)


@pytest.mark.parametrize("n", [16, 11, 1])
def test_masks_of_two_dims(interpreter: Interpreter, n: int) -> None:
    check(interpreter, kernels.triangle, (1,), torch.randn(n, n), torch.zeros(n, n), n, BLOCK=16)


def test_scalar_condition(interpreter: Interpreter) -> None:
    check(interpreter, kernels.scalar_condition, (5,), torch.randn(300), torch.zeros(300), 300, 3, BLOCK=64)


@pytest.mark.parametrize("n", [64, 100, 1, 640])
def test_carried_pointers(interpreter: Interpreter, n: int) -> None:
    x = torch.randn(9, n)
    found = check(interpreter, kernels.carried_pointers, (9,), x, torch.zeros(9), n, n, BLOCK=64, roundings=8)
    torch.testing.assert_close(found[1].double(), x.double().sum(1), rtol=0, atol=n * 2.0**-23 * 4)


def test_pointer_after_its_loop(interpreter: Interpreter) -> None:
    check(interpreter, kernels.descending, (1,), torch.randn(256), torch.zeros(64), 256, BLOCK=64, roundings=4)


def test_elementwise(interpreter: Interpreter) -> None:
    x, y = torch.randn(2, 500)
    check(interpreter, kernels.elementwise, (4,), x, y, torch.zeros(500), 500, BLOCK=128, roundings=16)


def test_integers(interpreter: Interpreter) -> None:
    x, y = torch.randint(0, 1000, (2, 500), dtype=torch.int32)
    check(interpreter, kernels.integers, (4,), x, y, torch.zeros(500, dtype=torch.int32), 500, BLOCK=128)


def test_casts(interpreter: Interpreter) -> None:
    x = torch.randint(-500, 500, (300,)) / 4
    outputs = torch.zeros(300).half(), torch.zeros(300, dtype=torch.int32), torch.zeros(300, dtype=torch.bool)
    check(interpreter, kernels.casts, (3,), x, *outputs, 300, BLOCK=128)


def test_truth_values(interpreter: Interpreter) -> None:
    x, y = torch.randn(2, 300)
    check(interpreter, kernels.choose, (3,), torch.rand(300) > 0.5, x, y, torch.zeros(300), 300, BLOCK=128)


@pytest.mark.parametrize("rows, columns", [(16, 64), (37, 50), (100, 7)])
def test_reductions_of_rows(interpreter: Interpreter, rows: int, columns: int) -> None:
    x = torch.randn(rows, columns)
    outputs = [torch.zeros(rows) for _ in range(3)]
    grid, blocks = (-(-rows // 16),), {"BM": 16, "BN": 64}
    found = check(interpreter, kernels.reduce_rows, grid, x, *outputs, rows, columns, roundings=8, **blocks)
    assert torch.equal(found[2], x.amax(1)) and torch.equal(found[3], x.amin(1))


def test_reductions_of_columns(interpreter: Interpreter) -> None:
    x = torch.randn(75, 100)
    check(interpreter, kernels.reduce_columns, (4,), x, torch.zeros(100), 75, 100, BM=16, BN=32, roundings=8)


def test_places_of_extremes(interpreter: Interpreter) -> None:
    x = torch.randint(-5, 5, (9, 50)).float()
    outputs = torch.zeros(9, dtype=torch.int32), torch.zeros(9, dtype=torch.int32)
    check(interpreter, kernels.arguments, (9,), x, *outputs, 50, BLOCK=64)


@pytest.mark.parametrize("M, N, K", [(64, 64, 64), (100, 70, 50), (17, 130, 33)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_products(interpreter: Interpreter, M: int, N: int, K: int, dtype: torch.dtype) -> None:
    a, b = (torch.randint(-8, 9, shape).to(dtype) for shape in ((M, K), (K, N)))
    grid = (-(-M // 32), -(-N // 32))
    out = torch.zeros(M, N)
    found = check(interpreter, kernels.product, grid, a, b, out, M, N, K, BM=32, BN=32, BK=16)
    assert torch.equal(found[2], a.float() @ b.float())


def test_batched_products(interpreter: Interpreter) -> None:
    a, b = torch.randint(-8, 9, (2, 4, 16, 16)).half()
    found = check(interpreter, kernels.batched_product, (1,), a, b, torch.zeros(4, 16, 16), BM=16, BN=16, BK=16, B=4)
    assert torch.equal(found[2], a.float() @ b.float())


def test_transpose(interpreter: Interpreter) -> None:
    x = torch.randn(50, 70)
    found = check(interpreter, kernels.transposed, (2, 3), x, torch.zeros(70, 50), 50, 70, BM=32, BN=32)
    assert torch.equal(found[1], x.t())


def test_reshape(interpreter: Interpreter) -> None:
    check(interpreter, kernels.reshaped, (1,), torch.randn(128), torch.zeros(16), BLOCK=128, roundings=4)


def test_early_return(interpreter: Interpreter) -> None:
    found = check(interpreter, kernels.early_return, (10,), torch.randn(640), torch.zeros(640), 7, BLOCK=64)
    assert not found[1][448:].any()


def test_branches(interpreter: Interpreter) -> None:
    check(interpreter, kernels.branches, (5,), torch.randn(300), torch.zeros(300), 300, BLOCK=64)


@pytest.mark.parametrize("rows, columns", [(64, 64), (50, 100)])
def test_descriptors(interpreter: Interpreter, rows: int, columns: int) -> None:
    x = torch.randn(rows, columns)
    grid = (-(-rows // 32), -(-columns // 32))
    found = check(interpreter, kernels.descriptors, grid, x, torch.zeros(rows, columns), rows, columns, BM=32, BN=32)
    assert torch.equal(found[1], x * 3)


def test_atomic_additions(interpreter: Interpreter) -> None:
    x = torch.randint(-9, 9, (2000,)).float()
    check(interpreter, kernels.atomic_sums, (40,), x, torch.zeros(3), 2000, 3, BLOCK=64)


def test_in_place(interpreter: Interpreter) -> None:
    check(interpreter, kernels.in_place, (4,), torch.randn(200), torch.zeros(200), 200, BLOCK=64)


@pytest.mark.parametrize("seed", [0, 123, 2**31 - 1, 2**40 + 17])
def test_random_numbers(interpreter: Interpreter, seed: int) -> None:
    found = check(interpreter, kernels.random_numbers, (4,), torch.zeros(1000), seed, 1000, BLOCK=256)
    assert 0.4 < found[0].mean() < 0.6


def test_scalars_wrap_around(interpreter: Interpreter) -> None:
    check(interpreter, kernels.wrapped_words, (40,), torch.zeros(640, dtype=torch.int32), BLOCK=16)


@pytest.mark.parametrize("seed", [77, 2**31 - 5])
def test_random_numbers_by_program(interpreter: Interpreter, seed: int) -> None:
    check(interpreter, kernels.random_by_program, (40,), torch.zeros(640), seed, BLOCK=16)


def test_lengths_from_memory(interpreter: Interpreter) -> None:
    lengths = torch.randint(0, 17, (40,), dtype=torch.int32)
    x, out = torch.randn(640), torch.randn(640)
    check(interpreter, kernels.lengths_from_memory, (40,), lengths, x, out, BLOCK=16)


def test_masks_from_memory(interpreter: Interpreter) -> None:
    x, out = torch.randn(600), torch.randn(600)
    check(interpreter, kernels.masks_from_memory, (38,), torch.rand(600) > 0.5, x, out, 600, BLOCK=16)


def test_nested_loops(interpreter: Interpreter) -> None:
    x = torch.randint(-9, 9, (3, 4, 50)).float()
    check(interpreter, kernels.nested_loops, (3,), x, torch.zeros(3 * 16), 4, 50, BLOCK=16)


@pytest.mark.parametrize("shape", [(2, 5, 10), (1, 8, 8), (3, 1, 7)])
def test_flat_index(interpreter: Interpreter, shape: tuple[int, int, int]) -> None:
    n, h, w = shape
    x = torch.randn(n, w, h)
    count = n * h * w
    found = check(interpreter, kernels.flat_index, (-(-count // 16),), x, torch.zeros(shape), n, h, w, BLOCK=16)
    assert torch.equal(found[1], x.transpose(1, 2))


def test_wide_offsets(interpreter: Interpreter) -> None:
    check(interpreter, kernels.wide_offsets, (4,), torch.randn(50), torch.zeros(50), 50, BLOCK=16)


def test_reads_what_it_wrote(interpreter: Interpreter) -> None:
    check(interpreter, kernels.reads_what_it_wrote, (1,), torch.randn(16), torch.zeros(16), BLOCK=16)


NARROW = (torch.float8_e4m3fn, torch.int8, torch.int16, torch.int64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", NARROW)
def test_types_in_memory(dtype: torch.dtype) -> None:
    x = torch.randint(-10, 10, (200,)).float()
    assert torch.equal(launch(kernels.converted, (4,), x.to(dtype), torch.zeros(200), 200, BLOCK=64)[1], x)
    assert torch.equal(launch(kernels.converted, (4,), x, x.new_zeros(200).to(dtype), 200, BLOCK=64)[1].float(), x)
