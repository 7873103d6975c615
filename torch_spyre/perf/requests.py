# SPDX-License-Identifier: Apache-2.0
"""What an operand asks of memory: bytes, distinct slices, the cores that share a slice, and contiguous runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_spyre.backend.program.assembler import Extent, LayoutMap, Operand
from torch_spyre.backend.program.isa import Space, format_bytes
from torch_spyre.perf.walk import Registers, Value, value

STICK_BYTES = 128
UNKNOWN_DIM = 1 << 30  # dim of an address loop that a layout map decodes from the linear offset
_QUIET = (Space.IMM, Space.SCALAR, Space.CONST)


@dataclass(frozen=True, slots=True)
class Stream:
    """One operand of one tile instruction, seen from the memory side."""

    space: Space
    arg: int
    core_bytes: int  # of the busiest core
    total: int  # bytes of the distinct slices of all cores
    cohort: int  # cores that share one slice
    run: int  # contiguous bytes, batch dims of a matmul left out
    pitch: int  # bytes from one run to the next; 0 if the slice is one run
    nearest: int  # bytes between the closest two slices of different cores; 0 if all cores have the same
    loops: tuple[tuple[int, int, int], ...]  # (byte stride, count, dim), from the fastest to the slowest address

    @property
    def in_memory(self) -> bool:
        return self.space is Space.MEM

    @property
    def order(self) -> tuple[int, ...]:
        """Iteration dims from the fastest to the slowest address."""
        return tuple(dim for _, _, dim in self.loops)

    def stride_of(self, dim: int) -> int:
        return next((stride for stride, _, d in self.loops if d == dim), 0)

    @property
    def runs(self) -> int:
        """Runs of one core's slice."""
        return max(1, self.core_bytes // max(1, self.run))


class Streams:
    """Streams of operands; equal accesses to different arguments in one state of the registers are worked out once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Stream] = {}

    def of(
        self,
        operand: Operand,
        dims: tuple[Extent, ...],
        sizes: list[Value],
        registers: Registers,
        active: np.ndarray,
        skip: int = 0,
    ) -> Stream:
        """`sizes` are the extents of the box `dims`; the first `skip` dims do not extend runs."""
        if operand.space in _QUIET:
            return Stream(operand.space, -1, 0, 0, 1, 0, 0, 0, ())
        key = (operand.space, operand.format, operand.offset, operand.maps, dims, registers.state, skip)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _stream(operand, sizes, registers, active, skip)
        return found if found.arg == operand.index else dataclasses.replace(found, arg=operand.index)


def _stream(operand: Operand, sizes: list[Value], registers: Registers, active: np.ndarray, skip: int) -> Stream:
    loops, moved = _loops(operand, sizes)
    # Memory moves whole sticks: an operand with one element in each stick costs as much as one that fills them.
    dense = any(stride < STICK_BYTES for stride, _, _ in loops)
    element = format_bytes(operand.format) if dense or operand.space is not Space.MEM else STICK_BYTES
    core_bytes = element
    for size in moved:
        core_bytes = core_bytes * size
    per_core = np.broadcast_to(np.asarray(core_bytes), active.shape)[active]
    largest = int(per_core.max()) if per_core.size else 0
    where = operand.maps.offset if isinstance(operand.maps, LayoutMap) else operand.offset
    total, distinct, nearest = _distinct(value(where, registers), per_core, active)
    run, pitch, steps = runs(element, [loop for loop in loops if loop[2] >= skip])
    cohort = max(1, round(per_core.size / max(1, distinct)))
    return Stream(operand.space, operand.index, largest, total, cohort, run, pitch, nearest, steps)


def _loops(operand: Operand, sizes: list[Value]) -> tuple[list[tuple[int, int, int]], list[Value]]:
    """(byte stride, count, dim) of each address loop, counts of the busiest core; and the extents that move."""
    if isinstance(operand.maps, LayoutMap):
        moved = [n for n, s in zip(sizes, operand.maps.strides, strict=True) if s]
        return [(stride, count, UNKNOWN_DIM) for _, count, stride in operand.maps.dims if count > 1], moved
    loops: list[tuple[int, int, int]] = []
    moved = []
    for dim, (size, m) in enumerate(zip(sizes, operand.maps, strict=True)):
        if not (m.inner or m.outer):
            continue
        moved.append(size)
        count = int(size.max()) if isinstance(size, np.ndarray) else size
        if m.block:
            loops.append((m.inner, min(count, m.block), dim))
            loops.append((m.outer, -(-count // m.block), dim))
        else:
            loops.append((m.inner, count, dim))
    return [loop for loop in loops if loop[0] and loop[1] > 1], moved


def _distinct(offset: Any, per_core: np.ndarray, active: np.ndarray) -> tuple[int, int, int]:
    """Bytes of the distinct slices, how many there are, and the least distance between two of them."""
    if not isinstance(offset, np.ndarray):
        return int(per_core.max(initial=0)), 1, 0
    unique, first = np.unique(offset[active], return_index=True)
    nearest = int(np.diff(unique).min()) if len(unique) > 1 else 0
    return int(per_core[first].sum()), len(unique), nearest


def runs(element: int, loops: list[tuple[int, int, int]]) -> tuple[int, int, tuple[tuple[int, int, int], ...]]:
    """Contiguous bytes, the pitch of the next loop outside them, and all loops sorted."""
    rest = sorted(loops)
    steps = tuple(rest)
    run = element
    while rest and rest[0][0] == run:
        run *= rest.pop(0)[1]
    return run, rest[0][0] if rest else 0, steps
