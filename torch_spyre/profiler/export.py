# SPDX-License-Identifier: Apache-2.0
"""Traces with more than Kineto shows: lanes of every core, bandwidth and LX occupancy, from the static timeline.

Kineto's own export is the base; every kernel in it names its program, and what the program's instructions do is drawn
below it. Only programs that were profiled in this process can be drawn.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch_spyre.errors import InvalidArgument
from torch_spyre.perf.schedule import UNITS, Step
from torch_spyre.profiler import programs
from torch_spyre.profiler.trace import CORES_PID, load_json

_LIMIT = 4_000_000  # events; viewers give up long before

Event = dict[str, Any]


def export_chrome_trace(prof: Any, path: str, cores: bool = True) -> None:
    """Writes the trace of a finished `torch.profiler.profile`."""
    prof.export_chrome_trace(path)
    data = load_json(path)
    events = [_named(e) for e in data["traceEvents"]]
    data["traceEvents"] = [*events, *extra_events(events, cores)]
    Path(path).write_text(json.dumps(data))


def trace_handler(directory: str, cores: bool = True) -> Callable[[Any], None]:
    """A handler for ``on_trace_ready``; files are named as TensorBoard's handler names them."""

    def write(prof: Any) -> None:
        os.makedirs(directory, exist_ok=True)
        name = f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}.pt.trace.json"
        export_chrome_trace(prof, os.path.join(directory, name), cores)

    return write


def extra_events(events: Iterable[Event], cores: bool) -> list[Event]:
    """Counters and lanes of all kernels in a trace."""
    result: list[Event] = []
    named: set[tuple[int, int]] = set()
    for event in events:
        if event.get("cat") != "kernel":
            continue
        program = programs.known(str(event["args"].get("program", "")))
        if program is None:
            continue
        device = int(event["args"]["device"])
        for step in program.steps:
            result.extend(_counters(event, step, device))
            if cores:
                result.extend(_lanes(event, step, device, named))
        result.extend(_end_of(event, device))
        if len(result) > _LIMIT:
            raise InvalidArgument(
                f"lanes of all cores make more than {_LIMIT} events; profile fewer launches or use cores=False"
            )
    return result


def _named(event: Event) -> Event:
    """Kineto calls every device but the first a GPU of this process."""
    if event.get("ph") == "M" and isinstance(event.get("pid"), int):
        if str(event["args"].get("labels", "")).startswith("GPU "):
            return {**event, "args": {"labels": f"AIU {event['pid']}"}}
        if event["name"] == "process_name" and event["pid"] < 16 and event["args"].get("name") == "python":
            return {**event, "args": {"name": f"spyre:{event['pid']}"}}
    return event


def _time(event: Event, ns: float) -> float:
    return float(event["ts"]) + ns / 1e3


def _counters(event: Event, step: Step, device: int) -> Iterator[Event]:
    ns = max(step.duration, 1e-3)
    values = {
        "memory read": {"GB/s": round(step.read_bytes / ns, 3)},
        "memory write": {"GB/s": round(step.written_bytes / ns, 3)},
        "LX occupancy": {"bytes": step.lx_bytes},
    }
    for name, args in values.items():
        yield {"ph": "C", "cat": "spyre", "name": name, "pid": device, "ts": _time(event, step.start), "args": args}


def _end_of(event: Event, device: int) -> Iterator[Event]:
    """Counters fall to zero between kernels."""
    for name, unit in (("memory read", "GB/s"), ("memory write", "GB/s"), ("LX occupancy", "bytes")):
        ts = float(event["ts"]) + float(event["dur"])
        yield {"ph": "C", "cat": "spyre", "name": name, "pid": device, "ts": ts, "args": {unit: 0}}


def _lanes(event: Event, step: Step, device: int, named: set[tuple[int, int]]) -> Iterator[Event]:
    pid = CORES_PID + device
    if (pid, -1) not in named:
        named.add((pid, -1))
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"spyre:{device} cores"}}
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": pid,
            "tid": 0,
            "args": {"sort_index": 5_100_000 + device},
        }
    for core in range(step.work.cores):
        for lane in step.lanes:
            tid = core * len(UNITS) + UNITS.index(lane.unit)
            if (pid, tid) not in named:
                named.add((pid, tid))
                name = f"core {core:02d} {lane.unit}"
                yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
                yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
            yield {
                "ph": "X",
                "cat": "spyre_core",
                "name": step.op,
                "pid": pid,
                "tid": tid,
                "ts": _time(event, lane.start),
                "dur": lane.duration / 1e3,
                "args": {"kernel": event["name"], "line": step.line, "correlation": event["args"]["correlation"]},
            }
