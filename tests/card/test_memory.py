# SPDX-License-Identifier: Apache-2.0
# pytest tests/card/test_memory.py
"""Card memory: exact first fit in seven segments, coalescing, named errors, lazily committed pages."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_spyre import _card
from torch_spyre.constants import DATA_SEGMENTS, SEGMENT_BYTES, STICK_BYTES
from torch_spyre.errors import InvalidArgument, OutOfBounds, OutOfMemory

SIZES = st.one_of(
    st.integers(0, 4096),
    st.sampled_from([1 << 20, 3 << 30, 5 << 30, 8 << 30, SEGMENT_BYTES - 128, SEGMENT_BYTES, SEGMENT_BYTES + 1]),
)
# An allocation of a size, or (negative) the release of a live block.
STEPS = st.lists(st.one_of(SIZES, st.integers(-64, -1)), max_size=80)


class Model:
    """First fit over a plain list of live blocks."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}

    def gaps(self) -> list[tuple[int, int]]:
        gaps = []
        for segment in range(DATA_SEGMENTS):
            start, end = segment * SEGMENT_BYTES, (segment + 1) * SEGMENT_BYTES
            at = start or STICK_BYTES  # address 0 is never handed out
            for block in sorted(b for b in self.live if start <= b < end):
                gaps.append((at, block))
                at = block + self.live[block]
            gaps.append((at, end))
        return gaps

    def allocate(self, size: int) -> int | None:
        rounded = max(-(-size // STICK_BYTES), 1) * STICK_BYTES
        for begin, end in self.gaps():
            if end - begin >= rounded:
                self.live[begin] = rounded
                return begin
        return None


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_first_fit_like_the_model(steps: list[int]) -> None:
    card, model = _card.Card(), Model()
    for step in steps:
        if step < 0:
            if model.live:
                victim = sorted(model.live)[step % len(model.live)]
                card.free(victim)
                del model.live[victim]
            continue
        expected = model.allocate(step)
        if expected is None:
            largest = max(end - begin for begin, end in model.gaps())
            with pytest.raises(OutOfMemory, match=f"{step} bytes.*largest free block {largest} bytes"):
                card.allocate(step)
        else:
            assert card.allocate(step) == expected
        assert card.allocated_bytes == sum(model.live.values())
    for block in list(model.live):
        card.free(block)
    assert card.allocated_bytes == 0
    assert card.allocate(SEGMENT_BYTES) == SEGMENT_BYTES  # everything coalesced again


def test_whole_card_opens_and_commits_nothing() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    card = _card.Card()
    for _ in range(DATA_SEGMENTS):
        card.allocate(SEGMENT_BYTES - 128)
    assert card.total_bytes == DATA_SEGMENTS * SEGMENT_BYTES
    with pytest.raises(OutOfMemory):
        card.allocate(SEGMENT_BYTES // 2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_large_freed_ranges_return_to_the_host() -> None:
    card = _card.Card()
    blob = bytes(range(256)) * (1 << 12)  # 1 MiB
    address = card.allocate(600 << 20)
    for i in range(600):
        card.write(address + (i << 20), blob)
    full = resident_bytes()
    card.free(address)
    card.synchronize()
    assert full - resident_bytes() > 500 << 20
    again = card.allocate(600 << 20)
    assert again == address
    assert card.read(again + (4 << 20), 16) == bytes(16)


SPARSE = """
import re, torch

def resident():
    with open("/proc/self/smaps") as smaps:
        text = smaps.read()
    return sum(int(n) for n in re.findall(r"Rss: +(\\d+)", text)) >> 10

def write(rows):
    for i in rows:
        x[i].fill_(i % 7)
    torch.spyre.synchronize()
    return resident()

torch.empty(2048, 1024, dtype=torch.float16, device="spyre")[3].fill_(1.0)  # plans
x = torch.empty(2048, 65536, dtype=torch.float16, device="spyre")
torch.spyre.synchronize()
start = resident()
print(write([5]) - start, write(range(700)) - start, all(float(x[i, 777]) == i % 7 for i in (0, 5, 699)))
"""


def test_the_first_write_of_a_row_touches_that_row() -> None:
    """The sticks of a row are far apart, so that it has a part in every huge page of the tensor (256 MiB)."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SPARSE], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    one_row, many_rows, right = done.stdout.split()
    assert int(one_row) < 32 and int(many_rows) >= 64 and right == "True"


def test_errors_have_names() -> None:
    card = _card.Card()
    address = card.allocate(1000)
    card.write(address, b"x" * 1024)  # rounded to whole sticks
    with pytest.raises(OutOfBounds):
        card.write(address, b"x" * 1025)
    with pytest.raises(OutOfBounds):
        card.read(address + 4096, 1)
    with pytest.raises(InvalidArgument):
        card.free(address + 128)
    card.free(address)
    with pytest.raises(InvalidArgument):
        card.free(address)
    with pytest.raises(OutOfBounds):
        card.read(address, 1)


BUDGET_SCRIPT = """
from torch_spyre import _card
from torch_spyre.errors import OutOfMemory
card = _card.Card()
address = card.allocate(1 << 30)  # larger than the budget, but nothing is touched yet
card.write(address, bytes(40 << 20))
try:
    card.write(address + (40 << 20), bytes(80 << 20))
    raise SystemExit("the budget was not enforced")
except OutOfMemory as error:
    assert "SPYRE_HOST_MEMORY_GB" in str(error), error
card.free(address)
card.write(card.allocate(90 << 20), bytes(90 << 20))  # freed pages count as free again
"""


def test_host_memory_budget() -> None:
    environment = {**os.environ, "SPYRE_HOST_MEMORY_GB": "0.1"}
    subprocess.run([sys.executable, "-c", BUDGET_SCRIPT], check=True, env=environment, timeout=1500)
