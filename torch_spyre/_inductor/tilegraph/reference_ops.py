# SPDX-License-Identifier: Apache-2.0
"""What each opfunc means, in NumPy: floats in float64, integers in int64. The table behind `evaluate`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # np.ndarray of float64 or int64

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Array, beta: Array, threshold: Array) -> Array:
    scaled = x * beta
    return np.where(scaled > threshold, x, np.log1p(np.exp(np.minimum(scaled, threshold))) / beta)


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _floor_divide(a: Array, b: Array) -> Array:
    return a // np.where(b == 0, 1, b) if _integers(a, b) else np.floor(a / b)


def _truncated_divide(a: Array, b: Array) -> Array:
    if not _integers(a, b):
        return np.trunc(a / b)
    b = np.where(b == 0, 1, b)
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _modulo(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(a, np.where(b == 0, 1, b)) if _integers(a, b) else function(a, b)


def _power(a: Array, b: Array) -> Array:
    return np.power(a.astype(np.float64), b.astype(np.float64))


def _random(number: Array, low: Array, high: Array) -> Array:
    """Word number % 4 of block number // 4 of Philox4x32-10 (Salmon et al., 2011) with this key."""
    mask = np.uint64(0xFFFFFFFF)
    number, k0, k1 = (np.asarray(v).astype(np.uint64) & mask for v in (number, low, high))
    c0, c1 = number >> np.uint64(2), np.zeros_like(number)
    c2, c3 = np.zeros_like(number), np.zeros_like(number)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ k0, b & mask, (a >> np.uint64(32)) ^ c3 ^ k1, a & mask
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return np.choose((number & np.uint64(3)).astype(np.int64), [c0, c1, c2, c3]).astype(np.int64)


def _integers(*values: Array) -> bool:
    return all(v.dtype.kind == "i" for v in values)


def _truth(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *values: function(*values).astype(np.float64)


POINTWISE: dict[str, Callable[..., Array]] = {
    "identity": lambda x: x,
    "ReStickifyOpHBM": lambda x: x,
    "dl16tofp32": lambda x: x,
    "fp32todl16": lambda x: x,
    "fp8todl16": lambda x: x,
    "convert": lambda x: x,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "realdiv": lambda a, b: np.divide(a, b, dtype=np.float64),
    "truncdiv": _truncated_divide,
    "floordiv": _floor_divide,
    "fmod": _modulo(np.fmod),
    "remainder": _modulo(np.mod),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "relufwd": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x.astype(np.float64),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "gelufwd": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "softplus": _softplus,
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "sign": np.sign,
    "pow": _power,
    "fma": lambda a, b, c: a * b + c,
    "isnan": _truth(np.isnan),
    "isinf": _truth(np.isinf),
    "equal": _truth(np.equal),
    "notequal": _truth(np.not_equal),
    "greaterthan": _truth(np.greater),
    "greaterequal": _truth(np.greater_equal),
    "lesserthan": _truth(np.less),
    "lesserequal": _truth(np.less_equal),
    "where3": lambda condition, a, b: np.where(condition != 0, a, b),
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "bit_not": np.invert,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "random": _random,
}

REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": np.sum,
    "mean": np.mean,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
}

SCANS: dict[str, Callable[..., Array]] = {
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
}

SELECTIONS = ("topkvalue", "topkindex", "argmax", "argmin")
INDEXED = ("gather", "scatter", "scatter_add")


def order(x: Array, axis: int, ascending: bool) -> Array:
    """Places along an axis, best first; NaN counts as the largest, and the first of equals comes first."""
    ranked = np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x
    return np.argsort(ranked if ascending else -ranked, axis=axis, kind="stable")
