# SPDX-License-Identifier: Apache-2.0
"""Traces in the dialects of other tools.

`acelyzer` (IBM's aiu-trace-analyzer) knows kernels as "<name> Cmpt Exec" with the five time stamps of a control block,
and host calls as `cuda_runtime`; it reads ideal cycles from the compiler's directory. Holistic Trace Analysis reads our
traces as they are unless they have lanes of cores, except that its launch statistics look for the names of CUDA's
calls.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from torch_spyre.errors import InvalidArgument
from torch_spyre.perf.device import load
from torch_spyre.profiler.trace import CORES_PID, load_json

DIALECTS = ("acelyzer", "hta")
_SOC_MHZ = 1000.0  # acelyzer's default for the clock of the time stamps
_HTA_NAMES = {"aiuLaunchControlBlocks": "cudaLaunchKernel", "aiuMemcpy": "cudaMemcpyAsync"}


def convert(source: str, target: str, dialect: str) -> list[str]:
    """Writes the trace for another tool; returns the files it made."""
    if dialect not in DIALECTS:
        raise InvalidArgument(f"dialect {dialect!r}; known are {', '.join(DIALECTS)}")
    data = load_json(source)
    # Neither knows of units that work at the same time inside a device.
    data["traceEvents"] = [e for e in data["traceEvents"] if not _is_lane(e)]
    for event in data["traceEvents"]:
        if event.get("cat") == "privateuse1_runtime":
            event["cat"] = "cuda_runtime"
            if dialect == "hta":
                event["name"] = _HTA_NAMES.get(event["name"], event["name"])
        elif dialect == "acelyzer" and event.get("cat") == "kernel":
            _stamp(event)
    made = [target]
    if dialect == "acelyzer":
        made += _ideal_cycles(data["traceEvents"], Path(target).parent)
    Path(target).write_text(json.dumps(data))
    return made


def _is_lane(event: dict[str, Any]) -> bool:
    return isinstance(event.get("pid"), int) and CORES_PID <= event["pid"] < CORES_PID + 1000


def _stamp(event: dict[str, Any]) -> None:
    """Time stamps in cycles of the SoC clock. Input DMA, preparation and output DMA are events of their own here."""
    args = event["args"]
    start = float(event["ts"]) * _SOC_MHZ
    end = start + float(event["dur"]) * _SOC_MHZ
    event["name"] = f"{event['name']} Cmpt Exec"
    for key, value in zip(("TS1", "TS2", "TS3", "TS4", "TS5"), (start, start, start, end, end), strict=True):
        args[key] = str(round(value))


def _ideal_cycles(events: list[dict[str, Any]], folder: Path) -> list[str]:
    """<folder>/inductor-spyre/<kernel>/perf/ideal_cycles.json, for acelyzer's -c."""
    device = load()
    rate = device["cores.count"] * device["pt.macs_fp16"]
    made = []
    for event in events:
        if event.get("cat") != "kernel":
            continue
        name = re.sub(r" Cmpt Exec$", "", event["name"])
        file = folder / "inductor-spyre" / name / "perf" / "ideal_cycles.json"
        if str(file) in made:
            continue
        macs = int(event["args"].get("MACs", 0))
        file.parent.mkdir(parents=True, exist_ok=True)
        category = "MatMul" if macs else "Other"
        file.write_text(json.dumps([{"ideal_cycles": round(macs / rate), "op_category": category}]))
        made.append(str(file))
    return made
