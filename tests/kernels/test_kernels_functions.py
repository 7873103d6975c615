# SPDX-License-Identifier: Apache-2.0
# pytest tests/kernels/test_kernels_functions.py
# The vector operations from ceil on: float64 oracles within 1 ulp, special values, integers, every ISA.
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_api import ARITY, FP32, INT32, SEN169, View, dense, from_fp32, kernels, on_every_isa, same_bits, to_fp32
from kernel_maps import random_view
from numpy.typing import NDArray

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
Function = Callable[..., NDArray]


def in_torch(f: Callable[..., torch.Tensor]) -> Function:
    return lambda *a: f(*[torch.from_numpy(np.ascontiguousarray(x)) for x in a]).numpy()


def nonzero(x: NDArray) -> NDArray:
    return ~(x == 0)


def greatest(a: NDArray, b: NDArray) -> NDArray:
    """Of equal operands the first, also of -0 and +0; NaN wins."""
    return np.where(np.isnan(a) | (~(a < b) & ~np.isnan(b)), a, b)


def least(a: NDArray, b: NDArray) -> NDArray:
    return np.where(np.isnan(a) | (~(b < a) & ~np.isnan(b)), a, b)


EXACT: dict[str, Function] = {
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "sign": in_torch(torch.sign),
    "fmod": np.fmod,
    "remainder": np.remainder,
    "floordiv": in_torch(torch.floor_divide),
    "isnan": np.isnan,
    "logical_and": lambda a, b: nonzero(a) & nonzero(b),
    "logical_or": lambda a, b: nonzero(a) | nonzero(b),
    "logical_xor": lambda a, b: nonzero(a) ^ nonzero(b),
    "logical_not": lambda a: ~nonzero(a),
    "clamp": lambda x, lo, hi: least(greatest(x, lo), hi),
}


def softplus(x: NDArray, beta: NDArray, threshold: NDArray) -> NDArray:
    u = beta * x
    return np.where(u > threshold, x, (np.maximum(u, 0) + np.log1p(np.exp(-np.abs(u)))) / beta)


def gelu(x: NDArray) -> NDArray:
    return in_torch(lambda t: 0.5 * t * torch.special.erfc(-t * math.sqrt(0.5)))(x)  # precise in the negative tail


def mish(x: NDArray) -> NDArray:
    e = np.exp(np.minimum(x, 300))
    return x * (e * (e + 2) / (e * (e + 2) + 2))


# The oracle in float64. All are within 1 ulp of fp32.
FUNCTIONS: dict[str, Function] = {
    "erf": in_torch(torch.special.erf),
    "gelu": gelu,
    "gelu_tanh": lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus3": softplus,
    "mish": mish,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "log2": np.log2,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "exp2": np.exp2,
    "pow": np.power,
}
SPECIAL = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5,
    1.5, -1.5, 2.5, -2.5, 2.0**23, 2.0**23 + 1, 2.0**24, -(2.0**24) - 2, 2.0**31, 88.73, -104.0, 1e10,
    16367173 * 2.0**72,  # close to a multiple of pi/2
]  # fmt: skip


def samples(rng: np.random.Generator, n: int) -> NDArray[np.float32]:
    return np.concatenate(
        [
            rng.standard_normal(n) * 2.0 ** rng.integers(-20, 9, n),
            rng.uniform(-110, 110, n),
            rng.uniform(-2, 2, n),
            rng.integers(-20, 20, n),
            rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32).astype(np.float64),
        ]
    ).astype(np.float32)


def operands(op: str, n: int) -> list[NDArray[np.float32]]:
    """Random operands, and every combination of the special values."""
    rng = np.random.default_rng(len(op))
    some = SPECIAL if ARITY[op] < 3 else SPECIAL[:16]
    grid = np.meshgrid(*[np.array(some, dtype=np.float32)] * ARITY[op])
    columns = [samples(rng, n) for _ in range(ARITY[op])]
    for c in columns[1:]:
        rng.shuffle(c)
    return [np.concatenate([c, g.ravel()]) for c, g in zip(columns, grid, strict=True)]


def run_op(op: str, ins: list[NDArray], fmt: int = FP32, compute: int = 0) -> NDArray:
    n = ins[0].size

    def run() -> NDArray:
        out = dense(np.zeros(n), fmt)
        kernels.vector_op(op, (n,), out, *[dense(x, fmt) for x in ins], compute=compute)
        return out.read((n,))

    return on_every_isa(run)


@pytest.mark.parametrize("op", EXACT)
@pytest.mark.parametrize("fmt", [FP32, SEN169])
def test_exact_operations(op: str, fmt: int) -> None:
    ins = [from_fp32(x, fmt) for x in operands(op, 2000)]
    expected = from_fp32(EXACT[op](*[to_fp32(x, fmt) for x in ins]).astype(np.float32), fmt)
    got = run_op(op, ins, fmt)
    word = np.uint32 if fmt == FP32 else np.uint16
    wrong = np.flatnonzero(got.view(word) != expected.view(word))
    assert not wrong.size, [(*[x[i] for x in ins], got[i], expected[i]) for i in wrong[:5]]


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_are_within_one_ulp(op: str) -> None:
    ins = operands(op, 12_000)
    expected = FUNCTIONS[op](*[x.astype(np.float64) for x in ins])
    got = run_op(op, ins)
    differ = np.flatnonzero(np.isnan(got) != np.isnan(expected))
    assert not differ.size, [(*[x[i] for x in ins], got[i], expected[i]) for i in differ[:5]]
    assert set(got[np.isnan(got)].view(np.uint32).tolist()) <= {0x7FC00000}
    rounded = expected.astype(np.float32)
    infinite = np.isinf(rounded)
    assert np.array_equal(got[infinite], rounded[infinite])
    zero = (rounded == 0) & (got == 0)
    sign = np.flatnonzero(np.signbit(got[zero]) != np.signbit(expected[zero]))
    assert not sign.size, [[x[zero][i] for x in ins] for i in sign[:5]]
    ok = np.isfinite(rounded)
    error = np.abs(got[ok].astype(np.float64) - expected[ok]) / np.spacing(np.abs(rounded[ok])).astype(np.float64)
    worst = error.argmax()
    assert error[worst] <= 1.0, [x[ok][worst] for x in ins]


@pytest.mark.parametrize("op", sorted({*EXACT, *FUNCTIONS}))
def test_many_elements_give_what_few_give(op: str) -> None:
    """A table answers for many; small pieces compute each. All codes, on every ISA."""
    if ARITY[op] != 1:
        pytest.skip("a function of several numbers")
    codes = np.arange(65536).astype(np.uint16)
    few = np.concatenate([run_op(op, [piece], SEN169) for piece in np.split(codes, 16)])
    assert same_bits(run_op(op, [codes], SEN169), few)


def test_fma_rounds_once() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(4000).astype(np.float32) for _ in range(2))
    c = (-a.astype(np.float64) * b).astype(np.float32)  # leaves the rounding error of the product
    expected = (a.astype(np.float64) * b + c).astype(np.float32)
    assert same_bits(run_op("fma", [a, b, c]), expected)


def test_infinities_as_the_host_sees_them() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 3e38, 0.0], dtype=np.float32)
    assert run_op("isinf", [x]).tolist() == [1, 1, 0, 0, 0]
    codes = np.array([0x7FFE, 0xFFFE, 0x7FFF, 0x7FFD, 0], dtype=np.uint16)
    assert run_op("isinf", [codes], SEN169).tolist() == from_fp32(np.array([1, 1, 0, 0, 0.0]), SEN169).tolist()


@pytest.mark.parametrize("x", [0.0, 1.0, -1.0, 2.0, -2.0, np.inf, -np.inf, np.nan, -0.0])
def test_pow_special_values(x: float) -> None:
    ys = np.array([0.0, -0.0, 1, 2, 3, -1, -2, -3, 0.5, -0.5, np.inf, -np.inf, np.nan, 2.0**24 + 2], dtype=np.float32)
    xs = np.full_like(ys, x)
    assert same_bits(run_op("pow", [xs, ys]), from_fp32(np.power(xs, ys), FP32))


def int_pow(a: NDArray, b: NDArray) -> NDArray:
    def one(x: int, n: int) -> int:
        if n < 0:
            return x**-n if abs(x) == 1 else 0
        return (pow(x, n, 2**32) + 2**31) % 2**32 - 2**31

    return np.array([one(int(x), int(n)) for x, n in zip(a, b, strict=True)], dtype=np.int32)


def safe(f: Function) -> Function:
    return lambda a, b: np.where(b == 0, 0, f(a, np.where(b == 0, 1, b)))


INTEGER: dict[str, Function] = {
    "ceil": lambda a: a,
    "trunc": lambda a: a,
    "round": lambda a: a,
    "sign": np.sign,
    "pow": int_pow,
    "fmod": safe(np.fmod),
    "remainder": safe(np.remainder),
    "floordiv": safe(np.floor_divide),
    "isnan": np.zeros_like,
    "isinf": np.zeros_like,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "bit_not": np.invert,
    "shl": lambda a, b: np.where((b < 0) | (b > 31), 0, a << (b & 31)),
    "shr": lambda a, b: a >> np.where((b < 0) | (b > 31), 31, b),
    "clamp": lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi),
    "fma": lambda a, b, c: a * b + c,
}


@pytest.mark.parametrize("op", INTEGER)
def test_integer_operations(op: str) -> None:
    rng = np.random.default_rng(5)
    n = 4000
    ins = []
    for _ in range(ARITY[op]):
        x = np.where(rng.random(n) < 0.5, rng.integers(-40, 40, n), rng.integers(-(2**31), 2**31, n))
        x[rng.random(n) < 0.1] = 0
        x[rng.random(n) < 0.05] = -(2**31)
        x[rng.random(n) < 0.05] = -1
        ins.append(x.astype(np.int32))
    expected = INTEGER[op](*ins).astype(np.int32)
    assert np.array_equal(run_op(op, ins, INT32, compute=1), expected)


@pytest.mark.parametrize("op", ["bit_and", "bit_or", "bit_xor", "shl", "shr"])
def test_bit_operations_on_floats_work_on_the_integers(op: str) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.integers(0, 16, 300).astype(np.float32) for _ in range(2))
    expected = INTEGER[op](a.astype(np.int32), b.astype(np.int32)).astype(np.float32)
    assert same_bits(run_op(op, [a, b]), expected)


def test_functions_of_integers() -> None:
    x = np.arange(-5, 12, dtype=np.int32)
    assert run_op("expm1", [x], INT32, compute=1).tolist() == np.trunc(np.expm1(x.astype(np.float64))).tolist()


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_any_mix_of_formats_and_maps(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 17, 64, 70]), max_size=3)))
    op = data.draw(st.sampled_from(["ceil", "fmod", "logical_xor", "clamp", "isnan", "fma"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    formats = [data.draw(st.sampled_from([SEN169, FP32, INT32])) for _ in range(ARITY[op])]
    out_format = data.draw(st.sampled_from([SEN169, FP32, INT32]))
    ins: list[View] = []
    for fmt in formats:
        view = random_view(rng, shape, fmt, broadcast=True)
        x = np.asarray(rng.integers(-8, 8, shape) * 0.5)
        view.write(x.astype(np.int32) if fmt == INT32 else from_fp32(x.astype(np.float32), fmt).reshape(shape))
        ins.append(view)
    args = [to_fp32(v.read(shape), f) for v, f in zip(ins, formats, strict=True)]
    oracle = EXACT.get(op, lambda a, b, c: a * b + c)
    expected = from_fp32(np.asarray(oracle(*args), dtype=np.float32), out_format)
    out = random_view(rng, shape, out_format, broadcast=False)
    untouched = out.buffer.copy()

    def run() -> NDArray:
        out.buffer[:] = untouched
        kernels.vector_op(op, shape, out, *ins)
        return out.buffer.copy()

    got = on_every_isa(run)
    model = View(untouched.copy(), out_format, out.maps, out.offset)
    model.write(expected)
    assert same_bits(got, model.buffer)  # and nothing else was written
