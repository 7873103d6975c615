# SPDX-License-Identifier: Apache-2.0
"""Card memory for functions with literal addresses: one buffer, filled and read through the views of the function.

A tensor given for an address takes the place of the view there. It is moved by a small program, because the buffer may
hold elements of several types and only the card knows their encodings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from torch_spyre.backend.program.isa import format_bytes, format_of_type
from torch_spyre.constants import STICK_BYTES
from torch_spyre.errors import InvalidArgument
from torch_spyre.ir.ktir.signatures import Function, Shape, View
from torch_spyre.ir.ktir.text import parse
from torch_spyre.ktir import linear_memory
from torch_spyre.ktir.linear_memory import Placement
from torch_spyre.ktir.move_text import move
from torch_spyre.runtime import driver

_BYTE = torch.int8


@dataclass(frozen=True)
class _Seat:
    """A tensor in the buffer: `start` is its first element, counted in elements of `element`."""

    tensor: torch.Tensor
    element: str
    start: int
    strides: tuple[int, ...]
    written: bool


class SharedMemory:
    def __init__(
        self,
        function: Function,
        tensors: Mapping[int, torch.Tensor],
        known: Mapping[Any, int],
        size: int,
        device: torch.device,
        stick_addresses: bool,
    ) -> None:
        self.device = device
        self.buffer = linear_memory.empty_linear(size, _BYTE, device)
        self.buffer.zero_()
        views = [(view, shape) for view in function.literals if (shape := view.shape(known)) is not None]
        written = written_views(function)
        self._seats = []
        self.written: set[int] = set()  # addresses whose tensors the function stores to
        for address, tensor in tensors.items():
            view, shape = _view_at(address, tensor, views)
            unit = STICK_BYTES if stick_addresses else _width(view.element)
            seat = _Seat(
                tensor,
                view.element,
                address * unit // _width(view.element),
                shape.strides if shape.sizes == tuple(tensor.shape) else linear_memory.row_major(tensor.shape),
                any(
                    byte_range(v, s, stick_addresses).meets(byte_range(view, shape, stick_addresses))
                    for v, s in views
                    if v.op in written
                ),
            )
            self._seats.append(seat)
            self.written |= {address} if seat.written else set()
            self._move(seat, to_card=True)

    def take(self) -> None:
        """Writes what the function has stored back into the tensors."""
        for seat in self._seats:
            if seat.written:
                self._move(seat, to_card=False)

    def _move(self, seat: _Seat, to_card: bool) -> None:
        shape = tuple(seat.tensor.shape)
        where = Placement(linear_memory.row_major(shape), seat.tensor.numel(), linear_memory.dtype_of(seat.element))
        if to_card:
            linear = linear_memory.put(f"memory[{seat.start}]", seat.tensor, where, self.device)
        else:
            linear = linear_memory.empty_linear(where.elements, where.dtype, self.device)
        _mover(shape, where.strides, seat.start, seat.strides, seat.element, to_card)(linear, self.buffer)
        if not to_card:
            linear_memory.take(linear, seat.tensor, where)


@dataclass(frozen=True)
class _Range:
    """Bytes that a view spans."""

    start: int
    stop: int

    def meets(self, other: _Range) -> bool:
        return self.start < other.stop and other.start < self.stop


def byte_range(view: View, shape: Shape, stick_addresses: bool) -> _Range:
    width = _width(view.element)
    start = shape.offset * (STICK_BYTES if stick_addresses else width)
    return _Range(start, start + (shape.end - shape.offset) * width)


def _width(element: str) -> int:
    return format_bytes(format_of_type(element))


def _view_at(address: int, tensor: torch.Tensor, views: Sequence[tuple[View, Shape]]) -> tuple[View, Shape]:
    here = [(v, s) for v, s in views if s.offset == address]
    if not here:
        known = sorted({s.offset for _, s in views})
        raise InvalidArgument(f"memory[{address}]: no view of the function starts there; the views start at {known}")
    return next(((v, s) for v, s in here if s.sizes == tuple(tensor.shape)), here[0])


def written_views(function: Function) -> set[Any]:
    """The views under every store."""
    found: set[Any] = set()
    for op in function.op.walk():
        if op.name == "ktdp.store":
            found.update(_views_under(op.operands[1].owner))
    return found


def _views_under(op: Any) -> Iterator[Any]:
    if getattr(op, "name", "") == "ktdp.construct_memory_view":
        yield op
        return
    for operand in getattr(op, "operands", ()):
        if operand.owner is not None and hasattr(operand.owner, "operands"):
            yield from _views_under(operand.owner)


@lru_cache(maxsize=256)
def _mover(
    shape: tuple[int, ...],
    dense: tuple[int, ...],
    start: int,
    strides: tuple[int, ...],
    element: str,
    to_card: bool,
) -> Any:
    """A launcher that copies between a linear tensor and the buffer."""
    moved = move("%linear", dense, "%address", strides, "global", shape, element, to_card)
    head = f"func.func @move(%linear: index) {{\n  %address = arith.constant {start} : index"
    text = f"{head}{moved}  return\n}}\n"
    program = driver.build_ktir(parse(text, "<literal memory>"))
    return driver.launcher(driver.load(driver.of_function("ktir_memory", program)))
