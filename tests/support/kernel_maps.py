# SPDX-License-Identifier: Apache-2.0
"""Random operands for the kernel tests: linear, stick and broadcast maps that never overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from kernel_api import DTYPE, View


def random_view(rng: np.random.Generator, shape: Sequence[int], fmt: int, broadcast: bool) -> View:
    """Places the dims (and the blocks of stick dims) in random order, some with gaps. Broadcast dims have zero maps."""
    bytes_per = np.dtype(DTYPE[fmt]).itemsize
    stick = 128 // bytes_per
    loops: list[tuple[int, int, int]] = []  # dim, 0 inner / 1 outer, extent
    block = [0] * len(shape)
    for d, extent in enumerate(shape):
        if broadcast and rng.random() < 0.25:
            continue
        if rng.random() < 0.5:
            block[d] = int(rng.choice([stick, stick, 8, 5, 2 * stick]))
            loops += [(d, 0, block[d]), (d, 1, -(-extent // block[d]))]
        else:
            loops.append((d, 0, extent))
    order = rng.permutation(len(loops))
    if rng.random() < 0.6:  # usual case: some inner loop is contiguous
        order = np.array(sorted(range(len(loops)), key=lambda i: (loops[i][1], loops[i][0] != len(shape) - 1)))
    stride = {}
    step = bytes_per * (1 if rng.random() < 0.8 else 3)
    for i in order:
        d, level, extent = loops[i]
        stride[d, level] = step
        step *= extent
        if rng.random() < 0.2:
            step += bytes_per * int(rng.integers(1, 4))
    maps = [(block[d], stride.get((d, 0), 0), stride.get((d, 1), 0)) for d in range(len(shape))]
    offset = bytes_per * int(rng.integers(0, 3))
    buffer = rng.integers(0, 128, step + offset + 8, dtype=np.uint8)
    return View(buffer, fmt, maps, offset)
