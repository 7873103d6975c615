# SPDX-License-Identifier: Apache-2.0
"""Constants in the card's number formats: what an SSA constant of a given element type holds on the card."""

from __future__ import annotations

import struct

from torch_spyre import dl16


def float_bits(value: float) -> int:
    """Bits of the nearest fp32."""
    try:
        return int.from_bytes(struct.pack("<f", value), "little")
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def round_to_type(value: float, element: str) -> float:
    """The value that a constant of an element type has on the card."""
    if element in ("f16", "bf16", "!spyreop.df16"):
        return float(dl16.rounded(value))
    return value
