# SPDX-License-Identifier: Apache-2.0
"""Time of a matmul instruction on all its cores.

A core works on its output tile in blocks and streams both operands past them, again for every block: what does not fit
its share of LX is read again. The array works while the operands stream in, except for the first fill of LX; results
leave at the end. With 32 cores it is therefore mostly the reads that take the time, and `_Reads` counts them. How
operands of batched products are stored is the business of `batches.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch_spyre.backend.program.instructions import MatmulInst
from torch_spyre.formats import CODE
from torch_spyre.perf import batches
from torch_spyre.perf.batches import Tile
from torch_spyre.perf.device import Device
from torch_spyre.perf.requests import Stream
from torch_spyre.perf.survey import LANES, Work

_RATES = {
    CODE["SENINT8"]: "pt.macs_int8",
    CODE["SEN143_FP8"]: "pt.macs_fp8",
    CODE["SEN152_FP8"]: "pt.macs_fp8",
}


def price(work: Work, device: Device) -> dict[str, float]:
    """Nanoseconds by cause; they add up, except that `pt` and `memory` overlap."""
    tile = batches.tile_of(work, device)
    a, b = (_Reads(s, _passes(work, tile, i, device), i) for i, s in enumerate(work.inputs))
    reading = max(
        sum(_memory(r, work, tile, device) for r in (a, b)), sum(_core(r, work, tile, device) for r in (a, b))
    )
    # An array that serves all entries with one weight waits for each of them.
    first = 1.0 if tile.shared_weight else _first_fill(a, b, device)
    costs = {"pt": _array(work, tile, device), "memory": (1 - first) * reading, "fill": first * reading}
    costs["write"] = _write(work, tile, device)
    return costs


def total(costs: dict[str, float]) -> float:
    return max(costs["pt"], costs["memory"]) + costs["fill"] + costs["write"]


@dataclass(frozen=True)
class _Reads:
    """An operand, how often it streams past the blocks of the tile, and which one it is."""

    stream: Stream
    passes: float
    side: int  # 0 left, 1 right


def panel(device: Device) -> int:
    """Rows (or columns) of an operand that stay in LX: a power of two of K chunks inside the back end's LX share."""
    rows = device.lx_share / (2 * device["matmul.k_chunk"])
    return 1 << max(0, int(math.log2(max(1.0, rows))))


def _passes(work: Work, tile: Tile, side: int, device: Device) -> float:
    """How often an operand is read: once for each block of the other side of the tile, unless all of it stays in LX.

    Blocks are a panel wide. A tile that is no wider than a panel on one side is crossed in double steps, and so are the
    rows of an entry of a batch. A K split leaves shorter panels, of which more fit.
    """
    if tile.entry_bytes(side) <= device.lx_share * device["matmul.resident"]:
        return 1.0
    width = float(panel(device))
    if work.ways > 1:
        width *= math.cbrt(max(1.0, 2 * device["matmul.k_chunk"] / tile.k))
    own, other = (tile.m, tile.n) if side == 0 else (tile.n, tile.m)
    if min(own, other) <= width or (side == 1 and tile.batch > 1):
        width *= device["matmul.wide_step"]
    return max(1.0, other / width)


def _memory(reads: _Reads, work: Work, tile: Tile, device: Device) -> float:
    """Nanoseconds of the memory system for an operand. A slice that several cores read is multicast."""
    stream = reads.stream
    if not stream.in_memory:
        return 0.0
    rate = _bandwidth(stream, work, device)
    if batches.scattered(stream, tile) and stream.cohort == 1 and not tile.results_fit:
        rate = min(rate, device["matmul.alone"])
    time = reads.passes / rate + batches.wasted(stream, reads.side, reads.passes, tile, device)
    return stream.total * time * (1 + _again(stream.cohort, device))


def _bandwidth(stream: Stream, work: Work, device: Device) -> float:
    """Up to half of the cores hang on one half of the memory system, unless what they read is multicast."""
    if stream.cohort > 1:
        return device["memory.bandwidth"]
    return device["memory.unicast" if _both_halves(work, device) else "memory.half_read_matmul"]


def _both_halves(work: Work, device: Device) -> bool:
    return work.cores > device["cores.count"] / 2


def _again(cohort: int, device: Device) -> float:
    """Extra reads of a slice that more cores share than one multicast reaches."""
    groups = cohort / device["memory.multicast_limit"]
    return (
        device["memory.multicast_again"] * math.pow(groups - 1, device["memory.multicast_power"]) if groups > 1 else 0.0
    )


def shared_reads(operand: Stream, device: Device) -> float:
    """Nanoseconds of the extra reads of an operand that more cores share than one multicast reaches, streamed once."""
    once = operand.total / device["memory.bandwidth"] if operand.in_memory else 0.0
    return once * _again(operand.cohort, device)


def _core(reads: _Reads, work: Work, tile: Tile, device: Device) -> float:
    """Nanoseconds of the busiest core's memory interface for an operand."""
    if not reads.stream.in_memory:
        return 0.0
    drawn = reads.stream.core_bytes * reads.passes / device["memory.core_draw"]
    return max(drawn, batches.requests(reads.stream, reads.side, reads.passes, work.cores, tile, device))


def _first_fill(a: _Reads, b: _Reads, device: Device) -> float:
    """The part of all reads that fills LX before the array starts."""
    streamed = sum(r.stream.core_bytes * r.passes for r in (a, b) if r.stream.in_memory)
    return min(1.0, device.lx_share / streamed) if streamed else 0.0


def _array(work: Work, tile: Tile, device: Device) -> float:
    if work.name == LANES:
        return tile.batch * tile.m * tile.k / (device["sfp.lanes_fp32_matmul"] * device["cores.clock"])
    macs = tile.batch * tile.m * tile.n * max(tile.k, 64)
    formats = _formats(work)
    if CODE["IEEE_FP32"] in formats:
        return macs / (device["sfp.lanes_fp32_matmul"] * device["cores.clock"])
    # Operands of two formats: no source says how the array takes them, so at the rate of the slower one.
    rate = min(device[_RATES.get(format, "pt.macs_fp16")] for format in formats) * device["cores.clock"]
    # Few rows do not hide that the array takes in the next weights; a K split waits longer than that.
    filled = min(1.0, math.pow(tile.m / device["pt.full_rows"], device["pt.short_rows"]))
    if work.ways > 1:
        filled = min(filled, device["pt.split_k_rate"])
    time = macs / (rate * filled) * (1 + device["pt.reload"])
    if work.inputs[0].cohort == work.cores:
        time *= 1 + device["pt.shared_a"]
    return time


def _formats(work: Work) -> set[int]:
    """Of the two operands."""
    return {work.inst.a.format, work.inst.b.format} if isinstance(work.inst, MatmulInst) else {work.format}


def _write(work: Work, tile: Tile, device: Device) -> float:
    if not work.output.in_memory:
        return 0.0
    written = work.output.core_bytes * work.cores
    rate = device["memory.write_bandwidth" if _both_halves(work, device) else "memory.half_write"]
    return written / rate + written * batches.written_over(work.output, tile, device)


def ring(work: Work, device: Device) -> float:
    """Partial sums of all cohorts cross the ring, all but one slice of each; their results leave like a matmul's."""
    partial = work.points * 4 * work.cores * (work.ways - 1)
    hop = device["ring.hop"] * 1e3 * work.ways * (work.points * 4 / 131072)
    return partial / device["ring.partial_sums"] + hop + batches.summed_over(work, device)
