# SPDX-License-Identifier: Apache-2.0
"""SEN169_FP16, the card's 16-bit format, on the host: one sign bit, six exponent bits (bias 31), nine fraction bits.

A store rounds to nearest, ties away from zero; a magnitude up to 2**-31 becomes zero, one above the largest finite
number, an infinity too, becomes that number, and NaN has one code. This file imports NumPy alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

NAN, LARGEST_CODE = 0x7FFF, 0x7FFE
LARGEST = 2.0**32 * (2 - 2.0**-8)  # the value of the largest code
ZERO = 2.0**-31  # up to here a magnitude is stored as zero
_DROPPED = 14  # fraction bits that fp32 has beyond the format's nine
_BIASES = (127 - 31) << 9


def rounded(values: ArrayLike) -> NDArray[np.float32]:
    """The values that a store leaves on the card, as fp32."""
    with np.errstate(over="ignore", invalid="ignore"):
        given = np.asarray(values, dtype=np.float32)
        kept = np.array(given, order="C")
        bits = kept.view(np.int32)  # the sign is a bit of its own: adding to the bits adds to the magnitude
        bits += 1 << (_DROPPED - 1)
        bits &= -(1 << _DROPPED)
        np.copyto(kept, given, where=~np.isfinite(given))
        np.clip(kept, -LARGEST, LARGEST, out=kept)
        np.copyto(kept, np.copysign(np.float32(0), given), where=np.abs(kept) <= ZERO)
    return kept


def encode(values: ArrayLike) -> NDArray[np.uint16]:
    """The codes that a store leaves on the card."""
    kept = rounded(values)
    bits = kept.view(np.int32)
    code = np.maximum(((bits & 0x7FFFFFFF) >> _DROPPED) - _BIASES, 0) | np.where(bits < 0, 0x8000, 0)
    return np.where(np.isnan(kept), NAN, code).astype(np.uint16)


def decode(codes: Any) -> NDArray[np.float64]:
    """The values of codes as the card computes with them: the largest code is a finite number."""
    return np.asarray(_values()[codes])


@cache
def _values() -> NDArray[np.float64]:
    code = np.arange(1 << 16)
    magnitude = code & 0x7FFF
    value = np.ldexp(1 + (magnitude & 0x1FF) / 512, (magnitude >> 9) - 31)
    value = np.where(magnitude == 0, 0.0, np.where(magnitude == NAN, np.nan, value))
    return np.where(code >> 15, -value, value)
