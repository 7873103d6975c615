# SPDX-License-Identifier: Apache-2.0
# pytest tests/kernels/test_kernels_lines.py
# scan, arg_reduce and sort along one dim, any layout: against numpy and torch, same bits on every ISA.
from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_api import FP32, INT32, SEN169, View, dense, from_fp32, kernels, on_every_isa, same_bits, to_fp32
from kernel_maps import random_view
from numpy.typing import NDArray
from test_kernels_reduce import JOIN

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SIZES = [1, 2, 3, 16, 17, 64, 70, 130]


def draw_input(data: st.DataObject, formats: list[int]) -> tuple[np.random.Generator, tuple[int, ...], int, View]:
    """A tensor with ties, both zeros, infinities and NaN, and the dim to work on."""
    shape = tuple(data.draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3)))
    while np.prod(shape) > 20000:
        shape = shape[:-1]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    fmt = data.draw(st.sampled_from(formats))
    x = random_view(rng, shape, fmt, broadcast=True)
    if fmt == INT32:
        values = rng.integers(-5, 5, shape) if rng.random() < 0.5 else rng.integers(-(2**31), 2**31, shape)
        x.write(values.astype(np.int32))
    else:
        values = rng.standard_normal(shape)
        values = np.round(values * 2) / 2 if rng.random() < 0.5 else values
        special = rng.random(shape) < rng.choice([0.0, 0.05, 0.6])
        values = np.where(special, rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], shape), values)
        x.write(from_fp32(values.astype(np.float32), fmt).reshape(shape))
    return rng, shape, data.draw(st.integers(0, len(shape) - 1)), x


def check_writes(views: list[View], shapes: list[tuple[int, ...]], expected: list[NDArray], run: object) -> None:
    before = [v.buffer.copy() for v in views]

    def once() -> NDArray:
        for v, b in zip(views, before, strict=True):
            v.buffer[:] = b
        run()  # type: ignore[operator]
        return np.concatenate([v.buffer for v in views])

    got = on_every_isa(once)
    models = [View(b.copy(), v.format, v.maps, v.offset) for b, v in zip(before, views, strict=True)]
    for m, e in zip(models, expected, strict=True):
        m.write(e)
    for v, s, e in zip(views, shapes, expected, strict=True):
        assert same_bits(v.read(s), e)
    assert same_bits(got, np.concatenate([m.buffer for m in models]))


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_scan(data: st.DataObject) -> None:
    rng, shape, dim, x = draw_input(data, [SEN169, FP32, INT32])
    op = data.draw(st.sampled_from(list(JOIN)))
    out = random_view(rng, shape, x.format if x.format == INT32 else data.draw(st.sampled_from([SEN169, FP32])), False)
    integers = x.format == INT32
    values = x.read(shape) if integers else to_fp32(x.read(shape), x.format)
    steps = np.moveaxis(values, dim, 0).copy()
    for v in range(1, shape[dim]):
        steps[v] = JOIN[op](steps[v - 1], steps[v])
    expected = np.moveaxis(steps, 0, dim)
    expected = np.ascontiguousarray(expected) if integers else from_fp32(expected, out.format)
    check_writes([out], [shape], [expected], lambda: kernels.scan(op, shape, dim, out, x, compute=int(integers)))


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_arg_reduce(data: st.DataObject) -> None:
    rng, shape, dim, x = draw_input(data, [SEN169, FP32, INT32])
    op = data.draw(st.sampled_from(["max", "min"]))
    raw = x.read(shape)
    values = raw if x.format == INT32 else to_fp32(raw, x.format)
    expected = (np.argmax if op == "max" else np.argmin)(values, axis=dim, keepdims=True).astype(np.int32)  # NaN first
    out_shape = tuple(1 if d == dim else e for d, e in enumerate(shape))
    index = random_view(rng, out_shape, INT32, broadcast=False)
    value = random_view(rng, out_shape, x.format, broadcast=False) if data.draw(st.booleans()) else None
    for v in (index, value):
        if v is not None:
            v.maps = [(0, 0, 0) if d == dim else m for d, m in enumerate(v.maps)]
    outputs = [index] if value is None else [index, value]
    wanted = [expected, np.take_along_axis(raw, expected.astype(np.int64), axis=dim)][: len(outputs)]
    run = lambda: kernels.arg_reduce(op, shape, dim, index, value, x)  # noqa: E731
    check_writes(outputs, [out_shape] * len(outputs), wanted, run)


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_sort(data: st.DataObject) -> None:
    rng, shape, dim, x = draw_input(data, [SEN169, FP32, INT32])
    descending = data.draw(st.booleans())
    n = shape[dim]
    k = data.draw(st.sampled_from(sorted({n, 1, min(n, 3), max(1, n // 17)})))
    raw = x.read(shape)
    values = raw if x.format == INT32 else to_fp32(raw, x.format)
    order = torch.sort(torch.from_numpy(values), dim=dim, descending=descending, stable=True).indices.numpy()
    first = np.take(order, np.arange(k), axis=dim)
    out_shape = tuple(k if d == dim else e for d, e in enumerate(shape))
    index = random_view(rng, out_shape, INT32, broadcast=False)
    value = random_view(rng, out_shape, x.format, broadcast=False)
    which = data.draw(st.sampled_from(["both", "index", "value"]))
    outputs = [v for v, name in ((index, "index"), (value, "value")) if which in ("both", name)]
    wanted = [first.astype(np.int32), np.take_along_axis(raw, first, axis=dim)]
    wanted = wanted if which == "both" else wanted[:1] if which == "index" else wanted[1:]
    by_name = {"index": None if which == "value" else index, "value": None if which == "index" else value}
    run = lambda: kernels.sort(shape, dim, descending, k, by_name["value"], by_name["index"], x)  # noqa: E731
    check_writes(outputs, [out_shape] * len(outputs), wanted, run)


@pytest.mark.parametrize("k", [1, 50, 300, 5000, 20000])
@pytest.mark.parametrize("descending", [False, True])
def test_long_sorts(k: int, descending: bool) -> None:
    x = np.random.default_rng(k).integers(-3000, 3000, 20000).astype(np.float32) / 8
    order = torch.sort(torch.from_numpy(x), descending=descending, stable=True).indices.numpy()[:k]

    def run() -> NDArray:
        value, index = dense(np.zeros(k), FP32), dense(np.zeros(k), INT32)
        kernels.sort((20000,), 0, descending, k, value, index, dense(x, FP32))
        assert same_bits(value.read((k,)), x[order])
        return index.read((k,))

    assert np.array_equal(on_every_isa(run), order)


def test_in_place() -> None:
    x = np.random.default_rng(0).standard_normal((40, 70)).astype(np.float32)
    for dim in (0, 1):
        v = dense(x, FP32)
        kernels.sort((40, 70), dim, False, (40, 70)[dim], v, None, v)
        assert same_bits(v.read((40, 70)), np.sort(x, axis=dim))
        v = dense(x, FP32)
        kernels.scan("sum", (40, 70), dim, v, v)
        assert same_bits(v.read((40, 70)), np.cumsum(x, axis=dim, dtype=np.float32))
