# SPDX-License-Identifier: Apache-2.0
# pytest tests/kernels/test_kernels_matmul_many.py
# Products of many rows: zeros that are left out, chunks of k and n, blocks of rows: always the bits of the plain sum.
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_api import FP32, SEN169, View, dense, from_fp32, kernels, same_bits, to_fp32
from numpy.typing import NDArray
from test_kernels_matmul import ISAS, model, stick, values

RUN = 64  # values of k that are left out together


def product(
    a: NDArray, b: NDArray, formats: tuple[int, int, int], start: NDArray | None = None, in_sticks: bool = True
) -> list[NDArray]:
    """C on every ISA, of codes (or fp32 values) a and b."""
    (m, k), n = a.shape, b.shape[1]
    fa, fb, fc = formats
    va = stick(m, k, a) if in_sticks and fa == SEN169 and k % 64 == 0 else dense(a, fa)
    vb = stick(k, n, b) if in_sticks and fb == SEN169 and n % 64 == 0 else dense(b, fb)
    va.maps, vb.maps = [va.maps[0], (0, 0, 0), va.maps[1]], [(0, 0, 0), vb.maps[1], vb.maps[0]]
    results = []
    for name in ISAS:
        kernels.set_isa(name)
        vc = dense(np.zeros((m, n)) if start is None else start, fc)
        shape_maps = list(vc.maps)
        vc.maps = [*shape_maps, (0, 0, 0)]
        kernels.matmul((m, n, k), vc, va, vb, start is not None)
        results.append(View(vc.buffer, fc, shape_maps).read((m, n)))
    kernels.set_isa(None)
    return results


def with_zero_blocks(rng: np.random.Generator, a: NDArray, share: float, negative: bool) -> NDArray:
    """Some blocks of rows and RUN values of k become zeros."""
    a = a.copy()
    for k in range(0, a.shape[1], RUN):
        for m in range(0, a.shape[0], 16):
            if rng.random() < share:
                zeros = a[m : m + 16, k : k + RUN]
                zeros[:] = -0.0 if negative and rng.random() < 0.5 else 0.0
    return a


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_zero_blocks_next_to_any_second_operand(data: st.DataObject) -> None:
    """0 * NaN is NaN, -0 adds nothing, and nothing else may change either."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    m, n = data.draw(st.sampled_from([13, 14, 29, 48, 70])), data.draw(st.sampled_from([16, 33, 64, 128]))
    k = data.draw(st.sampled_from([64, 128, 200, 384, 832]))
    fc = data.draw(st.sampled_from([SEN169, FP32]))
    a = with_zero_blocks(rng, values(rng, (m, k), False), data.draw(st.sampled_from([0.3, 0.8, 1.0])), True)
    b = values(rng, (k, n), False)
    for _ in range(data.draw(st.integers(0, 3))):
        b[rng.integers(k), rng.integers(n)] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
    codes_a, codes_b = from_fp32(a, SEN169), from_fp32(b, SEN169)
    expected = from_fp32(model(to_fp32(codes_a, SEN169), to_fp32(codes_b, SEN169), None), fc)
    for result in product(codes_a, codes_b, (SEN169, SEN169, fc), in_sticks=data.draw(st.booleans())):
        assert same_bits(result, expected)


@pytest.mark.parametrize("first", [SEN169, FP32])
def test_zero_blocks_after_an_underflow(first: int) -> None:
    """-2^-170 is -0 in fp32, and +0 added to it is +0: products with zeros that were left out would show."""
    m, n, k = 20, 32, 3 * RUN
    a, b = np.zeros((m, k), np.float32), np.full((k, n), 2.0**-140, np.float32)
    a[:, RUN - 1] = -(2.0**-30)
    assert np.signbit(model(a[:, :RUN], b[:RUN], None)).all()
    expected = model(a, b, None)
    assert not np.signbit(expected).any()
    for result in product(from_fp32(a, first), b, (first, FP32, FP32)):
        assert same_bits(result, expected)


@pytest.mark.parametrize("formats", [(SEN169, FP32), (FP32, SEN169)])
def test_zero_blocks_of_mixed_formats(formats: tuple[int, int]) -> None:
    """Denormal and infinite fp32 values beside zeros in codes."""
    rng = np.random.default_rng(3)
    a, b = with_zero_blocks(rng, values(rng, (30, 256), False), 0.5, True), values(rng, (256, 64), False)
    b[70, 3], b[:, 5] = np.inf, -1e-42
    x, y = from_fp32(a, formats[0]), from_fp32(b, formats[1])
    expected = from_fp32(model(to_fp32(x, formats[0]), to_fp32(y, formats[1]), None), FP32)
    for result in product(x, y, (*formats, FP32)):
        assert same_bits(result, expected)


def test_zero_blocks_of_sums_that_start_from_minus_zero() -> None:
    rng = np.random.default_rng(4)
    a = from_fp32(with_zero_blocks(rng, values(rng, (20, 128), False), 1.0, False), SEN169)
    b = from_fp32(values(rng, (128, 64), False), SEN169)
    start = np.full((20, 64), -0.0, np.float32)
    expected = model(to_fp32(a, SEN169), to_fp32(b, SEN169), start)
    assert not np.signbit(expected).all()
    for result in product(a, b, (SEN169, SEN169, FP32), start):
        assert same_bits(result, expected)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(14, 300, 769), (27, 64, 1536), (64, 40, 2100), (1100, 33, 5), (1040, 16, 800)]
)
def test_many_chunks_and_blocks_of_rows(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = from_fp32(values(rng, (m, k), True), SEN169), from_fp32(values(rng, (k, n), False), SEN169)
    expected = from_fp32(model(to_fp32(a, SEN169), to_fp32(b, SEN169), None), SEN169)
    for result in product(a, b, (SEN169, SEN169, SEN169)):
        assert same_bits(result, expected)


def test_causal_attention_of_several_heads() -> None:
    """Rows of heads that share V count as rows of one product; each has its own masked half."""
    rng = np.random.default_rng(6)
    heads, rows, k, n = 3, 32, 192, 64
    p = values(rng, (2, heads, rows, k), False)
    position = np.arange(2)[:, None, None, None] * rows + np.arange(rows)[:, None]
    codes = from_fp32(np.where(np.arange(k) <= position, p, 0.0), SEN169)
    v = from_fp32(values(rng, (k, n), False), SEN169)
    va, vb, vc = dense(codes, SEN169), dense(v, SEN169), dense(np.zeros((2, heads, rows, n)), SEN169)
    va.maps = [*va.maps[:3], (0, 0, 0), va.maps[3]]
    vb.maps = [(0, 0, 0)] * 3 + [vb.maps[1], vb.maps[0]]
    out_maps = list(vc.maps)
    vc.maps = [*out_maps, (0, 0, 0)]
    expected = from_fp32(model(to_fp32(codes, SEN169), to_fp32(v, SEN169), None), SEN169)
    for name in ISAS:
        kernels.set_isa(name)
        vc.buffer[:] = 0xFF
        kernels.matmul((2, heads, rows, n, k), vc, va, vb)
        assert same_bits(View(vc.buffer, SEN169, out_maps).read((2, heads, rows, n)), expected), name
    kernels.set_isa(None)
