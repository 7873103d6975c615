# SPDX-License-Identifier: Apache-2.0
"""Times of kernels on the card's clock, for `triton.autotune` and `triton.testing.do_bench`.

`do_bench` measures how long a call takes together with clearing the cache, and makes as many calls as fit a budget of
125 ms. On the card's clock tens of thousands of small kernels fit, all of which take the same time. So clearing counts
as `CLEARING_MS`, which leaves tens of calls; what is measured begins after it and does not contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_spyre import _C

CLEARING_MS = 10.0


class Event:
    """A moment on the card's clock, with what clearing is said to have taken until then."""

    _cleared_ms = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._event = torch.spyre.Event(*arguments, **options)
        self._cleared = 0.0

    @classmethod
    def clear(cls) -> None:
        cls._cleared_ms += CLEARING_MS

    def record(self, *arguments: Any) -> None:
        self._cleared = Event._cleared_ms
        self._event.record(*arguments)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds until another event; never 0, by which `do_bench` would divide."""
        elapsed: float = self._event.elapsed_time(end._event)
        return max(elapsed + (end._cleared - self._cleared), 1e-6)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)


class Interface:
    """`torch.spyre` with these events."""

    Event = Event

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.spyre, name)


def card_milliseconds(call: Callable[[], Any], *, quantiles: Sequence[float] | None = None, **_: Any) -> Any:
    """Time of a call on the card's clock, which is the same each time: one run answers all quantiles."""
    device = _C.current_device()
    call()
    torch.spyre.synchronize()
    start = _C.clock_ns(device)
    call()
    torch.spyre.synchronize()
    elapsed = (_C.clock_ns(device) - start) / 1e6
    return [elapsed] * len(quantiles) if quantiles is not None else elapsed
