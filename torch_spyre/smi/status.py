# SPDX-License-Identifier: Apache-2.0
"""Status files: where they are, what they hold, which of them count. Imports no torch.

``<runtime dir>/<pid>.json``: pid, the process's start time (a pid may be used again), its name, the time of writing,
and one record per open card. A counter that the card does not offer is null.
"""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

from torch_spyre import knobs

COUNTERS = (
    "launches",
    "busy_ns",
    "clock_ns",
    "memory_read_bytes",
    "memory_write_bytes",
    "lx_read_bytes",
    "lx_write_bytes",
    "ring_bytes",
    "dma_in_bytes",
    "dma_out_bytes",
)


def directory(create: bool = False) -> Path:
    """The runtime directory of this user; refused if it belongs to somebody else."""
    path = Path(knobs.get("runtime_dir"))
    if create:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        found = path.stat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            raise PermissionError(f"{path} is not a directory of this user; set SPYRE_RUNTIME_DIR to another one")
    return path


def start_ticks(pid: int) -> int | None:
    """When a process started, in kernel ticks; None if it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])


def write(path: Path, record: dict[str, Any]) -> None:
    """All or nothing for a reader."""
    staging = path.with_suffix(".new")
    staging.write_text(json.dumps(record))
    os.replace(staging, path)


def processes() -> list[dict[str, Any]]:
    """Status of every running process of this user that has a card open, by pid. Files of dead ones are removed."""
    found = []
    folder = directory()
    for path in sorted(folder.glob("*.json")) if folder.exists() else []:
        record = _load(path)
        if record is None:
            continue
        if start_ticks(record["pid"]) == record["start_ticks"]:
            record["age_s"] = max(0.0, time.time() - record["time"])
            found.append(record)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda r: int(r["pid"]))


def _load(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text())
        good = isinstance(record["cards"], list) and isinstance(record["pid"], int) and "time" in record
        return record if good and "start_ticks" in record else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
