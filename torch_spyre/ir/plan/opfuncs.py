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
GATHER = "gather"
SCATTER = "scatter"
SCAN = "scan"
EXCHANGE = "exchange"  # scratchpad slices change hands
SELECTION = "selection"  # topkvalue, topkindex, argmax, argmin: which elements along a dim, by order

PT = "pt"  # the array of multipliers
SFP = "sfp"  # the special-function vector unit


@dataclass(frozen=True)
class OpFunc:
    """`kind` is one of the classes above, `operands` counts inputs (at least, if `variadic`), `unit` is PT or SFP."""

    name: str
    kind: str
    operands: int
    unit: str = SFP
    variadic: bool = False


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
        OpFunc("gelufwd", POINTWISE, 1),
        OpFunc("silu", POINTWISE, 1),
        OpFunc("softplus", POINTWISE, 3),  # x, beta, threshold
        OpFunc("clip", POINTWISE, 3),  # x, low, high
        # Functions of this card that SuperDSC has no name for.
        OpFunc("gelu_tanh", POINTWISE, 1),
        OpFunc("mish", POINTWISE, 1),
        OpFunc("ceil", POINTWISE, 1),
        OpFunc("trunc", POINTWISE, 1),
        OpFunc("round", POINTWISE, 1),
        OpFunc("sign", POINTWISE, 1),
        OpFunc("erf", POINTWISE, 1),
        OpFunc("sin", POINTWISE, 1),
        OpFunc("cos", POINTWISE, 1),
        OpFunc("tan", POINTWISE, 1),
        OpFunc("asin", POINTWISE, 1),
        OpFunc("acos", POINTWISE, 1),
        OpFunc("atan", POINTWISE, 1),
        OpFunc("atan2", POINTWISE, 2),
        OpFunc("sinh", POINTWISE, 1),
        OpFunc("cosh", POINTWISE, 1),
        OpFunc("log2", POINTWISE, 1),
        OpFunc("log1p", POINTWISE, 1),
        OpFunc("expm1", POINTWISE, 1),
        OpFunc("exp2", POINTWISE, 1),
        OpFunc("pow", POINTWISE, 2),
        OpFunc("fmod", POINTWISE, 2),
        OpFunc("remainder", POINTWISE, 2),
        OpFunc("floordiv", POINTWISE, 2),
        OpFunc("isnan", POINTWISE, 1),
        OpFunc("isinf", POINTWISE, 1),
        OpFunc("bit_and", POINTWISE, 2),
        OpFunc("bit_or", POINTWISE, 2),
        OpFunc("bit_xor", POINTWISE, 2),
        OpFunc("bit_not", POINTWISE, 1),
        OpFunc("shl", POINTWISE, 2),
        OpFunc("shr", POINTWISE, 2),
        OpFunc("fma", POINTWISE, 3),
        OpFunc("random", POINTWISE, 3),  # number of the element, low and high word of the key
        OpFunc("identity", COPY, 1),
        OpFunc("ReStickifyOpHBM", COPY, 1),
        OpFunc("handover", EXCHANGE, 1),
        OpFunc("dl16tofp32", CAST, 1),
        OpFunc("fp32todl16", CAST, 1),
        OpFunc("fp8todl16", CAST, 1),
        OpFunc("convert", CAST, 1),
        OpFunc("sum", REDUCTION, 1),
        OpFunc("max", REDUCTION, 1),
        OpFunc("min", REDUCTION, 1),
        OpFunc("mean", REDUCTION, 1),
        OpFunc("prod", REDUCTION, 1),
        OpFunc("batchmatmul", MATMUL, 2, PT),
        OpFunc("gather", GATHER, 2, variadic=True),
        OpFunc("scatter", SCATTER, 2, variadic=True),
        OpFunc("scatter_add", SCATTER, 2, variadic=True),
        OpFunc("cumsum", SCAN, 1),
        OpFunc("cumprod", SCAN, 1),
        OpFunc("cummax", SCAN, 1),
        OpFunc("cummin", SCAN, 1),
        OpFunc("topkvalue", SELECTION, 1),
        OpFunc("topkindex", SELECTION, 1),
        OpFunc("argmax", SELECTION, 1),
        OpFunc("argmin", SELECTION, 1),
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
