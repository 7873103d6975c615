# SPDX-License-Identifier: Apache-2.0
"""The writing side of spyre-smi: one daemon thread per process with an open card, one small file once a second.

Publishing is best effort: a directory that cannot be written costs the display, never the program.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torch_spyre import _C, knobs, status_files
from torch_spyre.device.properties import get_device_properties

log = logging.getLogger("torch_spyre.device")

_started_pid = 0
_wake = threading.Event()
_path: Path | None = None
_first_device = 0
# What other parts of the package add to the record: key -> function.
sections: dict[str, Callable[[], Any]] = {}


def start() -> None:
    """Starts publishing once per process. A forked child has no card of its own and publishes nothing."""
    global _started_pid, _path, _first_device
    if _started_pid:
        return
    _started_pid = os.getpid()
    _first_device = _C.current_device()
    try:
        interval = float(knobs.get("smi_interval"))
        if interval == 0:
            return
        _path = status_files.directory(create=True) / f"{_started_pid}.json"
        publish()
    except PermissionError as error:
        log.warning("spyre-smi will not see this process: %s", error)
        return
    except (OSError, ValueError) as error:
        log.info("spyre-smi will not see this process: %s", error)
        return
    thread = threading.Thread(target=_run, args=(interval,), name="spyre-smi", daemon=True)
    thread.start()
    atexit.register(stop, thread)


def stop(thread: threading.Thread | None = None) -> None:
    """Removes the status file. A thread that is still inside the extension when Python ends would abort the process."""
    _wake.set()
    if thread is not None and os.getpid() == _started_pid:
        thread.join(timeout=5)
    if _path is not None and os.getpid() == _started_pid:
        _path.unlink(missing_ok=True)


def _run(interval: float) -> None:
    while not _wake.wait(interval):
        try:
            publish()
        except OSError:
            return


def publish() -> None:
    """Writes the status file now."""
    if _path is not None:
        status_files.write(_path, record())


def record() -> dict[str, Any]:
    pid = os.getpid()
    return {
        "pid": pid,
        "start_ticks": status_files.start_ticks(pid),
        "name": _process_name(),
        "time": time.time(),
        "cards": [_card(i) for i in _open_cards()],
        **{key: section() for key, section in sections.items()},
    }


def _open_cards() -> list[int]:
    """Devices whose card is open, as far as the extension tells; else the first and those ever allocated on."""
    is_open = getattr(_C, "_is_open", None)
    devices = range(_C.device_count())
    if is_open is not None:
        return [i for i in devices if is_open(i)]
    return [i for i in devices if i == _first_device or _allocated(i)["peak"]]


def _allocated(index: int) -> dict[str, int]:
    """torch.accelerator.memory_stats without its 0.5 ms of flattening."""
    stats: dict[str, Any] = torch._C._accelerator_getDeviceStats(index)
    return dict(stats["allocated_bytes"]["all"])


def _card(index: int) -> dict[str, Any]:
    properties = get_device_properties(index)
    allocated = _allocated(index)
    return {
        "device": index,
        "name": properties.name,
        "memory_total_bytes": properties.total_memory,
        "memory_used_bytes": allocated["current"],
        "memory_peak_bytes": allocated["peak"],
        "counters": counters(index),
    }


def counters(index: int) -> dict[str, int | None]:
    """The card's counters; None where the extension tells none. Busy is the time of the compute engine."""
    read = getattr(_C, "_card_counters", None)
    found: dict[str, Any] = dict(read(index)) if read is not None else {}
    found["clock_ns"] = _C.clock_ns(index)
    if "compute_ns" in found:
        found["busy_ns"] = found["compute_ns"]
    return {name: int(found[name]) if name in found else None for name in status_files.COUNTERS}


def _process_name() -> str:
    words = getattr(sys, "orig_argv", sys.argv) or [sys.executable]
    return " ".join(" ".join([os.path.basename(words[0]), *words[1:]]).split())[:120]
