# SPDX-License-Identifier: Apache-2.0
# pytest tests/kernels/test_kernels_reduce.py
# Reductions: bits of the documented order (64 lanes, pairwise tree, fold) for any layout, on every ISA.
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_api import DTYPE, FP32, INT32, SEN169, Kernels, View, dense, from_fp32, on_every_isa, same_bits, to_fp32
from kernel_maps import random_view
from numpy.typing import NDArray

kernels = Kernels()
ISAS = kernels.isas()
JOIN = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": lambda a, b: np.where(np.isnan(a) | ~(a < b) & ~np.isnan(b), a, b),
    "min": lambda a, b: np.where(np.isnan(a) | ~(b < a) & ~np.isnan(b), a, b),
}


def ordered(op: str, x: NDArray) -> NDArray:
    """Reduces the last axis in the documented order, one scalar operation at a time."""
    join = JOIN[op]
    lanes = []
    for lane in range(min(64, x.shape[-1])):
        counter: list[NDArray | None] = []
        for value in np.moveaxis(x[..., lane::64], -1, 0):
            level = 0
            while level < len(counter) and counter[level] is not None:
                value = join(counter[level], value)
                counter[level] = None
                level += 1
            if level == len(counter):
                counter.append(None)
            counter[level] = value
        total = None
        for part in counter:
            if part is not None:
                total = part if total is None else join(part, total)
        lanes.append(total)
    half = 32
    while half:
        for lane in range(half):
            if lane + half < len(lanes):
                lanes[lane] = join(lanes[lane], lanes[lane + half])
        lanes = lanes[: max(half, 1)]
        half //= 2
    return lanes[0]


def check(rng: np.random.Generator, shape: tuple[int, ...], mask: int, op: str, fin: int, fout: int, acc: bool) -> None:
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 4, shape)
    if op == "prod":
        x = 1 + x / 256
    if rng.random() < 0.2:
        x[rng.random(shape) < 0.01] = rng.choice([np.nan, np.inf, -0.0, 0.0])
    view = random_view(rng, shape, fin, broadcast=False)
    view.write(from_fp32(x.astype(np.float32), fin))
    kept = [d for d in range(len(shape)) if not mask >> d & 1]
    reduced = [d for d in range(len(shape)) if mask >> d & 1]
    out_shape = tuple(1 if d in reduced else e for d, e in enumerate(shape))
    out = random_view(rng, out_shape, fout, broadcast=False)
    out.maps = [(0, 0, 0) if d in reduced else m for d, m in enumerate(out.maps)]
    initial = from_fp32(rng.standard_normal(out_shape).astype(np.float32), fout)
    values = to_fp32(view.read(shape), fin).transpose(kept + reduced).reshape([shape[d] for d in kept] + [-1])
    with np.errstate(all="ignore"):
        expected = ordered(op, values).reshape(out_shape)
        if acc:
            expected = JOIN[op](expected, to_fp32(initial, fout))
    expected = from_fp32(np.asarray(expected, dtype=np.float32), fout)
    for name in ISAS:
        kernels.set_isa(name)
        out.write(initial)
        kernels.reduce(op, shape, mask, out, view, accumulate=acc)
        assert same_bits(out.read(out_shape), expected), name
    kernels.set_isa(None)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_any_layout(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.sampled_from([1, 2, 3, 16, 17, 64, 70, 130])) for _ in range(rank))
    while np.prod(shape) > 20000:
        shape = shape[:-1] if len(shape) > 1 else (70,)
    mask = data.draw(st.integers(0, 2 ** len(shape) - 1))
    op = data.draw(st.sampled_from(list(JOIN)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    fin, fout = (data.draw(st.sampled_from([SEN169, FP32])) for _ in range(2))
    check(rng, shape, mask, op, fin, fout, data.draw(st.booleans()))


@pytest.mark.parametrize("n", [1, 5, 63, 64, 65, 128, 200, 1000, 4096, 4100])
@pytest.mark.parametrize("mask", [1, 2])
def test_rows_and_columns(n: int, mask: int) -> None:
    rng = np.random.default_rng(n)
    for fmt in (SEN169, FP32):
        x = dense(from_fp32(rng.standard_normal((n, 37) if mask == 1 else (37, n)).astype(np.float32), fmt), fmt)
        shape = (n, 37) if mask == 1 else (37, n)
        values = to_fp32(x.read(shape), fmt)
        expected = ordered("sum", values.T if mask == 1 else values)
        for name in ISAS:
            kernels.set_isa(name)
            out = dense(np.zeros(37), FP32)
            out.maps = [(0, 0, 0), (0, 4, 0)] if mask == 1 else [(0, 4, 0), (0, 0, 0)]
            kernels.reduce("sum", shape, mask, out, x)
            assert same_bits(np.frombuffer(out.buffer.tobytes(), np.float32), expected)
    kernels.set_isa(None)


@pytest.mark.parametrize("fmt", [SEN169, FP32])
@pytest.mark.parametrize("lanes", [32, 64, 96])
@pytest.mark.parametrize("n", [64, 96, 192, 512, 576, 960])
def test_rows_made_of_sticks(n: int, lanes: int, fmt: int) -> None:
    """Runs of half a row, of a row and of neither, at even distances."""
    rows, rng = 5, np.random.default_rng(n + lanes)
    size = np.dtype(DTYPE[fmt]).itemsize
    x = View(
        np.zeros(rows * (n + lanes) * size, np.uint8), fmt, [(0, lanes * size, 0), (lanes, size, rows * lanes * size)]
    )
    x.write(from_fp32(rng.standard_normal((rows, n)).astype(np.float32), fmt))
    values = to_fp32(x.read((rows, n)), fmt)
    for op in JOIN:
        expected = from_fp32(ordered(op, values), FP32)

        def run(op: str = op) -> NDArray:
            out = dense(np.zeros(rows), FP32)
            out.maps = [(0, 4, 0), (0, 0, 0)]
            kernels.reduce(op, (rows, n), 2, out, x)
            return np.frombuffer(out.buffer.tobytes(), np.float32)

        assert same_bits(on_every_isa(run), expected), op


def test_sum_is_close_to_float64() -> None:
    x = np.random.default_rng(3).random(1_000_000).astype(np.float32)
    out = dense(np.zeros(1), FP32)
    out.maps = [(0, 0, 0)]
    kernels.reduce("sum", (x.size,), 1, out, dense(x, FP32))
    assert abs(out.read((1,))[0] - x.astype(np.float64).sum()) <= 1e-6 * x.sum()


@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
def test_integers(op: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(-9, 9, (5, 300)).astype(np.int32)
    expected = getattr(np, op)(x, axis=1, dtype=np.int32) if op in ("sum", "prod") else getattr(np, op)(x, axis=1)
    for name in ISAS:
        kernels.set_isa(name)
        out = dense(np.zeros(5), INT32)
        out.maps = [(0, 4, 0), (0, 0, 0)]
        kernels.reduce(op, (5, 300), 2, out, dense(x, INT32), compute=1)
        assert np.array_equal(out.read((5, 1))[:, 0], expected)
    kernels.set_isa(None)
