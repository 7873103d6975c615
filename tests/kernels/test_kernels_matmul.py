# SPDX-License-Identifier: Apache-2.0
# pytest tests/kernels/test_kernels_matmul.py
# Matrix multiplication: bits of one fp32 FMA per k, in order, for any shape, layout and ISA.
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_api import FP8_143, FP8_152, FP32, INT8, INT32, SEN169, Kernels, View, dense, from_fp32, same_bits, to_fp32
from kernel_maps import random_view
from numpy.typing import NDArray

kernels = Kernels()
ISAS = kernels.isas()


def fma(a: NDArray, b: NDArray, c: NDArray) -> NDArray[np.float32]:
    """fp32 a*b+c rounded once. The product is exact in float64; the sum is rounded to odd there before it is rounded to
    fp32, which makes the double rounding harmless."""
    product = a.astype(np.float64) * b.astype(np.float64)
    c64 = c.astype(np.float64)
    total = product + c64
    shadow = total - product
    error = (product - (total - shadow)) + (c64 - shadow)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
    toward = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where(inexact, bits + toward, bits).view(np.float64)
    return np.where(error == 0, total, odd).astype(np.float32)


def model(a: NDArray, b: NDArray, start: NDArray | None) -> NDArray[np.float32]:
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32) if start is None else start.astype(np.float32)
    with np.errstate(all="ignore"):
        for k in range(a.shape[-1]):
            total = fma(a[..., :, k, None], b[..., k, None, :], total)
    return total


def values(rng: np.random.Generator, shape: tuple[int, ...], special: bool) -> NDArray[np.float32]:
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)
    x[rng.random(shape) < 0.05] = 0.0
    if special:
        x[rng.random(shape) < 0.02] = rng.choice([np.nan, np.inf, 6e-10, 8e9, -9e-10])
    return x.astype(np.float32)


def with_dim(view: View, position: int) -> list[tuple[int, int, int]]:
    """Maps with a zero map inserted for the dim the operand lacks."""
    maps = list(view.maps)
    maps.insert(position, (0, 0, 0))
    return maps


def operands(
    rng: np.random.Generator,
    batch: tuple[int, ...],
    mnk: tuple[int, int, int],
    formats: tuple[int, int, int],
    special: bool,
) -> tuple[View, View, View, NDArray, NDArray]:
    m, n, k = mnk
    fa, fb, fc = formats
    a, b = random_view(rng, (*batch, m, k), fa, False), random_view(rng, (*batch, k, n), fb, False)
    c = random_view(rng, (*batch, m, n), fc, False)
    a.write(from_fp32(values(rng, (*batch, m, k), special), fa))
    b.write(from_fp32(values(rng, (*batch, k, n), special), fb))
    av, bv = to_fp32(a.read((*batch, m, k)), fa), to_fp32(b.read((*batch, k, n)), fb)
    r = len(batch)
    a.maps = with_dim(a, r + 1)
    kmap, nmap = b.maps[r], b.maps[r + 1]
    b.maps = [*b.maps[:r], (0, 0, 0), nmap, kmap]
    c.maps = [*c.maps, (0, 0, 0)]
    return a, b, c, av, bv


def check(
    rng: np.random.Generator,
    batch: tuple[int, ...],
    mnk: tuple[int, int, int],
    formats: tuple[int, int, int],
    accumulate: bool,
    special: bool = False,
) -> None:
    m, n, k = mnk
    a, b, c, av, bv = operands(rng, batch, mnk, formats, special)
    shape, out_shape = (*batch, m, n, k), (*batch, m, n, 1)
    start = from_fp32(rng.standard_normal(out_shape).astype(np.float32), formats[2])
    expected = from_fp32(model(av, bv, start[..., 0] if accumulate else None), formats[2])
    for name in ISAS:
        kernels.set_isa(name)
        c.write(start)
        kernels.matmul(shape, c, a, b, accumulate)
        assert same_bits(c.read(out_shape)[..., 0], expected), (name, shape)
    kernels.set_isa(None)


@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_any_layout(data: st.DataObject) -> None:
    batch = tuple(data.draw(st.integers(1, 3)) for _ in range(data.draw(st.integers(0, 2))))
    m = data.draw(st.sampled_from([1, 2, 3, 5, 7, 8, 13, 14, 15, 33]))
    n = data.draw(st.sampled_from([1, 5, 16, 31, 64, 70, 128, 200]))
    k = data.draw(st.sampled_from([1, 2, 17, 64, 100, 300]))
    formats = tuple(data.draw(st.sampled_from([SEN169, FP32])) for _ in range(3))
    accumulate = data.draw(st.booleans()) and formats[2] == FP32
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    check(rng, batch, (m, n, k), formats, accumulate, special=data.draw(st.booleans()))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("shared", [(0,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("m", [1, 5, 17])
def test_batches_that_share_the_second_operand(m: int, shared: tuple[int, ...], accumulate: bool) -> None:
    """They count as rows of one product; with sums that start from C they may not."""
    rng = np.random.default_rng(m)
    batch, n, k = (2, 3, 4), 70, 100
    of_b = tuple(1 if d in shared else e for d, e in enumerate(batch))
    a, _, c, av, _ = operands(rng, batch, (m, n, k), (SEN169, SEN169, FP32), False)
    _, b, _, _, bv = operands(rng, of_b, (1, n, k), (SEN169, SEN169, FP32), False)
    b.maps = [(0, 0, 0) if d in shared else x for d, x in enumerate(b.maps)]
    start = rng.standard_normal((*batch, m, n, 1)).astype(np.float32)
    whole = np.broadcast_to(bv, (*batch, k, n))
    expected = model(av, whole, start[..., 0] if accumulate else None)
    for name in ISAS:
        kernels.set_isa(name)
        c.write(start)
        kernels.matmul((*batch, m, n, k), c, a, b, accumulate)
        assert same_bits(c.read((*batch, m, n, 1))[..., 0], expected), name
    kernels.set_isa(None)


def stick(rows: int, columns: int, values: NDArray) -> View:
    """[columns/64][rows][64], the layout of a weight."""
    view = View(np.zeros(rows * columns * 2, np.uint8), SEN169, [(0, 128, 0), (64, 2, rows * 128)])
    view.write(values)
    return view


@pytest.mark.parametrize("m", [1, 2, 4, 6, 8, 12, 13, 40])
def test_stick_layout(m: int) -> None:
    rng = np.random.default_rng(m)
    n, k = 320, 640
    a = from_fp32(values(rng, (m, k), False), SEN169)
    b = from_fp32(values(rng, (k, n), m == 4), SEN169)
    expected = from_fp32(model(to_fp32(a, SEN169), to_fp32(b, SEN169), None), SEN169)
    va, vb, vc = stick(m, k, a), stick(k, n, b), stick(m, n, np.zeros((m, n), np.uint16))
    va.maps = [va.maps[0], (0, 0, 0), va.maps[1]]
    vb.maps = [(0, 0, 0), vb.maps[1], vb.maps[0]]
    vc.maps = [*vc.maps, (0, 0, 0)]
    for name in ISAS:
        kernels.set_isa(name)
        vc.buffer[:] = 0
        kernels.matmul((m, n, k), vc, va, vb)
        assert same_bits(vc.read((m, n, 1))[..., 0], expected), name
    kernels.set_isa(None)


@pytest.mark.parametrize("m", [3, 20])
def test_second_operand_with_sticks_along_k(m: int) -> None:
    rng = np.random.default_rng(m)
    n, k = 70, 320
    a = from_fp32(values(rng, (m, k), False), SEN169)
    b = from_fp32(values(rng, (n, k), False), SEN169)
    expected = from_fp32(model(to_fp32(a, SEN169), to_fp32(b, SEN169).T, None), FP32)
    va, vb, vc = stick(m, k, a), stick(n, k, b), dense(np.zeros((m, n)), FP32)
    va.maps = [va.maps[0], (0, 0, 0), va.maps[1]]
    vb.maps = [(0, 0, 0), vb.maps[0], vb.maps[1]]
    vc.maps = [*vc.maps, (0, 0, 0)]
    for name in ISAS:
        kernels.set_isa(name)
        kernels.matmul((m, n, k), vc, va, vb)
        assert same_bits(vc.read((m, n, 1))[..., 0], expected), name
    kernels.set_isa(None)


def test_depth_beyond_one_block_and_splits_of_n_give_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    m, n, k = 20, 100, 700
    a = dense(from_fp32(values(rng, (m, k), False), SEN169), SEN169)
    b = dense(from_fp32(values(rng, (k, n), False), SEN169), SEN169)
    am, bm = [a.maps[0], (0, 0, 0), a.maps[1]], [(0, 0, 0), b.maps[1], b.maps[0]]
    a.maps, b.maps = am, bm
    whole = dense(np.zeros((m, n)), FP32)
    whole.maps = [*whole.maps, (0, 0, 0)]
    kernels.matmul((m, n, k), whole, a, b)
    parts = dense(np.zeros((m, n)), FP32)
    for i in range(m):
        for j in range(0, n, 30):
            piece = View(parts.buffer, FP32, whole.maps, i * n * 4 + j * 4)
            kernels.matmul(
                (1, min(30, n - j), k), piece, View(a.buffer, SEN169, am, i * k * 2), View(b.buffer, SEN169, bm, j * 2)
            )
    assert same_bits(parts.buffer, whole.buffer)


def test_int8_and_fp8() -> None:
    rng = np.random.default_rng(5)
    m, n, k = 3, 70, 130
    a, b = rng.integers(-128, 128, (m, k)), rng.integers(-128, 128, (k, n))
    for name in ISAS:
        kernels.set_isa(name)
        va, vb, vc = dense(a, INT8), dense(b, INT8), dense(np.zeros((m, n)), INT32)
        va.maps, vb.maps, vc.maps = (
            [va.maps[0], (0, 0, 0), va.maps[1]],
            [(0, 0, 0), vb.maps[1], vb.maps[0]],
            [*vc.maps, (0, 0, 0)],
        )
        kernels.matmul((m, n, k), vc, va, vb)
        assert np.array_equal(vc.read((m, n, 1))[..., 0], a @ b)
        codes_a, codes_b = (rng.integers(0, 0x70, s).astype(np.uint8) for s in ((m, k), (k, n)))
        decode = np.vectorize(lambda c: kernels.lib.spyre_decode(int(c), FP8_143))
        fa, fb, fc = dense(codes_a, FP8_143), dense(codes_b, FP8_143), dense(np.zeros((m, n)), FP32)
        fa.maps, fb.maps, fc.maps = (
            [fa.maps[0], (0, 0, 0), fa.maps[1]],
            [(0, 0, 0), fb.maps[1], fb.maps[0]],
            [*fc.maps, (0, 0, 0)],
        )
        kernels.matmul((m, n, k), fc, fa, fb)
        expected = model(decode(codes_a).astype(np.float32), decode(codes_b).astype(np.float32), None)
        assert same_bits(fc.read((m, n, 1))[..., 0], expected)
    kernels.set_isa(None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 300, 1024), (3, 17, 1025), (70, 33, 2100), (130, 257, 300)])
def test_int8_sums_are_exact_and_wrap(isa: str, m: int, n: int, k: int) -> None:
    """All products at their largest, which is where fp32 blocks would first lose a bit; the totals wrap as int32 do."""
    rng = np.random.default_rng(m)
    a, b = rng.choice([-128, 127, 3], (m, k)), rng.choice([-128, -127, 1], (k, n))
    a[0], b[:, 0] = -128, -128
    start = rng.integers(-(2**31), 2**31, (m, n))
    kernels.set_isa(isa)
    for accumulate in (False, True):
        for transposed in (False, True):  # b contiguous along n, or along k
            va, vc = dense(a, INT8), dense(start, INT32)
            vb = dense(b.T if transposed else b, INT8)
            va.maps, vc.maps = [va.maps[0], (0, 0, 0), va.maps[1]], [*vc.maps, (0, 0, 0)]
            vb.maps = [(0, 0, 0), *(vb.maps if transposed else vb.maps[::-1])]
            kernels.matmul((m, n, k), vc, va, vb, accumulate)
            total = a.astype(np.int64) @ b.astype(np.int64) + (start if accumulate else 0)
            expected = (total & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
            view = View(vc.buffer, INT32, vc.maps[:2])
            np.testing.assert_array_equal(view.read((m, n)), expected)
    kernels.set_isa(None)


@pytest.mark.parametrize("fmt", [FP8_143, FP8_152])
@pytest.mark.parametrize("isa", ISAS)
def test_fp8_panels(isa: str, fmt: int) -> None:
    """Every code of the format, in dense and in strided panels, few rows and many."""
    table = np.array([kernels.lib.spyre_decode(code, fmt) for code in range(256)], np.float32)
    rng = np.random.default_rng(fmt)
    kernels.set_isa(isa)
    for m, n, k in ((1, 70, 130), (1, 300, 300), (5, 64, 64), (80, 300, 70)):
        finite = np.flatnonzero(np.isfinite(table))
        a, b = rng.choice(finite, (m, k)), rng.choice(finite, (k, n))
        b[rng.random((k, n)) < 0.001] = rng.choice(np.flatnonzero(np.isnan(table)))
        for transposed in (False, True):
            va, vb, vc = dense(a, fmt), dense(b.T if transposed else b, fmt), dense(np.zeros((m, n)), FP32)
            va.maps, vc.maps = [va.maps[0], (0, 0, 0), va.maps[1]], [*vc.maps, (0, 0, 0)]
            vb.maps = [(0, 0, 0), *(vb.maps if transposed else vb.maps[::-1])]
            kernels.matmul((m, n, k), vc, va, vb)
            got = View(vc.buffer, FP32, vc.maps[:2]).read((m, n))
            assert same_bits(got, from_fp32(model(table[a], table[b], None), FP32))
    kernels.set_isa(None)


@pytest.mark.parametrize("isa", ISAS)
def test_a_float_with_bytes(isa: str) -> None:
    """The bytes are decoded as the product reads them; sums are those of floats."""
    rng = np.random.default_rng(5)
    kernels.set_isa(isa)
    for m, n, k in ((1, 70, 130), (1, 300, 300), (4, 128, 64), (33, 200, 70)):
        a, b = dense(from_fp32(values(rng, (m, k), False), SEN169), SEN169), rng.integers(-128, 128, (k, n), np.int8)
        left, vb, vc = to_fp32(a.read((m, k)), SEN169), dense(b, INT8), dense(np.zeros((m, n)), FP32)
        a.maps, vc.maps = [a.maps[0], (0, 0, 0), a.maps[1]], [*vc.maps, (0, 0, 0)]
        vb.maps = [(0, 0, 0), *vb.maps[::-1]]
        kernels.matmul((m, n, k), vc, a, vb)
        got = View(vc.buffer, FP32, vc.maps[:2]).read((m, n))
        assert same_bits(got, from_fp32(model(left, b.astype(np.float32), None), FP32))
    kernels.set_isa(None)
