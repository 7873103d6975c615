# SPDX-License-Identifier: Apache-2.0
"""Independent numerics oracle: exact values in float64, and how far the card may be from them.

Nothing here uses the card, its C++ code or the compiler; the format is implemented from its definition.
docs/accuracy.md states the bounds in words. Three ways to use it, from strict to general:

* ``assert_same(actual, round_dl16(np.float32(a) + np.float32(b)))``: one correctly rounded fp32 operation is bit-exact.
* ``assert_close_dl16(actual, expected64, extra=matmul_error(a, b))``: the error before the last rounding is a formula.
* ``Bounded``: a value with its error bound, carried through a chain of operations::

      h = (Bounded.of(x) @ Bounded.of(w1)).store().relu()
      (h @ Bounded.of(w2)).store().check(actual)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# SEN169_FP16: sign 1, exponent 6 (bias 31), fraction 9; every exponent is an ordinary binade.
NAN_CODE = 0x7FFF
MAX_CODE = 0x7FFE
MAX = 2.0**32 * (2 - 2.0**-8)  # 0x7FFE
MIN = 2.0**-31 * (1 + 2.0**-9)  # 0x0001; the code of 2**-31 itself means zero
FP16_TOP_CODE = 0x5DFF  # 65472, the largest value that comes back finite in fp16
U32 = 2.0**-24  # relative error of one fp32 rounding

Array = np.ndarray[Any, np.dtype[Any]]


def to64(x: Any) -> Array:
    """Any tensor, array or number as a float64 array on the host."""
    if isinstance(x, torch.Tensor):
        return x.detach().cpu().to(torch.float64).numpy()
    return np.asarray(x, dtype=np.float64)


def encode(x: Any) -> Array:
    """DL16 codes (uint16): nearest, ties away from zero, overflow and infinity to the largest value, NaN to 0x7FFF."""
    value = to64(x)
    magnitude = np.where(np.isfinite(value), np.abs(value), MAX)
    fraction, exponent = np.frexp(magnitude)  # magnitude = fraction * 2**exponent, fraction in [1/2, 1)
    significand = np.floor(np.ldexp(fraction, 10) + 0.5).astype(np.int64)  # 512..1024; 1024 carries into the exponent
    code = (exponent.astype(np.int64) + 30) * 512 + significand - 512
    code = np.where(magnitude == 0, 0, np.clip(code, 0, MAX_CODE))
    code = np.where(np.signbit(value), code | 0x8000, code)
    return np.where(np.isnan(value), NAN_CODE, code).astype(np.uint16)


def encode_host(x: torch.Tensor) -> Array:
    """Codes that a host tensor has on the card. A finite fp16 value stays finite when it comes back."""
    code = encode(x)
    if x.dtype != torch.float16:
        return code
    magnitude = np.abs(to64(x))
    top = np.isfinite(magnitude) & (magnitude > 65472)
    return np.where(top, (code & 0x8000) | FP16_TOP_CODE, code).astype(np.uint16)


def decode(code: Any) -> Array:
    """Exact value of DL16 codes; 0x7FFF and 0xFFFF are NaN."""
    bits = np.asarray(code).astype(np.int64)
    magnitude = bits & 0x7FFF
    value = np.ldexp(1 + (magnitude & 511) / 512, (magnitude >> 9) - 31)
    value = np.where(magnitude == 0, 0.0, value)
    value = np.where(magnitude == NAN_CODE, np.nan, value)
    return np.where(bits & 0x8000, -value, value)


def round_dl16(x: Any) -> Array:
    """The DL16 value that a store of `x` leaves behind, as float64."""
    return decode(encode(x))


def dl16(x: torch.Tensor) -> Array:
    """The values that the card sees after ``x.to("spyre")``, as float64. Every expected result starts from these."""
    if x.dtype in (torch.float16, torch.bfloat16, torch.bool):
        return decode(encode_host(x))
    return to64(x)


def half_ulp_dl16(magnitude: Any) -> Array:
    """Largest rounding error of a store of any value up to `magnitude`."""
    size = np.abs(to64(magnitude))
    _, exponent = np.frexp(np.where(np.isfinite(size), np.clip(size, MIN, MAX), MAX))
    # Below MIN values go to zero or to MIN, so the step is MIN itself.
    return np.where(size < MIN, MIN, np.ldexp(1.0, exponent - 11))


def half_ulp_ieee(magnitude: Any, dtype: torch.dtype) -> Array:
    """Largest error of one rounding into an IEEE type."""
    info = torch.finfo(dtype)
    size = np.clip(np.abs(to64(magnitude)), info.tiny, info.max)
    return np.ldexp(info.eps, np.frexp(size)[1] - 2)


def host_error(magnitude: Any, dtype: torch.dtype) -> Array:
    """Error of the transfer back. DL16's 10 significant bits fit fp16's normal range, fp32 and fp64 exactly."""
    size = np.abs(to64(magnitude))
    if dtype == torch.bfloat16:
        return half_ulp_ieee(size, dtype)
    if dtype == torch.float16:
        return np.where(size < 2.0**-14, 2.0**-25, 0.0)
    return np.zeros_like(size)


def matmul_error(a: Any, b: Any, splits: int = 1) -> Array:
    """fp32 accumulation: gamma(k + splits) * (|a| @ |b|); `splits` partial sums joined over the ring."""
    left, right = np.abs(to64(a)), np.abs(to64(b))
    return gamma(left.shape[-1] + splits) * (left @ right)


def sum_error(a: Any, dim: int | Sequence[int], keepdim: bool = False) -> Array:
    """fp32 summation in any order: gamma(n) * sum |a|."""
    size = np.abs(to64(a))
    axes = (dim,) if isinstance(dim, int) else tuple(dim)
    n = math.prod(size.shape[axis] for axis in axes)
    return gamma(n) * size.sum(axis=axes, keepdims=keepdim)


def elementwise_error(expected: Any, fp32_ulps: float = 0.5) -> Array:
    """Error of one fp32 function that is right to `fp32_ulps` (0.5: add, sub, mul, div, sqrt; 4: exp, log, tanh, …)."""
    return 2 * fp32_ulps * U32 * np.abs(to64(expected))


def gamma(n: int) -> float:
    """n roundings in a row: n*u / (1 - n*u), about n * 2**-24."""
    return n * U32 / (1 - n * U32)


def assert_same(actual: torch.Tensor, expected: Any) -> None:
    """Equal values, as the host sees them (the largest code reads as infinity); NaN equals NaN."""
    want = torch.from_numpy(_as_host(to64(expected))).to(actual.dtype)
    _compare(actual, to64(want), np.zeros(want.shape), "equal values")


def assert_close_dl16(actual: torch.Tensor, expected64: Any, extra: Any = None) -> None:
    """|actual - expected| <= extra + half ulp of DL16 (+ the host type's own rounding).

    `extra` bounds the error before the last store; by default one fp32 operation. Expected values outside the format
    must come back as infinities of the right sign.
    """
    expected = to64(expected64)
    error = elementwise_error(expected) if extra is None else to64(extra)
    bound = error + half_ulp_dl16(np.abs(expected) + error)
    _check(actual, expected, bound, "half ulp of DL16 + extra")


def assert_close_fp32(actual: torch.Tensor, expected64: Any, extra: Any = None) -> None:
    """The same for a tensor that the card holds in fp32."""
    expected = to64(expected64)
    error = elementwise_error(expected) if extra is None else to64(extra)
    bound = error + half_ulp_ieee(np.abs(expected) + error, torch.float32)
    _check(actual, expected, bound, "half ulp of fp32 + extra")


def _as_host(value: Array) -> Array:
    """D2H reads the largest code as infinity."""
    return np.where(np.abs(value) >= MAX, np.copysign(np.inf, value), value)


def _check(actual: torch.Tensor, expected: Array, bound: Array, rule: str) -> None:
    bound = bound + host_error(np.abs(expected) + bound, actual.dtype)
    got = to64(actual)
    limit = min(MAX, torch.finfo(actual.dtype).max)
    # An infinity is right where the value, give or take its bound, leaves what the card or the host type can hold.
    saturated = np.isinf(got) & (np.sign(got) == np.sign(expected)) & (np.abs(expected) + bound >= limit)
    _compare(actual, np.where(saturated, got, expected), bound, rule)


def _compare(actual: torch.Tensor, expected: Array, bound: Array, rule: str) -> None:
    got = to64(actual)
    if got.shape != expected.shape:
        raise AssertionError(f"shape {got.shape} where {expected.shape} was expected")
    with np.errstate(invalid="ignore"):
        error = np.where(got == expected, 0.0, np.abs(got - expected))
    both_nan = np.isnan(got) & np.isnan(expected)
    bad = ~both_nan & ~(error <= bound)
    if bad.any():
        raise AssertionError(_message(got, expected, error, np.broadcast_to(bound, got.shape), bad, rule))


def _message(got: Array, expected: Array, error: Array, bound: Array, bad: Array, rule: str) -> str:
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(bad, np.nan_to_num(error / bound, nan=np.inf), -1.0)
    places = np.argwhere(bad)
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
    lines = [
        f"{len(places)} of {bad.size} values outside the bound ({rule}); worst is {excess[worst]:.3g} times the bound",
        f"  worst {_at(worst)}: {_one(got[worst])}, expected {_one(expected[worst])}, "
        f"error {error[worst]:.4g}, bound {bound[worst]:.4g}",
    ]
    for place in map(tuple, places[:5]):
        lines.append(f"  first {_at(place)}: {_one(got[place])}, expected {_one(expected[place])}")
    if bad.ndim:
        ranges = ", ".join(f"{column.min()}..{column.max()}" for column in places.T)
        lines.append(f"  bad values lie in [{ranges}] of shape {list(bad.shape)}")
    return "\n".join(lines)


def _at(place: tuple[Any, ...]) -> str:
    return "[" + ", ".join(str(int(i)) for i in place) + "]"


def _one(value: float) -> str:
    return f"{value:.9g} (0x{int(encode(value)):04X})"


@dataclass(frozen=True)
class Bounded:
    """Exact float64 values of what should have been computed, and a bound on how far the card's values are from them.

    Arithmetic propagates the operands' bounds and adds fp32's rounding; `store` adds that of the element type.
    The bounds hold for any order of accumulation and are close enough that a wrong tile or a missing term stands out.
    """

    value: Array
    error: Array
    dtype: torch.dtype = torch.float16

    @staticmethod
    def of(x: torch.Tensor) -> Bounded:
        """A host tensor as it arrives on the card: exact after the rounding of the transfer."""
        value = dl16(x)
        return Bounded(value, np.zeros_like(value), x.dtype)

    def _computed(self, value: Array, error: Array, fp32_ulps: float = 0.5) -> Bounded:
        return Bounded(value, error + elementwise_error(np.abs(value) + error, fp32_ulps), self.dtype)

    def store(self) -> Bounded:
        """One rounding into the element type: every device op ends with it."""
        size = np.abs(self.value) + self.error
        if self.dtype == torch.float32:
            return Bounded(self.value, self.error + half_ulp_ieee(size, torch.float32), self.dtype)
        # A value that may lie below MIN may be stored as zero, whatever the step is at its largest.
        step = np.where(
            np.abs(self.value) - self.error < MIN, np.maximum(half_ulp_dl16(size), MIN), half_ulp_dl16(size)
        )
        return Bounded(self.value, self.error + step, self.dtype)

    def __add__(self, other: Bounded | float) -> Bounded:
        b = self._lift(other)
        return self._computed(self.value + b.value, self.error + b.error)

    def __sub__(self, other: Bounded | float) -> Bounded:
        b = self._lift(other)
        return self._computed(self.value - b.value, self.error + b.error)

    def __mul__(self, other: Bounded | float) -> Bounded:
        b = self._lift(other)
        error = np.abs(self.value) * b.error + np.abs(b.value) * self.error + self.error * b.error
        return self._computed(self.value * b.value, error)

    def __truediv__(self, other: Bounded | float) -> Bounded:
        b = self._lift(other)
        value = self.value / b.value
        room = np.abs(b.value) - b.error
        if (room <= 0).any():
            raise ValueError("division by a value whose bound contains zero")
        return self._computed(value, (self.error + np.abs(value) * b.error) / room)

    def __matmul__(self, other: Bounded) -> Bounded:
        size_a, size_b = np.abs(self.value) + self.error, np.abs(other.value) + other.error
        error = np.abs(self.value) @ other.error + self.error @ size_b
        return Bounded(self.value @ other.value, error + matmul_error(size_a, size_b), self.dtype)

    def relu(self) -> Bounded:
        return Bounded(np.maximum(self.value, 0), self.error, self.dtype)

    def exp(self) -> Bounded:
        value = np.exp(self.value)
        return self._computed(value, value * np.expm1(self.error), fp32_ulps=4)

    def sum(self, dim: int, keepdim: bool = False) -> Bounded:
        error = self.error.sum(axis=dim, keepdims=keepdim)
        error = error + sum_error(np.abs(self.value) + self.error, dim, keepdim)
        return Bounded(self.value.sum(axis=dim, keepdims=keepdim), error, self.dtype)

    def amax(self, dim: int, keepdim: bool = False) -> Bounded:
        value = self.value.max(axis=dim, keepdims=keepdim)
        return Bounded(value, self.error.max(axis=dim, keepdims=keepdim), self.dtype)

    def softmax(self, dim: int = -1) -> Bounded:
        """As the card runs it: max, subtract, exp, sum, divide, each stored."""
        shifted = (self - self.amax(dim, keepdim=True)).store()
        weights = shifted.exp().store()
        return (weights / weights.sum(dim, keepdim=True).store()).store()

    def worst(self, actual: torch.Tensor) -> float:
        """Largest error of `actual` as a fraction of its bound; above 1 is wrong. For values inside the format."""
        bound = self.error + host_error(np.abs(self.value) + self.error, actual.dtype)
        error = np.abs(to64(actual) - self.value)
        return float(np.max(np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0)))

    def check(self, actual: torch.Tensor) -> None:
        """Fails if a value of `actual` is outside its bound."""
        _check(actual, self.value, self.error, "propagated error bound")

    def _lift(self, other: Bounded | float) -> Bounded:
        if isinstance(other, Bounded):
            return other
        value = np.asarray(float(other))
        return Bounded(value, U32 * np.abs(value), self.dtype)
