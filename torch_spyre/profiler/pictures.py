# SPDX-License-Identifier: Apache-2.0
"""Pictures of a trace as one self-contained HTML page: timeline, LX occupancy, roofline."""

from __future__ import annotations

import html
import math

from torch_spyre import charts
from torch_spyre.charts import LEFT, RIGHT, WIDTH, box, colour, dot, label, line, page, text
from torch_spyre.perf.device import Device
from torch_spyre.profiler.summary import by_kernel, summary
from torch_spyre.profiler.trace import Trace

_ROOFLINE = (
    "Each dot is a kernel with matmuls; its area is its total time. Left of the knee memory bounds it, right of it the "
    "arrays: how far it is below the line is what other things cost."
)


def report(trace: Trace, device: Device) -> str:
    """The whole page of one trace."""
    sections = [
        ("Timeline (device clock)", timeline(trace)),
        ("LX occupancy", occupancy(trace, device)),
        ("Roofline", f"<p>{_ROOFLINE}</p>{roofline(trace, device)}"),
        ("Tables", f"<pre>{html.escape(summary(trace, device, 40))}</pre>"),
    ]
    return page(f"spyre trace {trace.path}", sections)


def _span(trace: Trace) -> tuple[float, float]:
    """First nanosecond, and how many there are."""
    return trace.start_ns, max(trace.span_ns, 1.0)


def timeline(trace: Trace) -> str:
    """One row for each stream, and one for each direction of transfers; colours are bottlenecks."""
    first, span = _span(trace)
    scale = (WIDTH - LEFT - RIGHT) / span
    rows: dict[str, int] = {}
    plot: list[str] = []

    def row(label: str) -> float:
        return 10 + 30.0 * rows.setdefault(label, len(rows))

    for k in trace.kernels:
        y = row(f"{k.device}: stream {k.stream}")
        tip = f"{k.name}\n{k.duration_ns / 1e3:.2f} us, {k.bottleneck}\n" + "\n".join(k.lines())
        x = LEFT + (k.start_ns - first) * scale
        wide = k.duration_ns * scale
        plot += [box(x, y, wide, 22, colour(k.bottleneck), tip), label(x, y + 15, wide, k.name)]
    for t in trace.transfers:
        y = row(f"{t.device}: {t.direction}")
        tip = f"{t.direction} {t.bytes} bytes, {t.duration_ns / 1e3:.2f} us"
        x = LEFT + (t.start_ns - first) * scale
        wide = t.duration_ns * scale
        plot += [box(x, y, wide, 22, colour("transfer"), tip), label(x, y + 15, wide, charts.size(t.bytes))]
    fixed = [text(8, 25 + 30 * n, label) for label, n in rows.items()]
    height = 30 * len(rows) + 66
    used = dict.fromkeys([*(k.bottleneck for k in trace.kernels), *(["transfer"] if trace.transfers else [])])
    fixed += charts.legend(used, height - 20)
    return charts.timeline_svg(height, plot, fixed, (0.0, span / 1e3), "us", above=24)


def occupancy(trace: Trace, device: Device) -> str:
    """Bytes of each core's scratchpad: by instruction if the trace has the counter, else the most of each kernel."""
    first, span = _span(trace)
    capacity, height = device["cores.lx"], 200
    scale = (WIDTH - LEFT - RIGHT) / span

    def y(size: float) -> float:
        return height - 30 - (height - 50) * size / capacity

    marks: list[tuple[float, float, float, str]] = []  # from, to, bytes, name
    ends = [ns for ns, _ in trace.lx[1:]] + [first + span]
    for (ns, used), end in zip(trace.lx, ends, strict=False):
        marks.append((ns, end, used, "live"))
    for k in trace.kernels if not trace.lx else ():
        marks.append((k.start_ns, k.start_ns + k.duration_ns, float(k.args.get("LX bytes per core", 0)), k.name))
    plot = [
        box(
            LEFT + (a - first) * scale, y(used), (b - a) * scale, y(0) - y(used), colour("lx"), f"{name}: {used:,.0f} B"
        )
        for a, b, used, name in marks
        if used
    ]
    fixed = [line([(LEFT, y(capacity)), (WIDTH - RIGHT, y(capacity))], "#c00", 0.8)]
    fixed.append(text(WIDTH - RIGHT, y(capacity) - 4, f"a core's scratchpad: {charts.size(capacity)}", "end"))
    for size in charts.ticks_of(0, capacity / 1024, 4):
        fixed.append(text(LEFT - 6, y(size * 1024) + 4, f"{size:.0f} KiB", "end"))
    return charts.timeline_svg(height, plot, fixed, (0.0, span / 1e3), "us")


def roofline(trace: Trace, device: Device) -> str:
    """TFLOP/s over FLOP/byte, a dot for each kernel with matmuls; area by total time."""
    peak = 2 * device["cores.count"] * device["pt.macs_fp16"] * device["cores.clock"] / 1e3  # TFLOP/s
    bandwidth = device["memory.bandwidth"] / 1e3  # TB/s
    kernels = [t for t in by_kernel(trace) if t.macs and t.bytes and t.ns]
    x_low, x_high, y_low, y_high, height = -1.0, 4.0, -2.0, 2.2, 420

    def place(intensity: float, rate: float) -> tuple[float, float]:
        x = (math.log10(max(intensity, 10**x_low)) - x_low) / (x_high - x_low)
        y = (math.log10(max(rate, 10**y_low)) - y_low) / (y_high - y_low)
        return LEFT + x * (WIDTH - LEFT - RIGHT), height - 40 - y * (height - 60)

    knee, low = peak / bandwidth, 10**x_low
    parts = []
    for i in range(int(x_low), int(x_high) + 1):
        x = place(10.0**i, 1)[0]
        parts += [line([(x, 20), (x, height - 40)], "#eee", 1), text(x, height - 20, f"{10.0**i:g}", "middle")]
    for i in range(int(y_low), 3):
        y = place(1, 10.0**i)[1]
        parts += [line([(LEFT, y), (WIDTH - RIGHT, y)], "#eee", 1), text(LEFT - 8, y + 4, f"{10.0**i:g}", "end")]
    parts.append(line([place(low, low * bandwidth), place(knee, peak), place(10**x_high, peak)], "#c00"))
    parts += [text(WIDTH / 2, height - 4, "FLOP per byte of memory traffic", "middle"), text(8, 14, "TFLOP/s")]
    middle = math.sqrt(low * knee)
    parts.append(text(*place(middle, 1.4 * middle * bandwidth), f"{bandwidth * 1e3:.0f} GB/s", "end"))
    parts.append(text(place(10**x_high, peak)[0], place(knee, peak)[1] - 6, f"{peak:.0f} TFLOP/s", "end"))
    longest = max((t.ns for t in kernels), default=1.0)
    for t in kernels:
        x, y = place(2 * t.macs / t.bytes, 2 * t.macs / t.ns / 1e3)
        tip = f"{t.name}\n{2 * t.macs / t.ns / 1e3:.2f} TFLOP/s, {t.ns / 1e3:.1f} us, {t.bottleneck}"
        radius = 3 + 9 * math.sqrt(t.ns / longest)
        parts += [dot(x, y, radius, colour(t.bottleneck), tip), text(x + radius + 4, y + 4, t.name)]
    return charts.svg(height + 24, [*parts, *charts.legend(dict.fromkeys(t.bottleneck for t in kernels), height + 6)])
