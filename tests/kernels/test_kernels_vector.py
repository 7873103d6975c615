# SPDX-License-Identifier: Apache-2.0
# pytest tests/kernels/test_kernels_vector.py
# Elementwise operations and sum_views: against float64, with every mix of formats and maps, same bits on every ISA.
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_api import (
    ARITY,
    FP32,
    INT32,
    SEN169,
    View,
    dense,
    from_fp32,
    kernels,
    on_every_isa,
    same_bits,
    scalar,
    to_fp32,
)
from kernel_maps import random_view
from numpy.typing import NDArray

ISAS = kernels.isas()

EXACT: dict[str, Callable[..., NDArray]] = {
    "identity": lambda a: a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "maximum": lambda a, b: np.where(np.isnan(a) | (a >= b), a, b),
    "minimum": lambda a, b: np.where(np.isnan(a) | (a <= b), a, b),
    "neg": lambda a: -a,
    "abs": np.abs,
    "relu": lambda a: np.where(a <= 0, np.float32(0), a),
    "sqrt": np.sqrt,
    "rsqrt": lambda a: np.float32(1) / np.sqrt(a),
    "reciprocal": lambda a: np.float32(1) / a,
    "floor": np.floor,
    "eq": lambda a, b: (a == b).astype(np.float32),
    "ne": lambda a, b: (a != b).astype(np.float32),
    "lt": lambda a, b: (a < b).astype(np.float32),
    "le": lambda a, b: (a <= b).astype(np.float32),
    "gt": lambda a, b: (a > b).astype(np.float32),
    "ge": lambda a, b: (a >= b).astype(np.float32),
    "select": lambda c, a, b: np.where(c != 0, a, b),
}
APPROXIMATE: dict[str, Callable[..., NDArray]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda a: np.where(a < 0, np.exp(np.minimum(a, 0)), 1.0) / (1 + np.exp(-np.abs(a))),
}


def values(rng: np.random.Generator, n: int) -> NDArray[np.float32]:
    x = rng.standard_normal(n) * 2.0 ** rng.integers(-12, 12, n)
    x[rng.random(n) < 0.1] = 1.0
    special = rng.random(n) < 0.1
    x[special] = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38], special.sum())
    return x.astype(np.float32)


@pytest.mark.parametrize("op", EXACT)
@pytest.mark.parametrize("fmt", [SEN169, FP32])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_ieee_operations_have_exact_bits(op: str, fmt: int) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 15, 64, 1000):
        ins = [from_fp32(values(rng, n), fmt) for _ in range(ARITY[op])]
        expected = from_fp32(EXACT[op](*[to_fp32(x, fmt) for x in ins]), fmt)

        def run(ins: list[NDArray] = ins, n: int = n) -> NDArray:
            out = dense(np.zeros(n), fmt)
            kernels.vector_op(op, (n,), out, *[dense(x, fmt) for x in ins])
            return out.read((n,))

        got = on_every_isa(run)
        assert same_bits(got, expected), np.flatnonzero(got.view(np.uint8) != expected.view(np.uint8))


@pytest.mark.parametrize("op", APPROXIMATE)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_are_within_two_ulp(op: str) -> None:
    rng = np.random.default_rng(1)
    n = 300_000
    x = np.concatenate(
        [
            (rng.standard_normal(n) * 2.0 ** rng.integers(-20, 9, n)),
            rng.uniform(-110, 110, n),
            rng.uniform(-2, 2, n),
            rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32).astype(np.float64),
            [0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 88.7228, 88.73, -87.33, -103.97, -104.0, -1e30, 1e30],
        ]
    ).astype(np.float32)
    expected = APPROXIMATE[op](x.astype(np.float64))

    def run() -> NDArray:
        out = dense(np.zeros(x.size), FP32)
        kernels.vector_op(op, (x.size,), out, dense(x, FP32))
        return out.read((x.size,))

    got = on_every_isa(run)
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    rounded = expected.astype(np.float32)
    infinite = np.isinf(rounded)
    assert np.array_equal(got[infinite], rounded[infinite])
    ok = np.isfinite(rounded)
    ulp = np.spacing(np.abs(rounded[ok])).astype(np.float64)
    assert (np.abs(got[ok].astype(np.float64) - expected[ok]) / ulp).max() <= 2.0


@pytest.mark.parametrize("op", [op for op in EXACT if op not in ("sqrt", "rsqrt", "reciprocal", "div")])
def test_integer_operations(op: str) -> None:
    rng = np.random.default_rng(2)
    ins = [rng.integers(-50, 50, 333).astype(np.int32) for _ in range(ARITY[op])]
    expected = EXACT[op](*ins).astype(np.int32)

    def run() -> NDArray:
        out = dense(np.zeros(333), INT32)
        kernels.vector_op(op, (333,), out, *[dense(x, INT32) for x in ins], compute=1)
        return out.read((333,))

    assert np.array_equal(on_every_isa(run), expected)


def test_integer_division_truncates_and_wraps() -> None:
    a = np.array([7, -7, 7, -(2**31), 5], dtype=np.int32)
    b = np.array([2, 2, -2, -1, 0], dtype=np.int32)
    out = dense(np.zeros(5), INT32)
    kernels.vector_op("div", (5,), out, dense(a, INT32), dense(b, INT32), compute=1)
    assert out.read((5,)).tolist() == [3, -3, -3, -(2**31), 0]
    kernels.vector_op("add", (5,), out, dense(a, INT32), scalar(2**31 - 1, 1, INT32), compute=1)
    assert out.read((5,)).tolist() == (a + np.int32(2**31 - 1)).tolist()


@given(data=st.data())
@settings(max_examples=300, deadline=None)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_mix_of_formats_and_maps(data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 4))
    shape = tuple(data.draw(st.sampled_from([1, 2, 3, 5, 17, 64, 70, 130])) for _ in range(rank))
    while np.prod(shape, dtype=np.int64) > 20000:
        shape = (*shape[:-1], 1) if shape[-1] > 1 else shape[:-1] if rank else shape
        rank = len(shape)
    op = data.draw(st.sampled_from(["identity", "add", "sub", "mul", "maximum", "lt", "select"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    formats = [data.draw(st.sampled_from([SEN169, FP32, INT32])) for _ in range(ARITY[op])]
    out_format = data.draw(st.sampled_from([SEN169, FP32, INT32]))
    ins: list[View] = []
    for fmt in formats:
        view = random_view(rng, shape, fmt, broadcast=True)
        x = rng.integers(-100, 100, shape) if fmt == INT32 else from_fp32(values(rng, int(np.prod(shape))), fmt)
        view.write(np.asarray(x).reshape(shape))
        ins.append(view)
    args = [to_fp32(v.read(shape), f) for v, f in zip(ins, formats, strict=True)]
    expected = from_fp32(np.asarray(EXACT[op](*args), dtype=np.float32), out_format)
    template = random_view(rng, shape, out_format, broadcast=False)
    untouched = template.buffer.copy()

    def run() -> NDArray:
        template.buffer[:] = untouched
        kernels.vector_op(op, shape, template, *ins)
        return template.buffer.copy()

    got = on_every_isa(run)
    assert same_bits(template.read(shape), expected)
    model = View(untouched, out_format, template.maps, template.offset)
    model.write(expected)
    assert same_bits(got, untouched)  # nothing else was written


@pytest.mark.parametrize("constant", [(), (0,), (1,), (2,), (0, 1), (1, 2)])
def test_select_moves_every_code(constant: tuple[int, ...]) -> None:
    """All codes as condition and as values, rows of 70; constants are fp32, one for all rows or one for each."""
    rng = np.random.default_rng(len(constant))
    shape = (937, 70)
    for per_row in (False, True):
        ins, seen = [], []
        for k in range(3):
            x = rng.permutation(np.resize(np.arange(65536), shape[0] * shape[1])).reshape(shape).astype(np.uint16)
            view = dense(x, SEN169)
            if k in constant:
                column = values(rng, shape[0])[:, None] if per_row else values(rng, 1)[:, None]
                view = dense(column, FP32)
                view.maps = [(0, 4 if per_row else 0, 0), (0, 0, 0)]
                x = np.broadcast_to(column, shape)
            ins.append(view)
            seen.append(to_fp32(x, view.format))
        expected = from_fp32(np.where(seen[0] != 0, seen[1], seen[2]), SEN169)

        def run(ins: list[View] = ins) -> NDArray:
            out = dense(np.zeros(shape), SEN169)
            kernels.vector_op("select", shape, out, *ins)
            return out.read(shape)

        assert same_bits(on_every_isa(run), expected)


def test_integer_comparison_with_a_bool_result() -> None:
    x = np.random.default_rng(5).integers(-2, 3, (40, 130)).astype(np.int32)

    def run() -> NDArray:
        out = dense(np.zeros(x.shape), SEN169)
        kernels.vector_op("ne", x.shape, out, dense(x, INT32), scalar(0, 2, INT32), compute=1)
        return out.read(x.shape)

    assert same_bits(on_every_isa(run), from_fp32((x != 0).astype(np.float32), SEN169))


@pytest.mark.parametrize("op", ["add", "mul", "sub"])
@pytest.mark.parametrize("shared", [0, 1])
def test_operand_that_all_rows_share(op: str, shared: int) -> None:
    """Rows of a stick, as in the weights of a norm."""
    rng = np.random.default_rng(shared)
    rows, sticks = 5, 3
    x, w = from_fp32(values(rng, rows * sticks * 64), SEN169), from_fp32(values(rng, sticks * 64), SEN169)
    x = x.reshape(sticks, rows, 64)
    a, b = to_fp32(x, SEN169), to_fp32(w.reshape(sticks, 1, 64), SEN169)
    with np.errstate(all="ignore"):
        expected = from_fp32(EXACT[op](*((b, a) if shared == 0 else (a, b))), SEN169)
    vx, vw = dense(x, SEN169), dense(w.reshape(sticks, 1, 64), SEN169)
    vw.maps = [vw.maps[0], (0, 0, 0), vw.maps[2]]
    for name in ISAS:
        kernels.set_isa(name)
        out = dense(np.zeros_like(x), SEN169)
        kernels.vector_op(op, (sticks, rows, 64), out, *((vw, vx) if shared == 0 else (vx, vw)))
        assert same_bits(out.read((sticks, rows, 64)), expected), name
    kernels.set_isa(None)


def test_in_place() -> None:
    x = from_fp32(np.linspace(-3, 3, 777).astype(np.float32), SEN169)
    for name in ISAS:
        kernels.set_isa(name)
        v = dense(x, SEN169)
        kernels.vector_op("mul", (777,), v, v, scalar(0.5, 1))
        assert same_bits(v.read((777,)), from_fp32(to_fp32(x, SEN169) * np.float32(0.5), SEN169))
    kernels.set_isa(None)


@pytest.mark.parametrize("n", [1, 2, 5, 32])
def test_sum_views_rounds_once(n: int) -> None:
    rng = np.random.default_rng(n)
    shape = (3, 130)
    parts = [rng.standard_normal(shape).astype(np.float32) for _ in range(n)]
    views = [random_view(rng, shape, FP32, broadcast=False) for _ in parts]
    for v, p in zip(views, parts, strict=True):
        v.write(p)
    total = parts[0].copy()
    for p in parts[1:]:
        total += p

    def run() -> NDArray:
        out = random_view(np.random.default_rng(7), shape, SEN169, broadcast=False)
        kernels.sum_views(shape, out, *views)
        return out.read(shape)

    assert same_bits(on_every_isa(run), from_fp32(total, SEN169))
