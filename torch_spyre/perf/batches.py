# SPDX-License-Identifier: Apache-2.0
"""Batched products: sticks of one entry that do not follow one another in memory.

In the default layout the sticks of all entries are side by side, one of each. Memory delivers granules of a few sticks;
those of entries that a core does not work on at the time are wasted. A core works on as many entries at once as its LX
share holds, provided that the results of all its entries fit: the loop over k runs outside the loop over entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch_spyre.perf.device import Device
from torch_spyre.perf.requests import STICK_BYTES, Stream, runs
from torch_spyre.perf.survey import Work

_STICK = 64  # elements of fp16


@dataclass(frozen=True)
class Tile:
    """The busiest core's part of a product."""

    batched: bool
    batch: int
    m: int
    n: int
    k: int
    left: float  # bytes of one entry
    right: float
    shared_weight: bool  # all entries multiply the same right operand
    results_fit: bool  # in the back end's LX share
    together: float  # entries that a core works on at once

    def entry_bytes(self, side: int) -> float:
        return self.right if side else self.left


def tile_of(work: Work, device: Device) -> Tile:
    m, n, k = work.box[-3:]
    batch = math.prod(work.box[:-3])
    a, b = work.inputs
    shared = _shared_weight(work, batch, m, n)
    left, right = a.core_bytes / batch, b.core_bytes / (1 if shared else batch)
    fit = results_fit(batch, m * n, device)
    room, each = device.lx_share, (left + right) * min(1.0, device["matmul.k_chunk"] / k)
    if not fit and k > _STICK:
        room, each = room / device["matmul.crowded"], each + 4 * m * n
    together = 1.0 if batch == 1 else float(max(1, min(batch, _power_of_two(room / max(1.0, each)))))
    if shared:
        granule = device["matmul.fetch_sticks"]
        together = float(batch) if batch <= granule else granule / device["matmul.shared_turns"]
    return Tile(len(work.box) > 3, batch, m, n, k, left, right, shared, fit, together)


def _shared_weight(work: Work, batch: int, m: int, n: int) -> bool:
    a, b = work.inputs
    if batch > 1:
        return b.core_bytes < a.core_bytes // m * n
    return len(work.box) > 3 and b.run > STICK_BYTES >= a.run and a.cohort * b.cohort * work.ways >= work.cores


def results_fit(batch: int, outputs: int, device: Device) -> bool:
    return batch * outputs * 2 <= device.lx_share


def _power_of_two(value: float) -> int:
    return 1 << int(math.log2(value)) if value >= 1 else 1


def scattered(stream: Stream, tile: Tile) -> bool:
    """Sticks of one entry are apart."""
    return tile.batched and stream.in_memory and stream.run <= STICK_BYTES < stream.pitch


def _granule(stream: Stream, device: Device) -> float:
    return min(device["matmul.fetch_sticks"], stream.pitch / STICK_BYTES)


def wasted(stream: Stream, side: int, passes: float, tile: Tile, device: Device) -> float:
    """Nanoseconds per byte for the useless sticks of granules, over all passes."""
    if not scattered(stream, tile):
        return _columns_apart(stream, side, tile, device)
    sticks = _granule(stream, device) / tile.together - 1
    return max(0.0, sticks) * _sparse_passes(side, passes, tile, device) / device["matmul.scatter_bandwidth"]


def _columns_apart(stream: Stream, side: int, tile: Tile, device: Device) -> float:
    """A weight whose rows are contiguous: sticks of one column of sticks are a row apart."""
    if side == 0 or tile.batched or not stream.in_memory or not stream.order:
        return 0.0
    columns, depth = stream.order[0], max(stream.order)
    apart = columns != depth and stream.stride_of(depth) > STICK_BYTES
    return (device["matmul.row_major_fetch"] - 1) / device["matmul.scatter_bandwidth"] if apart else 0.0


def _sparse_passes(side: int, passes: float, tile: Tile, device: Device) -> float:
    """Scattered sticks do not stay for a whole panel: the left operand comes for each stick of columns, the right one
    for each panel of rows."""
    if passes == 1.0 and tile.entry_bytes(side) <= device.lx_share * device["matmul.resident"]:
        return 1.0
    if tile.shared_weight:
        return passes
    width, step = (tile.n, "matmul.pass_left") if side == 0 else (tile.m, "matmul.pass_right")
    return max(1.0, width / device[step])


def requests(stream: Stream, side: int, passes: float, cores: int, tile: Tile, device: Device) -> float:
    """Nanoseconds that a core waits for its requests: one for each run of the entries it works on.

    A few cores do not get in each other's way. Where the entries between belong to other cores, all of them ask for the
    same granules, and more so if nobody shares the slice.
    """
    if not scattered(stream, tile):
        return 0.0
    each = device["matmul.request"] * min(1.0, cores / device["matmul.request_cores"])
    run = tile.together * device["matmul.fetch_sticks"] / _granule(stream, device)
    if tile.batch == 1 and not tile.shared_weight:
        run, each = (
            1.0,
            each * device["matmul.request_split"] * (1.0 if stream.cohort > 1 else device["matmul.request_alone"]),
        )
    elif tile.together >= stream.pitch / STICK_BYTES:
        return 0.0
    wastes = _granule(stream, device) > tile.together
    times = _sparse_passes(side, passes, tile, device) if wastes else passes
    return stream.core_bytes / STICK_BYTES / run * times * each


def written_over(output: Stream, tile: Tile, device: Device) -> float:
    """Nanoseconds per written byte: a part of a granule is read, changed and written back.

    Results wait in LX for those of their neighbours if they fit and the tile of one entry is small.
    """
    small = tile.m * tile.n < device["matmul.output_block"]
    if not scattered(output, tile) or (tile.batch > 1 and tile.results_fit and small) or tile.shared_weight:
        return 0.0
    return (_granule(output, device) - 1) * device["matmul.scatter_write"] / device["matmul.scatter_bandwidth"]


def summed_over(work: Work, device: Device) -> float:
    """The same for results that are summed over the ring, in nanoseconds."""
    if len(work.box) < 3 or not work.output.in_memory:
        return 0.0
    batch, (m, n) = math.prod(work.box[:-2]), work.box[-2:]
    inner = [loop for loop in work.output.loops if loop[2] >= len(work.box) - 2]
    run, pitch, _ = runs(2, inner)
    crowded = not results_fit(batch, m * n, device) or m * n >= device["matmul.output_block"] or batch == 1
    if run > STICK_BYTES or pitch <= STICK_BYTES or not crowded:
        return 0.0
    granule = min(device["matmul.fetch_sticks"], pitch / STICK_BYTES)
    per_byte = (granule - 1) * device["matmul.scatter_write"] / device["matmul.scatter_bandwidth"]
    return work.output.core_bytes * work.cores * per_byte
