# SPDX-License-Identifier: Apache-2.0
"""Rules between the ops of a bundle: who wrote the LX bytes a core reads, which blocks overlap, which cores race.

Bytes are counted in sticks, the unit in which cores touch memory. `lx-ownership`: a core reads only LX sticks that it
wrote itself, and the slice it reads is the slice it wrote; in a fragment an LX tensor that nobody wrote on any core is
an input. `overlap`: the result of an op is not on its operands, except in place. `pool-overlap`: a block that is
still read is not written over by a block that is not a part of it, or of what is read. `race`: inside an op no core
writes what another core reads or writes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from torch_spyre.constants import CORES, LX_BYTES, SEGMENT_BYTES, STICK_BYTES
from torch_spyre.ir.superdsc import class_rules, stick_sets
from torch_spyre.ir.superdsc.constant_formats import word_bytes
from torch_spyre.ir.superdsc.rules import Problem
from torch_spyre.ir.superdsc.schema import SuperDSC
from torch_spyre.ir.superdsc.stick_sets import Runs
from torch_spyre.optable import Kind

_NOBODY = "; no core wrote them (if an earlier bundle did, --fragment takes them as inputs)"

if TYPE_CHECKING:
    from torch_spyre.ir.superdsc.bundle import Bundle


@dataclass(frozen=True)
class Found:
    step: int
    problem: Problem


@dataclass(frozen=True)
class Part:
    """What one core touches of a tensor: its first stick, and how many along each stride of the block."""

    core: int
    first: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """The sticks of one tensor of one op: a strided box per core that touches it at all."""

    step: int
    tensor: int
    memory: bool
    parts: tuple[Part, ...]
    strides: tuple[int, ...]  # in sticks
    format: str
    dense: bool  # more than one value per stick

    @cached_property
    def first(self) -> int:
        return min((p.first for p in self.parts), default=0)

    @cached_property
    def end(self) -> int:
        return max((p.first + span_sticks(p.counts, self.strides) for p in self.parts), default=0)

    @cached_property
    def total(self) -> int:
        return sum(math.prod(p.counts) for p in self.parts)

    def same_sticks(self, other: Block) -> bool:
        """Does every core touch the same sticks, read as the same numbers?"""
        return (self.parts, self.strides, self.format) == (other.parts, other.strides, other.format)

    def same_place(self, other: Block) -> bool:
        return self.same_sticks(other) and self.dense == other.dense

    def of(self, part: Part) -> np.ndarray:
        """Each stick of a part; for parts in LX, which are small."""
        return part.first + box(part.counts, self.strides)

    @cached_property
    def part_runs(self) -> tuple[Runs, ...]:
        return tuple(stick_sets.of_box(p.first, p.counts, self.strides) for p in self.parts)

    @cached_property
    def runs(self) -> Runs:
        """What all cores together touch."""
        return stick_sets.union(self.part_runs)


def span_sticks(counts: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(counts, strides, strict=True))


@lru_cache(maxsize=256)
def box(counts: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    result = np.zeros(1, dtype=np.int64)
    for count, stride in zip(counts, strides, strict=True):
        result = (result[:, None] + np.arange(count, dtype=np.int64)[None, :] * stride).ravel()
    return result


def block(sdsc: SuperDSC, tensor: int, step: int) -> Block:
    geometry, allocation = sdsc.geometry(tensor), sdsc.allocations[tensor]
    gathered, word = sdsc.gathered(tensor), sdsc.tensors[tensor].word_bytes
    reach = {d: sdsc.reach(tensor, d, sdsc.core_sizes[d]) for d in geometry.strides}
    dims = [d for d, stride in geometry.strides.items() if stride and (reach[d] > 1 or d in gathered)]
    parts = []
    for core, address in allocation.start.items():
        if all(touched(sdsc, d, core) for d in sdsc.sizes):
            counts = [
                geometry.extents[d]
                if d in gathered
                else -(-sdsc.reach(tensor, d, touched(sdsc, d, core)) // geometry.unit(d))
                for d in dims
            ]
            parts.append(Part(core, address // STICK_BYTES, tuple(counts)))
    scale = sdsc.scale(tensor)
    dense = any(scale[level.dim] > 0 for level in geometry.sticks)
    strides = tuple(geometry.strides[d] * word // STICK_BYTES for d in dims)
    memory = allocation.component == "hbm"
    return Block(step, tensor, memory, tuple(parts), strides, sdsc.tensors[tensor].format, dense)


def touched(sdsc: SuperDSC, dim: str, core: int) -> int:
    """Elements of a dim that a core works on: those of its slice that are not masked."""
    start = sdsc.core_slices[core][dim] * sdsc.core_sizes[dim]
    return max(0, min(sdsc.slice_size(dim, core), sdsc.valid(dim) - start))


def problems(bundle: Bundle) -> Iterator[Found]:
    state = _Lx(bundle), _Memory(bundle)
    for i, step in enumerate(bundle.steps):
        sdsc = step.sdsc
        reads = [block(sdsc, t, i) for t in _read_tensors(sdsc)]
        write = block(sdsc, sdsc.compute.outputs[0], i)
        found = [*_inside(sdsc, reads, write)]
        for tracker in state:
            found += [*tracker.step(i, sdsc, [r for r in reads if r.memory == tracker.memory], write)]
        yield from (Found(i, p) for p in found)


def _read_tensors(sdsc: SuperDSC) -> list[int]:
    return [*class_rules.inputs_of(sdsc), *sdsc.compute.indices]


def overlapping(a: Block, b: Block) -> bool:
    """Do the sticks of all cores together overlap?"""
    if a.memory != b.memory or a.first >= b.end or b.first >= a.end:
        return False
    return a.runs.meets(b.runs)


# -- inside one op ---------------------------------------------------------------------------------------------------


def _inside(sdsc: SuperDSC, reads: list[Block], write: Block) -> Iterator[Problem]:
    in_place = sdsc.row.kind in (Kind.POINTWISE, Kind.NORM)
    for one, two in itertools.combinations([r for r in reads if not r.memory], 2):
        if overlapping(one, two) and not one.same_sticks(two) and (one.first, one.dense) != (two.first, two.dense):
            detail = f"lies on Tensor{one.tensor} in LX, and is not the same tensor"
            yield Problem("overlap", detail, two.tensor, _meeting_core(one, two))
    for read in reads:
        if in_place and read.same_sticks(write):
            continue
        if overlapping(read, write):
            core = _racing_core(read, write)
            if core is not None:
                detail = f"writes sticks of Tensor{read.tensor} that core {core[1]} reads in the same op"
                yield Problem("race", detail, write.tensor, core[0])
            else:
                detail = f"lies on Tensor{read.tensor}, which the same op reads, and is not the same tensor"
                yield Problem("overlap", detail, write.tensor, _meeting_core(read, write))


def _meeting_core(other: Block, mine: Block) -> int | None:
    """The first core of `mine` that touches sticks of `other`."""
    return next((p.core for p, runs in zip(mine.parts, mine.part_runs, strict=True) if runs.meets(other.runs)), None)


def _racing_core(read: Block, write: Block) -> tuple[int, int] | None:
    """(writing core, reading core) of two different cores that meet; LX is each core's own."""
    if not read.memory:
        return None
    for writer, mine in zip(write.parts, write.part_runs, strict=True):
        if not mine.meets(read.runs):
            continue
        for reader, theirs in zip(read.parts, read.part_runs, strict=True):
            if reader.core != writer.core and mine.meets(theirs):
                return writer.core, reader.core
    return None


# -- between ops -----------------------------------------------------------------------------------------------------


class _Lx:
    """Which op last wrote each LX stick of each core."""

    memory = False

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.writer = np.full((CORES, LX_BYTES // STICK_BYTES), -1, dtype=np.int32)

    def step(self, index: int, sdsc: SuperDSC, reads: list[Block], write: Block) -> Iterator[Problem]:
        for read in reads:
            yield from self._read(sdsc, read)
        if not write.memory:
            self._write(index, sdsc, write)

    def _write(self, index: int, sdsc: SuperDSC, write: Block) -> None:
        for part in write.parts:
            if holds_result(sdsc, part.core):
                self.writer[part.core, write.of(part)] = index

    def _read(self, sdsc: SuperDSC, read: Block) -> Iterator[Problem]:
        sticks = np.concatenate([read.of(p) for p in read.parts]) if read.parts else np.zeros(0, dtype=np.int64)
        if self.bundle.fragment and not (self.writer[:, sticks] != -1).any():
            return  # left there by an earlier bundle
        for part in read.parts:
            sticks = read.of(part)
            row = self.writer[part.core, sticks]
            missing = int((row == -1).sum())
            if missing:
                others = [c for c in range(CORES) if (self.writer[c, sticks] != -1).all()]
                hint = f"; cores {_ranges(others)} have them" if others else _NOBODY
                place = f"LX bytes {part.first * STICK_BYTES}.."
                detail = f"reads {place}, {missing} of {row.size} sticks never written there{hint}"
                yield Problem("lx-ownership", detail, read.tensor, part.core)
                return
            for writer in np.unique(row):
                problem = self._slice(sdsc, read, int(writer), part.core)
                if problem:
                    yield problem
                    return

    def _slice(self, sdsc: SuperDSC, read: Block, writer: int, core: int) -> Problem | None:
        """Where the layouts agree, the core must hold the very slice that it reads."""
        producer = self.bundle.steps[writer].sdsc
        output = producer.compute.outputs[0]
        mine, theirs = _places(sdsc, read.tensor, core), _places(producer, output, core)
        if [(n, total) for n, total, _ in mine] != [(n, total) for n, total, _ in theirs]:
            return None  # another shape of the same bytes: which slice it is cannot be told
        for (size, _, got), (_, _, held) in zip(mine, theirs, strict=True):
            if got != held:
                title = self.bundle.steps[writer].title
                detail = (
                    f"reads elements {got}..{got + size} of a dim, {title} left elements {held}..{held + size} there"
                )
                return Problem("lx-ownership", detail, read.tensor, core)
        return None


def holds_result(sdsc: SuperDSC, core: int) -> bool:
    """Does a core have the op's result? Of cores that combine theirs, the first has it."""
    combined = class_rules.combined_dims(sdsc)
    return all(place == 0 or dim not in combined for dim, place in sdsc.core_slices[core].items())


def _places(sdsc: SuperDSC, tensor: int, core: int) -> list[tuple[int, int, int]]:
    """(elements per slice, of the whole dim, before the core's slice) per dim, inner to outer."""
    scale = sdsc.scale(tensor)
    dims = [d for d in sdsc.allocations[tensor].order if scale[d] > 0 and sdsc.sizes[d] > 1]
    return [(sdsc.core_sizes[d], sdsc.sizes[d], sdsc.core_slices[core][d] * sdsc.core_sizes[d]) for d in dims]


def _ranges(cores: list[int]) -> str:
    return f"{cores[0]}..{cores[-1]}" if len(cores) > 1 else str(cores[0])


class _Memory:
    """Blocks of device memory that ops of the bundle wrote, latest last."""

    memory = True

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.blocks: list[Block] = []

    def step(self, index: int, sdsc: SuperDSC, reads: list[Block], write: Block) -> Iterator[Problem]:
        for read in reads:
            yield from self._read(read)
        if write.memory:
            self.blocks = [b for b in self.blocks if not b.same_place(write)]
            self.blocks.append(write)

    def _read(self, read: Block) -> Iterator[Problem]:
        """Of the blocks that a read finds, a later one must be a part of an earlier one, or be beside it, or both must
        be parts of what is read: a tensor that is written in parts holds at each byte what was written there last."""
        found = self._found(read)
        for writer in found:
            if word_bytes(writer.format) != word_bytes(read.format):
                title = self.bundle.steps[writer.step].title
                detail = f"reads {read.format} where {title} wrote {writer.format}"
                yield Problem("pool-overlap", detail, read.tensor, _meeting_core(writer, read))
                return
        for later, earlier in itertools.combinations(found, 2):
            pieces = _is_part(later, read) and _is_part(earlier, read)
            if overlapping(earlier, later) and not pieces and not _is_part(later, earlier):
                core = _meeting_core(later, read)
                yield Problem("pool-overlap", self._detail(earlier, later, read), read.tensor, core)
                return

    def _found(self, read: Block) -> list[Block]:
        """The blocks that wrote the bytes of a read last, newest first."""
        found: list[Block] = []
        left = read.runs
        for written in reversed(self.blocks):
            if not written.runs.meets(left):
                continue
            if not found and written.same_sticks(read):
                return [written]
            found.append(written)
            left = left.minus(written.runs)
            if left.empty:
                break
        return found

    def _detail(self, earlier: Block, later: Block, read: Block) -> str:
        segment = read.first * STICK_BYTES // SEGMENT_BYTES
        low = max(earlier.first, later.first) * STICK_BYTES - segment * SEGMENT_BYTES
        titles = [self.bundle.steps[b.step].title for b in (earlier, later)]
        name = self.bundle.argument_name(segment)
        return f"reads what {titles[0]} wrote to {name}, but {titles[1]} wrote over it from byte {low} on"


def _is_part(part: Block, whole: Block) -> bool:
    """A slice assignment: inside the whole, with its strides and as dense as it."""
    inside = whole.first <= part.first and part.end <= whole.end
    alike = part.format == whole.format and part.dense == whole.dense
    return inside and alike and {*part.strides} <= {*whole.strides, *_slice_strides(whole)}


def _slice_strides(whole: Block) -> set[int]:
    """Strides between the slices of cores: a part need not be cut like the whole."""
    starts = sorted({p.first for p in whole.parts})
    return {b - a for a, b in itertools.pairwise(starts)}
