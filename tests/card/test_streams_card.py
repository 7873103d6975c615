# SPDX-License-Identifier: Apache-2.0
# pytest tests/card/test_streams_card.py
"""Streams of one card: order, independence, markers, memory that changes its owner, errors, faults, the clock."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from programs import FP32, INT32, RW, R, W, build, copy, dims, imm, loop, mem, vop

from torch_spyre import _card
from torch_spyre.errors import (
    DeviceFault,
    DeviceLost,
    InvalidArgument,
    InvalidProgram,
    OutOfMemory,
    Overflow,
    UninitializedRead,
)

N = 1 << 18  # elements of a buffer
BYTES = 4 * N
LOW, OTHER, HIGH = 1, 2, 33
LAYOUT = (FP32, [N // 32, 32], [32, 1])


def adder(value: float, repeat: int = 1, duration_ns: int = 0) -> _card.Program:
    """buffer += value, `repeat` times."""
    body = loop(1, 0, repeat, 1, vop("add", dims(N), mem(0, 0, 4), mem(0, 0, 4), imm(value)))
    return _card.Program.load(build(body, [(RW, BYTES)], duration_ns=duration_ns))


REPEAT = 2000
SLOW = adder(1.0, REPEAT)  # tens of milliseconds: the card is busy while a test queues what follows
ONE = adder(1.0)
COPY = _card.Program.load(build([copy(dims(N), mem(0, 0, 4), mem(1, 0, 4))], [(W, BYTES), (R, BYTES)]))


class Buffers:
    """A card and zeroed buffers on it."""

    def __init__(self, count: int = 1) -> None:
        self.card = _card.Card()
        self.addresses = [self.card.allocate(BYTES) for _ in range(count)]
        for address in self.addresses:
            self.card.write(address, bytes(BYTES))

    def launch(self, program: _card.Program, *which: int, stream: int = 0) -> None:
        self.card.launch(program, [(self.addresses[i], BYTES) for i in which], stream=stream)

    def value(self, which: int, stream: int = 0) -> float:
        """The value that all elements share."""
        return self._shared(self.card.read(self.addresses[which], BYTES, stream))

    def left(self, which: int) -> float:
        """The same, of a buffer that failed or dropped work would have written."""
        with pytest.raises(UninitializedRead, match="failed or was dropped"):
            self.card.read(self.addresses[which], BYTES, OTHER)
        return self._shared(self.card.peek(self.addresses[which], BYTES))

    def _shared(self, data: bytes) -> float:
        array = np.frombuffer(data, np.float32)
        assert (array == array[0]).all()
        return float(array[0])


def test_a_stream_is_a_fifo() -> None:
    b = Buffers(2)
    twice = _card.Program.load(build([vop("mul", dims(N), mem(0, 0, 4), mem(0, 0, 4), imm(2.0))], [(RW, BYTES)]))
    for which, stream in ((0, LOW), (1, HIGH)):
        for _ in range(5):
            b.launch(ONE, which, stream=stream)
            b.launch(twice, which, stream=stream)
    assert b.value(0, LOW) == b.value(1, HIGH) == 62  # x -> 2 (x + 1), five times


def test_streams_do_not_wait_for_each_other() -> None:
    b = Buffers(3)
    for _ in range(10):
        b.launch(SLOW, 0, stream=LOW)
    b.launch(ONE, 1, stream=OTHER)
    b.card.synchronize(OTHER)
    assert b.value(1, OTHER) == 1
    b.launch(ONE, 2, stream=HIGH)
    b.card.synchronize(HIGH)
    assert b.card.query(OTHER) and b.card.query(HIGH) and not b.card.query(LOW) and not b.card.idle()
    b.card.synchronize()
    assert b.card.idle() and b.value(0) == 10 * REPEAT


def test_high_priority_goes_first() -> None:
    """Queued behind a running command, the high-priority streams empty before a low one gets its turn."""
    b = Buffers(3)
    b.launch(SLOW, 0, stream=0)
    for _ in range(20):
        b.launch(SLOW, 1, stream=LOW)
        b.launch(ONE, 2, stream=HIGH)
    b.card.synchronize(HIGH)
    assert not b.card.query(LOW)
    assert b.value(2, HIGH) == 20
    b.card.synchronize()


def test_wait_orders_streams() -> None:
    """The consumer has the higher priority and would run first."""
    b, thousand = Buffers(2), adder(1000.0)
    b.launch(SLOW, 0, stream=LOW)
    marker = b.card.record(LOW)
    b.launch(SLOW, 0, stream=LOW)
    assert not b.card.complete(marker)
    b.card.wait(HIGH, marker)
    b.launch(COPY, 1, 0, stream=HIGH)
    copied = b.card.record(HIGH)
    b.card.wait(LOW, copied)
    b.launch(thousand, 0, stream=LOW)
    b.card.synchronize(copied)
    assert b.card.complete(marker) and b.value(1, HIGH) in (
        REPEAT,
        2 * REPEAT,
    )  # it may see the second launch, never a part
    b.card.synchronize()
    assert b.value(0) == 2 * REPEAT + 1000


def test_a_marker_is_a_point_and_not_a_stream() -> None:
    b = Buffers()
    b.launch(ONE, 0, stream=LOW)
    marker = b.card.record(LOW)
    for _ in range(10):
        b.launch(SLOW, 0, stream=LOW)
    b.card.synchronize(marker)
    assert b.card.complete(marker) and not b.card.query(LOW)
    with pytest.raises(InvalidArgument, match="not recorded on this card"):
        _card.Card().wait(0, b.card.record(LOW))
    b.card.synchronize()


def test_freed_memory_waits_for_its_last_use() -> None:
    """Freed under a queued program and handed out again: what the new owner writes on another stream survives."""
    b = Buffers(2)
    for _ in range(3):
        b.launch(SLOW, 0, stream=LOW)
    b.card.free(b.addresses[0])
    again = b.card.allocate(BYTES)
    assert again == b.addresses[0] and not b.card.query(LOW)
    b.card.write(again, np.full(N, 7, np.float32).tobytes(), stream=HIGH)
    assert b.card.query(LOW)  # the write waited for it
    assert b.value(0, HIGH) == 7


def test_parts_of_freed_memory_wait_too() -> None:
    """Two neighbours become one block, of which a part is handed out twice before anybody writes."""
    b = Buffers(2)
    for _ in range(2):
        b.launch(SLOW, 0, stream=LOW)
        b.launch(SLOW, 1, stream=OTHER)
    for address in b.addresses:
        b.card.free(address)
    middle = [b.card.allocate(BYTES // 2), b.card.allocate(BYTES), b.card.allocate(BYTES // 2)]
    b.card.free(middle[1])
    b.addresses = [b.card.allocate(BYTES)]
    assert b.addresses == [middle[1]] and middle[1] == middle[0] + BYTES // 2
    b.card.write(b.addresses[0], np.full(N, 7, np.float32).tobytes(), stream=HIGH)
    b.card.synchronize()
    assert b.value(0) == 7


def test_transfers_do_not_block_and_keep_their_order() -> None:
    b = Buffers()
    source, target = np.full(N, 5, np.float32), np.zeros(N, np.float32)
    for _ in range(3):
        b.launch(SLOW, 0, stream=LOW)
    b.card.dma_in(source, b.addresses[0], *LAYOUT, blocking=False, stream=LOW)
    b.launch(ONE, 0, stream=LOW)
    b.card.dma_out(b.addresses[0], *LAYOUT, target, blocking=False, stream=LOW)
    assert not b.card.query(LOW)
    b.card.synchronize(LOW)
    assert (target == 6).all()


def test_threads_share_a_card() -> None:
    """Each thread on its own stream, and all wait for each other's markers."""
    b = Buffers(4)
    step = adder(1.0)

    def work(which: int) -> None:
        for _ in range(50):
            b.launch(step, which, stream=1 + which)
            b.card.wait(1 + (which + 1) % 4, b.card.record(1 + which))
            b.card.query(1 + which)
        b.card.synchronize(1 + which)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [b.value(i) for i in range(4)] == [50] * 4


# Errors


def fail(b: Buffers, stream: int) -> None:
    """An asynchronous failure: a value that does not fit."""
    address = b.card.allocate(128)
    b.card.dma_in(np.array([1 << 40]), address, INT32, [1, 32], [32, 1], blocking=False, stream=stream)
    with pytest.raises(Overflow):
        b.card.synchronize(stream)


def test_an_error_sticks_to_its_stream() -> None:
    b = Buffers(2)
    before = b.card.record(LOW)
    fail(b, LOW)
    for action in (
        lambda: b.card.synchronize(LOW),
        lambda: b.card.query(LOW),
        lambda: b.launch(ONE, 0, stream=LOW),
        lambda: b.card.record(LOW),
        lambda: b.value(0, LOW),
        lambda: b.card.synchronize(),
    ):
        with pytest.raises(Overflow, match="outside int32"):
            action()
    b.card.synchronize(before)
    b.launch(ONE, 1, stream=OTHER)
    b.card.synchronize(OTHER)
    assert b.value(1, OTHER) == 1
    b.card.reset()
    b.launch(ONE, 1, stream=LOW)
    b.card.synchronize()
    assert b.value(1) == 2


def test_what_waits_for_failed_work_fails_too() -> None:
    b = Buffers(2)
    address = b.card.allocate(128)
    for _ in range(5):
        b.launch(SLOW, 0, stream=LOW)
    fine = b.card.record(LOW)
    b.card.dma_in(np.array([1 << 40]), address, INT32, [1, 32], [32, 1], blocking=False, stream=LOW)
    broken = b.card.record(LOW)
    b.card.wait(OTHER, fine)
    b.card.wait(HIGH, broken)
    b.launch(ONE, 1, stream=HIGH)
    with pytest.raises(Overflow):
        b.card.synchronize(HIGH)
    b.card.synchronize(OTHER)
    b.card.synchronize(fine)
    b.card.reset()
    assert b.value(0) == 5 * REPEAT and b.left(1) == 0  # done before, dropped after


@pytest.mark.parametrize("nth", [1, 3])
def test_injected_launch_fault(nth: int) -> None:
    b = Buffers(2)
    b.card.inject_fault("launch", nth)
    for _ in range(nth):
        b.launch(ONE, 0, stream=LOW)
    with pytest.raises(DeviceFault, match="a launch failed"):
        b.card.synchronize(LOW)
    b.launch(ONE, 1, stream=OTHER)
    assert b.value(1, OTHER) == 1 and b.left(0) == nth - 1
    b.card.reset()
    b.card.write(b.addresses[0], bytes(BYTES))  # all of it: its values exist again
    b.launch(ONE, 0, stream=LOW)
    assert b.value(0, LOW) == 1


def test_injected_allocation_and_dma_faults() -> None:
    b = Buffers()
    b.card.inject_fault("allocation", 2)
    used = b.card.allocated_bytes
    b.card.free(b.card.allocate(128))
    with pytest.raises(OutOfMemory, match="injected"):
        b.card.allocate(128)
    assert b.card.allocated_bytes == used
    b.card.free(b.card.allocate(128))
    b.card.inject_fault("dma", 1)
    with pytest.raises(DeviceFault, match="a transfer failed"):
        b.value(0)
    assert b.value(0) == 0  # the caller of a blocking transfer has the error; it does not stick
    b.card.inject_fault("dma", 1)
    b.card.reset()
    assert b.value(0) == 0
    with pytest.raises(InvalidArgument, match="known are"):
        b.card.inject_fault("fire", 1)
    with pytest.raises(InvalidArgument, match="counts from 1"):
        b.card.inject_fault("dma", -1)


def test_a_lost_card_does_nothing_until_it_is_reset() -> None:
    b = Buffers(2)
    b.launch(adder(3.0), 0, stream=LOW)
    b.card.synchronize()
    b.card.inject_fault("device_lost", 2)
    b.launch(ONE, 0, stream=LOW)
    b.launch(ONE, 1, stream=OTHER)
    with pytest.raises(DeviceLost, match="stopped answering"):
        b.card.synchronize(OTHER)
    for action in (
        lambda: b.card.synchronize(LOW),
        lambda: b.card.query(HIGH),
        lambda: b.launch(ONE, 0, stream=HIGH),
        lambda: b.card.allocate(128),
        lambda: b.value(0),
    ):
        with pytest.raises(DeviceLost):
            action()
    b.card.free(b.addresses.pop())
    b.card.reset()
    # What was complete is there; what was queued may be dropped.
    left = np.frombuffer(b.card.peek(b.addresses[0], BYTES), np.float32)
    assert (left == left[0]).all() and left[0] in (3, 4)
    b.card.write(b.addresses[0], bytes(BYTES))
    b.launch(ONE, 0, stream=LOW)
    assert b.value(0, LOW) == 1


# The clock


def test_kernels_share_compute_and_transfers_run_beside() -> None:
    b = Buffers(3)
    start = b.card.clock_ns()
    kernel = adder(1.0, duration_ns=50_000)
    assert kernel.duration_ns == 50_000
    array = np.zeros(N, np.float32)
    b.launch(kernel, 0, stream=LOW)
    b.launch(kernel, 1, stream=OTHER)
    b.card.dma_in(array, b.addresses[2], *LAYOUT, blocking=False, stream=HIGH)
    times = [b.card.record(s).time_ns - start for s in (LOW, OTHER, HIGH)]
    dma = int(3500 + BYTES / 57)
    assert times == [50_000, 100_000, dma]
    b.card.wait(HIGH, b.card.record(OTHER))
    b.card.dma_in(array, b.addresses[2], *LAYOUT, blocking=False, stream=HIGH)
    assert b.card.record(HIGH).time_ns - start == 100_000 + dma
    b.card.synchronize()
    assert b.card.clock_ns() - start == 100_000 + dma
    counters = b.card.counters()
    assert counters["compute_ns"] == 100_000 and counters["dma_out_ns"] == 0


def test_what_the_host_waited_for_is_past() -> None:
    b = Buffers(2)
    kernel = adder(1.0, duration_ns=50_000)
    b.launch(kernel, 0, stream=LOW)
    end = b.card.record(LOW).time_ns
    b.card.synchronize(LOW)
    assert b.card.record(HIGH).time_ns == end


def test_the_clock_is_a_function_of_the_submissions() -> None:
    """Never of wall time, threads or memory reuse."""

    def run(repeat: int) -> list[int]:
        b = Buffers(2)
        times = []
        for i in range(40):
            stream = (LOW, OTHER, HIGH)[i % 3]
            program = adder(1.0, repeat if i % 7 == 0 else 1, duration_ns=1000 + i)
            b.launch(program, i % 2, stream=stream)
            if i % 5 == 0:
                b.card.wait((LOW, HIGH)[i % 2], b.card.record(stream))
            if i % 11 == 0:
                b.card.free(b.addresses[0])
                b.addresses[0] = b.card.allocate(BYTES)
            times.append(b.card.record(stream).time_ns)
        b.card.synchronize()
        return times

    assert run(1) == run(50) == run(1)


def test_duration_is_bounded() -> None:
    with pytest.raises(InvalidProgram, match="up to a day"):
        adder(1.0, duration_ns=1 << 63)
    with pytest.raises(InvalidArgument, match="stream 65"):
        _card.Card().record(65)
