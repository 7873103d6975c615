# SPDX-License-Identifier: Apache-2.0
"""Status files: where they are, what they hold, which of them count. Imports no torch.

``<runtime dir>/<pid>.json``: pid, the process's start time (a pid may be used again), its name, the time of writing,
and one record per open card. A counter that the card does not offer is null. ``groups`` is there in a process that
works with others: name, rank, ranks of the world, link to each, and traffic.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from torch_spyre import files, knobs

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

_FIELDS: dict[str, Any] = {"pid": int, "name": str, "time": int | float, "cards": list}
_CARD: dict[str, Any] = {"device": int, "memory_total_bytes": int, "memory_used_bytes": int, "counters": dict}
_GROUP: dict[str, Any] = {"name": str, "rank": int, "ranks": list, "links": list, "collectives": int, "messages": int,
                          "sent_bytes": int, "received_bytes": int}  # fmt: skip
_MAX_FILE_BYTES = 1 << 20


def directory(create: bool = False) -> Path:
    """The runtime directory of this user: a real directory that nobody else may enter, else a PermissionError."""
    path = Path(knobs.get("runtime_dir"))
    if create:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=True)
    reason = files.distrust(path, private=True)
    if reason is None and os.path.lexists(path) and not path.is_dir():
        reason = f"{path} is no directory"
    if reason is not None:
        raise PermissionError(f"{reason}; set SPYRE_RUNTIME_DIR to a directory of your own with mode 0700")
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
    try:
        files.write_private(staging, json.dumps(record).encode())
        os.replace(staging, path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


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
    """The record of a file; None if it is damaged or not one of ours."""
    try:
        record = files.read_json(path, _MAX_FILE_BYTES, links=False)
        good = all(isinstance(record[key], kind) for key, kind in _FIELDS.items())
        good = good and all(isinstance(card[key], kind) for card in record["cards"] for key, kind in _CARD.items())
        groups = record.setdefault("groups", [])
        good = good and all(isinstance(group[key], kind) for group in groups for key, kind in _GROUP.items())
        return record if good and "start_ticks" in record else None
    except files.DAMAGE:
        return None
