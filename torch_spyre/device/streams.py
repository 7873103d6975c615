# SPDX-License-Identifier: Apache-2.0
"""Streams. Id 0 is the default stream, 1-32 the low-priority pool, 33-64 the high-priority pool.

Work of every stream of a device runs in the order in which it was submitted, so waiting for one stream waits for the
card.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.device.index import device_index

_FIRST_HIGH_PRIORITY_ID = 33


class Stream:
    """A stream of a device; in a ``with`` block it is the current one."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self._stream = _C.get_stream_from_pool(device_index(device), priority)
        self._outer: list[torch.Stream] = []

    @classmethod
    def _wrap(cls, stream: torch.Stream) -> Stream:
        self = cls.__new__(cls)
        self._stream = stream
        self._outer = []
        return self

    @property
    def id(self) -> int:
        return int(self._stream.stream_id)

    @property
    def priority(self) -> int:
        return -1 if self.id >= _FIRST_HIGH_PRIORITY_ID else 0

    def device(self) -> torch.device:
        return self._stream.device

    def synchronize(self) -> None:
        """Waits for the work submitted so far; raises the error of work that failed."""
        _C.synchronize(self._stream.device.index)

    def query(self) -> bool:
        """True if everything submitted so far is done."""
        return bool(self._stream.query())

    def __enter__(self) -> Stream:
        self._outer.append(_C.set_current_stream(self._stream))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C.set_current_stream(self._outer.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device(), self.id) == (other.device(), other.id)

    def __hash__(self) -> int:
        return hash((self.device().index, self.id))

    def __repr__(self) -> str:
        return f"<torch_spyre.Stream device={self.device().index} id={self.id}>"


def stream(stream: Stream) -> Stream:
    """Returns its argument, so that ``with torch.spyre.stream(s):`` reads like torch.cuda."""
    return stream


def current_stream(device: Any = None) -> Stream:
    return Stream._wrap(_C.current_stream(device_index(device)))


def default_stream(device: Any = None) -> Stream:
    return Stream._wrap(_C.default_stream(device_index(device)))


def synchronize(device: Any = None) -> None:
    """Waits for all work of a device, or of all devices; raises the error of work that failed."""
    _C.synchronize(None if device is None else device_index(device))
