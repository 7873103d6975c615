# SPDX-License-Identifier: Apache-2.0
"""Pictures of a trace as one self-contained HTML page: timeline, LX occupancy, roofline. Plain SVG, no dependency."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from torch_spyre.perf.device import Device
from torch_spyre.profiler.summary import by_kernel, summary
from torch_spyre.profiler.trace import Trace

WIDTH, LEFT, RIGHT = 1100, 90, 20
COLOURS = {
    "pt": "#d95f02",
    "memory": "#1b9e77",
    "draw": "#66a61e",
    "sfp": "#7570b3",
    "lx": "#a6761d",
    "ring": "#e7298a",
    "issue": "#999999",
    "exposed": "#b3b3b3",
    "launch": "#bbbbbb",
    "transfer": "#1f78b4",
}
_STYLE = (
    "body{font:14px sans-serif;margin:24px;max-width:1150px}svg{background:#fff;border:1px solid #ddd}"
    "text{font:11px sans-serif;fill:#333}pre{font-size:12px;overflow:auto}"
)


def page(title: str, sections: Sequence[tuple[str, str]]) -> str:
    body = "".join(f"<h2>{html.escape(name)}</h2>{content}" for name, content in sections)
    return (
        f"<!doctype html><html><head><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>{body}</body></html>"
    )


def report(trace: Trace, device: Device) -> str:
    """The whole page of one trace."""
    sections = [
        ("Timeline (device clock)", timeline(trace)),
        ("LX occupancy", occupancy(trace, device)),
        ("Roofline", roofline(trace, device)),
        ("Tables", f"<pre>{html.escape(summary(trace, device, 40))}</pre>"),
    ]
    return page(f"spyre-trace {trace.path}", sections)


def svg(height: int, parts: Sequence[str]) -> str:
    return f"<svg width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}'>{''.join(parts)}</svg>"


def text(x: float, y: float, content: str, anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{html.escape(content)}</text>"


def box(x: float, y: float, w: float, h: float, colour: str, tip: str) -> str:
    return (
        f"<rect x='{x:.2f}' y='{y:.2f}' width='{max(w, 0.3):.2f}' height='{h:.2f}' fill='{colour}'>"
        f"<title>{html.escape(tip)}</title></rect>"
    )


def line(points: Sequence[tuple[float, float]], colour: str, width: float = 1.5) -> str:
    path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    return f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='{width}'/>"


def _span(trace: Trace) -> tuple[float, float]:
    return trace.start_ns, max(trace.span_ns, 1.0)


def _time_axis(span: float, y: float) -> list[str]:
    parts = []
    for i in range(6):
        x = LEFT + (WIDTH - LEFT - RIGHT) * i / 5
        parts.append(text(x, y, f"{span * i / 5 / 1e3:.1f} us", "middle"))
    return parts


def timeline(trace: Trace) -> str:
    """One row for each stream, and one for each direction of transfers; colours are bottlenecks."""
    first, span = _span(trace)
    scale = (WIDTH - LEFT - RIGHT) / span
    rows: dict[str, int] = {}
    parts: list[str] = []

    def row(label: str) -> float:
        return 10 + 30.0 * rows.setdefault(label, len(rows))

    for k in trace.kernels:
        y = row(f"{k.device}: stream {k.stream}")
        tip = f"{k.name}\n{k.duration_ns / 1e3:.2f} us, {k.bottleneck}\n" + "\n".join(k.lines())
        x = LEFT + (k.start_ns - first) * scale
        parts.append(box(x, y, k.duration_ns * scale, 22, COLOURS.get(k.bottleneck, "#444"), tip))
    for t in trace.transfers:
        y = row(f"{t.device}: {t.direction}")
        tip = f"{t.direction} {t.bytes} bytes, {t.duration_ns / 1e3:.2f} us"
        x = LEFT + (t.start_ns - first) * scale
        parts.append(box(x, y, t.duration_ns * scale, 22, COLOURS["transfer"], tip))
    parts += [text(8, 25 + 30 * n, label) for label, n in rows.items()]
    height = 30 * len(rows) + 60
    parts += _time_axis(span, height - 32)
    used = [u for u in COLOURS if u == "transfer" or any(k.bottleneck == u for k in trace.kernels)]
    for i, unit in enumerate(used):
        parts.append(box(LEFT + 90 * i, height - 22, 12, 12, COLOURS[unit], unit))
        parts.append(text(LEFT + 16 + 90 * i, height - 12, unit))
    return svg(height, parts)


def occupancy(trace: Trace, device: Device) -> str:
    """Bytes of each core's scratchpad: by instruction if the trace has the counter, else the most of each kernel."""
    first, span = _span(trace)
    capacity, height = device["cores.lx"], 200
    scale = (WIDTH - LEFT - RIGHT) / span

    def y(size: float) -> float:
        return height - 30 - (height - 50) * size / capacity

    points: list[tuple[float, float]] = [(LEFT, y(0))]
    for ns, used in trace.lx:
        points += [(LEFT + (ns - first) * scale, points[-1][1]), (LEFT + (ns - first) * scale, y(used))]
    for k in trace.kernels if not trace.lx else ():
        x = LEFT + (k.start_ns - first) * scale
        size = float(k.args.get("LX bytes per core", 0))
        end = x + k.duration_ns * scale
        points += [(x, y(0)), (x, y(size)), (end, y(size)), (end, y(0))]
    parts = [line(points, COLOURS["lx"]), line([(LEFT, y(capacity)), (WIDTH - RIGHT, y(capacity))], "#c00", 0.8)]
    parts += [
        text(LEFT - 6, y(capacity) + 4, f"{capacity / 1024:.0f} KiB", "end"),
        text(LEFT - 6, y(0) + 4, "0", "end"),
    ]
    return svg(height, [*parts, *_time_axis(span, height - 10)])


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

    knee = peak / bandwidth
    low = 10**x_low
    parts = [line([place(low, low * bandwidth), place(knee, peak), place(10**x_high, peak)], "#c00")]
    for i in range(int(x_low), int(x_high) + 1):
        parts.append(text(place(10.0**i, 1)[0], height - 20, f"{10.0**i:g}", "middle"))
    for i in range(int(y_low), 3):
        parts.append(text(LEFT - 8, place(1, 10.0**i)[1], f"{10.0**i:g}", "end"))
    parts += [text(WIDTH / 2, height - 4, "FLOP per byte of memory traffic", "middle"), text(8, 14, "TFLOP/s")]
    longest = max((t.ns for t in kernels), default=1.0)
    for t in kernels:
        x, y = place(2 * t.macs / t.bytes, 2 * t.macs / t.ns / 1e3)
        radius = 3 + 9 * math.sqrt(t.ns / longest)
        tip = f"{t.name}\n{2 * t.macs / t.ns / 1e3:.2f} TFLOP/s, {t.ns / 1e3:.1f} us, {t.bottleneck}"
        colour = COLOURS.get(t.bottleneck, "#444")
        parts.append(
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:.1f}' fill='{colour}' fill-opacity='0.6'>"
            f"<title>{html.escape(tip)}</title></circle>"
        )
    return svg(height, parts)
