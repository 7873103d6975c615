# SPDX-License-Identifier: Apache-2.0
"""The op table: one row per op, with its name in every language that the compiler reads or writes.

The name of a row is the op's name in plans, and in SuperDSC where that has one. `vector` is a row of the card's
`vops.def`. A KTIR spelling is the name of an op, or `WithConstant` for an op that KTIR writes as another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from torch_spyre.errors import UnsupportedOp
from torch_spyre.optable import meaning as m
from torch_spyre.optable.kinds import Gives, Kind, Unit

NONSTICK = "nonstick"  # suffix of reductions over a dim that is not in the sticks; the result is the same


@dataclass(frozen=True)
class WithConstant:
    """Another op of the table with a constant as its second operand, or as its first."""

    op: str
    constant: float
    first: bool = False


@dataclass(frozen=True, eq=False)
class Row:
    """One op. `operands` counts inputs: at least, if it takes index tensors as well."""

    name: str
    kind: Kind
    operands: int
    meaning: Callable[..., Any]
    # KTIR: as it is written for floats and for integers, other names that the back end reads, the named op of linalg
    floats: str | WithConstant = ""
    integers: str | WithConstant = ""
    also: tuple[str, ...] = ()
    linalg: str = ""
    predicates: tuple[str, str] | None = None  # of a comparison: arith.cmpf, arith.cmpi
    gives: Gives = Gives.VALUES
    # The card
    vector: str = ""
    truth_vector: str = ""  # on truth values, where that is another one
    priced_as: str = ""  # the vector operation at whose rate plans price it, if not its own
    chooses: bool = False  # compares its operands or passes one on: infinity is then just the largest number
    # Inductor: names of its functions or reductions with the same meaning
    inductor: tuple[str, ...] = ()
    # SuperDSC: its name in a file, if the public front end emits it; constants and defaults (None: must be given;
    # NaN: one over the number of elements), the last operands that are constants there; formats that its operands and
    # the result of a cast must have
    superdsc: str = ""
    constants: Mapping[str, float | None] = field(default_factory=dict)
    scalars: tuple[str, ...] = ()
    formats: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    read_as: str = ""  # the op of a plan that the reader makes of it, if not the one of its own name
    planned: bool = True  # False: a name in files only, which the reader writes as other ops
    # Reductions, scans and selections: the reduction it is, the op that joins two results, its neutral numbers
    reduction: str = ""
    combine: str = ""
    neutral: tuple[float, int] = (0.0, 0)
    scaled_by: str = ""  # the constant by which the whole is multiplied once all parts are combined

    @cached_property
    def unit(self) -> Unit:
        return Unit.PT if self.kind is Kind.MATMUL else Unit.SFP

    @cached_property
    def spellings(self) -> tuple[str, ...]:
        """Operations of KTIR on corresponding elements that mean this op and nothing else."""
        return tuple(s for s in (self.floats, self.integers, *self.also) if isinstance(s, str) and s)

    @cached_property
    def is_matmul(self) -> bool:
        return self.kind is Kind.MATMUL

    @cached_property
    def is_copy(self) -> bool:
        return self.kind is Kind.COPY

    @cached_property
    def is_move(self) -> bool:
        """Values stay what they are: a copy, in the same or in another format."""
        return self.kind in (Kind.COPY, Kind.CAST)

    @cached_property
    def has_table(self) -> bool:
        """A table is read or written at places that other inputs name."""
        return self.kind in (Kind.GATHER, Kind.SCATTER)

    @cached_property
    def reduces(self) -> bool:
        """The result lacks dims of the operand, and cores may hold parts of it."""
        return self.kind is Kind.REDUCTION or (self.kind is Kind.NORM and bool(self.reduction))

    @cached_property
    def element_for_element(self) -> bool:
        return self.kind in (Kind.POINTWISE, Kind.COPY, Kind.CAST)

    @cached_property
    def tensors(self) -> int:
        """Inputs that are tensors in a SuperDSC."""
        return self.operands - len(self.scalars)

    def takes(self, inputs: int) -> bool:
        return inputs == self.operands or (inputs > self.operands and self.has_table)


def _own(name: str, operands: int, meaning: Callable[..., Any], floats: str | WithConstant = "",
         integers: str | WithConstant = "", **more: Any) -> Row:  # fmt: skip
    """A function of corresponding elements that SuperDSC has no name for; Inductor and the card call it as we do."""
    named = {"vector": name, "inductor": (name,), **more}
    return Row(name, Kind.POINTWISE, operands, meaning, floats, integers, **named)


def _published(name: str, operands: int, meaning: Callable[..., Any], floats: str | WithConstant = "",
               integers: str | WithConstant = "", **more: Any) -> Row:  # fmt: skip
    return _own(name, operands, meaning, floats, integers, superdsc=name, **more)


def _comparison(name: str, function: Callable[..., Any], vector: str, *predicates: str) -> Row:
    return _published(name, 2, m.truth(function), predicates=predicates, vector=vector, inductor=(vector,),
                      gives=Gives.TRUTH, chooses=True)  # fmt: skip


def _reduction(name: str, function: Callable[..., Any], combine: str, neutral: tuple[float, int] = (0.0, 0),
               **more: Any) -> Row:  # fmt: skip
    named = {"reduction": name, "inductor": (name,), "superdsc": name, **more}
    return Row(name, Kind.REDUCTION, 1, function, combine=combine, neutral=neutral, **named)


def _scan(name: str, function: Callable[..., Any], reduction: str, combine: str) -> Row:
    return Row(name, Kind.SCAN, 1, function, reduction=reduction, combine=combine)


def _cast(name: str, source: tuple[str, ...], target: tuple[str, ...], **more: Any) -> Row:
    return Row(name, Kind.CAST, 1, m.unchanged, superdsc=name, formats=(source, target), **more)


_LEAST, _GREATEST = (-math.inf, -(2**31)), (math.inf, 2**31 - 1)
_HALF, _FULL, _FP8 = ("SEN169_FP16",), ("IEEE_FP32",), ("SEN143_FP8", "SEN152_FP8")

# fmt: off
ROWS: tuple[Row, ...] = (
    _published("add", 2, np.add, "arith.addf", "arith.addi", linalg="linalg.add", truth_vector="logical_xor"),
    _published("sub", 2, np.subtract, "arith.subf", "arith.subi", linalg="linalg.sub", truth_vector="logical_xor"),
    _published("mul", 2, np.multiply, "arith.mulf", "arith.muli", linalg="linalg.mul", truth_vector="logical_and",
               inductor=("mul", "mul_rn")),
    _published("realdiv", 2, m.divide, "arith.divf", also=("spyreop.realdiv",), linalg="linalg.div", vector="div",
               inductor=("truediv", "div_rn")),
    _own("truncdiv", 2, m.truncated_divide, "", "arith.divsi", also=("arith.divui",), vector="div",
         priced_as="floordiv"),
    _published("maximum", 2, np.maximum, "arith.maximumf", "arith.maxsi", linalg="linalg.max", chooses=True),
    _published("minimum", 2, np.minimum, "arith.minimumf", "arith.minsi", linalg="linalg.min", chooses=True),
    _published("neg", 1, np.negative, "arith.negf", WithConstant("sub", 0, first=True)),
    _published("abs", 1, np.abs, "math.absf", "math.absi"),
    _published("relufwd", 1, m.relu, WithConstant("maximum", 0.0), WithConstant("maximum", 0.0), vector="relu",
               inductor=("relu",), chooses=True),
    _published("exp", 1, np.exp, "math.exp", also=("spyreop.exp",), linalg="linalg.exp"),
    _published("log", 1, np.log, "math.log", linalg="linalg.log"),
    _published("sqrt", 1, np.sqrt, "math.sqrt", also=("spyreop.sqrt",), linalg="linalg.sqrt"),
    _published("rsqrt", 1, m.rsqrt, "math.rsqrt", also=("spyreop.rsqrt",)),
    _published("reciprocal", 1, m.reciprocal, WithConstant("realdiv", 1.0, first=True), also=("spyreop.reciprocal",)),
    _published("tanh", 1, np.tanh, "math.tanh"),
    _published("sigmoid", 1, m.sigmoid, "spyreop.sigmoid"),
    _published("floor", 1, np.floor, "math.floor"),
    _comparison("equal", np.equal, "eq", "oeq", "eq"),
    _comparison("notequal", np.not_equal, "ne", "une", "ne"),
    _comparison("greaterthan", np.greater, "gt", "ogt", "sgt"),
    _comparison("greaterequal", np.greater_equal, "ge", "oge", "sge"),
    _comparison("lesserthan", np.less, "lt", "olt", "slt"),
    _comparison("lesserequal", np.less_equal, "le", "ole", "sle"),
    _published("where3", 3, m.select, vector="select", inductor=("where",), chooses=True),
    _published("gelufwd", 1, m.gelu, "spyreop.gelu", vector="gelu", inductor=()),
    _published("silu", 1, m.silu, "spyreop.silu", priced_as="sigmoid", inductor=()),
    _published("softplus", 3, m.softplus, "spyreop.softplus", vector="softplus3", inductor=(),
               constants={"softplusBeta": 1.0, "softplusThresh": 20.0}, scalars=("softplusBeta", "softplusThresh")),
    _published("clip", 3, m.clip, "spyreop.clip", "spyreop.clip", vector="clamp", inductor=(), chooses=True,
               constants={"clipMin": -math.inf, "clipMax": math.inf}, scalars=("clipMin", "clipMax")),
    _own("gelu_tanh", 1, m.gelu_tanh, "spyreop.gelu_tanh", inductor=()),
    _own("mish", 1, m.mish, "spyreop.mish", inductor=()),
    _own("ceil", 1, np.ceil, "math.ceil"),
    _own("trunc", 1, np.trunc, "math.trunc"),
    _own("round", 1, np.rint, "math.roundeven"),
    _own("sign", 1, np.sign, "spyreop.sign", "spyreop.sign"),
    _own("erf", 1, m.erf, "math.erf"),
    _own("sin", 1, np.sin, "math.sin"),
    _own("cos", 1, np.cos, "math.cos"),
    _own("tan", 1, np.tan, "math.tan"),
    _own("asin", 1, np.arcsin, "math.asin"),
    _own("acos", 1, np.arccos, "math.acos"),
    _own("atan", 1, np.arctan, "math.atan"),
    _own("atan2", 2, np.arctan2, "math.atan2"),
    _own("sinh", 1, np.sinh, "math.sinh"),
    _own("cosh", 1, np.cosh, "math.cosh"),
    _own("log2", 1, np.log2, "math.log2"),
    _own("log1p", 1, np.log1p, "math.log1p"),
    _own("expm1", 1, np.expm1, "math.expm1"),
    _own("exp2", 1, np.exp2, "math.exp2"),
    _own("pow", 2, m.power, "math.powf", "spyreop.pow"),
    _own("fmod", 2, m.fmod, "spyreop.fmod", "arith.remsi", also=("arith.remf", "arith.remui"),
         inductor=("fmod", "mod")),
    _own("remainder", 2, m.remainder, "spyreop.remainder", "spyreop.remainder"),
    _own("floordiv", 2, m.floor_divide, "spyreop.floordiv", "arith.floordivsi"),
    _own("isnan", 1, m.truth(np.isnan), "spyreop.isnan", gives=Gives.TRUTH),
    _own("isinf", 1, m.truth(np.isinf), "spyreop.isinf", gives=Gives.TRUTH),
    _own("bit_and", 2, np.bitwise_and, "", "arith.andi", truth_vector="logical_and",
         inductor=("bitwise_and", "and_", "logical_and")),
    _own("bit_or", 2, np.bitwise_or, "", "arith.ori", truth_vector="logical_or",
         inductor=("bitwise_or", "or_", "logical_or")),
    _own("bit_xor", 2, np.bitwise_xor, "", "arith.xori", truth_vector="logical_xor",
         inductor=("bitwise_xor", "xor", "logical_xor")),
    _own("bit_not", 1, np.invert, "", WithConstant("bit_xor", -1), inductor=("bitwise_not", "logical_not")),
    _own("shl", 2, np.left_shift, "", "arith.shli", inductor=("bitwise_left_shift", "lshift")),
    _own("shr", 2, np.right_shift, "", "arith.shrsi", inductor=("bitwise_right_shift", "rshift")),
    _own("fma", 3, m.fma, "math.fma"),
    # Of the number of an element, and the low and high word of a key.
    _own("random", 3, m.random, "", "spyreop.random", inductor=()),
    Row("identity", Kind.COPY, 1, m.unchanged, vector="identity", chooses=True, superdsc="identity"),
    Row("ReStickifyOpHBM", Kind.COPY, 1, m.unchanged, superdsc="ReStickifyOpHBM"),
    Row("ReStickifyOpLx", Kind.COPY, 1, m.unchanged, superdsc="ReStickifyOpLx", read_as="ReStickifyOpHBM",
        planned=False),
    Row("handover", Kind.EXCHANGE, 1, m.unchanged),
    _cast("dl16tofp32", _HALF, _FULL),
    _cast("fp32todl16", _FULL, _HALF),
    _cast("fp8todl16", _FP8, _HALF, read_as="convert"),
    _cast("qfp8ch", _HALF, _FP8, read_as="convert", planned=False),
    _cast("qfp8wt", _HALF, _FP8, read_as="convert", planned=False),
    Row("convert", Kind.CAST, 1, m.unchanged),
    _reduction("sum", np.sum, "add"),
    _reduction("max", np.max, "maximum", _LEAST, inductor=("max", "any")),
    _reduction("min", np.min, "minimum", _GREATEST),
    _reduction("mean", np.mean, "add", reduction="sum", inductor=(), scaled_by="scaling_factor",
               constants={"scaling_factor": math.nan}),
    _reduction("prod", np.prod, "mul", (1.0, 1)),
    Row("avgpoolfwd", Kind.REDUCTION, 1, np.mean, superdsc="avgpoolfwd", read_as="mean", planned=False,
        reduction="sum", combine="add", scaled_by="nmap", constants={"nmap": math.nan}),
    Row("conv2d", Kind.MATMUL, 2, m.matmul, superdsc="conv2d", planned=False),
    Row("depthwiseconv2dnative", Kind.MATMUL, 2, m.matmul, superdsc="depthwiseconv2dnative", planned=False),
    Row("batchmatmul", Kind.MATMUL, 2, m.matmul, superdsc="batchmatmul"),
    Row("batchmatmulfp8", Kind.MATMUL, 2, m.matmul, superdsc="batchmatmulfp8", formats=(_FP8, ()), planned=False),
    Row("gather", Kind.GATHER, 2, m.gather),
    Row("scatter", Kind.SCATTER, 2, m.scatter),
    Row("scatter_add", Kind.SCATTER, 2, m.scatter_add, combine="add"),
    _scan("cumsum", np.cumsum, "sum", "add"),
    _scan("cumprod", np.cumprod, "prod", "mul"),
    _scan("cummax", np.maximum.accumulate, "max", "maximum"),
    _scan("cummin", np.minimum.accumulate, "min", "minimum"),
    Row("topkvalue", Kind.SELECTION, 1, m.top_values, superdsc="topkvalue"),
    Row("topkindex", Kind.SELECTION, 1, m.top_places, gives=Gives.PLACES, superdsc="topkindex"),
    Row("argmax", Kind.SELECTION, 1, m.place_of_largest, gives=Gives.PLACES, reduction="max", inductor=("argmax",)),
    Row("argmin", Kind.SELECTION, 1, m.place_of_smallest, gives=Gives.PLACES, reduction="min", inductor=("argmin",)),
    Row("exx2", Kind.NORM, 1, m.moments, superdsc="exx2", planned=False, reduction="sum", combine="add",
        scaled_by="exx2scale", constants={"exx2scale": math.nan, "useZeroMean": 0.0}),
    Row("layernormscale", Kind.NORM, 1, m.norm_scale, superdsc="layernormscale", planned=False,
        constants={"eps": None}),
    Row("layernormnorm", Kind.NORM, 5, m.normalised, superdsc="layernormnorm", planned=False),
)
# fmt: on

OPS: dict[str, Row] = {row.name: row for row in ROWS if row.planned}
PUBLISHED: dict[str, Row] = {row.superdsc: row for row in ROWS if row.superdsc}
BY_INDUCTOR: dict[str, Row] = {name: row for row in ROWS for name in row.inductor}
SELECT, RESTICKIFY = OPS["where3"], OPS["ReStickifyOpHBM"]


def lookup(name: str, known: Mapping[str, Row] = OPS) -> Row:
    """The op of that name, with or without the suffix that only says whether the reduced dim is in the sticks."""
    found = known.get(name)
    if found is None:
        found = known.get(name.removesuffix(NONSTICK))
        if found is None or found.kind is not Kind.REDUCTION:
            raise UnsupportedOp(f"opfunc {name!r} is not known; known are {', '.join(known)}")
    return found
