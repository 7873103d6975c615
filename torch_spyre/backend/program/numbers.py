# SPDX-License-Identifier: Apache-2.0
"""Constants in the card's number formats: what an SSA constant of a given element type holds on the card."""

from __future__ import annotations

import math
import struct

SEN169_NAN = 0x7FFF
SEN169_MAX = 0x7FFE


def float_bits(value: float) -> int:
    """Bits of the nearest fp32."""
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def encode_sen169(value: float) -> int:
    """Code of a value: ties away from zero, too large or infinite becomes the largest finite, NaN has one code."""
    if math.isnan(value):
        return SEN169_NAN
    bits = float_bits(value)
    sign, magnitude = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    rounded = ((magnitude + 0x2000) >> 14) - (96 << 9)  # exponent bias 127 to 31
    return sign | min(max(rounded, 0), SEN169_MAX)


def decode_sen169(code: int) -> float:
    magnitude = code & 0x7FFF
    if magnitude == SEN169_NAN:
        return math.nan
    sign = -1.0 if code & 0x8000 else 1.0
    if magnitude == 0:
        return sign * 0.0
    return sign * math.ldexp(1 + (magnitude & 0x1FF) / 512, (magnitude >> 9) - 31)


def round_to_type(value: float, element: str) -> float:
    """The value that a constant of an element type has on the card."""
    if element in ("f16", "bf16", "!spyreop.df16"):
        return decode_sen169(encode_sen169(value))
    return value
