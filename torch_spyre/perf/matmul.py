# SPDX-License-Identifier: Apache-2.0
"""Time of a matmul instruction on all its cores.

A core keeps a panel of one operand in LX and streams the other past it. If one side of its output tile is no wider
than a panel, everything is streamed once; else the operands are streamed again for each panel, which costs PT cycles
and, where too many cores share an operand for multicast, many more reads.
"""

from __future__ import annotations

import math

from torch_spyre.formats import CODE
from torch_spyre.perf.device import Device
from torch_spyre.perf.requests import STICK_BYTES, Stream
from torch_spyre.perf.survey import LANES, Work

_RATES = {
    CODE["SENINT8"]: "pt.macs_int8",
    CODE["SEN143_FP8"]: "pt.macs_fp8",
    CODE["SEN152_FP8"]: "pt.macs_fp8",
}


def price(work: Work, device: Device) -> dict[str, float]:
    """Nanoseconds by cause; they add up, except that `pt` and `memory` overlap."""
    m, n, k = work.box[-3:]
    batch = math.prod(work.box[:-3])
    both_halves = work.cores > device["cores.count"] / 2
    panel = _panel(device)
    resident = min(m, n) <= panel
    pt = _array(work, batch, m, n, k, device)
    if both_halves and not resident and work.ways == 1:
        pt *= 1 + device["matmul.restream_stall"]
    a, b = work.inputs
    bandwidth = device["memory.bandwidth" if both_halves else "memory.half_read_matmul"]
    read = sum(s.total for s in (a, b) if s.in_memory)
    out = work.output
    written = out.core_bytes * work.cores if out.in_memory else 0
    write = written / device["memory.write_bandwidth" if both_halves else "memory.half_write"]
    costs = {"pt": pt, "memory": read / bandwidth, "write": write}
    costs["fill"] = _fill(batch * m * n, k, device) if read and both_halves and work.ways == 1 else 0.0
    costs["cohort"] = _cohort(a, m, n, panel, device) + _cohort(b, n, m, panel, device)
    costs["layout"] = _layouts(work, batch, m, n, device)
    costs["layout"] += written * _waste(out, work, batch, device) / device["matmul.sparse_bandwidth"]
    return costs


def total(costs: dict[str, float]) -> float:
    return max(costs["pt"], costs["memory"]) + sum(v for k, v in costs.items() if k not in ("pt", "memory"))


def _panel(device: Device) -> int:
    """Rows (or columns) of an operand that stay in LX: a power of two of K chunks inside the compiler's LX share."""
    share = device["cores.lx"] * device["matmul.lx_fraction"]
    rows = share / (2 * device["matmul.k_chunk"])
    return 1 << max(0, int(math.log2(max(1.0, rows))))


def _array(work: Work, batch: int, m: int, n: int, k: int, device: Device) -> float:
    if work.name == LANES:
        return batch * m * k / (device["sfp.lanes_fp32_matmul"] * device["cores.clock"])
    macs = batch * m * n * max(k, 64)
    if work.format == CODE["IEEE_FP32"]:
        return macs / (device["sfp.lanes_fp32_matmul"] * device["cores.clock"])
    rate = device[_RATES.get(work.format, "pt.macs_fp16")] * device["cores.clock"]
    if work.ways > 1:
        rate *= device["pt.split_k_rate"]
    fill = min(1.0, math.pow(m / 64, device["pt.short_rows"]))
    time = macs / rate / fill * (1 + device["pt.reload"])
    if work.inputs[0].cohort == work.cores:
        time *= 1 + device["pt.shared_a"]
    return time


def _fill(outputs: int, k: int, device: Device) -> float:
    """The first K chunk of every output block is loaded before the array starts."""
    macs = outputs * min(k, device["matmul.k_chunk"])
    return device["matmul.exposed_fill"] * macs / (device["pt.macs_fp16"] * device["cores.clock"])


def _cohort(operand: Stream, own: int, other: int, panel: int, device: Device) -> float:
    """Extra reads of an operand that more cores share than one multicast reaches.

    `own` is the operand's width in the output tile, `other` the width across it: an operand wider than a panel passes
    once for each panel of the other one.
    """
    groups = operand.cohort / device["memory.multicast_limit"]
    if groups <= 1 or not operand.in_memory:
        return 0.0
    once = operand.total / device["memory.bandwidth"]
    if min(own, other) <= panel:
        return shared_reads(operand, device) * math.pow(min(1.0, other / panel), device["matmul.cohort_narrow"])
    passes = other / panel
    again = math.pow(groups - 1, device["matmul.cohort_again_power"])
    return once * device["matmul.cohort_again"] * passes * again


def shared_reads(operand: Stream, device: Device) -> float:
    """Extra reads of an operand that more cores share than one multicast reaches, streamed once."""
    groups = operand.cohort / device["memory.multicast_limit"]
    if groups <= 1 or not operand.in_memory:
        return 0.0
    once = operand.total / device["memory.bandwidth"]
    return once * device["matmul.cohort_once"] * math.pow(groups - 1, device["matmul.cohort_once_power"])


def _layouts(work: Work, batch: int, m: int, n: int, device: Device) -> float:
    """Sticks of one batch entry that do not follow one another: each fetch brings other entries' sticks along.

    The fetched bytes load the memory once for each distinct slice, and the interface of every core. If the other
    entries belong to other cores, nothing is multicast and each stick is a request of its own.
    """
    a, b = work.inputs
    scattered = [(s, w) for s, w in ((a, n), (b, m)) if _waste(s, work, batch, device)]
    if scattered and _split_batch(work, batch):
        rate = device["matmul.request_rate" if len(scattered) == 2 else "matmul.request_rate_one"]
        cost = 0.0
        for s, width in scattered:
            passes = max(1.0, width / device["matmul.pass_left"])
            cost += passes * (s.core_bytes / rate + s.total / device["matmul.sparse_bandwidth"])
        return cost
    shared_weight = batch > 1 and b.core_bytes < a.core_bytes // m * n
    limit = device["matmul.shared_waste"] if shared_weight else device["matmul.fetch_sticks"]
    cost = 0.0
    for s, width in scattered:
        passes = max(1.0, width / device["matmul.pass_left" if s is a else "matmul.pass_right"])
        fetched = passes * min(limit, _waste(s, work, batch, device))
        load = s.total * fetched / device["matmul.sparse_bandwidth"]
        cost += max(s.core_bytes * fetched / device["matmul.sparse_rate"], load)
    return cost


def _split_batch(work: Work, batch: int) -> bool:
    """Batch entries belong to different cores."""
    a, b = work.inputs
    return a.cohort * b.cohort * work.ways < work.cores or a.nearest == batch * STICK_BYTES < a.pitch


def _waste(operand: Stream, work: Work, batch: int, device: Device) -> float:
    """Useless sticks that come with each useful one."""
    if not operand.in_memory or operand.run > STICK_BYTES or operand.pitch <= STICK_BYTES:
        return 0.0
    sticks = operand.pitch / STICK_BYTES if _split_batch(work, batch) else batch
    return max(0.0, min(sticks, device["matmul.fetch_sticks"]) - 1)


def ring(work: Work, device: Device) -> float:
    """Partial sums of all cohorts cross the ring, all but one slice of each."""
    partial = work.points * 4 * work.cores * (work.ways - 1)
    hop = device["ring.hop"] * 1e3 * work.ways * (work.points * 4 / 131072)
    return partial / device["ring.partial_sums"] + hop
