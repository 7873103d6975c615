# SPDX-License-Identifier: Apache-2.0
"""Time of device-memory traffic: the read/write mix law and what access patterns add to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch_spyre.perf.device import Device
from torch_spyre.perf.requests import STICK_BYTES
from torch_spyre.perf.survey import Work


def traffic(works: Sequence[Work], device: Device) -> float:
    """Nanoseconds of the streams of several instructions that share memory."""
    if max(w.cores for w in works) <= device["cores.count"] / 2:
        return sum(_half(w, device) for w in works)
    return _mix(works, device)


def _mix(works: Sequence[Work], device: Device) -> float:
    """The read/write mix law, on the traffic of all instructions together."""
    read = written = turn = flat = patterns = 0.0
    for work in works:
        bytes_in, bytes_out = _bytes(work)
        read += bytes_in
        written += bytes_out
        if work.pattern == "restickify":
            flat += bytes_out * device["turnaround.restickify"]
        elif bytes_out:
            turn += bytes_out * _turnaround(work, device)
        patterns += _patterns(work, bytes_in, bytes_out, device)
    if not read and not written:
        return 0.0
    bandwidth = device["memory.bandwidth"]
    doublings = math.log2((read + written) / device["memory.growth_footprint"])
    growth = max(0.2, 1 + device["memory.page_growth"] * doublings)
    mixed = (turn * growth + flat) * min(1.0, read / written) if written else 0.0
    writes_alone = max(0.0, written - read) * (1 / device["memory.write_bandwidth"] - 1 / bandwidth)
    return (read + written) / bandwidth + mixed + writes_alone + patterns


def _half(work: Work, device: Device) -> float:
    """Up to half of the cores hang on one half of the memory system, which reads and writes at about half speed.

    A mix of both within one instruction still comes close to full speed; across instructions they take turns.
    """
    bytes_in, bytes_out = _bytes(work)
    if not bytes_in and not bytes_out:
        return 0.0
    mixed = _mix((work,), device) * (1 + device["memory.half_mix"])
    return max(mixed, bytes_in / device["memory.half_read"], bytes_out / device["memory.half_write"])


def _bytes(work: Work) -> tuple[int, int]:
    """Bytes read and written; a slice that several cores read is multicast and counts once."""
    bytes_in = sum(s.total for s in work.inputs if s.in_memory)
    return bytes_in, work.output.core_bytes * work.cores if work.output.in_memory else 0


def draw(works: Sequence[Work], device: Device) -> float:
    """Nanoseconds the busiest core needs to move its bytes through its memory interface."""
    drawn = sum(s.core_bytes for w in works for s in (*w.inputs, w.output) if s.in_memory)
    return drawn / device["memory.core_draw"]


def _turnaround(work: Work, device: Device) -> float:
    """Nanoseconds per written byte lost to switching the memory bus, by how the instruction buffers its streams."""
    if work.kind == "copy":
        return device["turnaround.copy"]
    small = [s for s in work.inputs if 0 < s.core_bytes < work.output.core_bytes // 2]
    streams = sum(s.in_memory for s in work.inputs) - sum(s.in_memory for s in small)
    return device["turnaround.resident" if streams == 0 or (small and streams == 1) else "turnaround.stream"]


def _patterns(work: Work, bytes_in: int, bytes_out: int, device: Device) -> float:
    """What short runs, tall slices, reorderings and re-reads add, in nanoseconds."""
    bandwidth = device["memory.bandwidth"]
    extra = work.dirty * device["memory.reread"]
    if work.pattern == "restickify":
        return extra
    if work.pattern == "reorder":
        return extra + (bytes_in + bytes_out) / bandwidth * _reorder(work, device)
    if work.pattern == "gapped":
        columns = math.log2(max(1.0, work.output.runs / 4))
        return extra + (bytes_in + bytes_out) / bandwidth * device["pattern.gapped"] * columns
    for s in (*work.inputs, work.output):
        if s.in_memory and s.pitch and s.run:
            size = s.total if s is not work.output else bytes_out
            pages = (s.runs / device["pattern.run_count"]) ** device["pattern.run_pages"]
            run = max(s.run, STICK_BYTES)
            short = (device["pattern.run_overhead"] / run) ** device["pattern.run_exponent"]
            extra += size / bandwidth * short * pages
    if work.inputs and work.inputs[0].pitch:
        tall = math.log2(max(1.0, work.inputs[0].run / device["pattern.tall_run"]))
        extra += max(0, bytes_in - bytes_out) / bandwidth * device["pattern.tall"] * tall
    return extra


def _reorder(work: Work, device: Device) -> float:
    """Sticks leave in another order than they come: a page is opened for every short run of the destination."""
    source, target = work.inputs[0], work.output
    run = target.loops[1][0] * target.loops[1][1]
    stride = math.log2(max(1.0, target.stride_of(source.order[1]) / device["pattern.reorder_page"]))
    cost = device["pattern.reorder"] + device["pattern.reorder_stride"] * stride
    return cost + (device["pattern.reorder_short"] if run < device["pattern.reorder_run"] else 0.0)
