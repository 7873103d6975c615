# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_kernels_generate.py
# iota and the Philox fills: exact numbers for any layout and any split, same bits on every ISA.
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_api import FP32, INT32, SEN169, dense, from_fp32, kernels, on_every_isa, same_bits, to_fp32
from kernel_maps import random_view
from numpy.typing import NDArray

SHAPES = st.lists(st.sampled_from([1, 2, 3, 17, 64, 70]), max_size=3)
MASK = np.uint64(0xFFFFFFFF)


def philox(number: NDArray[np.uint64], seed: int) -> NDArray[np.uint32]:
    """The four words of each counter."""
    c = [number & MASK, number >> np.uint64(32), np.zeros_like(number), np.zeros_like(number)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            b & MASK,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            a & MASK,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=-1).astype(np.uint32)


def test_known_answers() -> None:
    """The oracle gives the published vector for a counter and a key of zeros."""
    assert [hex(w) for w in philox(np.zeros(1, np.uint64), 0)[0]] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]


def words(shape: tuple[int, ...], seed: int, offset: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    number = np.uint64(offset) + np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
    return number, philox(number // np.uint64(4), seed)


def uniform(shape: tuple[int, ...], seed: int, offset: int, fmt: int) -> NDArray[np.float32]:
    number, block = words(shape, seed, offset)
    word = np.take_along_axis(block, (number % np.uint64(4)).astype(np.int64)[..., None], axis=-1)[..., 0]
    bits = 10 if fmt == SEN169 else 24
    return ((word >> np.uint32(32 - bits)).astype(np.float64) / 2**bits).astype(np.float32)


def normal(shape: tuple[int, ...], seed: int, offset: int) -> NDArray[np.float64]:
    number, block = words(shape, seed, offset)
    pair = (number % np.uint64(4) // np.uint64(2)).astype(np.int64)[..., None] * 2
    a = np.take_along_axis(block, pair, axis=-1)[..., 0] >> np.uint32(8)
    b = np.take_along_axis(block, pair + 1, axis=-1)[..., 0] >> np.uint32(8)
    r, t = np.sqrt(-2 * np.log((a + 1.0) / 2**24)), b / 2**24 * 2 * np.pi
    return np.where(number % np.uint64(2) == 0, r * np.cos(t), r * np.sin(t))


@given(shape=SHAPES.map(tuple), seed=st.integers(0, 2**64 - 1), offset=st.integers(0, 2**63), rng=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("fmt", [SEN169, FP32])
def test_uniform(shape: tuple[int, ...], seed: int, offset: int, rng: int, fmt: int) -> None:
    out = random_view(np.random.default_rng(rng), shape, fmt, broadcast=False)

    def run() -> NDArray:
        kernels.philox(False, shape, out, seed, offset)
        return out.read(shape)

    got = on_every_isa(run)
    assert same_bits(got, from_fp32(uniform(shape, seed, offset, fmt), fmt))
    assert (to_fp32(got, fmt) < 1).all()


@given(shape=SHAPES.map(tuple), seed=st.integers(0, 2**64 - 1), offset=st.integers(0, 2**63), rng=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_normal(shape: tuple[int, ...], seed: int, offset: int, rng: int) -> None:
    out = random_view(np.random.default_rng(rng), shape, FP32, broadcast=False)

    def run() -> NDArray:
        kernels.philox(True, shape, out, seed, offset)
        return out.read(shape)

    got, expected = on_every_isa(run), normal(shape, seed, offset)
    assert (np.abs(got - expected) <= np.spacing(np.abs(expected).astype(np.float32)) + 1e-15).all()


@pytest.mark.parametrize("is_normal", [False, True])
def test_bits_do_not_depend_on_the_split(is_normal: bool) -> None:
    shape, cut = (6, 37), (slice(2, 5), slice(11, 30))
    whole, piece = dense(np.zeros(shape), FP32), dense(np.zeros((3, 19)), FP32)

    def run() -> NDArray:
        kernels.philox(is_normal, shape, whole, 1234, 99)
        kernels.philox(is_normal, (3, 19), piece, 1234, 99 + 2 * 37 + 11, (37, 1))
        assert same_bits(piece.read((3, 19)), np.ascontiguousarray(whole.read(shape)[cut]))
        return whole.read(shape)

    on_every_isa(run)


def test_moments() -> None:
    n = 1_000_000
    out = dense(np.zeros(n), FP32)
    kernels.philox(True, (n,), out, 7, 0)
    z = out.read((n,)).astype(np.float64)
    assert abs(z.mean()) < 5 / np.sqrt(n) and abs(z.var() - 1) < 5 * np.sqrt(2 / n) and abs((z**4).mean() - 3) < 0.05
    kernels.philox(False, (n,), out, 7, 0)
    u = out.read((n,)).astype(np.float64)
    assert abs(u.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n) and abs(u.var() - 1 / 12) < 1e-3


@given(data=st.data())
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("fmt", [SEN169, FP32, INT32])
def test_iota(fmt: int, data: st.DataObject) -> None:
    shape = tuple(data.draw(SHAPES))
    number = st.integers(-10000, 10000)
    start = data.draw(number)
    steps = [(data.draw(st.sampled_from([0, 1, 7, 64])), data.draw(number), data.draw(number)) for _ in shape]
    out = random_view(np.random.default_rng(data.draw(st.integers(0, 2**32))), shape, fmt, broadcast=False)
    expected = np.full(shape, start, np.int64)
    for d, (block, inner, outer) in enumerate(steps):
        v = np.arange(shape[d])
        part = v * inner if block == 0 else v % block * inner + v // block * outer
        expected = expected + part.reshape([-1 if i == d else 1 for i in range(len(shape))])

    def run() -> NDArray:
        kernels.iota(shape, out, start, steps)
        return out.read(shape)

    exact = expected.astype(np.int32) if fmt == INT32 else from_fp32(expected.astype(np.float32), fmt)
    assert same_bits(on_every_isa(run), exact)


def test_iota_is_exact_for_large_integers_and_saturates() -> None:
    out = dense(np.zeros(100), INT32)
    kernels.iota((100,), out, 2**31 - 99, [(0, 1, 0)])
    assert out.read((100,)).tolist() == [*range(2**31 - 99, 2**31), 2**31 - 1]
