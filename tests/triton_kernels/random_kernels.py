# SPDX-License-Identifier: Apache-2.0
"""Kernels whose constants choose what they do, for tests that draw them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def window_2d(
    x, out, x_start, x_row, x_column, out_start, out_row, out_column, row_low, row_high, column_low, column_high,
    rows, columns, OTHER: tl.constexpr, DIAGONAL: tl.constexpr, STRIDED: tl.constexpr, LOOP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Copies a matrix of `rows` by `columns`; what the load's mask leaves out is OTHER.

    STRIDED: programs take every so many block of rows. LOOP: columns are walked by a pointer that a loop carries.
    """
    step = tl.num_programs(0) if STRIDED else tl.cdiv(rows, BM) + 1
    for block in range(tl.program_id(0), tl.cdiv(rows, BM), step):
        r = block * BM + tl.arange(0, BM)
        if LOOP:
            c = tl.arange(0, BN)
            source = x + x_start + r[:, None] * x_row + c[None, :] * x_column
            for done in range(0, columns, BN):
                read = (r[:, None] >= row_low) & (r[:, None] < row_high)
                read = read & (c[None, :] + done >= column_low) & (c[None, :] + done < column_high)
                if DIAGONAL:
                    read = read & (r[:, None] >= c[None, :] + done)
                write = (r[:, None] < rows) & (c[None, :] + done < columns)
                value = tl.load(source, mask=read, other=OTHER)
                target = out + out_start + r[:, None] * out_row + (c[None, :] + done) * out_column
                tl.store(target, value, mask=write)
                source += BN * x_column
        else:
            c = tl.program_id(1) * BN + tl.arange(0, BN)
            read = (r[:, None] >= row_low) & (r[:, None] < row_high)
            read = read & (c[None, :] >= column_low) & (c[None, :] < column_high)
            if DIAGONAL:
                read = read & (r[:, None] >= c[None, :])
            write = (r[:, None] < rows) & (c[None, :] < columns)
            value = tl.load(x + x_start + r[:, None] * x_row + c[None, :] * x_column, mask=read, other=OTHER)
            tl.store(out + out_start + r[:, None] * out_row + c[None, :] * out_column, value, mask=write)


@triton.jit
def reduce_3d(
    x, out, A, B, C, AXIS: tl.constexpr, KIND: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr
):
    """One program reduces a whole tensor along an axis."""
    a, b, c = tl.arange(0, BA), tl.arange(0, BB), tl.arange(0, BC)
    inside = (a[:, None, None] < A) & (b[None, :, None] < B) & (c[None, None, :] < C)
    place = (a[:, None, None] * B + b[None, :, None]) * C + c[None, None, :]
    if KIND == "sum":
        result = tl.sum(tl.load(x + place, mask=inside, other=0), axis=AXIS)
    elif KIND == "max":
        result = tl.max(tl.load(x + place, mask=inside, other=-1000), axis=AXIS)
    else:
        result = tl.min(tl.load(x + place, mask=inside, other=1000), axis=AXIS)
    if AXIS == 0:
        tl.store(out + b[:, None] * C + c[None, :], result, mask=(b[:, None] < B) & (c[None, :] < C))
    elif AXIS == 1:
        tl.store(out + a[:, None] * C + c[None, :], result, mask=(a[:, None] < A) & (c[None, :] < C))
    else:
        tl.store(out + a[:, None] * B + b[None, :], result, mask=(a[:, None] < A) & (b[None, :] < B))
