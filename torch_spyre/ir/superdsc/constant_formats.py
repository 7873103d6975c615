# SPDX-License-Identifier: Apache-2.0
"""Number formats as SuperDSC names them: bytes per element, elements per stick, and the bit patterns of constants."""

from __future__ import annotations

import math
import struct

import numpy as np

from torch_spyre import dl16
from torch_spyre.constants import STICK_BYTES
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.formats import WORD_BYTES
from torch_spyre.ir.superdsc import arrays

# lowest, highest, bits; SENUINT32 holds small unsigned numbers in a word
_INTEGERS = {
    "IEEE_INT32": (-(1 << 31), (1 << 31) - 1, 32),
    "SENUINT32": (0, (1 << 32) - 1, 32),
    "SENINT16": (-(1 << 15), (1 << 15) - 1, 16),
    "SENINT8": (-128, 127, 8),
}


def word_bytes(format: str) -> int:
    try:
        return WORD_BYTES[format]
    except KeyError:
        raise UnsupportedOp(f"data format {format} has no stick geometry; known: {', '.join(WORD_BYTES)}") from None


def stick_elements(format: str) -> int:
    return STICK_BYTES // word_bytes(format)


def encode(value: float, format: str) -> int:
    """Bits of a constant; DL16 saturates infinities like every store of the card, and so do integers."""
    if format == "IEEE_FP32":
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    if format in _INTEGERS:
        low, high, bits = _INTEGERS[format]
        return int(max(low, min(high, value))) & ((1 << bits) - 1)
    return int(arrays.encode(np.array(value), format))


def decode(bits: int, format: str) -> float:
    """Value of a constant; the largest DL16 codes stand for the infinities that were stored there."""
    if format not in WORD_BYTES:
        raise UnsupportedOp(f"constants of format {format} have no encoding; known: {', '.join(WORD_BYTES)}")
    width = 8 * WORD_BYTES[format]
    if not -(1 << (width - 1)) <= bits < 1 << width:
        raise InvalidProgram(f"constant {bits} has more than the {width} bits of {format}")
    bits &= (1 << width) - 1
    if format == "IEEE_FP32":
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])
    if format in _INTEGERS:
        return bits - (1 << width) if bits > _INTEGERS[format][1] else bits
    if format == "SEN169_FP16" and bits & 0x7FFF == dl16.LARGEST_CODE:
        return -math.inf if bits >> 15 else math.inf
    return float(arrays.decode(np.array(bits, dtype=arrays.code_type(format)), format))
