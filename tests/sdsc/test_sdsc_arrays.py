# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_arrays.py

The NumPy codecs of the bundle runner give the card's bits.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from torch_spyre import _card
from torch_spyre.errors import InvalidArgument, UnsupportedOp
from torch_spyre.formats import CODE
from torch_spyre.ir.superdsc import arrays, constant_formats

FLOATS = ["SEN169_FP16", "IEEE_FP32", "SEN143_FP8", "SEN152_FP8"]


@pytest.mark.parametrize("format", FLOATS)
def test_encode_like_the_card(format: str) -> None:
    draw = np.random.default_rng(1)
    values = [*draw.standard_normal(300), *(draw.standard_normal(200) * 1e4), *(draw.standard_normal(200) * 1e-6)]
    values += [
        0.0,
        -0.0,
        448.0,
        464.0,
        1e30,
        -1e30,
        math.nan,
        57344.0,
        2.0**-31,
        1.0009765625,
        -2.001953125,
        17.0,
        19.0,
    ]
    array = np.array(values, dtype=np.float32)
    want = [_card.encode(float(v), CODE[format]) for v in array]
    assert arrays.encode(array, format).tolist() == want


@pytest.mark.parametrize("format", FLOATS[:1] + FLOATS[2:])
def test_decode_like_the_card(format: str) -> None:
    codes = np.arange(1 << (8 * arrays.code_type(format).itemsize), dtype=arrays.code_type(format))
    sample = codes[:: max(1, codes.size // 4096)]
    got = arrays.decode(sample, format)
    want = np.array([_card.decode(int(c), CODE[format]) for c in sample])
    finite = np.isfinite(want)
    assert np.array_equal(got[finite], want[finite]) and np.isnan(got[np.isnan(want)]).all()


def test_integers_out_of_range() -> None:
    assert arrays.encode(np.array([-3.0, 7.0]), "IEEE_INT32").tolist() == [-3, 7]
    with pytest.raises(InvalidArgument, match="outside"):
        arrays.encode(np.array([1e12]), "IEEE_INT32")


@pytest.mark.parametrize("format", constant_formats.WORD_BYTES)
def test_constants_round_trip(format: str) -> None:
    for value in (0.0, 1.0, 2.0, 96.0):
        assert constant_formats.decode(constant_formats.encode(value, format), format) == value


def test_unknown_constant_format() -> None:
    with pytest.raises(UnsupportedOp, match="FP13"):
        constant_formats.decode(0, "FP13")
