# SPDX-License-Identifier: Apache-2.0
"""Hand-over of scratchpad slices between cores: who exchanges with whom when a tensor changes its split.

Along a dim the data comes in P slices and leaves in C. Cores that meet in the same cell, a slice of the coarser of the
two splits along every dim, form a group: each consumer takes its part of what each producer of its group holds and
puts the parts side by side. That is an all-to-all, a gather where no dim gets finer, a scatter where none gets coarser.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch_spyre.ir.plan.tileops import Dim


@dataclass(frozen=True)
class Digit:
    """A core's cell along one dim: ``(core // stride) % slices // finer``."""

    stride: int
    slices: int
    finer: int

    def slice(self, core: int) -> int:
        return core // self.stride % self.slices

    def cell(self, core: int) -> int:
        return self.slice(core) // self.finer

    def inside(self, core: int) -> int:
        return self.slice(core) % self.finer


@dataclass(frozen=True)
class Groups:
    """Cells of producers and consumers along every dim, and the dims (by position) that are split or concatenated."""

    cores: int
    cells: tuple[int, ...]
    producers: tuple[Digit, ...]
    consumers: tuple[Digit, ...]

    @property
    def count(self) -> int:
        return math.prod(self.cells)

    @property
    def split(self) -> tuple[int, ...]:
        return tuple(i for i, d in enumerate(self.consumers) if d.finer > 1)

    @property
    def concat(self) -> tuple[int, ...]:
        return tuple(i for i, d in enumerate(self.producers) if d.finer > 1)

    @property
    def pieces(self) -> int:
        """Producers of each consumer."""
        return math.prod(d.finer for d in self.producers)


def groups(
    source: Sequence[Dim], source_order: Sequence[str], target: Sequence[Dim], target_order: Sequence[str]
) -> Groups | None:
    """How a tensor with the dims of `source` gets from that split to `target`; None if one exchange does not do it.

    `target` may have a dim more: cores that differ only there get the same.
    """
    coming, going = _digits(source, source_order), _digits(target, target_order)
    cores = math.prod(d.slices for d in source)
    if cores != math.prod(d.slices for d in target) or cores < 2:
        return None
    cells, producers, consumers = [], [], []
    wanted = {d.name: d for d in target}
    for dim in source:
        other = wanted.get(dim.name)
        if other is None or other.size != dim.size or not dim.even or not other.even:
            return None
        ways = min(dim.slices, other.slices)
        if dim.slices % ways or other.slices % ways:
            return None
        cells.append(ways)
        producers.append(Digit(*coming[dim.name], dim.slices // ways))
        consumers.append(Digit(*going[dim.name], other.slices // ways))
    found = Groups(cores, tuple(cells), tuple(producers), tuple(consumers))
    return found if _in_order(found) else None


def _digits(dims: Sequence[Dim], order: Sequence[str]) -> dict[str, tuple[int, int]]:
    sizes = {d.name: d.slices for d in dims}
    stride, found = 1, {name: (1, 1) for name in sizes}
    for name in order:
        found[name] = (stride, sizes[name])
        stride *= sizes[name]
    return found


@functools.lru_cache(maxsize=4096)  # the planner asks for the same few splits of many tensors
def _in_order(found: Groups) -> bool:
    """Deliveries go by position: the parts of a group must be in the order of its cores."""
    moving = [i for i, ways in enumerate(found.cells) if ways > 1]
    sides = ((found.producers, found.concat, True), (found.consumers, found.split, bool(found.split)))
    for digits, dims, needed in sides:
        members: dict[tuple[int, ...], list[int]] = {}
        for core in range(found.cores):
            members.setdefault(tuple(digits[i].cell(core) for i in moving), []).append(core)
        if len(members) != found.count:
            return False
        parts = math.prod(digits[d].finer for d in dims)
        for cores in members.values() if needed else ():
            if len(cores) != parts:
                return False
            for position, core in enumerate(cores):
                for d in reversed(dims):
                    position, here = divmod(position, digits[d].finer)
                    if digits[d].inside(core) != here:
                        return False
    return True
