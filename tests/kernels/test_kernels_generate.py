# SPDX-License-Identifier: Apache-2.0
# pytest tests/kernels/test_kernels_generate.py
# iota and random words: exact numbers for any layout and any order, same bits on every ISA.
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_api import FP32, INT32, SEN169, View, dense, from_fp32, kernels, on_every_isa, same_bits, scalar
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


def random_words(number: NDArray[np.int64], key: int) -> NDArray[np.int32]:
    """Element e has word e % 4 of block e / 4; numbers are 32 bits without a sign."""
    e = number.astype(np.uint64) & MASK
    word = np.take_along_axis(philox(e // np.uint64(4), key), (e % np.uint64(4)).astype(np.int64)[..., None], axis=-1)
    return word[..., 0].astype(np.uint32).view(np.int32)


def halves(key: int, rank: int) -> list[View]:
    return [scalar(int(np.uint32(half).view(np.int32)), rank, INT32) for half in (key & 0xFFFFFFFF, key >> 32)]


@given(
    shape=SHAPES.map(tuple), key=st.integers(0, 2**64 - 1), first=st.integers(-(2**31), 2**31 - 10**6), data=st.data()
)
@settings(max_examples=30, deadline=None)
def test_random(shape: tuple[int, ...], key: int, first: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    number = first + np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    if data.draw(st.booleans()):  # the order of the elements does not matter
        number = rng.permuted(number.reshape(-1)).reshape(shape)
    out, numbers = (random_view(rng, shape, INT32, broadcast=False) for _ in range(2))
    numbers.write(number.astype(np.int32))

    def run() -> NDArray:
        kernels.vector_op("random", shape, out, numbers, *halves(key, len(shape)), compute=1)
        return out.read(shape)

    assert np.array_equal(on_every_isa(run), random_words(number, key))


def test_random_with_a_key_for_each_element() -> None:
    n = 1000
    number, low, high = (np.random.default_rng(i).integers(-(2**31), 2**31, n) for i in range(3))
    low[: n // 2], high[: n // 2] = 5, 6  # neighbours that share a key, and neighbours that do not
    number[: n // 2] = np.arange(n // 2)
    out = dense(np.zeros(n), INT32)
    kernels.vector_op("random", (n,), out, *(dense(x, INT32) for x in (number, low, high)), compute=1)
    keys = [(int(a) & 0xFFFFFFFF) | (int(b) & 0xFFFFFFFF) << 32 for a, b in zip(low, high, strict=True)]
    want = [random_words(number[i : i + 1], key)[0] for i, key in enumerate(keys)]
    assert np.array_equal(out.read((n,)), np.array(want))


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
