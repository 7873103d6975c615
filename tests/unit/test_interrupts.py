# SPDX-License-Identifier: Apache-2.0
"""A wait for the card answers signals: what a handler raises ends the wait, and the queue stays as it is."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from torch_spyre import _C
from torch_spyre.errors import UninitializedRead

SIZE = 1536


class _Alarm(Exception):
    pass


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises in the main thread after some time. The kernel sends the signal, so a busy machine does not delay it."""

    def ring(number: int, frame: object) -> None:
        raise _Alarm

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def matrix() -> Iterator[torch.Tensor]:
    yield torch.eye(SIZE, dtype=torch.float16, device="spyre")
    torch.spyre.reset()


def _queue_seconds_of_work(x: torch.Tensor) -> torch.Tensor:
    """Some two seconds of the card's host threads, on a fast machine too. The result is x if x is the identity."""
    torch.mm(x, x)  # compiled before anything is timed
    torch.spyre.synchronize()
    began = time.perf_counter()
    for _ in range(8):
        torch.mm(x, x)
    torch.spyre.synchronize()
    each = (time.perf_counter() - began) / 8
    y = x
    for _ in range(min(max(int(2 / each), 8), 900)):  # the stream holds 1,024
        y = torch.mm(y, x)
    return y


_WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "synchronize": lambda y: torch.spyre.synchronize(),
    "stream": lambda y: torch.spyre.current_stream().synchronize(),
    "event": lambda y: torch.spyre.current_stream().record_event().synchronize(),
    "copy to the host": lambda y: y.cpu(),
    "copy to the card": lambda y: y.copy_(torch.zeros(SIZE, SIZE, dtype=torch.float16)),
    "item": lambda y: y[0, 0].item(),
    "reset": lambda y: torch.spyre.reset(),
    "empty_cache": lambda y: torch.accelerator.empty_cache(),
}


@pytest.mark.parametrize("wait", _WAITS)
def test_a_signal_ends_a_wait_and_the_queue_goes_on(matrix: torch.Tensor, wait: str) -> None:
    y = _queue_seconds_of_work(matrix)
    with pytest.raises(_Alarm), _alarm(0.1):
        _WAITS[wait](y)
    assert not torch.spyre.current_stream().query()  # it did not wait for all of the work
    assert torch.equal(y.cpu(), torch.eye(SIZE, dtype=torch.float16))


def test_a_keyboard_interrupt_ends_a_wait(matrix: torch.Tensor) -> None:
    y = _queue_seconds_of_work(matrix)
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have it ignored
    alarm = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            y.cpu()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, inherited)
    assert not torch.spyre.current_stream().query()


def test_dropped_work_leaves_a_named_error_in_what_it_would_have_written(matrix: torch.Tensor) -> None:
    kept = matrix + 1
    y = _queue_seconds_of_work(matrix)
    torch.spyre.reset(drop_queued=True)
    assert torch.spyre.current_stream().query()
    with pytest.raises(UninitializedRead, match="failed or was dropped"):
        y.cpu()
    with pytest.raises(UninitializedRead, match="write all of it"):
        y + 1
    assert torch.equal(kept.cpu(), torch.eye(SIZE, dtype=torch.float16) + 1)
    y.fill_(2)
    assert torch.equal((y + matrix).cpu(), torch.eye(SIZE, dtype=torch.float16) + 2)


def test_memory_of_dropped_work_is_clean_for_its_next_owner(matrix: torch.Tensor) -> None:
    y = _queue_seconds_of_work(matrix)
    address = y.data_ptr()
    del y
    owners = [torch.empty_like(matrix) for _ in range(3)]
    assert address in [owner.data_ptr() for owner in owners]
    torch.spyre.reset(drop_queued=True)
    for owner in owners:
        owner.cpu()  # it holds anything, and nobody promised more


def test_a_failed_launch_leaves_a_named_error_behind_reset(matrix: torch.Tensor) -> None:
    result = torch.zeros(4, device="spyre")
    other = matrix + 3
    torch.spyre.synchronize()
    _C._inject_fault("launch", 1)
    result += 1
    with pytest.raises(RuntimeError):
        torch.spyre.synchronize()
    torch.spyre.reset()
    with pytest.raises(UninitializedRead):
        result.cpu()
    assert other[0, 1].item() == 3


def test_a_stream_holds_a_bounded_number_of_commands(matrix: torch.Tensor) -> None:
    small = torch.zeros(8, device="spyre")
    small += 1
    y = _queue_seconds_of_work(matrix)
    for _ in range(300):
        small += 1
    early = torch.spyre.current_stream().record_event()
    for _ in range(1200):
        small += 1
    assert early.query()  # the submission of command 1025 waited for half of what was queued
    assert small.tolist() == [1501.0] * 8
    assert y[5, 5].item() == 1
