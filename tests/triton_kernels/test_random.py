# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_random.py
"""Kernels with random shapes, strides, masks, grids and types give what PyTorch gives, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import random_kernels as kernels
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import Interpreter

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int16)
INTERPRETED = (torch.float32, torch.int32)
powers = st.sampled_from([1, 2, 8, 16, 32])


def numbers(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-100, 100, (count,)).to(dtype)


@st.composite
def windows(draw: Any) -> dict[str, Any]:
    rows, columns = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    ends = {
        "row_low": draw(st.integers(0, rows)),
        "row_high": draw(st.integers(0, rows)),
        "column_low": draw(st.integers(0, columns)),
        "column_high": draw(st.integers(0, columns)),
    }
    pads = [draw(st.integers(0, 5)) for _ in range(2)]
    by_column = [draw(st.booleans()) for _ in range(2)]
    starts = [draw(st.integers(0, 9)) for _ in range(2)]
    blocks = draw(powers), draw(powers)
    return {
        "rows": rows,
        "columns": columns,
        "ends": ends,
        "strides": [(1, rows + p) if turned else (columns + p, 1) for turned, p in zip(by_column, pads, strict=True)],
        "starts": starts,
        "blocks": blocks,
        "other": draw(st.sampled_from([0, 3, -7])),
        "diagonal": draw(st.booleans()),
        "loop": draw(st.booleans()),
        "programs": draw(st.integers(1, 40)),
        "strided": draw(st.booleans()),
        "dtype": draw(st.sampled_from(DTYPES)),
    }


def run_window(case: dict[str, Any], interpreter: Interpreter) -> None:
    rows, columns, dtype, (bm, bn) = case["rows"], case["columns"], case["dtype"], case["blocks"]
    (x_row, x_column), (out_row, out_column) = case["strides"]
    spans = [
        s + (rows - 1) * a + (columns - 1) * b + 1 for s, (a, b) in zip(case["starts"], case["strides"], strict=True)
    ]
    x, out = numbers(spans[0], dtype), numbers(spans[1], dtype)
    ends = case["ends"]
    whole = -(-rows // bm)
    grid = (
        case["programs"] if case["strided"] else whole,
        1 if case["loop"] else -(-columns // bn),
    )
    arguments = (x, out, case["starts"][0], x_row, x_column, case["starts"][1], out_row, out_column)
    sizes = (*ends.values(), rows, columns)
    constants = {
        "OTHER": case["other"], "DIAGONAL": case["diagonal"], "STRIDED": case["strided"], "LOOP": case["loop"],
        "BM": bm, "BN": bn,
    }  # fmt: skip
    placed = [a.to("spyre") if isinstance(a, torch.Tensor) else a for a in arguments]
    kernels.window_2d[grid](*placed, *sizes, **constants)
    found = placed[1].cpu()

    view = x.as_strided((rows, columns), (x_row, x_column), case["starts"][0])
    r, c = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    read = (r >= ends["row_low"]) & (r < ends["row_high"]) & (c >= ends["column_low"]) & (c < ends["column_high"])
    if case["diagonal"]:
        read &= r >= c
    expected = out.clone()
    target = expected.as_strided((rows, columns), (out_row, out_column), case["starts"][1])
    target.copy_(torch.where(read, view, torch.tensor(case["other"], dtype=dtype)))
    assert torch.equal(found, expected)
    if dtype in INTERPRETED:
        assert torch.equal(found, interpreter(kernels.window_2d, grid, *arguments, *sizes, **constants)[1])


@settings(max_examples=25)
@given(case=windows())
def test_windows(case: dict[str, Any], interpreter: Interpreter) -> None:
    run_window(case, interpreter)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@settings(max_examples=1000)
@given(case=windows())
def test_many_windows(case: dict[str, Any], interpreter: Interpreter) -> None:
    run_window(case, interpreter)


def run_reduction(shape: tuple[int, int, int], axis: int, kind: str, dtype: torch.dtype) -> None:
    x = numbers(shape[0] * shape[1] * shape[2], dtype).reshape(shape)
    expected = {"sum": x.sum, "max": x.amax, "min": x.amin}[kind](axis).to(dtype)
    out = torch.zeros_like(expected, device="spyre")
    blocks = [1 << (size - 1).bit_length() for size in shape]
    sizes = dict(zip(("BA", "BB", "BC"), blocks, strict=True))
    kernels.reduce_3d[(1,)](x.to("spyre"), out, *shape, AXIS=axis, KIND=kind, **sizes)
    assert torch.equal(out.cpu(), expected)


sizes = st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))


@settings(max_examples=20)
@given(sizes, st.integers(0, 2), st.sampled_from(["sum", "max", "min"]), st.sampled_from([torch.float32, torch.int32]))
def test_reductions(shape: tuple[int, int, int], axis: int, kind: str, dtype: torch.dtype) -> None:
    run_reduction(shape, axis, kind, dtype)
