# SPDX-License-Identifier: Apache-2.0
"""Tables of a trace: by kernel, by operation, by user line; and two traces side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch_spyre.perf.device import Device
from torch_spyre.profiler.communication import by_kind, exposed_ns
from torch_spyre.profiler.trace import Kernel, Trace

Row = Sequence[str]


@dataclass
class Total:
    """Sum over the launches of one kernel."""

    name: str
    calls: int = 0
    ns: float = 0.0
    macs: int = 0
    bytes: int = 0
    cores: int = 0
    bottleneck: str = ""

    def add(self, kernel: Kernel) -> None:
        self.calls += 1
        self.ns += kernel.duration_ns
        self.macs += kernel.macs
        self.bytes += kernel.bytes
        self.cores = max(self.cores, int(kernel.args.get("cores", 0)))
        self.bottleneck = kernel.bottleneck


def by_kernel(trace: Trace) -> list[Total]:
    """Kernels of one name and program together, the longest total first."""
    found: dict[tuple[str, str], Total] = {}
    for k in trace.kernels:
        found.setdefault((k.name, str(k.args.get("program", ""))), Total(k.name)).add(k)
    return sorted(found.values(), key=lambda t: -t.ns)


def shares(trace: Trace, of: Callable[[Kernel], dict[str, float]]) -> list[tuple[str, int, float]]:
    """(key, launches it occurs in, nanoseconds), the longest first."""
    found: dict[str, list[float]] = {}
    for k in trace.kernels:
        for key, ns in of(k).items():
            found.setdefault(key, []).append(ns)
    return sorted(((key, len(v), sum(v)) for key, v in found.items()), key=lambda row: -row[2])


def table(header: Row, rows: Iterable[Row], left: int = 1) -> str:
    """Aligned text; the first `left` columns to the left, the others to the right."""
    lines = [list(header), *(list(r) for r in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    lines.insert(1, ["-" * w for w in widths])
    text = []
    for line in lines:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def _cut(text: str, width: int = 60) -> str:
    return text if len(text) <= width else "…" + text[1 - width :]


def overview(trace: Trace, device: Device) -> str:
    busy, span = trace.busy_ns, trace.span_ns
    macs, moved = sum(k.macs for k in trace.kernels), sum(k.bytes for k in trace.kernels)
    lines = [
        f"{trace.path}: {len(trace.kernels)} kernels, {len(trace.transfers)} transfers",
        f"device clock {span / 1e3:.1f} us, compute busy {busy / 1e3:.1f} us ({_percent(busy, span)})",
        f"PT utilisation {100 * pt_utilisation(macs, busy, device):.1f} % of peak, memory {_rate(moved, busy)} GB/s, "
        f"{moved / 1e6:.1f} MB moved by kernels",
    ]
    for direction in ("HtoD", "DtoH"):
        found = [t for t in trace.transfers if t.direction == direction]
        if found:
            total, ns = sum(t.bytes for t in found), sum(t.duration_ns for t in found)
            lines.append(f"{direction}: {len(found)} transfers, {total / 1e6:.2f} MB, {_rate(total, ns)} GB/s")
    if trace.exchanges:
        spent, alone = sum(e.duration_ns for e in trace.exchanges), exposed_ns(trace)
        lines.append(
            f"collectives: {len(trace.exchanges)}, {spent / 1e3:.1f} us; exposed {alone / 1e3:.1f} us "
            f"({_percent(alone, span)} of the device clock), overlapped with kernels {(spent - alone) / 1e3:.1f} us"
        )
    if trace.memory:
        lines.append(f"most memory allocated: {max(b for _, b in trace.memory) / 1e6:.1f} MB")
    return "\n".join(lines)


def pt_utilisation(macs: int, ns: float, device: Device) -> float:
    peak = device["cores.count"] * device["pt.macs_fp16"] * device["cores.clock"]
    return macs / (peak * ns) if ns else 0.0


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def _rate(amount: float, ns: float) -> str:
    return f"{amount / ns:.1f}" if ns else "–"


def kernel_table(trace: Trace, device: Device, limit: int = 0) -> str:
    header = ("kernel", "calls", "total us", "%", "mean us", "PT %", "GB/s", "cores", "bottleneck")
    rows = [
        (
            _cut(t.name),
            str(t.calls),
            f"{t.ns / 1e3:.2f}",
            _percent(t.ns, trace.busy_ns),
            f"{t.ns / t.calls / 1e3:.2f}",
            f"{100 * pt_utilisation(t.macs, t.ns, device):.1f}",
            _rate(t.bytes, t.ns),
            str(t.cores),
            t.bottleneck,
        )
        for t in by_kernel(trace)
    ]
    return table(header, rows[:limit] if limit else rows)


def share_table(trace: Trace, title: str, of: Callable[[Kernel], dict[str, float]], limit: int = 0) -> str:
    rows = [(_cut(key, 90), str(n), f"{ns / 1e3:.2f}", _percent(ns, trace.busy_ns)) for key, n, ns in shares(trace, of)]
    return table((title, "launches", "total us", "%"), rows[:limit] if limit else rows)


def collective_table(trace: Trace) -> str:
    """Time from the rank's arrival to the end, waiting for others included."""
    header = ("collective", "group", "algorithm", "cards", "calls", "MB", "total us", "mean us", "exposed us")
    rows = [
        (t.kind, _cut(t.group, 30), t.algorithm, str(t.cards), str(t.calls), f"{t.bytes / 1e6:.3f}",
         f"{t.ns / 1e3:.2f}", f"{t.ns / t.calls / 1e3:.2f}", f"{t.exposed_ns / 1e3:.2f}")
        for t in by_kind(trace)
    ]  # fmt: skip
    return table(header, rows, left=3)


def summary(trace: Trace, device: Device, limit: int = 0) -> str:
    parts = [
        overview(trace, device),
        *([collective_table(trace)] if trace.exchanges else []),
        kernel_table(trace, device, limit),
        share_table(trace, "operation", Kernel.ops, limit),
        share_table(trace, "user line", Kernel.lines, limit),
    ]
    return "\n\n".join(parts)


def totals(trace: Trace) -> dict[str, object]:
    """The kernels of a trace as data, the longest first."""
    rows = [
        {"name": t.name, "calls": t.calls, "us": t.ns / 1e3, "bytes": t.bytes, "macs": t.macs, "cores": t.cores}
        | {"bottleneck": t.bottleneck}
        for t in by_kernel(trace)
    ]
    return {"trace": str(trace.path), "busy_us": trace.busy_ns / 1e3, "span_us": trace.span_ns / 1e3, "kernels": rows}


def data(trace: Trace, device: Device) -> dict[str, object]:
    """`summary` as data, with every row."""
    macs = sum(k.macs for k in trace.kernels)

    def rows(of: Callable[[Kernel], dict[str, float]]) -> list[dict[str, object]]:
        return [{"name": key, "launches": n, "us": ns / 1e3} for key, n, ns in shares(trace, of)]

    return {
        **totals(trace),
        "pt_utilisation": pt_utilisation(macs, trace.busy_ns, device),
        "operations": rows(Kernel.ops),
        "lines": rows(Kernel.lines),
        "transfers": [{"direction": t.direction, "bytes": t.bytes, "us": t.duration_ns / 1e3} for t in trace.transfers],
        "collectives": [{"kind": t.kind, "calls": t.calls, "us": t.ns / 1e3} for t in by_kind(trace)],
    }


def compare(before: Trace, after: Trace) -> str:
    """Kernels of both traces by name, the largest change first."""
    totals: list[dict[str, Total]] = []
    for trace in (before, after):
        names: dict[str, Total] = {}
        for k in trace.kernels:
            names.setdefault(k.name, Total(k.name)).add(k)
        totals.append(names)
    old, new = totals
    keys = sorted({*old, *new}, key=lambda n: -abs(_ns(new, n) - _ns(old, n)))
    rows = [_change(name, old.get(name), new.get(name)) for name in keys]
    rows.append(_change("total", _whole(before), _whole(after)))
    header = ("kernel", "calls before", "after", "us before", "after", "change us", "ratio")
    return f"before: {before.path}\nafter:  {after.path}\n\n" + table(header, rows)


def _ns(totals: dict[str, Total], name: str) -> float:
    return totals[name].ns if name in totals else 0.0


def _whole(trace: Trace) -> Total:
    total = Total("total")
    for k in trace.kernels:
        total.add(k)
    return total


def _change(name: str, old: Total | None, new: Total | None) -> Row:
    a, b = (t.ns / 1e3 if t else 0.0 for t in (old, new))
    calls = [str(t.calls) if t else "–" for t in (old, new)]
    return _cut(name), *calls, f"{a:.2f}", f"{b:.2f}", f"{b - a:+.2f}", f"{b / a:.3f}x" if a and b else "–"
