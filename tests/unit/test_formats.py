# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_formats.py

The table of formats: which dtype is stored how, encode and decode of each, and what is refused.
"""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_python

from torch_spyre import _C, dl16
from torch_spyre._C import DataFormats
from torch_spyre.errors import InvalidArgument, UnsupportedOp

# dtype: (format on the card, elements per stick)
TABLE = {
    torch.float16: (DataFormats.SEN169_FP16, 64),
    torch.bfloat16: (DataFormats.SEN169_FP16, 64),
    torch.bool: (DataFormats.SEN169_FP16, 64),
    torch.float32: (DataFormats.IEEE_FP32, 32),
    torch.int64: (DataFormats.IEEE_INT32, 32),
    torch.int32: (DataFormats.IEEE_INT32, 32),
    torch.int16: (DataFormats.SENINT16, 64),
    torch.int8: (DataFormats.SENINT8, 128),
    torch.uint8: (DataFormats.SENUINT32, 32),
    torch.float8_e4m3fn: (DataFormats.SEN143_FP8, 128),
    torch.float8_e5m2: (DataFormats.SEN152_FP8, 128),
    torch.float8_e5m2fnuz: (DataFormats.SEN152_FP8, 128),
}
UNSUPPORTED = [
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fnuz,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
BYTE_FORMATS = {DataFormats.SEN143_FP8: torch.float8_e4m3fn, DataFormats.SEN152_FP8: torch.float8_e5m2fnuz}


@pytest.mark.parametrize("dtype", TABLE, ids=str)
def test_table(dtype: torch.dtype) -> None:
    stored, elements = TABLE[dtype]
    assert _C.get_device_dtype(dtype) == stored == torch.spyre.get_device_dtype(dtype)
    assert _C.get_elem_in_stick(dtype) == elements == stored.elems_per_stick()
    assert _C.is_supported_dtype(dtype)
    layout = torch.empty(3, 300, dtype=dtype, device="spyre").device_tensor_layout()
    assert layout.device_dtype == stored
    assert layout.device_size == [math.ceil(300 / elements), 3, elements]
    assert layout.device_bytes() == 128 * 3 * math.ceil(300 / elements)


@pytest.mark.parametrize("dtype", UNSUPPORTED, ids=str)
def test_what_is_refused(dtype: torch.dtype) -> None:
    assert _C.get_device_dtype(dtype) == DataFormats.INVALID
    assert not _C.is_supported_dtype(dtype)
    name = str(dtype).removeprefix("torch.")
    for attempt in (
        lambda: torch.empty(2, dtype=dtype, device="spyre"),
        lambda: torch.empty(2, dtype=dtype).to("spyre"),
        lambda: torch.empty_strided((2,), (1,), dtype=dtype, device="spyre"),
        lambda: _C.get_elem_in_stick(dtype),
    ):
        with pytest.raises(UnsupportedOp, match=f"Spyre backend does not support dtype {name}"):
            attempt()


@pytest.mark.parametrize("stored", BYTE_FORMATS, ids=lambda f: f.name)
def test_fp8_codes(stored: DataFormats) -> None:
    """All 256 codes are PyTorch's, and travel to the card and back bit for bit."""
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(BYTE_FORMATS[stored])
    assert torch.equal(values.to("spyre").cpu().view(torch.uint8), codes)
    for code, value in zip(codes.tolist(), values.float().tolist(), strict=True):
        got = _C.decode(code, stored)
        assert got == value or (math.isnan(got) and math.isnan(value))
        if not math.isnan(value):
            assert _C.encode(value, stored) == code
    assert math.isnan(_C.decode(_C.encode(math.nan, stored), stored))
    largest = max(v for v in values.float().tolist() if not math.isnan(v))
    assert _C.decode(_C.encode(1e9, stored), stored) == largest, "saturates"


@given(st.floats(width=32, allow_nan=False, min_value=-400, max_value=400))
@settings(max_examples=200, deadline=None)
def test_fp8_rounds_as_pytorch(value: float) -> None:
    for stored, dtype in BYTE_FORMATS.items():
        assert _C.encode(value, stored) == int(torch.tensor(value).to(dtype).view(torch.uint8))


@pytest.mark.parametrize(
    ("stored", "low", "high"),
    [
        (DataFormats.SENINT8, -128, 127),
        (DataFormats.SENINT16, -(2**15), 2**15 - 1),
        (DataFormats.IEEE_INT32, -(2**31), 2**31 - 128),
        (DataFormats.SENUINT32, 0, 2**32 - 256),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_integer_codes(stored: DataFormats, low: int, high: int) -> None:
    mask = (1 << 8 * (128 // stored.elems_per_stick())) - 1
    for value in (low, high, 0, 1, 100):
        assert _C.encode(value, stored) == value & mask
        assert _C.decode(value & mask, stored) == value
    assert _C.decode(_C.encode(2.9, stored), stored) == 2, "truncates"
    assert _C.decode(_C.encode(low * 4.0 - 4, stored), stored) == low, "saturates"


def test_sixteen_bit_codes() -> None:
    """Every code of SEN169_FP16 but the second NaN comes back through its value; the codes that documents name hold."""
    stored = DataFormats.SEN169_FP16
    known = {1.0: 0x3E00, -1.0: 0xBE00, 0.0: 0, 65504.0: 0x5E00, math.inf: 0x7FFE, -math.inf: 0xFFFE}
    for value, code in known.items():
        assert _C.encode(value, stored) == code == _C.encode_constant(value, stored)
    assert _C.encode(math.nan, stored) == 0x7FFF
    for code in range(0, 0x10000, 7):
        if code not in (0x7FFF, 0xFFFF):
            assert _C.encode(_C.decode(code, stored), stored) == code
    assert _C.encode(1.5, DataFormats.IEEE_FP32) == _C.encode_constant(1.5, DataFormats.IEEE_FP32) == 0x3FC00000
    assert _C.decode(0x3FC00000, DataFormats.IEEE_FP32) == 1.5


@pytest.mark.parametrize("stored", [DataFormats.INVALID, DataFormats.SENINT4, DataFormats.IEEE_INT64], ids=str)
def test_formats_that_are_never_stored(stored: DataFormats) -> None:
    with pytest.raises(InvalidArgument, match=stored.name):
        _C.encode(1.0, stored)
    with pytest.raises(InvalidArgument, match=stored.name):
        _C.decode(1, stored)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int8, torch.uint8, torch.int32], ids=str)
def test_whole_range_travels(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    if limits.bits <= 16:
        host = torch.arange(limits.min, limits.max + 1).to(dtype)
    else:
        host = torch.tensor([limits.min, limits.max, 0, -1], dtype=dtype)
    card = host.to("spyre")
    assert torch.equal(card.cpu(), host) and torch.equal(card.clone().cpu(), host)
    assert torch.equal(card.to(torch.int64).cpu(), host.long())


def succeeds(source: str, **environment: str) -> None:
    done = run_python(source, **environment)
    assert done.returncode == 0, done.stderr


WARN = """
    import warnings, torch
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        {first}
        torch.ones(2, dtype=torch.int64).to("spyre")
        torch.zeros(2, dtype=torch.int64, device="spyre")
    texts = [str(w.message) for w in seen if "int64" in str(w.message)]
    assert len(texts) == {count} and all("does not support int64" in t for t in texts), texts
    """


@pytest.mark.parametrize("value", ["0", "false", "OFF"])
def test_downcast_warning_can_be_switched_off(value: str) -> None:
    off = {"TORCH_SPYRE_DOWNCAST_WARN": value}
    succeeds(WARN.format(first="assert not torch.spyre.get_downcast_warning()", count=0), **off)
    succeeds(WARN.format(first="torch.spyre.set_downcast_warning(True)", count=1), **off)


def test_int64_warns_once() -> None:
    succeeds(WARN.format(first="assert torch.spyre.get_downcast_warning()", count=1))
    succeeds(WARN.format(first="torch.spyre.set_downcast_warning(False)", count=0))
    succeeds(WARN.format(first="torch.spyre.get_device_dtype(torch.int64)", count=1))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int8, torch.uint8], ids=str)
def test_narrow_arithmetic_wraps_as_in_pytorch(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    limits = torch.iinfo(dtype)
    a, b = (torch.randint(limits.min, limits.max + 1, (3, 70), generator=generator).to(dtype) for _ in range(2))
    for op in (torch.add, torch.sub, torch.mul, torch.maximum, torch.eq):
        assert torch.equal(op(a.to("spyre"), b.to("spyre")).cpu(), op(a, b)), op
    assert torch.equal((-a.to("spyre")).cpu(), -a)


def test_the_format_on_the_host_is_that_of_its_definition() -> None:
    """Every code, every fp32 on, beside and between two codes, infinities, NaN, numbers beyond fp32, and one number."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    values = oracle.decode(codes)
    assert np.array_equal(dl16.decode(codes), values, equal_nan=True)
    near = values[codes & 0x7FFF < 0x7FFF].astype(np.float32)
    between = (np.sort(near)[1:].astype(np.float64) + np.sort(near)[:-1]) / 2
    samples = [near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf)), between]
    samples += [np.array([0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 3.4e38, -3.4e38, 1e-45, 2.0**-31])]
    for sample in samples:
        single = sample.astype(np.float32)
        assert np.array_equal(dl16.encode(single), oracle.encode(single))
        assert np.array_equal(dl16.rounded(single), oracle.round_dl16(single), equal_nan=True)
        assert np.array_equal(np.signbit(dl16.rounded(single[single == 0])), np.signbit(single[single == 0]))
    assert dl16.rounded(-1e300).shape == () and float(dl16.rounded(-1e300)) == -dl16.LARGEST == -oracle.MAX
