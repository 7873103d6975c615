# SPDX-License-Identifier: Apache-2.0
"""Host arrays on their way through a launch: card memory with a place for each, kept for the next launch like it.

Converting is the transfer's own work and costs about what a copy does. What dominates a short launch is to set all of
it up, so that is done once per kind of arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from torch_spyre.formats import BYTES
from torch_spyre.ktir import linear_memory
from torch_spyre.ktir.linear_memory import Placement

_KEPT_BYTES = 4 << 20  # of one set of buffers; what is larger takes so long that setting it up does not show
_KEPT_KINDS = 64


class Seat:
    """A place in card memory: `view` has the shape of the array.

    Where the transfer cannot do all the work, host memory stands between the array and the card: for gaps, which are 0
    at every launch, for dtypes that are wider than the card's, and for truth values, which the card stores as numbers.
    """

    def __init__(self, name: str, tensor: torch.Tensor, where: Placement, written: bool, device: torch.device) -> None:
        self.name = name
        self.written = written
        self._truth = tensor.dtype is where.dtype is torch.bool
        stored = torch.float16 if self._truth else where.dtype
        self.buffer = linear_memory.empty_linear(where.elements, stored, device)
        self.view = self.buffer.as_strided(tensor.shape, where.strides)
        self._up: tuple[torch.Tensor, np.ndarray] | None = None
        self._down: tuple[torch.Tensor, np.ndarray] | None = None
        self._zeroes = False
        gaps = where.elements > tensor.numel()
        wire = _NARROWER.get((tensor.dtype, where.dtype), tensor.dtype if gaps else None)
        if wire in _OF_NUMPY:
            self._up, self._down = (_between(where, tensor.shape, wire) for _ in range(2))
        else:
            self._zeroes = gaps

    def fill(self, tensor: torch.Tensor) -> None:
        if self._zeroes:
            self.buffer.zero_()
        linear_memory.check_integers(self.name, tensor)
        if self._up is None:
            self.view.copy_(tensor)
            return
        array = tensor.detach().numpy()
        if self._truth:
            np.multiply(array.view(np.uint8), _ONE, out=self._up[1].view(np.uint16), casting="unsafe")
        else:
            np.copyto(self._up[1], array, casting="unsafe")
        self.buffer.copy_(self._up[0])

    def take(self, tensor: torch.Tensor) -> None:
        if self._down is None:
            tensor.copy_(self.view)
            return
        self._down[0].copy_(self.buffer)
        array = tensor.detach().numpy()
        if self._truth:
            np.not_equal(self._down[1].view(np.uint16) & _MAGNITUDE, 0, out=array)
        else:
            np.copyto(array, self._down[1], casting="unsafe")


# Host dtype and that of the buffer, to the dtype between them that the transfer takes.
_NARROWER = {
    (torch.float64, torch.float16): torch.float32,
    (torch.float64, torch.bfloat16): torch.float32,
    (torch.float64, torch.float32): torch.float32,
    (torch.int64, torch.int32): torch.int32,
    (torch.bool, torch.bool): torch.float16,
}
_ONE, _MAGNITUDE = np.uint16(0x3C00), np.uint16(0x7FFF)  # bits of 1.0, and of all but the sign, in float16
_OF_NUMPY = (torch.float16, torch.float32, torch.int32)


def _between(where: Placement, shape: torch.Size, dtype: torch.dtype) -> tuple[torch.Tensor, np.ndarray]:
    """Host memory like the buffer, and the elements of the array in it."""
    flat = torch.zeros(max(where.elements, 1), dtype=dtype)
    return flat, flat.as_strided(shape, where.strides).numpy()


@dataclass(frozen=True)
class Stage:
    seats: tuple[Seat, ...]
    memories: tuple[torch.Tensor, ...]
    keep: bool

    @staticmethod
    def of(
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        places: Sequence[Placement],
        written: Sequence[bool],
        device: torch.device,
    ) -> Stage:
        given = zip(names, tensors, places, written, strict=True)
        seats = tuple(Seat(name, tensor, where, stored, device) for name, tensor, where, stored in given)
        size = sum(where.elements * BYTES[linear_memory.format_name(where.dtype)] for where in places)
        # What comes back waits for the launch, so that nothing is under way when the buffers are used again.
        return Stage(seats, tuple(s.buffer for s in seats), size <= _KEPT_BYTES and any(written))

    def fill(self, tensors: Sequence[torch.Tensor]) -> None:
        for seat, tensor in zip(self.seats, tensors, strict=True):
            seat.fill(tensor)

    def take(self, tensors: Sequence[torch.Tensor], given: Sequence[Any]) -> None:
        for seat, tensor, value in zip(self.seats, tensors, given, strict=True):
            if seat.written:
                seat.take(tensor)
                linear_memory.write_back(seat.name, value, tensor)


class Stages:
    """Stages that no launch is using, by kind of arguments."""

    def __init__(self) -> None:
        self._free: dict[Any, list[Stage]] = {}

    def borrow(self, kind: Any) -> Stage | None:
        """One for this launch alone; None if there is none. Threads never get the same."""
        try:
            return self._free[kind].pop()
        except (KeyError, IndexError):
            return None

    def give_back(self, kind: Any, stage: Stage) -> None:
        if not stage.keep:
            return
        if len(self._free) >= _KEPT_KINDS:
            self._free = {}
        self._free.setdefault(kind, []).append(stage)


def are_separate(tensors: Sequence[torch.Tensor]) -> bool:
    """True if all are in host memory and no two share any of it."""
    spans = []
    for tensor in tensors:
        if not tensor.is_cpu:
            return False
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        spans.append((start, start + storage.nbytes()))
    spans.sort()
    return all(a[1] <= b[0] for a, b in pairwise(spans))
