# SPDX-License-Identifier: Apache-2.0
"""Names that a SuperDSC of this vocabulary may use: opfuncs, labels of dims and of layouts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from torch_spyre.ktir import opfuncs

COPY = "identity"
RESTICKIFY = "ReStickifyOpHBM"
NONSTICK = "nonstick"  # suffix of a reduction that keeps the stick dim
MASK_VALUE = "samv-maskvalue"
_IMMEDIATE = re.compile(r"imm(\d+)")

# (format of the operand, format of the result)
CASTS = {"dl16tofp32": ("SEN169_FP16", "IEEE_FP32"), "fp32todl16": ("IEEE_FP32", "SEN169_FP16")}
COMPARISONS = ("equal", "notequal", "greaterthan", "greaterequal", "lesserthan", "lesserequal")
SELECT = "where3"

MATMUL_LABELS = ("ki", "kj", "y", "x", "mb", "out", "in")
_OTHER_LABELS = ("mb", "x", "y", "i", "j", "ki", "kj")
LAST_LABEL = "out"

LAYOUT_LABELS = ("OUTPUT", "KERNEL", "INPUT", "KERNEL_IDX")
MATMUL_LAYOUT_LABELS = ("INPUT", "KERNEL", "OUTPUT", "KERNEL_IDX")


def immediate_name(position: int) -> str:
    """Name of the constant that stands for the scalar operand at a position."""
    return f"imm{position}"


def immediate_position(name: str) -> int | None:
    """Position of the scalar operand that a constant stands for; None if it is a constant of the op."""
    match = _IMMEDIATE.fullmatch(name)
    return int(match[1]) if match else None


def dim_labels(count: int, kind: str) -> tuple[str, ...] | None:
    """Labels of `count` dims, outer to inner; None if there are not enough."""
    if kind == opfuncs.MATMUL:
        return MATMUL_LABELS[-count:] if count <= len(MATMUL_LABELS) else None
    if count == 0:
        return ()
    return (*_OTHER_LABELS[: count - 1], LAST_LABEL) if count - 1 <= len(_OTHER_LABELS) else None


def lone_stick_label(labels: Sequence[str]) -> str | None:
    """Label of the stick dim that an op needs when none of its own dims fills sticks."""
    return next((x for x in _OTHER_LABELS if x not in labels), None)


def neutral(name: str) -> float:
    """What a masked element contributes to a reduction."""
    return {"max": -math.inf, "min": math.inf}.get(opfuncs.base_name(name), 0.0)
