# SPDX-License-Identifier: Apache-2.0
"""Kernels of test_control.py: branches, locks, chosen pointers, and functions of libdevice."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice


@triton.jit
def returns_meet(x, out, n, limit, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    if program >= limit:
        return
    place = program * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n, other=0.0)
    if tl.sum(value) > 0:
        if program % 2 == 0:
            tl.store(out + place, value, mask=place < n)
            return
        value = value * 2
    else:
        value = -value
    tl.store(out + place, value + 1, mask=place < n)


@triton.jit
def sums_under_a_lock(x, out, locks, columns, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows are added up in groups, as the backward pass of Triton's tutorial on layer norm does."""
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    group = row % GROUPS
    value = tl.load(x + row * columns + place, mask=place < columns, other=0.0)
    while tl.atomic_cas(locks + group, 0, 1) == 1:
        pass
    count = tl.load(locks + GROUPS + group)
    if count == 0:
        tl.atomic_xchg(locks + GROUPS + group, 1)
    else:
        value += tl.load(out + group * columns + place, mask=place < columns)
    tl.store(out + group * columns + place, value, mask=place < columns)
    tl.debug_barrier()
    tl.atomic_xchg(locks + group, 0)


@triton.jit
def waits(x, flags, DISTANCE: tl.constexpr):
    """Each program adds what another one has stored, once that one's flag is set."""
    program = tl.program_id(0)
    value = tl.load(x + program)
    if program > 0:
        while tl.load(flags + program - DISTANCE, volatile=True) == 0:
            pass
        value += tl.load(x + program - 1)
    tl.store(x + program, value)
    tl.atomic_xchg(flags + program, 1)


@triton.jit
def chooses_a_pointer(a, b, out, n, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    place = program * BLOCK + tl.arange(0, BLOCK)
    source = a if program % 2 == 0 else b
    tl.store(out + place, tl.load(source + place, mask=place < n, other=5.0), mask=place < n)


@triton.jit
def branches_on_pointers(a, b, out, flags, n, BLOCK: tl.constexpr):
    """Which tensor is read, and which half is written, depends on what memory holds."""
    program = tl.program_id(0)
    place = program * BLOCK + tl.arange(0, BLOCK)
    if tl.load(flags + program) > 0:
        source = a + place
        target = out
    else:
        source = b + (n - 1 - place)
        target = out + n
    tl.store(target + place, tl.load(source, mask=place < n, other=0.0), mask=place < n)


@triton.jit
def windows_peaks(x, out, H, W, OH, OW, SIZE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, B: tl.constexpr):
    """The greatest number of windows of an image, which reach beyond its edges; also counts what each place gave."""
    channel, place = tl.program_id(0), tl.program_id(1) * B + tl.arange(0, B)
    row, column = place // OW, place % OW
    best = tl.full([B], float("-inf"), tl.float32)
    for i in range(SIZE):
        for j in range(SIZE):
            h, w = row * STRIDE - PAD + i, column * STRIDE - PAD + j
            inside = (place < OH * OW) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            best = tl.maximum(best, tl.load(x + channel * H * W + h * W + w, mask=inside, other=float("-inf")))
    tl.store(out + channel * OH * OW + place, best, mask=place < OH * OW)


@triton.jit
def spreads(x, out, H, W, B: tl.constexpr):
    """Each number is stored one row up and one column to the left, unless that is outside."""
    place = tl.arange(0, B)
    row, column = place // W - 1, place % W - 1
    inside = (place < H * W) & (row >= 0) & (column >= 0)
    tl.store(out + row * W + column, tl.load(x + place, mask=place < H * W, other=0.0), mask=inside)


@triton.jit
def library(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.5)
    b = tl.load(y + i, mask=i < n, other=0.5)
    results = (
        libdevice.rint(a), libdevice.round(a), libdevice.trunc(a), libdevice.nearbyint(a), libdevice.atan(a),
        libdevice.asin(a * 0.1), libdevice.acos(a * 0.1), libdevice.sinh(b), libdevice.cosh(b), libdevice.asinh(a),
        libdevice.atan2(a, b), libdevice.log10(b), libdevice.erfc(a), libdevice.cbrt(a), libdevice.hypot(a, b),
        libdevice.fmod(a, b), libdevice.copysign(b, a), libdevice.exp10(b), libdevice.fast_dividef(a, b),
        libdevice.rsqrt_rn(b), libdevice.fma(a, b, a), libdevice.fdim(a, b), libdevice.saturatef(a),
        libdevice.normcdf(b), libdevice.sinpi(b), libdevice.float2int_rn(a).to(tl.float32),
        libdevice.llrint(a).to(tl.float32), libdevice.isnan(a / (a - a)).to(tl.float32),
        libdevice.isinf(b / (a - a)).to(tl.float32), libdevice.signbit(a).to(tl.float32),
    )  # fmt: skip
    for k in tl.static_range(30):
        tl.store(out + k * n + i, results[k], mask=i < n)


@triton.jit
def bytes_doubled(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0)
    tl.store(out + i, value.to(tl.float32) * 2, mask=i < n)
    tl.store(x + i, value + 1, mask=i < n)


@triton.jit
def narrowed(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0.0).to(out.dtype.element_ty), mask=i < n)
