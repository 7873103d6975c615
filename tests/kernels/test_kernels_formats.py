# SPDX-License-Identifier: Apache-2.0
# pytest tests/kernels/test_kernels_formats.py
# Number formats: every code of SEN169_FP16 and fp8, golden values, host rules of copy(), integers and bool.
from __future__ import annotations

import csv
import struct
from pathlib import Path

import numpy as np
import pytest
from kernel_api import (
    BF16,
    BOOL,
    FP8_143,
    FP8_152,
    FP16,
    FP32,
    INT8,
    INT16,
    INT32,
    INT64,
    SEN169,
    SEN169_VALUE,
    UINT32,
    Kernels,
    dense,
    from_fp32,
    same_bits,
    sen169_encode,
)
from numpy.typing import NDArray

kernels = Kernels()
DATA = Path(__file__).parent / "data"
ALL_CODES = np.arange(65536, dtype=np.uint16)
MAX_VALUE = 8573157376.0


@pytest.fixture(params=kernels.isas(), autouse=True)
def isa(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    kernels.set_isa(request.param)
    yield request.param
    kernels.set_isa(None)


def copied(values: NDArray, source: int, target: int) -> NDArray:
    out = dense(np.zeros(values.shape), target)
    assert kernels.copy(values.shape, out, dense(values, source))
    return out.read(values.shape)


def converted(values: NDArray, source: int, target: int) -> NDArray:
    out = dense(np.zeros(values.shape), target)
    kernels.vector_op("identity", values.shape, out, dense(values, source))
    return out.read(values.shape)


def interesting_floats() -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    random = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    exact = SEN169_VALUE[:0x7FFF].astype(np.float32)
    ties = (SEN169_VALUE[1:0x7FFE] + SEN169_VALUE[2:0x7FFF]).astype(np.float32) / 2
    near = np.concatenate([np.nextafter(ties, np.float32(0)), ties, np.nextafter(ties, np.float32(np.inf))])
    special = np.array([0, np.inf, np.nan, 2.0**-31, 2.0**-32, 1e-45, 3e38, 8573157376, 65504], dtype=np.float32)
    positive = np.concatenate([random, exact, near, special])
    return np.concatenate([positive, -positive])


def test_decode_of_every_code() -> None:
    expected = from_fp32(SEN169_VALUE.astype(np.float32), FP32)
    assert same_bits(converted(ALL_CODES, SEN169, FP32), expected)
    assert all(
        struct.pack("f", kernels.lib.spyre_decode(c, SEN169)) == expected[c].tobytes() for c in range(0, 65536, 251)
    )


def test_every_code_round_trips_through_fp32() -> None:
    expected = ALL_CODES.copy()
    expected[0xFFFF] = 0x7FFF
    assert same_bits(converted(converted(ALL_CODES, SEN169, FP32), FP32, SEN169), expected)
    assert same_bits(copied(copied(ALL_CODES, SEN169, FP32), FP32, SEN169), expected)


def test_encode_is_ties_away_saturating() -> None:
    x = interesting_floats()
    assert same_bits(converted(x, FP32, SEN169), sen169_encode(x))
    assert same_bits(copied(x, FP32, SEN169), sen169_encode(x))


def test_golden_values() -> None:
    for row in csv.DictReader(open(DATA / "dlfloat16_golden.csv")):
        x = struct.unpack("<f", struct.pack("<I", int(row["fp32_bits"], 16)))[0]
        assert kernels.lib.spyre_encode(x, SEN169) == int(row["dlf16_RNA_saturating"], 16) & ~(
            0x8000 if x != x else 0
        ), row
    for row in csv.DictReader(open(DATA / "dlfloat16_decode_golden.csv")):
        bits = struct.unpack("<I", struct.pack("<f", kernels.lib.spyre_decode(int(row["dlf16_code"], 16), SEN169)))[0]
        assert bits == int(row["fp32_bits"], 16), row


def test_every_fp16_to_the_card_and_back() -> None:
    half = ALL_CODES.view(np.float16)
    codes = copied(half, FP16, SEN169)
    expected = sen169_encode(half)
    expected[np.abs(half) == 65504] -= 1
    assert same_bits(codes, expected)
    assert codes[np.isposinf(half)][0] == 0x7FFE and codes[np.isneginf(half)][0] == 0xFFFE
    back = copied(codes, SEN169, FP16)
    finite = np.isfinite(half)
    assert np.isfinite(back[finite]).all()
    assert same_bits(back[np.isinf(half)], half[np.isinf(half)])
    assert np.isnan(back[np.isnan(half)]).all()


@pytest.mark.parametrize("target", [FP16, BF16, FP32])
def test_every_code_to_the_host(target: int) -> None:
    value = SEN169_VALUE.copy()
    value[0x7FFE], value[0xFFFE] = np.inf, -np.inf
    out = copied(ALL_CODES, SEN169, target)
    if target == BF16:
        f = value.astype(np.float32)
        u = f.view(np.uint32).astype(np.uint64)
        rounded = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
        assert same_bits(out, np.where(np.isnan(value), np.uint16(0x7FC0), rounded))
    else:
        with np.errstate(over="ignore"):
            expected = value.astype(np.float16 if target == FP16 else np.float32)
        assert np.array_equal(out, expected, equal_nan=True)
        assert same_bits(np.signbit(out[~np.isnan(value)]), np.signbit(expected[~np.isnan(value)]))


@pytest.mark.parametrize("special", [0x7FFE, 0xFFFE, 0x7FFF, 0xFFFF])
def test_one_special_code_in_any_lane(special: int) -> None:
    """The vector paths look for them: each lane counts, and NaN leaves with its one payload."""
    codes = np.full((64, 64), 0x3E00, np.uint16)
    codes[np.arange(64), np.arange(64)] = special
    out = copied(codes.ravel(), SEN169, FP32).reshape(64, 64)
    as_fp32 = {0x7FFE: 0x7F800000, 0xFFFE: 0xFF800000}.get(special, 0x7FC00000)
    expected = np.full((64, 64), 0x3F800000, np.uint32)
    expected[np.arange(64), np.arange(64)] = as_fp32
    assert same_bits(out.view(np.uint32), expected)
    back = np.full((64, 64), 0x3E00, np.uint16)
    back[np.arange(64), np.arange(64)] = special if special < 0xFFFF else 0x7FFF
    assert same_bits(copied(out.ravel(), FP32, SEN169).reshape(64, 64), back)


def test_vector_op_keeps_the_largest_value_finite() -> None:
    assert converted(np.array([0x7FFE, 0xFFFE], dtype=np.uint16), SEN169, FP32).tolist() == [MAX_VALUE, -MAX_VALUE]


def test_every_bf16_to_the_card() -> None:
    value = (ALL_CODES.astype(np.uint32) << 16).view(np.float32)
    assert same_bits(copied(ALL_CODES, BF16, SEN169), sen169_encode(value))


def test_fp8_codes() -> None:
    torch = pytest.importorskip("torch")
    codes = np.arange(256, dtype=np.uint8)
    for fmt, dtype, top in [(FP8_143, torch.float8_e4m3fn, 448.0), (FP8_152, torch.float8_e5m2fnuz, 57344.0)]:
        value = torch.from_numpy(codes).view(dtype).to(torch.float32).numpy()
        assert np.array_equal(copied(codes, fmt, FP32), value, equal_nan=True)
        rng = np.random.default_rng(1)
        x = (rng.standard_normal(4096) * 2.0 ** rng.integers(-20, 20, 4096)).astype(np.float32)
        x = np.concatenate([x, value[np.isfinite(value)]]).clip(-top, top)
        expected = torch.from_numpy(x).to(dtype).view(torch.uint8).numpy()
        assert same_bits(copied(x, FP32, fmt), expected)
        over = copied(np.array([1e6, -1e6, np.inf], dtype=np.float32), FP32, fmt)
        assert copied(over, fmt, FP32).tolist() == [top, -top, top]
        nan = copied(np.array([np.nan], dtype=np.float32), FP32, fmt)
        assert np.isnan(copied(nan, fmt, FP32)).all()


def test_int64_that_does_not_fit_is_reported() -> None:
    good = np.array([0, -1, 2**31 - 1, -(2**31)], dtype=np.int64)
    assert copied(good, INT64, INT32).tolist() == good.tolist()
    assert copied(copied(good, INT64, INT32), INT32, INT64).tolist() == good.tolist()
    for bad in (2**31, -(2**31) - 1, 2**62):
        out = dense(np.zeros(3), INT32)
        assert not kernels.copy((3,), out, dense(np.array([1, bad, 2], dtype=np.int64), INT64))


def test_bool_is_one_or_zero() -> None:
    host = np.array([0, 1, 2, 255, 0], dtype=np.uint8)
    codes = copied(host, BOOL, SEN169)
    assert codes.tolist() == [0, 0x3E00, 0x3E00, 0x3E00, 0]
    assert copied(codes, SEN169, BOOL).tolist() == [0, 1, 1, 1, 0]


def test_floats_to_integers_truncate_and_saturate() -> None:
    x = np.array([1.9, -1.9, 1e20, -1e20, np.nan, 127.5, 300.0, 40000.0, 3e9], dtype=np.float32)
    assert copied(x, FP32, INT32).tolist() == [1, -1, 2**31 - 1, -(2**31), 0, 127, 300, 40000, 2**31 - 1]
    assert copied(x, FP32, INT8).tolist() == [1, -1, 127, -128, 0, 127, 127, 127, 127]
    assert copied(x, FP32, INT16).tolist() == [1, -1, 32767, -32768, 0, 127, 300, 32767, 32767]
    assert copied(x, FP32, UINT32).tolist() == [1, 0, 2**32 - 1, 0, 0, 127, 300, 40000, 3000000000]
    assert copied(x, FP32, INT64).tolist()[:2] == [1, -1] and copied(x, FP32, INT64)[8] == 3000000000
    assert converted(x, FP32, INT32).tolist() == copied(x, FP32, INT32).tolist()
    i = np.array([0, 7, -7, 2**24 + 1, 2**31 - 1], dtype=np.int32)
    assert same_bits(copied(i, INT32, FP32), i.astype(np.float32))
    assert same_bits(copied(i, INT32, SEN169), sen169_encode(i.astype(np.float32)))
