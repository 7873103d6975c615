# SPDX-License-Identifier: Apache-2.0
"""Names that a SuperDSC of this vocabulary may use: opfuncs, constants, dim and layout labels.

The opfuncs are the rows of the op table that the public front end emits; docs/superdsc.md says what each computes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch_spyre.optable import NONSTICK as NONSTICK
from torch_spyre.optable import PUBLISHED, Kind

COPY = "identity"
RESTICKIFY = "ReStickifyOpHBM"
MASK_VALUE = "samv-maskvalue"
EXX2, NORM_SCALE, NORM = "exx2", "layernormscale", "layernormnorm"
SCALING_FACTOR, EXX2_SCALE, ZERO_MEAN, EPS = "scaling_factor", "exx2scale", "useZeroMean", "eps"
_HOST = "a step of the host, where the published front end leaves this op too"
# Ops of the priority models without a word -> the closest published construct.
CLOSEST = {
    "convert": "to_dtype_cpu, a step of the host: casts between integers and floats are not among the published ones",
    "cos": _HOST,
    "sin": _HOST,
    "cumsum": _HOST,
    "bit_or": _HOST,
    "floordiv": "realdiv and floor of fp32, exact below 2^24; the front end computes int64 as fp32",
    "remainder": "realdiv, floor, mul and sub of fp32, exact below 2^24",
    "fmod": "realdiv, floor, mul and sub of fp32, exact below 2^24",
    "gelu_tanh": "gelufwd, the exact one; or mul, add and tanh of fp32 with more roundings",
    "gather": "none that stops a launch: the published gather has no bound of its index",
    "topkvalue": "topkvalue of at most 4 elements, largest first",
    "topkindex": "topkindex of at most 4 elements, largest first",
}
_IMMEDIATE = re.compile(r"imm(\d{1,3})")

MATMUL_LABELS = ("ki", "kj", "y", "x", "mb", "out", "in")
_OTHER_LABELS = ("mb", "x", "y", "i", "j", "ki", "kj")
LAST_LABEL = "out"

LAYOUT_LABELS = ("OUTPUT", "KERNEL", "INPUT", "KERNEL_IDX")
MATMUL_LAYOUT_LABELS = ("INPUT", "KERNEL", "OUTPUT", "KERNEL_IDX")


def scalar_operands(op: str) -> dict[int, str]:
    """The constants that replace an op's scalar operands, by position of the operand."""
    row = PUBLISHED.get(op)
    return {} if row is None else dict(enumerate(row.scalars, start=row.tensors))


def immediate_name(position: int, op: str = "") -> str:
    """Name of the constant that replaces the scalar operand at a position."""
    return scalar_operands(op).get(position, f"imm{position}")


def immediate_position(name: str, op: str = "") -> int | None:
    """Position of the scalar operand that a constant replaces; None if it is a constant of the op."""
    for position, known in scalar_operands(op).items():
        if name == known:
            return position
    match = _IMMEDIATE.fullmatch(name)
    return int(match[1]) if match else None


def dim_labels(count: int, kind: Kind) -> tuple[str, ...] | None:
    """Labels of `count` dims, outer to inner; None if there are not enough."""
    if kind is Kind.MATMUL:
        return MATMUL_LABELS[-count:] if count <= len(MATMUL_LABELS) else None
    if count == 0:
        return ()
    return (*_OTHER_LABELS[: count - 1], LAST_LABEL) if count - 1 <= len(_OTHER_LABELS) else None


def lone_stick_label(labels: Sequence[str]) -> str | None:
    """Label of the stick dim that an op needs when none of its own dims fills sticks."""
    return next((x for x in _OTHER_LABELS if x not in labels), None)
