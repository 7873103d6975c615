# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_events.py

torch.spyre.Event and torch.Event: recording, waiting, and times on the device clock.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torch_spyre import _C
from torch_spyre._inductor.debug import inspect
from torch_spyre.errors import UnsupportedOp
from torch_spyre.perf.device import load

HALF = torch.float16


@pytest.fixture(scope="module")
def matrix() -> torch.Tensor:
    x = torch.randn(512, 512, dtype=HALF).to("spyre")
    torch.mm(x, x)
    return x


def timed() -> torch.Event:
    return torch.spyre.Event(enable_timing=True)


@pytest.mark.parametrize("make", [torch.spyre.Event, lambda: torch.Event(device="spyre")])
def test_life_of_an_event(make: Any, matrix: torch.Tensor) -> None:
    event = make()
    assert isinstance(event, torch.Event) and isinstance(event, torch.spyre.Event)
    assert event.query()  # nothing recorded: nothing to wait for
    event.synchronize()
    event.wait()
    for _ in range(30):
        torch.mm(matrix, matrix)
    event.record()
    assert not event.query() and event.device == torch.device("spyre:0")
    event.synchronize()
    assert event.query()
    for _ in range(30):
        torch.mm(matrix, matrix)
    event.record(torch.spyre.current_stream())  # again: it means the new point now
    assert not event.query()
    event.synchronize()


def test_a_wait_means_the_recording_it_saw(matrix: torch.Tensor) -> None:
    """Recorded again after the wait, the event does not hold the waiting stream any longer."""
    fast, busy = torch.spyre.Stream(), torch.spyre.Stream()
    event = fast.record_event()
    other = torch.spyre.Stream()
    event.wait(other)
    with busy:
        for _ in range(30):
            torch.mm(matrix, matrix)
        event.record()
    other.synchronize()
    assert not event.query()
    torch.spyre.synchronize()


def test_elapsed_time_needs_timing() -> None:
    plain, start, end = torch.spyre.Event(), timed(), timed()
    for event in (plain, start):
        event.record()
    torch.spyre.synchronize()
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(plain)
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    with pytest.raises(UnsupportedOp, match="belongs to its process"):
        torch.spyre.Event(interprocess=True)


def test_elapsed_time_is_what_the_compiler_computed(matrix: torch.Tensor) -> None:
    """A launch takes its program's duration, in milliseconds; so do ten in a row, and a copy takes its bytes."""
    inspect.start()
    torch._dynamo.reset()
    compiled = torch.compile(lambda a: a @ a, dynamic=False)
    compiled(matrix)
    inspect.stop()
    duration = inspect.records()[-1].program.program.duration_ns
    assert duration == _C.Program.load(inspect.records()[-1].program.binary).duration_ns > 1000
    start, end = timed(), timed()
    torch.spyre.synchronize()
    start.record()
    for _ in range(10):
        compiled(matrix)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(10 * duration / 1e6)
    assert end.elapsed_time(start) == -start.elapsed_time(end)

    host = torch.empty(512, 512, dtype=HALF)
    start.record()
    host.to("spyre")
    end.record()
    torch.spyre.synchronize()
    description = load()
    expected = description["pcie.latency"] * 1e3 + 2 * 512 * 512 / description["pcie.bandwidth_in"]
    assert start.elapsed_time(end) == pytest.approx(expected / 1e6, abs=1e-6)


def test_kernels_serialise_and_a_transfer_overlaps(matrix: torch.Tensor) -> None:
    one, two, three = (torch.spyre.Stream() for _ in range(3))
    host = torch.zeros(1 << 12, dtype=HALF).pin_memory()
    target = torch.empty(1 << 12, dtype=HALF, device="spyre")
    torch.spyre.synchronize()
    start, ends = timed(), [timed() for _ in range(3)]
    start.record(one)
    for stream, end in zip((one, two), ends, strict=False):
        with stream:
            torch.mm(matrix, matrix)
            end.record()
    with three:
        target.copy_(host, non_blocking=True)
        ends[2].record()
    torch.spyre.synchronize()
    kernel, both, transfer = (start.elapsed_time(end) for end in ends)
    assert both == pytest.approx(2 * kernel) and transfer < both
    assert start.elapsed_time(ends[1]) <= _C.clock_ns() / 1e6


def test_the_clock_does_not_depend_on_wall_time(matrix: torch.Tensor) -> None:
    def run(wait: bool) -> list[float]:
        torch.spyre.synchronize()
        streams = [torch.spyre.Stream() for _ in range(3)]
        start, ends = timed(), []
        start.record(streams[0])
        for i in range(12):
            with streams[i % 3] as stream:
                torch.mm(matrix, matrix)
                ends.append(timed())
                ends[-1].record(stream)
            if i % 4 == 0:
                streams[(i + 1) % 3].wait_event(ends[-1])
            if wait:
                while not ends[-1].query():  # asking tells the clock nothing
                    pass
        torch.spyre.synchronize()
        return [start.elapsed_time(end) for end in ends]

    assert run(True) == pytest.approx(run(False))
