# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_memory_api.py

Memory statistics, out of memory, and snapshots that PyTorch's memory viewer reads.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

from torch_spyre.errors import InvalidArgument

MEMORY = torch.spyre.memory
KIB8 = 64 * 64 * 2


@pytest.fixture
def recording() -> Iterator[None]:
    MEMORY._record_memory_history("all")
    yield
    MEMORY._record_memory_history(None)


def test_allocated_follows_the_reference_count() -> None:
    before = torch.spyre.memory_allocated()
    x = torch.empty(64, 64, dtype=torch.float16, device="spyre")
    view = x[1:]
    assert torch.spyre.memory_allocated() - before == KIB8
    del x
    assert torch.spyre.memory_allocated() - before == KIB8
    del view
    assert torch.spyre.memory_allocated() == before


def test_peak() -> None:
    torch.spyre.reset_peak_memory_stats()
    base = torch.spyre.max_memory_allocated()
    x = torch.empty(64, 64, dtype=torch.float16, device="spyre")
    del x
    assert torch.spyre.max_memory_allocated() - base == KIB8
    torch.spyre.reset_peak_memory_stats("spyre:0")
    assert torch.spyre.max_memory_allocated() == torch.spyre.memory_allocated()
    assert torch.spyre.max_memory_reserved() >= torch.spyre.memory_reserved()


def test_mem_get_info() -> None:
    free, total = torch.spyre.mem_get_info()
    x = torch.empty(64, 64, dtype=torch.float16, device="spyre")
    assert torch.spyre.mem_get_info() == (free - KIB8, total)
    assert MEMORY.get_memory_info() == torch.accelerator.get_memory_info()
    del x


def test_stats_and_summary() -> None:
    x = torch.empty(64, 64, dtype=torch.float16, device="spyre")
    stats = torch.spyre.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.spyre.memory_allocated() >= KIB8
    text = torch.spyre.memory_summary()
    assert "Allocated memory" in text and "Total freed" in text and "112.0 GiB" in text
    assert len({len(line) for line in text.splitlines() if line.startswith("|")}) == 1
    assert "Total freed" not in torch.spyre.memory_summary(abbreviated=True)
    torch.spyre.empty_cache()
    torch.spyre.reset_accumulated_memory_stats()
    del x


def test_out_of_memory_says_what_and_recovers() -> None:
    x = torch.ones(64, device="spyre")
    requested = 20 << 30  # larger than a segment
    with pytest.raises(torch.spyre.OutOfMemoryError) as caught:
        torch.empty(requested // 4, dtype=torch.float32, device="spyre")
    free, total = torch.spyre.mem_get_info()
    numbers = {int(n) for n in re.findall(r"\d+", str(caught.value))}
    assert {requested, free, total} <= numbers
    assert torch.equal((x + x).cpu(), torch.full((64,), 2.0))


def viewer_runs_on(snapshot: dict[str, Any]) -> tuple[str, str]:
    """What the viewer of the installed torch makes of it; `memory` and `segments` need only the flame graph lines."""
    lines = _memory_viz.memory(snapshot, format_flamegraph=lambda text: text)
    assert lines == "" or "active_allocated" in lines
    _memory_viz.segments(snapshot, format_flamegraph=lambda text: text)
    assert "<!DOCTYPE html>" in _memory_viz.trace_plot(snapshot)
    return _memory_viz.segsum(snapshot), _memory_viz.trace(snapshot)


def test_snapshot_of_live_memory() -> None:
    x = torch.empty(64, 64, dtype=torch.float16, device="spyre")
    snapshot = MEMORY._snapshot()
    viewer_runs_on(snapshot)
    live = [b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    assert sum(b["size"] for b in live) + snapshot["unattributed_bytes"][0] == torch.spyre.memory_allocated()
    address = x.untyped_storage().data_ptr() & ((1 << 40) - 1)
    assert [b["size"] for b in live if b["address"] == address] == [KIB8]
    for s in snapshot["segments"]:
        assert sum(b["size"] for b in s["blocks"]) == s["total_size"]


def test_history_records_allocations_and_frees(recording: None) -> None:
    x = torch.empty(64, 64, dtype=torch.float16, device="spyre")
    address = x.untyped_storage().data_ptr() & ((1 << 40) - 1)
    MEMORY._snapshot()
    del x
    snapshot = MEMORY._snapshot()
    actions = [e["action"] for e in snapshot["device_traces"][0] if e["addr"] == address and e["size"] == KIB8]
    assert actions[:3] == ["alloc", "free_requested", "free_completed"]
    _, trace = viewer_runs_on(snapshot)
    assert "8.0KiB" in trace


def test_dump(recording: None, tmp_path: Path) -> None:
    x = torch.empty(64, 64, dtype=torch.float16, device="spyre")
    MEMORY._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    viewer_runs_on(snapshot)
    assert any(e["action"] == "alloc" for e in snapshot["device_traces"][0])
    del x


def test_history_keeps_at_most_max_entries() -> None:
    MEMORY._record_memory_history("all", max_entries=2)
    try:
        for _ in range(4):
            x = torch.empty(64, 64, dtype=torch.float16, device="spyre")
            MEMORY._snapshot()
            del x
        assert len(MEMORY._snapshot()["device_traces"][0]) == 2
    finally:
        MEMORY._record_memory_history(None)


def test_illegal_mode() -> None:
    with pytest.raises(InvalidArgument, match=r"'sometimes'.*'all', 'state' and None"):
        MEMORY._record_memory_history("sometimes")


def test_history_has_stacks_and_memory_that_no_snapshot_saw(recording: None) -> None:
    def allocate_and_drop() -> None:
        torch.empty(64, 64, dtype=torch.float16, device="spyre")

    allocate_and_drop()
    events = [e for e in MEMORY._snapshot()["device_traces"][0] if e["size"] == KIB8]
    assert [e["action"] for e in events] == ["alloc", "free_requested", "free_completed"]
    assert "allocate_and_drop" in [f["name"] for f in events[0]["frames"]]
