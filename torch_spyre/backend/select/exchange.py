# SPDX-License-Identifier: Apache-2.0
"""Groups of cores and who gets what from whom.

Tile sets are evaluated for every group: a program knows its cores. What a consumer reads from its k-th producer is then
a function of the core id, which becomes scalar code: a closed form where one fits, else a sum of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch_spyre.backend.program.isa import Sop
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.errors import InvalidProgram
from torch_spyre.ir.affine import CORE_ID, Affine
from torch_spyre.ir.ktir.legality.boxes import members


@dataclass(frozen=True)
class Exchange:
    """Producers of every consumer, ascending, and the position of every consumer among those of its group."""

    sources: dict[int, tuple[int, ...]]
    positions: dict[int, int]
    group: dict[int, int]  # of every producer

    @property
    def count(self) -> int:
        """The largest number of producers of one consumer."""
        return max((len(s) for s in self.sources.values()), default=0)

    @property
    def step(self) -> int | None:
        """The distance of producers, if all consumers have equally many and these are evenly spaced."""
        if len({len(s) for s in self.sources.values()}) != 1:
            return None
        steps = {b - a for s in self.sources.values() for a, b in pairwise(s)} or {1}
        return steps.pop() if len(steps) == 1 else None

    def consumers_of(self, k: int) -> list[int]:
        """Consumers that have a k-th producer."""
        return sorted(core for core, sources in self.sources.items() if len(sources) > k)

    def sources_at(self, k: int) -> dict[int, int]:
        return {core: sources[k] for core, sources in self.sources.items() if len(sources) > k}


def producers_of(produce: Any, cores: int) -> dict[int, list[int]]:
    """Producers of every group; a group has at least one core, so there are no more groups than cores."""
    tiles = range(cores)
    groups = members(produce.future.type.groups.data, tiles)
    found = {group: members(produce.producer_tiles_per_group.data, tiles, [group]) for group in groups}
    seen: dict[int, int] = {}
    for group, producers in found.items():
        for core in producers:
            if seen.setdefault(core, group) != group:
                raise InvalidProgram(
                    f"core {core} produces in groups {seen[core]} and {group}; groups are disjoint (R1)"
                )
    return found


def exchange_of(op: Any, produce: Any, cores: int) -> Exchange:
    """Evaluates the producer, consumer and dependency sets of every group."""
    tiles = range(cores)
    dependency = getattr(op, "producer_dependency_per_consumer", None)
    sources: dict[int, tuple[int, ...]] = {}
    positions: dict[int, int] = {}
    group_of: dict[int, int] = {}
    for group, producers in producers_of(produce, cores).items():
        group_of.update(dict.fromkeys(producers, group))
        consumers = members(op.consumer_tiles_per_group.data, tiles, [group])
        for position, consumer in enumerate(consumers):
            if consumer in sources:
                raise InvalidProgram(f"core {consumer} consumes in two groups of one {op.name}")
            wanted = producers
            if dependency is not None:
                symbols = [consumer, group][: dependency.data.num_symbols]
                wanted = members(dependency.data, tiles, symbols)
                if not set(wanted) <= set(producers):
                    raise InvalidProgram(f"core {consumer} depends on cores {wanted}; its group has {producers} (R3)")
            if not wanted:
                raise InvalidProgram(f"core {consumer} consumes in group {group} of {op.name}, which has no producers")
            sources[consumer] = tuple(wanted)
            positions[consumer] = position
    return Exchange(sources, positions, group_of)


# -- functions of the core id ------------------------------------------------------------------------------------------


def guard_of(stream: Stream, cores: Sequence[int]) -> Affine:
    """At or above 0 on the given cores; always, where only these come anyway."""
    active = stream.active_cores()
    if active is not None and set(active) <= set(cores):
        return Affine(0)
    wanted = [1 if core in cores else 0 for core in range(stream.cores)]
    step = cores[1] - cores[0] if len(cores) > 1 else stream.cores
    # Cores at even distances up to the last one: compare the remainder.
    remainder = stream.scalar(Sop.MOD, CORE_ID, Affine(step))
    distance = remainder - cores[0] % step
    regular = stream.scalar(Sop.MIN, -stream.scalar(Sop.MAX, distance, -distance), Affine(cores[-1]) - CORE_ID)
    known = stream.values(regular)
    if known is not None and [int(v >= 0) for v in known] == wanted:
        return regular
    return table_of(stream, dict(enumerate(wanted))) - 1


def table_of(stream: Stream, table: dict[int, int], period: int = 1) -> Affine:
    """A function of the core id that is right on the given cores."""
    first = next(iter(table.values()))
    candidates: list[Callable[[], Affine]] = [
        lambda: Affine(first),
        lambda: CORE_ID,
        lambda: CORE_ID - stream.scalar(Sop.MOD, CORE_ID, Affine(period)),
        lambda: stream.scalar(Sop.MOD, CORE_ID, Affine(period)),
        lambda: stream.scalar(Sop.FLOORDIV, CORE_ID, Affine(period)),
    ]
    for make in candidates:
        candidate = make()
        known = stream.values(candidate)
        if known is not None and all(known[core] == value for core, value in table.items()):
            return candidate
    return _step_function(stream, [table.get(core, 0) for core in range(stream.cores)])


def first_producer(stream: Stream, exchange: Exchange) -> Affine:
    """The first producer of a consumer, right on consumers only."""
    count, step = exchange.count, exchange.step or 1
    strided = CORE_ID - stream.scalar(Sop.MOD, stream.scalar(Sop.FLOORDIV, CORE_ID, Affine(step)), Affine(count)) * step
    known = stream.values(strided)
    table = exchange.sources_at(0)
    if step > 1 and known is not None and all(known[core] == value for core, value in table.items()):
        return strided
    return table_of(stream, table, count * step)


def _step_function(stream: Stream, table: list[int]) -> Affine:
    """Any function of the core id, as a sum of steps."""
    total = Affine(table[0])
    for core in range(1, len(table)):
        change = table[core] - table[core - 1]
        if change:
            reached = stream.scalar(Sop.MAX, CORE_ID - (core - 1), Affine(0))
            total = total + stream.scalar(Sop.MIN, reached, Affine(1)) * change
    return total
