# SPDX-License-Identifier: Apache-2.0
# pytest tests/card/test_dma.py
"""DMA through device layouts, against a plain index-by-index model of the layout."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from programs import FP32, INT32, SEN169

from torch_spyre import _card
from torch_spyre.errors import InvalidArgument, OutOfBounds

STICK = 32  # fp32 and int32 lanes


def contiguous(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def layout(shape: tuple[int, ...], stick_dim: int = -1, lanes: int = STICK) -> tuple[list[int], list[int]]:
    """device_size and stride_map of a contiguous tensor with `stick_dim` cut into sticks: [sticks, others, lanes]."""
    stick_dim %= len(shape)
    strides = contiguous(shape)
    sticks = -(-shape[stick_dim] // lanes)
    others = [d for d in range(len(shape)) if d != stick_dim]
    size = [sticks, *(shape[d] for d in others), lanes]
    stride = [strides[stick_dim] * lanes, *(strides[d] for d in others), strides[stick_dim]]
    return size, stride


def positions(shape: tuple[int, ...], stick_dim: int, lanes: int = STICK) -> np.ndarray:
    """Device element index of every element of the tensor."""
    stick_dim %= len(shape)
    size, _ = layout(shape, stick_dim, lanes)
    steps = contiguous(tuple(size))
    out = np.empty(shape, np.int64)
    for index in itertools.product(*map(range, shape)):
        others = [index[d] for d in range(len(shape)) if d != stick_dim]
        device = [index[stick_dim] // lanes, *others, index[stick_dim] % lanes]
        out[index] = sum(c * s for c, s in zip(device, steps, strict=True))
    return out


def device_elements(card: _card.Card, address: int, size: list[int], dtype: type = np.float32) -> np.ndarray:
    return np.frombuffer(card.read(address, math.prod(size) * np.dtype(dtype).itemsize), dtype)


@pytest.mark.parametrize("shape, stick_dim", [
    ((100,), 0), ((1,), 0), ((3, 100), 1), ((100, 3), 0), ((3, 5, 40), 2), ((3, 40, 5), 1), ((2, 3, 4, 33), 3),
    ((5, 1, 64), 2), ((64, 1), 0), ((70, 70), 0), ((2, 1, 3, 1, 2, 1, 2, 1, 2, 40), 9),
])  # fmt: skip
def test_round_trip_matches_the_layout(shape: tuple[int, ...], stick_dim: int) -> None:
    card = _card.Card()
    size, stride = layout(shape, stick_dim)
    address = card.allocate(math.prod(size) * 4)
    x = np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape)
    card.dma_in(x, address, FP32, size, stride, whole_storage=True)
    expected = np.zeros(math.prod(size), np.float32)
    expected[positions(shape, stick_dim)] = x
    np.testing.assert_array_equal(device_elements(card, address, size), expected)
    out = np.empty_like(x)
    card.dma_out(address, FP32, size, stride, out)
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("stick_dim", [0, 1, 2])
def test_views_of_a_storage(stick_dim: int) -> None:
    shape = (7, 50, 70)
    card = _card.Card()
    size, stride = layout(shape, stick_dim)
    address = card.allocate(math.prod(size) * 4)
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    card.dma_in(x, address, FP32, size, stride)
    views = [
        x[2:],
        x[:, 3:45],
        x[:, :, 5:],
        x[1:6:2, ::7, ::3],
        x.transpose(2, 0, 1),
        x[3, :, 32:],
        x[:, 32:, 64],
        x[4:5, 5, 6],
    ]
    for view in views:
        offset = (view.__array_interface__["data"][0] - x.__array_interface__["data"][0]) // 4
        strides = [s // 4 for s in view.strides]
        out = np.empty(view.shape, np.float32)
        card.dma_out(address, FP32, size, stride, out, host_offset=offset, host_stride=strides)
        np.testing.assert_array_equal(out, view)
        card.dma_in(-view.copy(), address, FP32, size, stride, host_offset=offset, host_stride=strides)
        changed = x.copy()
        np.lib.stride_tricks.as_strided(changed.reshape(-1)[offset:], view.shape, view.strides)[...] *= -1
        got = np.empty_like(x)
        card.dma_out(address, FP32, size, stride, got)
        np.testing.assert_array_equal(got, changed)
        card.dma_in(x, address, FP32, size, stride)


def test_strided_host_arrays() -> None:
    card = _card.Card()
    size, stride = layout((30, 20))
    address = card.allocate(math.prod(size) * 4)
    host = np.arange(60 * 60, dtype=np.float32).reshape(60, 60)
    source = host[::2, ::3]
    card.dma_in(source, address, FP32, size, stride)
    target = np.zeros((20, 30), np.float32).T
    card.dma_out(address, FP32, size, stride, target)
    np.testing.assert_array_equal(target, source)


def test_replicated_dims_write_every_copy() -> None:
    card = _card.Card()
    size, stride = [3, 2, STICK], [0, STICK, 1]
    address = card.allocate(math.prod(size) * 4)
    x = np.arange(50, dtype=np.float32)
    card.dma_in(x, address, FP32, size, stride, whole_storage=True)
    copies = device_elements(card, address, size).reshape(3, -1)
    for copy in copies:
        np.testing.assert_array_equal(copy[:50], x)
        assert (copy[50:] == 0).all()
    out = np.empty_like(x)
    card.dma_out(address, FP32, size, stride, out)
    np.testing.assert_array_equal(out, x)


def test_padding_lanes() -> None:
    card = _card.Card()
    size, stride = layout((3, 40))
    address = card.allocate(math.prod(size) * 4)
    card.write(address, b"\xff" * (math.prod(size) * 4))
    card.dma_in(np.ones((3, 40), np.float32), address, FP32, size, stride)
    assert np.isnan(device_elements(card, address, size)).sum() == 3 * 24  # a view's copy leaves them alone
    card.dma_in(np.ones((3, 40), np.float32), address, FP32, size, stride, whole_storage=True)
    assert (device_elements(card, address, size) == 0).sum() == 3 * 24


def test_formats_convert_on_the_way() -> None:
    card = _card.Card()
    size, stride = layout((4, 100), lanes=64)
    address = card.allocate(math.prod(size) * 2)
    x = np.arange(-200, 200, dtype=np.float16).reshape(4, 100) / 2
    card.dma_in(x, address, SEN169, size, stride)
    codes = device_elements(card, address, size, np.uint16)
    at = positions((4, 100), 1, 64)
    assert [_card.decode(int(c), SEN169) for c in codes[at].ravel()] == x.ravel().tolist()
    for dtype in (np.float16, np.float32):
        out = np.empty((4, 100), dtype)
        card.dma_out(address, SEN169, size, stride, out)
        np.testing.assert_array_equal(out, x)

    size, stride = layout((4, 100))
    address = card.allocate(math.prod(size) * 4)
    ints = np.arange(-(1 << 31), (1 << 31), 10737418, dtype=np.int64)[:400].reshape(4, 100)
    card.dma_in(ints, address, INT32, size, stride)
    np.testing.assert_array_equal(device_elements(card, address, size, np.int32)[positions((4, 100), 1)], ints)
    back = np.empty_like(ints)
    card.dma_out(address, INT32, size, stride, back)
    np.testing.assert_array_equal(back, ints)


@pytest.mark.parametrize("threads", [1, 3])
def test_large_copies_are_shared_between_threads(threads: int) -> None:
    before = _card.host_threads()
    _card.set_host_threads(threads)
    card = _card.Card()
    for shape, stick_dim in (((1000, 333), 1), ((2, 200000), 1), ((333, 1000), 0)):
        size, stride = layout(shape, stick_dim)
        address = card.allocate(math.prod(size) * 4)
        x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
        card.dma_in(x, address, FP32, size, stride)
        out = np.empty_like(x)
        card.dma_out(address, FP32, size, stride, out)
        np.testing.assert_array_equal(out, x)
        part = np.empty((shape[0] - 1, shape[1] - 5), np.float32)  # starts inside a stick
        card.dma_out(address, FP32, size, stride, part, host_offset=shape[1] + 5, host_stride=[shape[1], 1])
        np.testing.assert_array_equal(part, x[1:, 5:])
    _card.set_host_threads(before)
    assert card.counters()["dma_in_bytes"] == 4 * (333000 * 2 + 400000)


def test_nothing_to_copy() -> None:
    card = _card.Card()
    card.dma_in(np.empty((0, 5), np.float32), 0, FP32, [1, 1, STICK], [STICK, 5, 1])
    card.dma_out(0, FP32, [1, 1, STICK], [STICK, 5, 1], np.empty((5, 0), np.float32))


def test_impossible_copies() -> None:
    card = _card.Card()
    size, stride = layout((3, 40))
    address = card.allocate(math.prod(size) * 4)
    x = np.zeros((3, 40), np.float32)
    with pytest.raises(OutOfBounds, match="live allocation"):
        card.dma_in(x, address + 4096, FP32, size, stride)
    with pytest.raises(OutOfBounds, match="device layout does not hold"):
        card.dma_in(x, address, FP32, size, stride, host_offset=40)
    with pytest.raises(InvalidArgument, match="aligned"):
        card.dma_in(x, address + 4, FP32, size, stride)
    with pytest.raises(InvalidArgument, match="not stored"):
        card.dma_in(x, address, 11, size, stride)
    with pytest.raises(InvalidArgument, match="10 device dims; 8 are possible"):
        card.dma_in(np.zeros((2,) * 8 + (35,), np.float32), address, FP32, *layout((2,) * 8 + (35,)))
    with pytest.raises(InvalidArgument, match="rank"):
        card.dma_in(x, address, FP32, size, stride[1:])
