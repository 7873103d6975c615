# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_faults.py

Failures of the card, injected: what raises, what goes on, and what torch.spyre.reset() restores.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

from torch_spyre import _C
from torch_spyre.errors import DeviceFault, DeviceLost, IndexOutOfRange, InvalidArgument, UninitializedRead


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    torch.spyre.reset()
    torch.spyre.synchronize()


@pytest.fixture
def x() -> torch.Tensor:
    value = torch.arange(256.0).to("spyre")
    value + value  # compiled
    torch.spyre.synchronize()
    return value


def test_launch(x: torch.Tensor) -> None:
    """The error appears at the next synchronisation of its stream, again and again; other streams go on."""
    broken, fine = torch.spyre.Stream(), torch.spyre.Stream()
    done = x + x
    torch.spyre.synchronize()
    _C._inject_fault("launch", 2)
    with broken:
        first, second = x + x, x + x  # the second one fails, but nobody knows yet
        for _ in range(2):
            with pytest.raises(DeviceFault, match="a launch failed"):
                broken.synchronize()
        with pytest.raises(DeviceFault):
            broken.query()
        with pytest.raises(DeviceFault):
            x + x
        with pytest.raises(DeviceFault):
            second.cpu()
    with fine:
        assert torch.equal((x + x).cpu(), done.cpu())
    assert torch.equal(done.cpu(), first.cpu())  # complete before the fault
    with pytest.raises(DeviceFault):
        torch.spyre.synchronize()
    torch.spyre.reset()
    torch.spyre.synchronize()
    with broken:
        assert torch.equal((x + x).cpu(), done.cpu())


EARLIER = (
    r"^earlier work failed, and (the default stream|stream \d+|the card) refuses all calls until torch\.spyre\.reset"
)


def test_a_repeated_error_says_that_it_is_an_earlier_one(x: torch.Tensor) -> None:
    """Whoever asks first gets the error of the work; no later call looks as if it had failed itself."""
    index = torch.tensor([0, 300]).to("spyre")
    torch.spyre.synchronize()
    wrong = x[index]
    with pytest.raises(
        IndexOutOfRange, match=r"^instruction .*aten\.index.*refuses further calls until torch\.spyre\.reset"
    ):
        wrong.cpu()
    again: list[Callable[[], object]] = [lambda: x + x, x.cpu, torch.spyre.synchronize, torch.spyre.Event().record]
    for call in again:
        with pytest.raises(IndexOutOfRange, match=EARLIER) as found:
            call()
        assert "aten.index" in str(found.value)
    torch.spyre.reset()
    assert (x + x).cpu().tolist() == list(range(0, 512, 2))


def test_a_call_that_brings_work_is_not_what_failed(x: torch.Tensor) -> None:
    """Also where it is the first to hear of the error."""
    _C._inject_fault("launch")
    x + x
    with pytest.raises(DeviceFault, match=EARLIER):
        while True:  # until the launch has failed
            x - x
    with pytest.raises(DeviceFault, match=EARLIER):
        torch.spyre.synchronize()


def test_after_a_reset_an_error_is_new(x: torch.Tensor) -> None:
    for _ in range(2):
        _C._inject_fault("launch")
        x + x
        with pytest.raises(DeviceFault, match=r"^a launch failed"):
            torch.spyre.synchronize()
        with pytest.raises(DeviceFault, match=EARLIER):
            torch.spyre.synchronize()
        torch.spyre.reset()


def test_a_consumer_of_failed_work_fails(x: torch.Tensor) -> None:
    producer, consumer = torch.spyre.Stream(), torch.spyre.Stream()
    big = torch.zeros(2048, 2048, device="spyre")
    big.add_(1)
    torch.spyre.synchronize()
    with producer:
        for _ in range(20):  # keeps the card busy until all of this is queued
            big.add_(1)
        _C._inject_fault("launch")
        y = x + x
        event = producer.record_event()
    consumer.wait_event(event)
    with consumer, pytest.raises(DeviceFault):
        y.cpu()
    with pytest.raises(DeviceFault):
        event.synchronize()


def test_dma(x: torch.Tensor) -> None:
    """A blocking copy raises at once and nothing sticks; an asynchronous one sticks to its stream."""
    _C._inject_fault("dma")
    with pytest.raises(DeviceFault, match="a transfer failed"):
        x.cpu()
    assert x.cpu().tolist() == list(range(256))
    stream, pinned = torch.spyre.Stream(), torch.zeros(256).pin_memory()
    _C._inject_fault("dma")
    with stream:
        x.copy_(pinned, non_blocking=True)
    with pytest.raises(DeviceFault):
        stream.synchronize()
    with pytest.raises(UninitializedRead, match="failed or was dropped"):
        x.cpu()
    x.copy_(pinned)
    assert x.cpu().tolist() == [0.0] * 256


def test_allocation(x: torch.Tensor) -> None:
    gc.collect()  # an allocation that fails collects garbage, that of earlier tests too
    used, ooms = torch.spyre.memory_allocated(), torch.spyre.memory_stats()["num_ooms"]
    _C._inject_fault("allocation", 2)
    y = torch.empty(64, device="spyre")
    with pytest.raises(torch.OutOfMemoryError, match=r"tried to allocate 256 bytes; \d+ of \d+ bytes are free"):
        torch.empty(64, device="spyre")
    assert torch.spyre.memory_stats()["num_ooms"] == ooms + 1
    del y
    assert torch.spyre.memory_allocated() == used
    assert (x + x).cpu().tolist() == list(range(0, 512, 2))


def test_lost_card(x: torch.Tensor) -> None:
    """Everything raises until the reset; tensors keep their values and can be freed meanwhile."""
    done = x + x
    garbage = torch.empty(1 << 20, device="spyre")
    torch.spyre.synchronize()
    _C._inject_fault("device_lost", 1)
    x + x
    stream = torch.spyre.Stream()
    for use in (
        torch.spyre.synchronize,
        stream.synchronize,
        stream.query,
        lambda: x + x,
        x.cpu,
        lambda: torch.empty(3, device="spyre"),
    ):
        with pytest.raises(DeviceLost, match=r"torch\.spyre\.reset"):
            use()
    del garbage
    assert torch.ones(2).sum() == 2  # the process is fine
    torch.spyre.reset()
    torch.spyre.synchronize()
    assert done.cpu().tolist() == list(range(0, 512, 2)) == (x + x).cpu().tolist()


def test_reset_disarms() -> None:
    for kind in ("allocation", "dma", "launch", "device_lost"):
        _C._inject_fault(kind, 1)
    torch.spyre.reset()
    assert (torch.ones(64, device="spyre") + 1).tolist() == [2.0] * 64
    with pytest.raises(InvalidArgument, match="known are allocation, dma, launch and device_lost"):
        _C._inject_fault("fire")
