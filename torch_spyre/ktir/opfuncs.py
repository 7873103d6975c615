# SPDX-License-Identifier: Apache-2.0
"""The SuperDSC opfuncs this compiler knows, as data: class, number of operands, and the unit that runs them."""

from __future__ import annotations

from dataclasses import dataclass

from torch_spyre.errors import UnsupportedOp

POINTWISE = "pointwise"
REDUCTION = "reduction"
MATMUL = "matmul"
COPY = "copy"
CAST = "cast"

PT = "pt"  # the array of multipliers
SFP = "sfp"  # the special-function vector unit


@dataclass(frozen=True)
class OpFunc:
    """`kind` is one of the classes above, `operands` counts inputs, `unit` is PT or SFP."""

    name: str
    kind: str
    operands: int
    unit: str = SFP


OPFUNCS: dict[str, OpFunc] = {
    f.name: f
    for f in (
        OpFunc("add", POINTWISE, 2),
        OpFunc("sub", POINTWISE, 2),
        OpFunc("mul", POINTWISE, 2),
        OpFunc("realdiv", POINTWISE, 2),
        OpFunc("truncdiv", POINTWISE, 2),
        OpFunc("maximum", POINTWISE, 2),
        OpFunc("minimum", POINTWISE, 2),
        OpFunc("neg", POINTWISE, 1),
        OpFunc("abs", POINTWISE, 1),
        OpFunc("relufwd", POINTWISE, 1),
        OpFunc("exp", POINTWISE, 1),
        OpFunc("log", POINTWISE, 1),
        OpFunc("sqrt", POINTWISE, 1),
        OpFunc("rsqrt", POINTWISE, 1),
        OpFunc("reciprocal", POINTWISE, 1),
        OpFunc("tanh", POINTWISE, 1),
        OpFunc("sigmoid", POINTWISE, 1),
        OpFunc("floor", POINTWISE, 1),
        OpFunc("equal", POINTWISE, 2),
        OpFunc("notequal", POINTWISE, 2),
        OpFunc("greaterthan", POINTWISE, 2),
        OpFunc("greaterequal", POINTWISE, 2),
        OpFunc("lesserthan", POINTWISE, 2),
        OpFunc("lesserequal", POINTWISE, 2),
        OpFunc("where3", POINTWISE, 3),
        OpFunc("identity", COPY, 1),
        OpFunc("ReStickifyOpHBM", COPY, 1),
        OpFunc("dl16tofp32", CAST, 1),
        OpFunc("fp32todl16", CAST, 1),
        OpFunc("fp8todl16", CAST, 1),
        OpFunc("convert", CAST, 1),
        OpFunc("sum", REDUCTION, 1),
        OpFunc("max", REDUCTION, 1),
        OpFunc("min", REDUCTION, 1),
        OpFunc("mean", REDUCTION, 1),
        OpFunc("batchmatmul", MATMUL, 2, PT),
    )
}

_NONSTICK = "nonstick"  # suffix of reductions over a dim that does not lie in the sticks; the result is the same


def base_name(name: str) -> str:
    """The opfunc without the suffix that only says where the reduced dim lies."""
    stem = name.removesuffix(_NONSTICK)
    return stem if stem in OPFUNCS and OPFUNCS[stem].kind == REDUCTION else name


def lookup(name: str) -> OpFunc:
    """The opfunc of that name; raises UnsupportedOp for one we do not know."""
    found = OPFUNCS.get(base_name(name))
    if found is None:
        raise UnsupportedOp(f"opfunc {name!r} is not known; known are {', '.join(OPFUNCS)}")
    return found
