# SPDX-License-Identifier: Apache-2.0
"""Kernels whose places, conditions or orders come from memory, for tests/triton_kernels/test_memory.py."""

import triton
import triton.language as tl


@triton.jit
def gathers(index, x, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.load(index + place, mask=place < n)
    tl.store(out + place, tl.load(x + rows, mask=place < n), mask=place < n)


@triton.jit
def scatters(index, x, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.load(index + place, mask=place < n)
    tl.store(out + rows, tl.load(x + place, mask=place < n), mask=place < n)


@triton.jit
def row_from_memory(index, x, out, columns, BLOCK: tl.constexpr):
    row = tl.load(index + tl.program_id(0))
    place = tl.arange(0, BLOCK)
    found = tl.load(x + row * columns + place, mask=place < columns, other=0.0)
    tl.store(out + tl.program_id(0) * columns + place, found, mask=place < columns)


@triton.jit
def squares_positions(x, out, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place * place))


@triton.jit
def branches_on_data(flags, x, out, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place)
    if tl.load(flags + tl.program_id(0)) > 2:
        value = value * 2
        tl.store(out + place, value)
    else:
        tl.store(out + place, -value)


@triton.jit
def scans(x, sums, peaks, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    place = tl.arange(0, 8)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    value = tl.load(x + place)
    tl.store(sums + place, tl.cumsum(value, axis=1, reverse=REVERSE))
    tl.store(peaks + place, tl.associative_scan(value, 1, _growth, reverse=REVERSE))


@triton.jit
def _growth(a, b):
    return a + b + a * b


@triton.jit
def pairs_scanned(gate, x, out, BLOCK: tl.constexpr):
    """A recurrence ``h = gate · h + x``."""
    place = tl.arange(0, BLOCK)
    _, h = tl.associative_scan((tl.load(gate + place), tl.load(x + place)), 0, _recurrence)
    tl.store(out + place, h)


@triton.jit
def _recurrence(gate, x, next_gate, next_x):
    return gate * next_gate, next_gate * x + next_x


@triton.jit
def sorts(x, out, top, turned, BLOCK: tl.constexpr, DESCENDING: tl.constexpr):
    place = tl.arange(0, 4)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    value = tl.load(x + place)
    tl.store(out + place, tl.sort(value, descending=DESCENDING))
    tl.store(top + tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :], tl.topk(value, 8))
    tl.store(turned + place, tl.flip(value, 1))


@triton.jit
def rearranges(x, y, index, joined, parts, both, picked, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    a, b = tl.load(x + place), tl.flip(tl.load(y + place), 0)
    pairs = tl.join(a, b)
    tl.store(joined + place[:, None] * 2 + tl.arange(0, 2)[None, :], pairs)
    even, odd = tl.split(tl.reshape(a, (BLOCK // 2, 2)))
    half = tl.arange(0, BLOCK // 2)
    tl.store(parts + half, even)
    tl.store(parts + BLOCK // 2 + half, odd)
    tl.store(both + tl.arange(0, 2 * BLOCK), tl.interleave(a, b))
    tl.store(picked + place, tl.gather(a, tl.load(index + place), 0))


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    place = tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x + place, mask=place < n, other=0), BINS, mask=place < n)
    tl.store(out + tl.arange(0, BINS), counts)


@triton.jit
def tickets(counter, peak, least, out):
    number = tl.program_id(0)
    tl.store(out + number, tl.atomic_add(counter, number))
    tl.atomic_max(peak, (number * 7) % 11)
    tl.atomic_min(least, (number * 5) % 13)
