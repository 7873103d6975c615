# SPDX-License-Identifier: Apache-2.0
"""Streams. Id 0 is the default stream, 1-32 the low-priority pool, 33-64 the high-priority pool.

Work of one stream runs in the order in which it was submitted; streams wait for each other only where they are told
to. docs/streams.md has the rules.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.events import Event
from torch_spyre.device.selection import device_index

__all__ = ["Event", "Stream", "current_stream", "default_stream", "stream", "synchronize"]

_FIRST_HIGH_PRIORITY_ID = 33


class Stream(torch.Stream):
    """A stream of a device; in a ``with`` block it is the current one, and its device the current device.

    `synchronize`, `query`, `wait_event` and `wait_stream` are those of ``torch.Stream``.
    """

    _outer: list[tuple[int, torch.Stream]]

    def __new__(cls, device: Any = None, priority: int = 0) -> Stream:
        """The next stream of the device's pool. Any priority but 0 is high."""
        return cls._wrap(_C.get_stream_from_pool(device_index(device), priority))

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        """All is done when the stream is made."""

    @classmethod
    def _wrap(cls, stream: torch.Stream) -> Stream:
        made: Stream = super().__new__(
            cls, stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
        )
        made._outer = []
        return made

    @property
    def id(self) -> int:
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        return -1 if self.id >= _FIRST_HIGH_PRIORITY_ID else 0

    def device(self) -> torch.device:
        return torch.device(DEVICE_NAME, self.device_index)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records an event, a new one if none is given, behind the work submitted so far."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        device = _C.current_device()
        _C.set_device(self.device_index)
        self._outer.append((device, _C.set_current_stream(self)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        device, stream = self._outer.pop()
        _C.set_current_stream(stream)
        _C.set_device(device)

    def __repr__(self) -> str:
        return f"<torch_spyre.Stream device={self.device_index} id={self.id}>"


class _NoStream:
    """A ``with`` block that changes nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def stream(stream: torch.Stream | None) -> Any:
    """``with torch.spyre.stream(s):`` makes a stream, ours or a torch.Stream, the current one. None changes nothing."""
    if stream is None:
        return _NoStream()
    return stream if isinstance(stream, Stream) else Stream._wrap(stream)


def current_stream(device: Any = None) -> Stream:
    """The stream that the calling thread submits to on a card."""
    return Stream._wrap(_C.current_stream(device_index(device)))


def default_stream(device: Any = None) -> Stream:
    """The stream of a card that is current unless another one is set."""
    return Stream._wrap(_C.default_stream(device_index(device)))


def synchronize(device: Any = None) -> None:
    """Waits for all work of a device, or of all devices; raises the error of work that failed."""
    _C.synchronize(None if device is None else device_index(device))
