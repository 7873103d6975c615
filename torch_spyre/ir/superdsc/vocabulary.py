# SPDX-License-Identifier: Apache-2.0
"""Names that a SuperDSC of this vocabulary may use: opfuncs with their operands and constants, dim and layout labels.

The opfuncs are those that the public front end emits; docs/superdsc.md says what each computes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.plan import opfuncs

COPY = "identity"
RESTICKIFY = "ReStickifyOpHBM"
NONSTICK = "nonstick"  # suffix of a reduction that keeps the stick dim
MASK_VALUE = "samv-maskvalue"
EXX2, NORM_SCALE, NORM = "exx2", "layernormscale", "layernormnorm"
SCALING_FACTOR, EXX2_SCALE, ZERO_MEAN, EPS = "scaling_factor", "exx2scale", "useZeroMean", "eps"
_IMMEDIATE = re.compile(r"imm(\d{1,3})")

POINTWISE, REDUCTION, MATMUL, CAST, COPIES, TOPK, NORMS = (
    "pointwise",
    "reduction",
    "matmul",
    "cast",
    "copy",
    "topk",
    "norm",
)


@dataclass(frozen=True)
class Func:
    """An opfunc: its class, how many tensors it reads, and its constants with their defaults (None: must be given)."""

    name: str
    kind: str
    tensors: int
    constants: dict[str, float | None] = field(default_factory=dict)


_UNARY = "abs neg reciprocal exp log sqrt rsqrt tanh sigmoid relufwd gelufwd silu floor".split()
COMPARISONS = tuple("equal notequal greaterthan greaterequal lesserthan lesserequal".split())
_BINARY = ["add", "sub", "mul", "realdiv", "maximum", "minimum", *COMPARISONS]
SELECT = "where3"

FUNCS: dict[str, Func] = {
    f.name: f
    for f in (
        *(Func(name, POINTWISE, 1) for name in _UNARY),
        *(Func(name, POINTWISE, 2) for name in _BINARY),
        Func(SELECT, POINTWISE, 3),
        Func("clip", POINTWISE, 1, {"clipMin": -math.inf, "clipMax": math.inf}),
        Func("softplus", POINTWISE, 1, {"softplusBeta": 1.0, "softplusThresh": 20.0}),
        *(Func(name, REDUCTION, 1) for name in ("sum", "max", "min")),
        Func("mean", REDUCTION, 1, {SCALING_FACTOR: math.nan}),  # NaN: one over the number of elements
        Func(EXX2, NORMS, 1, {EXX2_SCALE: math.nan, ZERO_MEAN: 0.0}),
        Func(NORM_SCALE, NORMS, 1, {EPS: None}),
        Func(NORM, NORMS, 5),
        Func("topkvalue", TOPK, 1),
        Func("topkindex", TOPK, 1),
        Func("batchmatmul", MATMUL, 2),
        Func("batchmatmulfp8", MATMUL, 2),
        Func(COPY, COPIES, 1),
        Func(RESTICKIFY, COPIES, 1),
        *(Func(name, CAST, 1) for name in ("dl16tofp32", "fp32todl16", "fp8todl16", "qfp8ch")),
    )
}

# (formats of the operand, formats of the result)
_HALF, _FULL, _FP8 = {"SEN169_FP16"}, {"IEEE_FP32"}, {"SEN143_FP8", "SEN152_FP8"}
CASTS = {
    "dl16tofp32": (_HALF, _FULL),
    "fp32todl16": (_FULL, _HALF),
    "fp8todl16": (_FP8, _HALF),
    "qfp8ch": (_HALF, _FP8),
}
# The constants that stand for an op's scalar operands, by position of the operand.
SCALAR_OPERANDS = {"clip": {1: "clipMin", 2: "clipMax"}, "softplus": {1: "softplusBeta", 2: "softplusThresh"}}

MATMUL_LABELS = ("ki", "kj", "y", "x", "mb", "out", "in")
_OTHER_LABELS = ("mb", "x", "y", "i", "j", "ki", "kj")
LAST_LABEL = "out"

LAYOUT_LABELS = ("OUTPUT", "KERNEL", "INPUT", "KERNEL_IDX")
MATMUL_LAYOUT_LABELS = ("INPUT", "KERNEL", "OUTPUT", "KERNEL_IDX")


def base_name(name: str) -> str:
    """The opfunc without the suffix that only says where the reduced dim lies."""
    stem = name.removesuffix(NONSTICK)
    return stem if stem in FUNCS and FUNCS[stem].kind == REDUCTION else name


def lookup(name: str) -> Func:
    """The opfunc of that name; UnsupportedOp for any that the public front end does not emit."""
    found = FUNCS.get(base_name(name))
    if found is None:
        raise UnsupportedOp(f"opfunc {name!r} is not known; known are {', '.join(FUNCS)}")
    return found


def immediate_name(position: int, op: str = "") -> str:
    """Name of the constant that stands for the scalar operand at a position."""
    return SCALAR_OPERANDS.get(op, {}).get(position, f"imm{position}")


def immediate_position(name: str, op: str = "") -> int | None:
    """Position of the scalar operand that a constant stands for; None if it is a constant of the op."""
    for position, known in SCALAR_OPERANDS.get(op, {}).items():
        if name == known:
            return position
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
    return {"max": -math.inf, "min": math.inf}.get(base_name(name), 0.0)
