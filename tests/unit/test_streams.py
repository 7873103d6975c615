# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_streams.py

torch.spyre.Stream and torch.Stream: pools, current stream, order across streams, pinned copies, a random model test.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_python
from torch.utils.data import DataLoader, TensorDataset

from torch_spyre.errors import InvalidArgument, Overflow

BIG = (2048, 2048)


@pytest.fixture(scope="module")
def big() -> torch.Tensor:
    """Adding to it takes milliseconds; the program is compiled."""
    x = torch.zeros(BIG, device="spyre")
    x.add_(1).zero_()
    torch.spyre.synchronize()
    return x


def slow(x: torch.Tensor, times: int = 40) -> None:
    for _ in range(times):
        x.add_(1)


def test_published_module() -> None:
    from torch_spyre import streams

    assert streams.Stream is torch.spyre.Stream and streams.synchronize is torch.spyre.synchronize


def test_pools() -> None:
    """Round robin over 32 streams of each priority; the default stream is none of them."""
    low, high = ([torch.spyre.Stream(priority=p) for _ in range(33)] for p in (0, -1))
    assert low[0] == low[32] and high[0] == high[32]
    assert {s.id for s in low} == set(range(1, 33)) and {s.id for s in high} == set(range(33, 65))
    assert {s.priority for s in low} == {0} and {s.priority for s in high} == {-1}
    assert torch.spyre.default_stream().id == 0 and torch.spyre.default_stream().priority == 0
    generic = torch.Stream("spyre:0", priority=-1)
    assert 33 <= generic.stream_id <= 64 and generic.device == torch.device("spyre:0")


def test_identity() -> None:
    s = torch.spyre.Stream()
    generic = torch.Stream(stream_id=s.id, device_index=0, device_type=s.device_type)
    assert s == generic and hash(s) == hash(generic) and s != torch.spyre.default_stream() and s != 3
    assert s.device() == torch.device("spyre:0") and repr(s) == f"<torch_spyre.Stream device=0 id={s.id}>"


def test_current_stream_is_thread_local_and_nests() -> None:
    outer, inner = torch.spyre.Stream(), torch.Stream("spyre")
    seen: list[int] = []
    with torch.spyre.stream(outer):
        with torch.spyre.stream(inner):
            assert torch.spyre.current_stream() == inner == torch.accelerator.current_stream()
            with torch.spyre.stream(None), outer, outer:
                assert torch.spyre.current_stream() == outer
            thread = threading.Thread(target=lambda: seen.append(torch.spyre.current_stream().id))
            thread.start()
            thread.join()
        assert torch.spyre.current_stream() == outer
        torch.accelerator.set_stream(inner)
        assert torch.spyre.current_stream() == inner
    assert seen == [0] and torch.spyre.current_stream() == torch.spyre.default_stream()


def test_streams_of_two_devices() -> None:
    """Entering a stream makes its device current; an event of one card can be waited for on another."""
    done = run_python(
        """
        import torch
        s = torch.spyre.Stream("spyre:1")
        with s:
            assert torch.spyre.current_device() == 1 and torch.spyre.current_stream() == s
            assert torch.spyre.current_stream(0).id == 0
            x = torch.ones(64, device="spyre") + 1
            event = s.record_event()
        assert torch.spyre.current_device() == 0
        torch.spyre.current_stream(0).wait_event(event)
        assert event.query() and x.to("spyre:0").tolist() == [2.0] * 64
        """,
        AIU_WORLD_SIZE="2",
    )
    assert done.returncode == 0, done.stderr


def test_launches_and_copies_go_to_the_current_stream(big: torch.Tensor) -> None:
    s, other = torch.spyre.Stream(), torch.spyre.Stream()
    with s:
        slow(big)
        assert not s.query() and other.query() and torch.spyre.default_stream().query()
        corner = big[:2, :2].cpu()  # waits, as it follows on the same stream
    assert s.query() and corner.unique().numel() == 1
    big.zero_()


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("by_event", [False, True])
def test_waiting_orders_producer_and_consumer(big: torch.Tensor, generic: bool, by_event: bool) -> None:
    """The consumer has the higher priority and would run first; its result shows that it did not."""
    make: Any = (lambda p: torch.Stream("spyre", priority=p)) if generic else (lambda p: torch.spyre.Stream(priority=p))
    producer, consumer = make(0), make(-1)
    big.zero_()
    torch.spyre.synchronize()
    with producer:
        slow(big)
    if by_event:
        consumer.wait_event(producer.record_event())
    else:
        consumer.wait_stream(producer)
    with consumer:
        result = big * 2
    producer.wait_stream(consumer)
    with producer:
        big.zero_()
    consumer.synchronize()
    with consumer:
        assert (result.cpu() == 80).all()
    torch.spyre.synchronize()


def test_autograd_uses_the_streams_of_the_forward_pass() -> None:
    s = torch.spyre.Stream()
    x = torch.randn(64, 64).to("spyre").requires_grad_()
    s.wait_stream(torch.spyre.current_stream())
    with s:
        y = (x * x).sum()
    y.backward()
    torch.spyre.synchronize()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu())


# Pinned memory


def test_pin_memory() -> None:
    x = torch.randn(100, 7)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned[3:].is_pinned() and not x.is_pinned() and torch.equal(pinned, x)
    assert pinned.pin_memory() is pinned and torch.empty(0).pin_memory().numel() == 0
    assert torch.empty(5, pin_memory=True).is_pinned()
    address = pinned.data_ptr()
    del pinned
    assert not any(t.is_pinned() for t in [x]) and address % 128 == 0


def test_data_loader_pins() -> None:
    loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=5, pin_memory=True)
    batches = [batch for (batch,) in loader]
    assert all(b.is_pinned() for b in batches)
    assert torch.cat([b.to("spyre", non_blocking=True).cpu() for b in batches]).tolist() == list(range(10))


def test_pinned_copies_do_not_block(big: torch.Tensor) -> None:
    source, target = torch.full(BIG, 5.0).pin_memory(), torch.empty(BIG, pin_memory=True)
    s = torch.spyre.Stream()
    with s:
        slow(big)
        big.copy_(source, non_blocking=True)
        big.add_(1)
        target.copy_(big, non_blocking=True)
        fresh = big.to("cpu", non_blocking=True)
        assert not s.query()
    s.synchronize()
    assert (target == 6).all() and (fresh == 6).all() and fresh.is_pinned()


def test_pageable_copies_block(big: torch.Tensor) -> None:
    """The caller may change its tensor as soon as the copy returns."""
    source, target = torch.full(BIG, 5.0), torch.empty(BIG)
    slow(big)
    big.copy_(source, non_blocking=True)
    assert torch.spyre.current_stream().query()
    source.zero_()
    slow(big, 1)
    target.copy_(big, non_blocking=True)
    assert (target == 6).all()


def test_a_queued_copy_keeps_its_pinned_memory(big: torch.Tensor) -> None:
    slow(big)
    for value in (3.0, 4.0):
        source = torch.full(BIG, value).pin_memory()
        big.copy_(source, non_blocking=True)
        del source
        torch.full(BIG, -1.0).pin_memory()  # gets the memory if it was given back
    assert (big.cpu() == 4).all()


def test_converting_copies_from_pinned_memory() -> None:
    """A dtype the DMA engine does not convert goes through a temporary, which must not be used after the call."""
    source = torch.arange(4096, dtype=torch.float64).pin_memory()
    target = torch.zeros(4096, dtype=torch.int64, device="spyre")
    target.copy_(source, non_blocking=True)
    back = torch.empty(4096, dtype=torch.float64, pin_memory=True)
    back.copy_(target, non_blocking=True)
    torch.spyre.synchronize()
    assert torch.equal(back, source)
    with pytest.raises(Overflow):
        target.copy_(torch.full((4096,), 1 << 40).pin_memory(), non_blocking=True)
        torch.spyre.synchronize()
    torch.spyre.reset()


def test_wrong_streams() -> None:
    with pytest.raises(InvalidArgument, match="out of range"):
        torch.spyre.Stream(7)
    bad = torch.Stream(stream_id=99, device_index=0, device_type=torch.spyre.default_stream().device_type)
    with pytest.raises(RuntimeError, match="stream 99 does not exist"):
        torch.accelerator.set_stream(bad)


def test_streams_after_fork() -> None:
    done = run_python(
        """
        import os
        import torch
        from torch_spyre.errors import DeviceLost
        s, event = torch.spyre.Stream(), torch.spyre.Event()
        x = torch.ones(64, device="spyre") + 1
        event.record()
        child = os.fork()
        if child == 0:
            assert torch.spyre.is_available() and torch.spyre.device_count() == 1
            for use in (s.synchronize, s.query, event.record, event.query, x.cpu, torch.spyre.synchronize):
                try:
                    use()
                except DeviceLost as error:
                    assert "spawn" in str(error)
                else:
                    os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert x.tolist() == [2.0] * 64
        """
    )
    assert done.returncode == 0, done.stderr


# A model


STREAMS, SLOTS = 4, 5
SHAPES = ((64, 64), (48, 128))
step = st.tuples(
    st.sampled_from(["new", "add", "copy", "upload", "download", "sync", "query"]),
    st.integers(0, STREAMS - 1),
    st.integers(0, SLOTS - 1),
    st.integers(0, SLOTS - 1),
    st.integers(1, 9),
)


class Slot:
    """A tensor on the card, what it must hold, and the events of its last uses by stream."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.tensor = torch.empty(shape, device="spyre", dtype=torch.float16)
        self.value: float | None = None  # not written yet
        self.uses: dict[int, torch.Event] = {}


class Model:
    """Runs steps on streams, with exactly the waits that uses of one tensor on two streams need. Freeing and
    allocating need none."""

    def __init__(self) -> None:
        self.streams = [torch.spyre.Stream(priority=-(i % 2)) for i in range(STREAMS)]
        self.slots = [Slot(SHAPES[0]) for _ in range(SLOTS)]
        self.downloads: list[tuple[torch.Tensor, float]] = []

    def use(self, stream: int, *slots: Slot) -> None:
        for slot in slots:
            for other, event in slot.uses.items():
                if other != stream:
                    self.streams[stream].wait_event(event)

    def used(self, stream: int, *slots: Slot) -> None:
        event = self.streams[stream].record_event()
        for slot in slots:
            slot.uses[stream] = event

    def upload(self, stream: int, slot: Slot, value: float) -> None:
        slot.tensor.copy_(torch.full(slot.tensor.shape, value, dtype=torch.float16).pin_memory(), non_blocking=True)
        slot.value = value

    def step(self, kind: str, stream: int, a: int, b: int, value: int) -> None:
        source, target = self.slots[a], self.slots[b]
        if kind == "sync":
            return self.streams[stream].synchronize()
        if kind == "query":
            self.streams[stream].query()
            return None
        if kind == "new":
            self.slots[a] = Slot(SHAPES[value % 2])
            return None
        with self.streams[stream]:
            if kind == "upload" or source.value is None:
                self.use(stream, source)
                self.upload(stream, source, value)
                self.used(stream, source)
            elif kind == "add":
                self.use(stream, source)
                source.tensor.add_(1)
                source.value += 1
                self.used(stream, source)
            elif kind == "copy" and source.tensor.shape == target.tensor.shape:
                self.use(stream, source, target)
                target.tensor.copy_(source.tensor)
                target.value = source.value
                self.used(stream, source, target)
            elif kind == "download":
                self.use(stream, source)
                host = torch.empty(source.tensor.shape, dtype=torch.float16, pin_memory=True)
                host.copy_(source.tensor, non_blocking=True)
                self.downloads.append((host, source.value))
                self.used(stream, source)
        return None

    def check(self) -> None:
        torch.spyre.synchronize()
        held = [(s.tensor.cpu(), s.value) for s in self.slots if s.value is not None]
        for host, value in [*self.downloads, *held]:
            assert (host == value).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(step, min_size=10, max_size=80))
def test_random_interleavings(steps: list[tuple[str, int, int, int, int]]) -> None:
    before = torch.spyre.memory_allocated()
    model = Model()
    for s in steps:
        model.step(*s)
    model.check()
    del model
    assert torch.spyre.memory_allocated() == before
