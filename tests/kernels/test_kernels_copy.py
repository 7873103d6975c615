# SPDX-License-Identifier: Apache-2.0
# pytest tests/kernels/test_kernels_copy.py
# Copies: DMA into and out of device layouts, restickify, layouts that do not separate; nothing else is written.
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_api import BF16, DTYPE, FP16, FP32, INT32, INT64, SEN169, Kernels, View, dense, from_fp32, same_bits
from kernel_maps import random_view
from numpy.typing import NDArray

kernels = Kernels()
ISAS = kernels.isas()


def check(shape: tuple[int, ...], out: View, x: View, expected: NDArray) -> None:
    before = out.buffer.copy()
    model = View(before.copy(), out.format, out.maps, out.offset, out.layout)
    model.write(expected)
    for name in ISAS:
        kernels.set_isa(name)
        out.buffer[:] = before
        assert kernels.copy(shape, out, x)
        assert same_bits(out.buffer, model.buffer), name
    kernels.set_isa(None)


def reference(x: NDArray, source: int, target: int) -> NDArray:
    """Conversion of well-behaved values (no specials: those are in test_kernels_formats.py)."""
    if source == target:
        return x
    flat = dense(x.reshape(-1), source)
    out = dense(np.zeros(x.size), target)
    kernels.set_isa("portable")
    kernels.copy((x.size,), out, flat)
    return out.read((x.size,)).reshape(x.shape)


def random_values(rng: np.random.Generator, shape: tuple[int, ...], fmt: int) -> NDArray:
    if fmt in (INT32, INT64):
        return rng.integers(-1000, 1000, shape).astype(DTYPE[fmt])
    x = rng.standard_normal(shape).astype(np.float32)
    if fmt == BF16:
        return (x.view(np.uint32) >> 16).astype(np.uint16)
    return from_fp32(x, fmt) if fmt in (SEN169, FP32) else x.astype(DTYPE[fmt])


def random_layout(rng: np.random.Generator, shape: tuple[int, ...], fmt: int) -> View:
    """A (possibly sliced, possibly transposed) host view of a storage that lies in stick layout."""
    bytes_per = np.dtype(DTYPE[fmt]).itemsize
    stick = 128 // bytes_per
    padded = [e + int(rng.integers(0, 3)) for e in shape]
    order = list(rng.permutation(len(shape))) if rng.random() < 0.5 else list(range(len(shape)))
    stride = [0] * len(shape)
    step = 1
    for d in reversed(order):
        stride[d] = step
        step *= padded[d]
    last = order[-1] if order else 0
    device = []  # host stride, extent, byte stride; sticks along the last storage dim, blocks outermost
    position = bytes_per * stick
    for d in order[:-1][::-1]:
        device.append((stride[d], padded[d], position))
        position *= padded[d]
    if order:
        device.append((stick, -(-padded[last] // stick), position))
        position *= -(-padded[last] // stick)
        device.append((1, stick, bytes_per))
    device = [x for x in device if x[1] > 1 or x[0] == 1]
    seen: dict[int, tuple[int, int, int]] = {}
    for x in device:
        seen.setdefault(x[0], x)
    device = sorted(seen.values(), reverse=True)
    offset = sum(s * int(rng.integers(0, p - e + 1)) for s, p, e in zip(stride, padded, shape, strict=True))
    layout = [offset, *stride, *([0] * len(shape)), len(device), *[v for x in device for v in x]]
    buffer = rng.integers(0, 128, position * 2 + 256, dtype=np.uint8)
    return View(buffer, fmt, layout=layout)


@given(data=st.data())
@settings(max_examples=250, deadline=None)
def test_any_pair_of_maps(data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 4))
    shape = tuple(data.draw(st.sampled_from([1, 2, 3, 5, 17, 64, 70, 130])) for _ in range(rank))
    while np.prod(shape) > 6000:
        shape = shape[:-1]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    pair = data.draw(
        st.sampled_from(
            [
                (SEN169, SEN169), (FP32, FP32), (FP16, SEN169), (SEN169, FP16), (SEN169, FP32), (FP32, SEN169),
                (BF16, SEN169), (SEN169, BF16), (INT64, INT32), (INT32, INT64), (INT32, SEN169), (INT64, INT64),
            ]
        )
    )  # fmt: skip
    makers = [random_view if data.draw(st.booleans()) else random_layout for _ in pair]
    x, out = (
        random_view(rng, shape, f, False) if make is random_view else random_layout(rng, shape, f)
        for make, f in zip(makers, pair, strict=True)
    )
    if len(np.unique(x.offsets(shape))) != np.prod(shape) or len(np.unique(out.offsets(shape))) != np.prod(shape):
        return  # the layout of a padded storage folded two elements together
    values = random_values(rng, shape, pair[0])
    x.write(values)
    check(shape, out, x, reference(values, *pair))


@pytest.mark.parametrize(("source", "target"), [(FP16, SEN169), (SEN169, FP16), (FP32, FP32), (INT64, INT32)])
def test_dma_between_rows_and_sticks(source: int, target: int) -> None:
    rng = np.random.default_rng(0)
    rows, columns = 70, 320

    def host(fmt: int) -> View:
        return dense(np.zeros((rows, columns)), fmt)

    def device(fmt: int) -> View:
        size = np.dtype(DTYPE[fmt]).itemsize
        stick = 128 // size
        layout = [0, columns, 1, 0, 0, 3, columns, rows, 128, stick, columns // stick, rows * 128, 1, stick, size]
        return View(np.zeros(rows * columns * size, np.uint8), fmt, layout=layout)

    x = host(source) if source in (FP16, INT64) else device(source)
    out = device(target) if source in (FP16, INT64) else host(target)
    values = random_values(rng, (rows, columns), source)
    x.write(values)
    check((rows, columns), out, x, reference(values, source, target))


@pytest.mark.parametrize("shape", [(64, 64), (128, 192), (100, 70), (7, 200)])
@pytest.mark.parametrize("fmt", [SEN169, FP32, FP16])
def test_restickify(shape: tuple[int, int], fmt: int) -> None:
    rng = np.random.default_rng(1)
    rows, columns = shape
    size = np.dtype(DTYPE[fmt]).itemsize
    stick = 128 // size
    up = [-(-e // stick) * stick for e in shape]
    x = View(np.zeros(rows * up[1] * size, np.uint8), fmt, [(0, 128, 0), (stick, size, rows * 128)])
    target = SEN169 if fmt == FP16 else fmt
    out = View(np.zeros(up[0] * columns * size, np.uint8), target, [(stick, size, columns * 128), (0, 128, 0)])
    values = random_values(rng, shape, fmt)
    x.write(values)
    check(shape, out, x, reference(values, fmt, target))


def test_flat_view_of_a_stick_layout() -> None:
    rng = np.random.default_rng(2)
    for columns in (128, 100):  # 100: sticks do not divide rows, the layout does not separate
        rows, sticks = 9, -(-columns // 64)
        layout = [0, 1, 0, 3, columns, rows, 128, 64, sticks, rows * 128, 1, 64, 2]
        x = View(np.zeros(rows * sticks * 128, np.uint8), SEN169, layout=layout)
        values = random_values(rng, (rows * columns,), SEN169)
        x.write(values)
        check(values.shape, dense(np.zeros(values.shape), SEN169), x, values)


@pytest.mark.parametrize("rows_first", [True, False])
def test_large_copies_that_bypass_the_cache(rows_first: bool) -> None:
    rows, columns = 1030, 2176
    codes = np.random.default_rng(3).integers(0, 0x7C00, (rows, columns)).astype(np.uint16)
    half = codes.view(np.float16)
    shelf = np.zeros(rows * columns * 2 + 128, np.uint8)
    start = -shelf.ctypes.data % 64
    maps = [(0, 128, 0), (64, 2, rows * 128)] if rows_first else [(0, columns * 2, 0), (0, 2, 0)]
    expected = reference(half, FP16, SEN169)
    x = dense(half, FP16)
    for name in ISAS:
        kernels.set_isa(name)
        shelf[:] = 0
        out = View(shelf, SEN169, maps, start)
        assert kernels.copy((rows, columns), out, x)
        assert same_bits(out.read((rows, columns)), expected), name
        back = View(np.zeros_like(shelf), SEN169, [(0, columns * 2, 0), (0, 2, 0)], start)
        assert kernels.copy((rows, columns), back, out)
        assert same_bits(back.read((rows, columns)), expected), name
    kernels.set_isa(None)
