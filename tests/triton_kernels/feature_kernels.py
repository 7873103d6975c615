# SPDX-License-Identifier: Apache-2.0
"""Kernels that each use one feature of the language."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def copy_with_other(x, out, n, size, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    """Reads n elements, writes `size`: beyond n stands OTHER."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n, other=OTHER), mask=offsets < size)


@triton.jit
def strided(x, out, rows, columns, x_row, x_column, out_row, out_column, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (r[:, None] < rows) & (c[None, :] < columns)
    value = tl.load(x + r[:, None] * x_row + c[None, :] * x_column, mask=mask, other=0.0)
    tl.store(out + r[:, None] * out_row + c[None, :] * out_column, value * 2.0, mask=mask)


@triton.jit
def grid_ids(out, BLOCK: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + place * BLOCK + tl.arange(0, BLOCK), x + 100 * y + 10000 * z + tl.arange(0, BLOCK) * 1000000)


@triton.jit
def window(x, out, n, low, high, BLOCK: tl.constexpr):
    """A mask with a lower end that is no multiple of anything."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (offsets >= low) & (offsets < high)
    value = tl.load(x + offsets, mask=inside, other=7.0)
    tl.store(out + offsets, value, mask=offsets < n)


@triton.jit
def shifted_window(x, out, n, shift, BLOCK: tl.constexpr):
    """Reads before the position, as convolutions do."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets - shift, mask=(offsets - shift >= 0) & (offsets < n), other=0.0)
    tl.store(out + offsets, value, mask=offsets < n)


@triton.jit
def triangle(x, out, n, BLOCK: tl.constexpr):
    """A mask of two dims at once, for a load and for a store."""
    i = tl.arange(0, BLOCK)
    places = i[:, None] * n + i[None, :]
    inside = (i[:, None] < n) & (i[None, :] < n)
    value = tl.load(x + places, mask=inside & (i[:, None] >= i[None, :]), other=-1.0)
    tl.store(out + places, value, mask=inside & (i[:, None] + i[None, :] < n))


@triton.jit
def scalar_condition(x, out, n, limit, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    same = pid + tl.zeros((BLOCK,), dtype=tl.int32)
    value = tl.load(x + offsets, mask=(offsets < n) & (same < limit), other=3.0)
    tl.store(out + offsets, value, mask=offsets < n)


@triton.jit
def carried_pointers(x, out, n, stride, BLOCK: tl.constexpr):
    """Pointers, offsets and scalars that a loop advances."""
    p = x + tl.program_id(0) * stride + tl.arange(0, BLOCK)
    left = n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(0, tl.cdiv(n, BLOCK)):
        total += tl.load(p, mask=tl.arange(0, BLOCK) < left, other=0.0)
        p += BLOCK
        left -= BLOCK
    tl.store(out + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def descending(x, out, n, BLOCK: tl.constexpr):
    """A loop that ends with the pointer it carried."""
    p = x + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(0, n, BLOCK):
        total += tl.load(p)
        p += BLOCK
    tl.store(out + tl.arange(0, BLOCK), total + tl.load(p - BLOCK))


@triton.jit
def elementwise(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    a = tl.load(x + offsets, mask=mask, other=1.0)
    b = tl.load(y + offsets, mask=mask, other=1.0)
    c = tl.exp(-tl.abs(a)) + tl.log(tl.abs(b) + 1.0) + tl.sqrt(tl.abs(a)) + tl.sin(a) * tl.cos(b)
    c = tl.where(a > b, c, tl.maximum(a, b) - tl.minimum(a, b)) + tl.sigmoid(a) + tl.floor(b) + tl.rsqrt(b * b + 1.0)
    c = tl.fma(a, b, c) + tl.clamp(a, -0.5, 0.5) + tl.exp2(b * 0.25) + tl.erf(a)
    tl.store(out + offsets, c, mask=mask)


@triton.jit
def integers(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    a = tl.load(x + offsets, mask=mask, other=1)
    b = tl.load(y + offsets, mask=mask, other=1)
    c = (a + b) * 3 - (a // (b + 200)) + (a % 7) + (a & b) + (a | 5) + (a ^ b) + (a << 2) + (b >> 1)
    tl.store(out + offsets, tl.where(a < b, c, -c), mask=mask)


@triton.jit
def casts(x, half, whole, truth, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x + offsets, mask=mask, other=0.0)
    tl.store(half + offsets, value.to(tl.float16), mask=mask)
    tl.store(whole + offsets, value.to(tl.int32), mask=mask)
    tl.store(truth + offsets, value > 0.0, mask=mask)


@triton.jit
def choose(truth, x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    picked = tl.load(truth + offsets, mask=mask, other=False)
    a, b = tl.load(x + offsets, mask=mask), tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, tl.where(picked, a, b), mask=mask)


@triton.jit
def reduce_rows(x, sums, peaks, lows, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.arange(0, BN)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    value = tl.load(x + r[:, None] * columns + c[None, :], mask=inside, other=0.0)
    low = tl.where(inside, value, float("inf"))
    high = tl.where(inside, value, float("-inf"))
    tl.store(sums + r, tl.sum(value, axis=1), mask=r < rows)
    tl.store(peaks + r, tl.max(high, axis=1), mask=r < rows)
    tl.store(lows + r, tl.min(low, axis=1), mask=r < rows)


@triton.jit
def reduce_columns(x, out, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.arange(0, BM)
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BN,), dtype=tl.float32)
    for start in range(0, rows, BM):
        inside = (r[:, None] + start < rows) & (c[None, :] < columns)
        total += tl.sum(tl.load(x + (r[:, None] + start) * columns + c[None, :], mask=inside, other=0.0), axis=0)
    tl.store(out + c, total, mask=c < columns)


@triton.jit
def arguments(x, best, worst, columns, BLOCK: tl.constexpr):
    """Where the greatest and the least element of a row stand."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + c, mask=c < columns, other=0.0)
    tl.store(best + row, tl.argmax(tl.where(c < columns, value, float("-inf")), axis=0))
    tl.store(worst + row, tl.argmin(tl.where(c < columns, value, float("inf")), axis=0))


@triton.jit
def product(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Rows that wrap around instead of a mask, pointers carried, sums in float32."""
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    columns = (tl.program_id(1) * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    left = a + rows[:, None] * K + k[None, :]
    right = b + k[:, None] * N + columns[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BK)):
        x = tl.load(left, mask=k[None, :] < K - step * BK, other=0.0)
        y = tl.load(right, mask=k[:, None] < K - step * BK, other=0.0)
        total = tl.dot(x, y, total)
        left += BK
        right += BK * N
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (r[:, None] < M) & (c[None, :] < N)
    tl.store(out + r[:, None] * N + c[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def transposed(x, out, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    value = tl.load(x + r[:, None] * columns + c[None, :], mask=(r[:, None] < rows) & (c[None, :] < columns))
    inside = (c[:, None] < columns) & (r[None, :] < rows)
    tl.store(out + c[:, None] * rows + r[None, :], tl.trans(value), mask=inside)


@triton.jit
def reshaped(x, out, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    square = tl.reshape(value, (BLOCK // 8, 8))
    tl.store(out + tl.arange(0, BLOCK // 8), tl.sum(square, axis=1))


@triton.jit
def early_return(x, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    if pid >= n:
        return
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets) + tl.load(x))


@triton.jit
def branches(x, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < n, other=0.0)
    if pid % 2 == 0:
        value = value * 2.0
    else:
        value = value + 1.0
    tl.store(out + offsets, value, mask=offsets < n)


@triton.jit
def descriptors(x, out, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [BM, BN])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [BM, BN])
    place = [tl.program_id(0) * BM, tl.program_id(1) * BN]
    target.store(place, source.load(place) * 3.0)


@triton.jit
def atomic_sums(x, out, n, bins, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < n, other=0.0)
    tl.atomic_add(out + tl.program_id(0) % bins, tl.sum(value, axis=0))


@triton.jit
def in_place(x, twice, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x + offsets, mask=mask)
    tl.store(x + offsets, value + 1.0, mask=mask)
    tl.store(twice + offsets, value * 2.0, mask=mask)


@triton.jit
def random_numbers(out, seed, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.rand(seed, offsets), mask=offsets < n)


@triton.jit
def batched_product(a, b, out, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, B: tl.constexpr):
    i, m, n, k = tl.arange(0, B), tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    x = tl.load(a + i[:, None, None] * BM * BK + m[None, :, None] * BK + k[None, None, :])
    y = tl.load(b + i[:, None, None] * BK * BN + k[None, :, None] * BN + n[None, None, :])
    place = i[:, None, None] * BM * BN + m[None, :, None] * BN + n[None, None, :]
    tl.store(out + place, tl.dot(x, y))


@triton.jit
def wrapped_words(out, BLOCK: tl.constexpr):
    """Scalars that leave 32 bits."""
    word = tl.program_id(0) * 1640531527
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, word % 1000 + (word ^ 12345) + tl.arange(0, BLOCK))


@triton.jit
def random_by_program(out, seed, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * BLOCK + place, tl.rand(seed + tl.program_id(0), place))


@triton.jit
def lengths_from_memory(lengths, x, out, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    inside = place < tl.load(lengths + tl.program_id(0))
    start = tl.program_id(0) * BLOCK
    tl.store(out + start + place, tl.load(x + start + place, mask=inside, other=4.0), mask=inside | (place > 12))


@triton.jit
def masks_from_memory(truth, x, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    picked = (place < n) & tl.load(truth + place, mask=place < n, other=0)
    tl.store(out + place, tl.load(x + place, mask=picked, other=5.0), mask=picked)


@triton.jit
def nested_loops(x, out, M, N, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    row = x + tl.program_id(0) * M * N
    for i in range(M):
        p = row
        for j in range(0, N, BLOCK):
            total += tl.load(p + tl.arange(0, BLOCK), mask=j + tl.arange(0, BLOCK) < N, other=0.0) * (i + 1)
            p += BLOCK
        row += N
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), total)


@triton.jit
def flat_index(x, out, N, H, W, BLOCK: tl.constexpr):
    """Transposes the last two dims of a tensor, from one flat index."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    w, h, n = place % W, (place // W) % H, place // (H * W)
    value = tl.load(x + n * H * W + w * H + h, mask=place < N * H * W, other=0.0)
    tl.store(out + place, value, mask=place < N * H * W)


@triton.jit
def wide_offsets(x, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    tl.store(out + place, tl.load(x + place, mask=place < n), mask=place < n)


@triton.jit
def reads_what_it_wrote(x, out, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place) + 1.0)
    tl.store(x + place, tl.load(out + BLOCK - 1 - place))


@triton.jit
def converted(x, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n).to(out.dtype.element_ty), mask=place < n)
