# SPDX-License-Identifier: Apache-2.0
"""Reading Chrome traces of the device: kernels, transfers and counters as plain records."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_spyre import files
from torch_spyre.errors import InvalidArgument

CORES_PID = 900_000  # of the cores of device 0: they are drawn as a process of their own


@dataclass(frozen=True)
class Kernel:
    """One launch. `start_ns` is on the device clock; `args` is what the profiler wrote about the program."""

    name: str
    device: int
    stream: int
    start_ns: float
    duration_ns: float
    trace_us: float  # where the trace shows it
    args: dict[str, Any]

    @property
    def macs(self) -> int:
        return int(self.args.get("MACs", 0))

    @property
    def bytes(self) -> int:
        return int(self.args.get("bytes read", 0)) + int(self.args.get("bytes written", 0))

    @property
    def bottleneck(self) -> str:
        return str(self.args.get("bottleneck", "unknown"))

    def ops(self) -> dict[str, float]:
        """Nanoseconds by operation; what the instructions do not account for is the launch itself."""
        return self._shares("ops", self.name)

    def lines(self) -> dict[str, float]:
        """Nanoseconds by line of user code; an eager kernel belongs to the line that called it."""
        return self._shares("lines", str(self.args.get("user_line", "unknown")))

    def _shares(self, key: str, otherwise: str) -> dict[str, float]:
        shares = {k: float(v) for k, v in self.args.get(key, {}).items()}
        if not shares:
            return {otherwise: self.duration_ns}
        rest = self.duration_ns - sum(shares.values())
        return {**shares, "launch": rest} if rest > 0.5 else shares


@dataclass(frozen=True)
class Transfer:
    direction: str  # HtoD or DtoH
    device: int
    stream: int
    start_ns: float
    duration_ns: float
    bytes: int


@dataclass(frozen=True)
class Exchange:
    """One collective, from the arrival of this rank to the end; `sequence` counts those of the group."""

    kind: str
    group: str
    algorithm: str
    device: int
    stream: int
    start_ns: float
    duration_ns: float
    bytes: int
    wire_bytes: int
    sequence: int
    rank: int
    peers: tuple[int, ...]  # ranks of the world

    @property
    def end_ns(self) -> float:
        return self.start_ns + self.duration_ns


@dataclass
class Trace:
    path: str
    kernels: list[Kernel] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)  # (us in the trace, allocated bytes)
    lx: list[tuple[float, int]] = field(default_factory=list)  # (ns on the clock of device 0, bytes per core)

    @property
    def busy_ns(self) -> float:
        return sum(k.duration_ns for k in self.kernels)

    @property
    def span_ns(self) -> float:
        """From the first start to the last end on the device clock."""
        return self.end_ns - self.start_ns

    @property
    def start_ns(self) -> float:
        return min((start for start, _ in self._times()), default=0.0)

    @property
    def end_ns(self) -> float:
        return max((start + ns for start, ns in self._times()), default=0.0)

    def _times(self) -> list[tuple[float, float]]:
        kernels = [(k.start_ns, k.duration_ns) for k in self.kernels]
        others: list[Transfer | Exchange] = [*self.transfers, *self.exchanges]
        return kernels + [(t.start_ns, t.duration_ns) for t in others]


def load_json(path: str | Path) -> dict[str, Any]:
    """A trace file, plain or gzipped."""
    try:
        raw = Path(path).read_bytes()
        data = files.parse_json(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except FileNotFoundError:
        raise InvalidArgument(f"{path}: no such trace") from None
    except (OSError, ValueError, EOFError) as e:
        raise InvalidArgument(f"{path} is not a Chrome trace: {e}") from None
    if isinstance(data, list):
        data = {"traceEvents": data}
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise InvalidArgument(f"{path} is not a Chrome trace: it has no traceEvents")
    return data


def read(path: str | Path) -> Trace:
    trace = Trace(str(path))
    for event in load_json(path)["traceEvents"]:
        category, args = event.get("cat"), event.get("args") or {}
        if event.get("ph") == "X" and category in ("kernel", "gpu_memcpy"):
            _add_work(trace, event, args)
        elif event.get("ph") == "C" and event.get("name") == "allocated memory":
            trace.memory.append((float(event["ts"]), int(args["bytes"])))
        elif event.get("ph") == "C" and event.get("name") == "LX occupancy" and event["pid"] == 0:
            trace.lx.append((float(event["ts"]), int(args["bytes"])))
    trace.lx = _on_device_clock(trace)
    trace.kernels.sort(key=lambda k: (k.device, k.start_ns))
    trace.transfers.sort(key=lambda t: (t.device, t.start_ns))
    trace.exchanges.sort(key=lambda e: (e.device, e.start_ns))
    if not trace.kernels and not trace.transfers and not trace.exchanges:
        raise InvalidArgument(
            f"{path} has no events of the device; profile with activities=[ProfilerActivity.CPU, "
            "ProfilerActivity.PrivateUse1]"
        )
    return trace


def _on_device_clock(trace: Trace) -> list[tuple[float, int]]:
    """Counters are placed by the trace's time; each is inside a kernel, whose time on both clocks is known."""
    kernels = sorted((k for k in trace.kernels if k.device == 0), key=lambda k: k.trace_us)
    result, at = [], 0
    for us, size in sorted(trace.lx, key=lambda point: point[0]):
        while at + 1 < len(kernels) and kernels[at + 1].trace_us <= us:
            at += 1
        result.append((kernels[at].start_ns + (us - kernels[at].trace_us) * 1e3, size))
    return result


def _add_work(trace: Trace, event: dict[str, Any], args: dict[str, Any]) -> None:
    device, stream = int(args.get("device", event["pid"])), int(args.get("stream", event["tid"]))
    start = float(args.get("device_start_ns", event["ts"] * 1e3))
    duration = float(args.get("device_duration_ns", event["dur"] * 1e3))
    if "coll_kind" in args:
        trace.exchanges.append(_exchange(args, device, stream, start, duration))
    elif event["cat"] == "kernel":
        trace.kernels.append(Kernel(event["name"], device, stream, start, duration, float(event["ts"]), args))
    else:
        direction = "HtoD" if "HtoD" in event["name"] else "DtoH"
        trace.transfers.append(Transfer(direction, device, stream, start, duration, int(args.get("bytes", 0))))


def _exchange(args: dict[str, Any], device: int, stream: int, start: float, duration: float) -> Exchange:
    return Exchange(
        str(args["coll_kind"]),
        str(args.get("coll_group", "")),
        str(args.get("coll_algo", "")),
        device,
        stream,
        start,
        duration,
        int(args.get("coll_bytes", 0)),
        int(args.get("coll_wire_bytes", 0)),
        int(args.get("coll_sequence", 0)),
        int(args.get("coll_rank", 0)),
        tuple(int(rank) for rank in str(args.get("coll_peers", "")).split(",") if rank),
    )
