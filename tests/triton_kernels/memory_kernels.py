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


@triton.jit
def sums_segments(starts, x, out, rows, BLOCK: tl.constexpr):
    """The sum of each segment of rows; a program goes through the rows of its own."""
    segment, place = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(tl.load(starts + segment), tl.load(starts + segment + 1)):
        total += tl.load(x + row * BLOCK + place)
    tl.store(out + segment * BLOCK + place, total)


@triton.jit
def copies_segments(starts, x, out, BLOCK: tl.constexpr):
    """With a pointer that a loop carries, in steps of blocks, and a mask at the end."""
    segment, place = tl.program_id(0), tl.arange(0, BLOCK)
    first, last = tl.load(starts + segment), tl.load(starts + segment + 1)
    source, target = x + first + place, out + first + place
    for at in range(first, last, BLOCK):
        tl.store(target, tl.load(source, mask=at + place < last) * 2, mask=at + place < last)
        source += BLOCK
        target += BLOCK


@triton.jit
def counts_down(limits, x, out, BLOCK: tl.constexpr):
    """`while` on a number from memory; its carried values are used after it."""
    program, place = tl.program_id(0), tl.arange(0, BLOCK)
    left, steps = tl.load(limits + program), 0
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    while left > 0:
        total += tl.load(x + left * BLOCK + place)
        left -= 3
        steps += 1
    tl.store(out + program * BLOCK + place, total + steps * 100.0 + left)


@triton.jit
def stores_four_times(x, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = 4
    while i > 0:
        i -= 1
        tl.store(out + place, tl.load(x + place, mask=place < n) * (i + 1), mask=place < n)


@triton.jit
def nested_bounds(rows, columns, x, out):
    """Both loops end where memory says."""
    program, total = tl.program_id(0), 0.0
    for i in range(tl.load(rows + program)):
        for j in range(tl.load(columns + i)):
            total += tl.load(x + i * 8 + j)
    tl.store(out + program, total)


@triton.jit
def bound_is_written(x, out):
    tl.store(x, 3)
    for i in range(tl.load(x)):
        tl.store(out + i, i)


@triton.jit
def blocks_of_rows(index, x, out, columns, BLOCK: tl.constexpr):
    """Rows from memory in blocks of columns: the last block reaches past the end of the last row."""
    row = tl.load(index + tl.program_id(0))
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(
        out + row * columns + place, tl.load(x + row * columns + place, mask=place < columns), mask=place < columns
    )


@triton.jit
def longest_of_a_block(starts, lengths, x, out, segments, BLOCK: tl.constexpr):
    """Several segments side by side, as many steps as the longest of them has."""
    segment = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(starts + segment, mask=segment < segments, other=0)
    length = tl.load(lengths + segment, mask=segment < segments, other=0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(tl.max(length, axis=0)):
        total += tl.load(x + first + i, mask=(i < length) & (segment < segments), other=0.0)
    tl.store(out + segment, total, mask=segment < segments)


@triton.jit
def blocks_before(x, out, BLOCK: tl.constexpr):
    """The sum of all blocks before a program's own, from the last one down to the first."""
    program, place = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for at in range(program * BLOCK - BLOCK, -BLOCK, -BLOCK):
        total += tl.load(x + at + place)
    if program > 0:
        total += tl.load(x + program * BLOCK - 1)
    tl.store(out + program * BLOCK + place, total)
