# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_allocator.py

Card memory: statistics, out of memory, reuse across streams, fragmentation, the host budget.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap

import pytest
import torch

STICK = 128
GIB = 1 << 30


def stats(key: str) -> int:
    return int(torch.spyre.memory_stats()[key])


def bytes_on_card(n: int) -> torch.Tensor:
    """A tensor of n bytes, whole sticks."""
    return torch.empty(n // 4, dtype=torch.float32, device="spyre")


def test_statistics() -> None:
    torch.spyre.synchronize()
    torch.spyre.reset_peak_memory_stats()
    torch.spyre.reset_accumulated_memory_stats()
    base, count = torch.spyre.memory_allocated(), stats("allocation.all.current")
    a = bytes_on_card(1000)  # 250 floats: 8 sticks
    b = bytes_on_card(64 * STICK)
    used = 8 * STICK + 64 * STICK
    assert torch.spyre.memory_allocated() == base + used == torch.spyre.memory_reserved()
    assert stats("allocation.all.current") == count + 2 == stats("active.all.current")
    del a
    assert torch.spyre.memory_allocated() == base + 64 * STICK
    assert torch.spyre.max_memory_allocated() == base + used
    assert stats("allocated_bytes.all.allocated") == used and stats("allocated_bytes.all.freed") == 8 * STICK
    assert stats("allocation.all.allocated") == 2 and stats("allocation.all.freed") == 1
    torch.spyre.reset_peak_memory_stats()
    assert torch.spyre.max_memory_allocated() == base + 64 * STICK
    torch.spyre.reset_accumulated_memory_stats()
    assert stats("allocated_bytes.all.allocated") == 0
    del b
    assert torch.spyre.memory_allocated() == base
    free, total = torch.spyre.mem_get_info()
    assert total - free == base and total == 112 * GIB


def test_out_of_memory_is_recoverable() -> None:
    gc.collect()  # an allocation that fails collects garbage, that of earlier tests too
    base = torch.spyre.memory_allocated()
    before = stats("num_ooms")
    with pytest.raises(
        torch.OutOfMemoryError,
        match=r"tried to allocate 34359738368 bytes.*16 GiB segment.*32\.00 GiB with.*fits now has 16\.00 GiB",
    ):
        bytes_on_card(32 * GIB)
    parts = [bytes_on_card(14 * GIB) for _ in range(7)]  # card memory commits when it is written
    with pytest.raises(torch.OutOfMemoryError, match="largest free block 2147483"):
        bytes_on_card(3 * GIB)
    assert stats("num_ooms") == before + 2
    del parts
    assert torch.spyre.memory_allocated() == base
    assert (torch.ones(64, device="spyre") + 1).sum().item() == 128
    torch.spyre.reset_accumulated_memory_stats()
    assert stats("num_ooms") == 0


def test_dead_cycles_are_collected_before_memory_is_out() -> None:
    """Garbage that refers to itself holds all of the card; Python's collector is off, so only we can ask for it."""
    gc.collect()
    before = stats("num_ooms")
    gc.disable()
    try:
        cycle: list[object] = [bytes_on_card(14 * GIB) for _ in range(7)]
        cycle.append(cycle)
        del cycle
        assert bytes_on_card(15 * GIB).nbytes == 15 * GIB
    finally:
        gc.enable()
    assert stats("num_ooms") == before


def test_free_neighbours_become_one_block() -> None:
    """First fit: holes in front are used first, and all of them together after their neighbours are freed."""
    parts = [bytes_on_card(GIB) for _ in range(15)]
    first = parts[0].data_ptr()
    del parts[0:8]
    again = bytes_on_card(8 * GIB)
    assert again.data_ptr() == first


def test_memory_changes_streams_safely() -> None:
    """A temporary of a slow stream is freed at once and its memory goes to another stream."""
    slow, fast = torch.spyre.Stream(), torch.spyre.Stream(priority=-1)
    x = torch.zeros(2048, 2048, device="spyre")
    y = torch.full((2048, 2048), 7.0).pin_memory()
    torch.spyre.synchronize()
    for _ in range(3):
        with slow:
            for _ in range(20):
                x.add_(1)
            temporary = x * 2
            address = temporary.data_ptr()
            temporary.record_stream(slow)
            del temporary
        with fast:
            other = torch.empty(2048, 2048, device="spyre")
            assert other.data_ptr() == address
            other.copy_(y, non_blocking=True)
        torch.spyre.synchronize()  # a write of the slow stream that came too late would show now
        assert (other.cpu() == 7).all()
        del other


def test_empty_cache_gives_pages_back() -> None:
    """Freed card memory keeps its host pages for reuse until then."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_EMPTY_CACHE)],
        capture_output=True,
        text=True,
        timeout=1500,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr


_EMPTY_CACHE = """
import torch

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096

x = torch.ones(1 << 26).to("spyre")  # 256 MiB
held = resident()
del x
assert resident() > held - (64 << 20)
torch.accelerator.empty_cache()
assert resident() < held - (200 << 20), (held, resident())
"""


def test_host_budget_is_met_by_giving_pages_back() -> None:
    """Written, freed and written elsewhere: the second write meets the budget and gets the pages of the first."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_BUDGET)],
        capture_output=True,
        text=True,
        timeout=1500,
        env={**os.environ, "SPYRE_HOST_MEMORY_GB": "0.4"},
    )
    assert done.returncode == 0, done.stderr


_BUDGET = """
import torch

source = torch.ones(1 << 26)  # 256 MiB
first = source.to("spyre")
second = torch.empty(1 << 26, device="spyre")  # costs nothing before it is written
try:
    second.copy_(source)
except torch.OutOfMemoryError as error:
    assert "SPYRE_HOST_MEMORY_GB" in str(error), error
else:
    raise SystemExit("the budget was exceeded")
del first
second.copy_(source)
assert second[-3:].tolist() == [1.0, 1.0, 1.0]
assert torch.spyre.memory_stats()["num_alloc_retries"] == 2
"""

_CYCLE_IN_BUDGET = """
import gc

import torch

gc.disable()
source = torch.ones(1 << 26)
cycle = [source.to("spyre")]
cycle.append(cycle)
del cycle
assert source.to("spyre")[-3:].tolist() == [1.0, 1.0, 1.0]
"""


def test_dead_cycles_are_collected_before_the_budget_is_exceeded() -> None:
    environment = {**os.environ, "SPYRE_HOST_MEMORY_GB": "0.4"}
    done = subprocess.run(
        [sys.executable, "-c", _CYCLE_IN_BUDGET], env=environment, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr
