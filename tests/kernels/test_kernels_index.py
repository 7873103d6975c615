# SPDX-License-Identifier: Apache-2.0
# pytest tests/kernels/test_kernels_index.py
# gather and scatter with random strided, stick and broadcast maps: against numpy, same bits on every ISA.
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_api import (
    DTYPE,
    FP32,
    INT32,
    SEN169,
    UINT32,
    Index,
    View,
    dense,
    from_fp32,
    kernels,
    on_every_isa,
    same_bits,
    to_fp32,
)
from kernel_maps import random_view
from numpy.typing import NDArray

SIZES = [1, 2, 3, 5, 17, 64, 70]


def convert(x: NDArray, fin: int, fout: int) -> NDArray:
    return x.astype(DTYPE[fout]) if fin == fout else from_fp32(to_fp32(x, fin), fout)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], fmt: int) -> NDArray:
    if fmt == INT32:
        return rng.integers(-1000, 1000, shape).astype(np.int32)
    return from_fp32(rng.standard_normal(shape).astype(np.float32), fmt).reshape(shape)


def draw_case(data: st.DataObject) -> tuple[np.random.Generator, tuple[int, ...], int, int]:
    """A generator, the iteration shape, the dim of the table that the index replaces, and the size of that dim."""
    shape = tuple(data.draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    return rng, shape, data.draw(st.integers(0, len(shape) - 1)), data.draw(st.sampled_from([1, 4, 70]))


def table_view(
    rng: np.random.Generator, shape: tuple[int, ...], dim: int, limit: int, fmt: int
) -> tuple[View, tuple[int, int, int], View]:
    """A table with `limit` entries in place of `dim`: as the kernel takes it, the map of the index, and as a tensor."""
    whole = random_view(rng, tuple(limit if d == dim else e for d, e in enumerate(shape)), fmt, broadcast=False)
    along = whole.maps[dim]
    maps = [(0, 0, 0) if d == dim else m for d, m in enumerate(whole.maps)]
    return View(whole.buffer, fmt, maps, whole.offset), along, whole


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_gather(data: st.DataObject) -> None:
    rng, shape, dim, limit = draw_case(data)
    fin, fout = (data.draw(st.sampled_from([SEN169, FP32, INT32])) for _ in range(2))
    table, along, whole = table_view(rng, shape, dim, limit, fin)
    table_shape = tuple(limit if d == dim else e for d, e in enumerate(shape))
    whole.write(numbers(rng, table_shape, fin))
    index = random_view(rng, shape, data.draw(st.sampled_from([INT32, UINT32])), broadcast=True)
    index.write(rng.integers(0, limit, shape))
    at = index.read(shape).astype(np.int64)
    values = np.take_along_axis(whole.read(table_shape), at, axis=dim)
    out = random_view(rng, shape, fout, broadcast=False)
    untouched = out.buffer.copy()

    def run() -> NDArray:
        out.buffer[:] = untouched
        assert kernels.gather(shape, out, table, Index(index, along, limit)) is None
        return out.buffer.copy()

    model = View(untouched.copy(), fout, out.maps, out.offset)
    model.write(convert(values, fin, fout))
    assert same_bits(on_every_isa(run), model.buffer)


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_scatter(data: st.DataObject) -> None:
    rng, shape, dim, limit = draw_case(data)
    fin, ftable = (data.draw(st.sampled_from([SEN169, FP32, INT32])) for _ in range(2))
    accumulate = data.draw(st.booleans())
    table, along, whole = table_view(rng, shape, dim, limit, ftable)
    table_shape = tuple(limit if d == dim else e for d, e in enumerate(shape))
    whole.write(numbers(rng, table_shape, ftable))
    untouched = whole.buffer.copy()
    x = random_view(rng, shape, fin, broadcast=True)
    x.write(numbers(rng, shape, fin))
    index = random_view(rng, shape, INT32, broadcast=True)
    index.write(rng.integers(0, limit, shape))
    at, values = index.read(shape), x.read(shape)
    expected = whole.read(table_shape).copy()
    integers = values if fin == INT32 else convert(values, fin, INT32)
    stored, floats = convert(values, fin, ftable), to_fp32(values, fin)
    for v in np.ndindex(shape):
        to = (*v[:dim], int(at[v]), *v[dim + 1 :])
        if not accumulate:
            expected[to] = stored[v]
        elif ftable == INT32:
            expected[to] += integers[v]
        else:
            old = to_fp32(np.asarray([expected[to]]), ftable)
            expected[to] = from_fp32(old + floats[v], ftable)[0]

    def run() -> NDArray:
        whole.buffer[:] = untouched
        assert kernels.scatter(shape, table, x, Index(index, along, limit), accumulate=accumulate) is None
        return whole.buffer.copy()

    got = on_every_isa(run)
    model = View(untouched, ftable, whole.maps, whole.offset)
    model.write(expected)
    assert same_bits(got, model.buffer)


@pytest.mark.parametrize("value", [-1, 5, 2**31 - 1])
def test_an_index_outside_the_table_is_reported(value: int) -> None:
    index = dense(np.array([0, 4, value, 1]), INT32)
    table, out = dense(np.arange(5), FP32), dense(np.zeros(4), FP32)
    table.maps = [(0, 0, 0)]
    assert kernels.gather((4,), out, table, Index(index, (0, 4, 0), 5)) == value
    assert kernels.scatter((4,), table, out, Index(index, (0, 4, 0), 5)) == value


def test_unsigned_indices_are_not_negative() -> None:
    index = View(np.array([2**32 - 1], dtype=np.uint32).view(np.uint8), UINT32, [(0, 4, 0)])
    out = dense(np.zeros(1), FP32)
    assert kernels.gather((1,), out, out, Index(index, (0, 4, 0), 5)) == 2**32 - 1


def test_a_sum_into_one_place_rounds_at_each_store() -> None:
    """All values meet in one SEN169 element; small ones vanish one by one."""
    table, x = dense(from_fp32(np.array([1.0], dtype=np.float32), SEN169), SEN169), dense(np.full(100, 2.0**-12), FP32)
    table.maps = [(0, 0, 0)]
    index = dense(np.zeros(100), INT32)
    assert kernels.scatter((100,), table, x, Index(index, (0, 2, 0), 1), accumulate=True) is None
    assert to_fp32(table.read((1,)), SEN169).tolist() == [1.0]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_several_indices_and_masks(data: st.DataObject) -> None:
    """A table of one dim per index and one that the shape walks; values out of range read 0 or write nothing."""
    shape = tuple(data.draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=2)))
    limits = data.draw(st.lists(st.sampled_from([1, 2, 5]), min_size=1, max_size=4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    whole = random_view(rng, (*limits, shape[-1]), FP32, broadcast=False)
    whole.write(rng.standard_normal((*limits, shape[-1])))
    table = View(whole.buffer, FP32, [*[(0, 0, 0)] * (len(shape) - 1), whole.maps[-1]], whole.offset)
    indices, values = [], []
    for k, limit in enumerate(limits):
        view = random_view(rng, shape, INT32, broadcast=True)
        view.write(rng.integers(-1, limit + 1, shape))
        indices.append(Index(view, whole.maps[k], limit))
        values.append(view.read(shape).astype(np.int64))
    inside = np.all([(v >= 0) & (v < limit) for v, limit in zip(values, limits, strict=True)], axis=0)
    last = np.broadcast_to(np.arange(shape[-1]), shape)
    at = (*[np.where(inside, v, 0) for v in values], last)
    dense_table = whole.read((*limits, shape[-1]))
    out = dense(np.zeros(shape), FP32)
    refused = kernels.gather(shape, out, table, *indices)
    assert (refused is None) == bool(inside.all())
    assert kernels.gather(shape, out, table, *indices, masked=True) is None
    assert same_bits(out.read(shape), np.where(inside, dense_table[at], np.float32(0)))
    x = rng.standard_normal(shape).astype(np.float32)
    assert kernels.scatter(shape, table, dense(x, FP32), *indices, masked=True) is None
    for v in np.ndindex(shape):
        if inside[v]:
            dense_table[tuple(int(a[v]) for a in at)] = x[v]
    assert same_bits(whole.read((*limits, shape[-1])), dense_table)


@pytest.mark.parametrize("fmt", [SEN169, FP32])
@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("by_page", [False, True])
@pytest.mark.parametrize("rows, depth", [(64, 64), (70, 8), (100, 100)])
def test_gathered_pages(rows: int, depth: int, by_page: bool, crossed: bool, fmt: int) -> None:
    """Pages of keys, named as a whole or row by row, as they lie or transposed."""
    rng = np.random.default_rng(rows + depth)
    count, pages, size = 5, 3, DTYPE[fmt]().itemsize
    table = rng.integers(0, 1 << 14, (count * rows, depth)).astype(DTYPE[fmt])
    chosen = rng.integers(0, count, pages)
    at = chosen[:, None] if by_page else rng.integers(0, count * rows, (pages, rows))
    index = dense(at.astype(np.int32), INT32)
    step, page = depth * size, rows * depth * size
    still, of_d = (0, 0, 0), (0, size, 0)
    if crossed:  # [pages, depth, rows]
        shape, of_table = (pages, depth, rows), [still, of_d, (0, step, 0) if by_page else still]
        index.maps = [(0, 4, 0), still, still] if by_page else [(0, 4 * rows, 0), still, (0, 4, 0)]
    else:
        shape, of_table = (pages, rows, depth), [still, (0, step, 0) if by_page else still, of_d]
        index.maps = [(0, 4, 0), still, still] if by_page else [(0, 4 * rows, 0), (0, 4, 0), still]
    along, limit = ((0, page, 0), count) if by_page else ((0, step, 0), count * rows)
    named = table[(at * rows + np.arange(rows)) if by_page else at]
    out = dense(np.zeros(shape, DTYPE[fmt]), fmt)
    source = View(dense(table, fmt).buffer, fmt, of_table)

    def run() -> NDArray:
        out.buffer[:] = 0
        assert kernels.gather(shape, out, source, Index(index, along, limit)) is None
        return out.buffer.copy()

    wanted = np.ascontiguousarray(named.transpose(0, 2, 1) if crossed else named)
    assert same_bits(on_every_isa(run), dense(wanted, fmt).buffer)
    index.buffer[:4] = np.array([limit], np.int32).view(np.uint8)
    assert kernels.gather(shape, out, source, Index(index, along, limit)) is not None
