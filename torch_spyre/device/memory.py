# SPDX-License-Identifier: Apache-2.0
"""``torch.spyre.memory``: memory of a card, in bytes. Freed by reference count; nothing is cached, so reserved equals
allocated. Asking opens no card."""

from __future__ import annotations

from typing import Any

import torch
from torch.accelerator.memory import empty_host_cache

from torch_spyre import _C
from torch_spyre.device.memory_history import _dump_snapshot, _record_memory_history, _snapshot
from torch_spyre.device.properties import get_device_properties
from torch_spyre.device.selection import device_index

__all__ = [
    "OutOfMemoryError",
    "_dump_snapshot",
    "_record_memory_history",
    "_snapshot",
    "empty_cache",
    "empty_host_cache",
    "get_memory_info",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]

OutOfMemoryError = torch.OutOfMemoryError

_SUMMARY_ROWS = (
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("Reserved memory", "reserved_bytes", True),
    ("Allocations", "allocation", False),
)


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Counters of one card by name, as `torch.cuda.memory_stats` has them."""
    return dict(torch.accelerator.memory_stats(device_index(device)))


def memory_allocated(device: Any = None) -> int:
    """Bytes of card memory that tensors hold now."""
    return int(torch.accelerator.memory_allocated(device_index(device)))


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors held at once since the last reset of the peak."""
    return int(torch.accelerator.max_memory_allocated(device_index(device)))


def memory_reserved(device: Any = None) -> int:
    """Equals `memory_allocated`: nothing is cached."""
    return int(torch.accelerator.memory_reserved(device_index(device)))


def max_memory_reserved(device: Any = None) -> int:
    """Equals `max_memory_allocated`."""
    return int(torch.accelerator.max_memory_reserved(device_index(device)))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Starts the peaks anew from what is allocated now."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Sets the counters that only grow back to 0."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def empty_cache() -> None:
    """There is no cache of card memory; host pages behind freed memory go back to the host, as in torch.accelerator."""
    torch.accelerator.empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the card."""
    index = device_index(device)
    if not _C.is_initialized():
        total = get_device_properties(index).total_memory
        return total, total
    free, total = torch.accelerator.get_memory_info(index)
    return int(free), int(total)


get_memory_info = mem_get_info


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The statistics as a table. `abbreviated` leaves out the accumulated columns."""
    index = device_index(device)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    columns = ["current", "peak"] if abbreviated else ["current", "peak", "allocated", "freed"]
    titles = {"current": "Current", "peak": "Peak", "allocated": "Total allocated", "freed": "Total freed"}
    rows = [["Metric", *(titles[c] for c in columns)]]
    for label, key, is_bytes in _SUMMARY_ROWS:
        values = [int(stats.get(f"{key}.all.{column}", 0)) for column in columns]
        rows.append([label, *(_size(v) if is_bytes else str(v) for v in values)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]) + " |" for r in rows]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    head = f"spyre:{index} memory: {_size(total - free)} used, {_size(free)} free of {_size(total)}"
    tail = f"out-of-memory errors: {stats.get('num_ooms', 0)}"
    return "\n".join([head, rule, lines[0], rule, *lines[1:], rule, tail]) + "\n"


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
