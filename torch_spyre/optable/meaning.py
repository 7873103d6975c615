# SPDX-License-Identifier: Apache-2.0
"""What the ops mean, in NumPy: floats in float64, integers in int64. Truth is 1.0 and 0.0.

The rows of the table name these functions, and NumPy's own where it has one. A reduction or a scan takes `axis`; a
selection takes `axis` and, for a top-k, how many; a gather or a scatter takes a
flat table and places in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from torch_spyre.optable.kinds import TopK

Array = Any  # np.ndarray of float64 or int64

erf = np.vectorize(math.erf, otypes=[np.float64])


def unchanged(x: Array) -> Array:
    return x


def divide(a: Array, b: Array) -> Array:
    return np.divide(a, b, dtype=np.float64)


def truncated_divide(a: Array, b: Array) -> Array:
    if not _integers(a, b):
        return np.trunc(a / b)
    b = np.where(b == 0, 1, b)
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def floor_divide(a: Array, b: Array) -> Array:
    return a // np.where(b == 0, 1, b) if _integers(a, b) else np.floor(a / b)


def fmod(a: Array, b: Array) -> Array:
    return np.fmod(a, np.where(b == 0, 1, b) if _integers(a, b) else b)


def remainder(a: Array, b: Array) -> Array:
    return np.mod(a, np.where(b == 0, 1, b) if _integers(a, b) else b)


def power(a: Array, b: Array) -> Array:
    return np.power(a.astype(np.float64), b.astype(np.float64))


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def reciprocal(x: Array) -> Array:
    return 1 / x.astype(np.float64)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def mish(x: Array) -> Array:
    return x * np.tanh(np.logaddexp(0, x))


def softplus(x: Array, beta: Array, threshold: Array) -> Array:
    scaled = x * beta
    return np.where(scaled > threshold, x, np.log1p(np.exp(np.minimum(scaled, threshold))) / beta)


def clip(x: Array, low: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def fma(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def select(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition != 0, a, b)


def truth(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *values: function(*values).astype(np.float64)


def random(number: Array, low: Array, high: Array) -> Array:
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


def matmul(a: Array, b: Array, summed: int = 1) -> Array:
    """Over dims …, m, n, k, of which k is `summed` dims; an operand has size 1 along the dims it lacks."""
    if summed > 1:
        sizes = np.broadcast_shapes(a.shape[-summed:], b.shape[-summed:])
        a, b = (np.broadcast_to(x, (*x.shape[:-summed], *sizes)).reshape(*x.shape[:-summed], -1) for x in (a, b))
        return matmul(a, b).reshape(*np.broadcast_shapes(a.shape[:-1], b.shape[:-1]), *[1] * summed)
    depth = max(a.shape[-1], b.shape[-1])
    left = np.broadcast_to(a, (*a.shape[:-1], depth))[..., 0, :]  # …, m, k
    right = np.broadcast_to(b, (*b.shape[:-1], depth))[..., 0, :, :]  # …, n, k
    return np.matmul(left, np.swapaxes(right, -2, -1))[..., None]


def top_places(x: Array, axis: int, top: TopK) -> Array:
    """Places along an axis, best first; NaN counts as the largest, and the first of equals comes first."""
    ranked = np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x
    order = np.argsort(ranked if top.ascending else -ranked, axis=axis, kind="stable")
    return np.take(order, range(top.count), axis)


def top_values(x: Array, axis: int, top: TopK) -> Array:
    return np.take_along_axis(x, top_places(x, axis, top), axis)


def place_of_largest(x: Array, axis: int, top: TopK | None = None) -> Array:
    return np.expand_dims(np.argmax(np.where(np.isnan(x), np.inf, x), axis), axis)


def place_of_smallest(x: Array, axis: int, top: TopK | None = None) -> Array:
    return np.expand_dims(np.argmin(np.where(np.isnan(x), -np.inf, x), axis), axis)


def gather(table: Array, places: Array) -> Array:
    return table[places]


def scatter(table: Array, places: Array, source: Array) -> None:
    table[places] = source


def scatter_add(table: Array, places: Array, source: Array) -> None:
    np.add.at(table, places, source)


def moments(x: Array, axis: tuple[int, ...]) -> Array:
    """The sum and the sum of squares, side by side."""
    return np.stack([np.sum(x, axis=axis, keepdims=True), np.sum(x**2, axis=axis, keepdims=True)], axis=-1)


def norm_scale(means: Array, eps: float) -> Array:
    """From the mean and the mean of squares."""
    mean, square = means[..., 0], means[..., 1]
    return 1 / np.sqrt(np.maximum(square - mean**2, 0) + eps)


def normalised(x: Array, mean: Array, factor: Array, weight: Array, bias: Array) -> Array:
    return (x - mean) * factor * weight + bias


def _integers(*values: Array) -> bool:
    return all(v.dtype.kind == "i" for v in values)
