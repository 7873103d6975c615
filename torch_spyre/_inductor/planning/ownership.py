# SPDX-License-Identifier: Apache-2.0
"""Who holds what: the part of a tensor that each core touches under a split, and whether one part can serve another.

A `Split` lists ``(dim, slices, elements per slice)``, fastest core digit first. The dim `REPLICA` belongs to no tensor:
cores that differ only in its digit do the same work, and each holds the result in its own scratchpad.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from torch_spyre._inductor.planning.plan_graph import PlanNode
from torch_spyre._inductor.tilegraph.index import term_range
from torch_spyre.ir.plan.tileops import Coord, Dim

REPLICA = "rep"
Coords = tuple[Coord, ...]
Split = tuple[tuple[str, int, int], ...]
Steps = tuple[tuple[int, int, int], ...]  # (core stride, slices, device coordinates per slice)
Box = tuple[tuple[int, int], ...]  # (start, extent) along each device dim, from the start of the slice


@dataclass(frozen=True)
class Part:
    """One core's box of device coordinates: along each device dim it starts at ``const + sum(step * digit(core))``."""

    cores: int
    starts: tuple[Steps, ...]
    consts: tuple[int, ...]
    extents: tuple[int, ...]
    dense: bool  # the slice fills its box
    written: tuple[Box, ...] = ()  # of several writers: where in the box each wrote; there may be holes between

    @property
    def elements(self) -> int:
        return math.prod(self.extents)


def split_of(node: PlanNode) -> Split:
    """The split that a node's tiles carry."""
    dims = {d.name: d for d in node.tiles}
    return tuple((name, dims[name].slices, dims[name].extent) for name in node.core_order)


def cores_of(split: Split) -> int:
    return math.prod(slices for _, slices, _ in split)


def apply(node: PlanNode, split: Split) -> None:
    """Writes a split into the node's tiles. Replication is a dim of its own that no access uses."""
    cut = {name: (slices, extent) for name, slices, extent in split}
    tiles = [
        replace(d, slices=cut[d.name][0], tile=cut[d.name][1]) if d.name in cut else replace(d, slices=1, tile=0)
        for d in node.tiles
        if d.name != REPLICA
    ]
    if REPLICA in cut:
        copies = cut[REPLICA][0]
        tiles.insert(0, Dim(REPLICA, copies, copies, 1))
    node.tiles = tuple(tiles)
    node.core_order = tuple(name for name, _, _ in split)


def part(coords: Sequence[Coord], sizes: Mapping[str, int], split: Split) -> Part | None:
    """The part that an access touches; None if its start is not linear in the slice numbers."""
    extents = dict(sizes)
    stride, place = 1, {}
    for name, slices, extent in split:
        extents[name] = extent
        place[name] = (stride, slices)
        stride *= slices
    starts: list[Steps] = []
    spans: list[int] = []
    dense = True
    for coord in coords:
        if coord.index >= 0:
            return None
        steps: list[tuple[int, int, int]] = []
        span, filled = 1, 1
        for t in coord.terms:
            n = term_range(t, extents)
            span += t.scale * (n - 1)
            filled *= n
            if t.dim not in place:
                continue
            extent = extents[t.dim]
            if t.mod and (t.div * t.mod) and extent % (t.div * t.mod) == 0:
                continue  # a digit below the slice: it starts at 0 on every core
            if t.mod or extent % t.div:
                return None
            steps.append((*place[t.dim], t.scale * (extent // t.div)))
        dense = dense and span == filled
        starts.append(tuple(sorted(steps)))
        spans.append(span)
    return Part(stride, tuple(starts), tuple(c.const for c in coords), tuple(spans), dense)


def union(parts: Sequence[Part | None]) -> Part | None:
    """What each core holds after several nodes wrote their parts of one buffer; None if their slices do not agree."""
    first = parts[0]
    if first is None or (len(parts) == 1 and first.dense and not any(first.consts)):
        return first
    extents = [0] * len(first.extents)
    for p in parts:
        if p is None or not p.dense or (p.cores, p.starts) != (first.cores, first.starts):
            return None
        extents = [max(e, c + n) for e, c, n in zip(extents, p.consts, p.extents, strict=True)]
    boxes = dict.fromkeys(tuple(zip(p.consts, p.extents, strict=True)) for p in parts if p is not None)
    if len(boxes) > 1 and not _apart(first.cores, first.starts, tuple(boxes)):
        return None
    return replace(first, consts=(0,) * len(extents), extents=tuple(extents), written=tuple(boxes))


@functools.lru_cache(maxsize=4096)
def _apart(cores: int, starts: tuple[Steps, ...], boxes: tuple[Box, ...]) -> bool:
    """Does each element belong to one slice? Else what one core writes last, another holds as it was before."""
    places = sorted({tuple(_start(steps, core) for steps in starts) for core in range(cores)})
    if len(places) == 1:
        return True
    shifts = {tuple(b - a for a, b in zip(*pair, strict=True)) for pair in itertools.permutations(places, 2)}
    return not any(
        _common(one, tuple((at + by, n) for (at, n), by in zip(two, shift, strict=True)))
        for one, two in itertools.combinations(boxes, 2)
        for shift in shifts
    )


def holds(owner: Part, reader: Part) -> bool:
    """Does every core of the reader find its part in what the same core holds?

    Scratchpad subscripts count from the start of the slice, so both must start at the same coordinates up to the
    constant that the access itself carries.
    """
    if reader.cores > owner.cores or not owner.dense or any(owner.consts):
        return False
    for mine, yours, const, need, have in zip(
        owner.starts, reader.starts, reader.consts, reader.extents, owner.extents, strict=True
    ):
        if const + need > have:
            return False
        if mine != yours and any(_start(mine, c) != _start(yours, c) for c in range(reader.cores)):
            return False
    return not owner.written or _covers(owner.written, tuple(zip(reader.consts, reader.extents, strict=True)))


def _covers(written: Sequence[Box], wanted: Box) -> bool:
    """Do the boxes together hold every element that is wanted? Boxes that overlap count only one by one."""
    shares = [_common(box, wanted) for box in written]
    whole = math.prod(n for _, n in wanted)
    if max(shares) == whole:
        return True
    apart = all(not _common(a, b) for a, b in itertools.combinations(written, 2))
    return apart and sum(shares) == whole


def _common(a: Box, b: Box) -> int:
    """Elements that two boxes share."""
    spans = (min(s + n, t + m) - max(s, t) for (s, n), (t, m) in zip(a, b, strict=True))
    return math.prod(max(span, 0) for span in spans)


def _start(steps: Steps, core: int) -> int:
    return sum(core // stride % slices * step for stride, slices, step in steps)


def translate(split: Split, coords: Coords, sizes: Mapping[str, int], target: Coords, target_dims: Mapping[str, int],
              fixed: Container[str], grains: Mapping[str, int]) -> Split | None:  # fmt: skip
    """A split of one access's node in the dims of another access to the same buffer, so that the parts agree.

    Dims that the buffer does not have become replication. None if a split dim has no counterpart, or one that may not
    be split (`fixed`) or not there (`grains`).
    """
    place: dict[str, list[tuple[int, int, int, int]]] = {}
    for axis, coord in enumerate(coords):
        for t in coord.terms:
            place.setdefault(t.dim, []).append((axis, t.scale, t.div, t.mod))
    result: list[tuple[str, int, int]] = []
    for name, slices, extent in split:
        where = place.get(name)
        if where is None:
            result.append((REPLICA, slices, 1))
            continue
        match = next(
            (
                other
                for axis, scale, div, mod in where
                for u in target[axis].terms
                for other in (u.dim,)
                if (u.scale, u.div, u.mod) == (scale, div, mod) and target_dims[other] == sizes[name]
            ),
            None,
        )
        if match is None or match in fixed or extent % grains.get(match, 1) or any(match == r for r, _, _ in result):
            return None
        result.append((match, slices, extent))
    return merge_replicas(tuple(result))


def merge_replicas(split: Split) -> Split | None:
    """One replica dim at most: replicas that are neighbours in the core order join, others are not expressible."""
    result: list[tuple[str, int, int]] = []
    for name, slices, extent in split:
        if name == REPLICA and result and result[-1][0] == REPLICA:
            result[-1] = (REPLICA, result[-1][1] * slices, 1)
        elif name == REPLICA and any(r == REPLICA for r, _, _ in result):
            return None
        else:
            result.append((name, slices, extent))
    return tuple(result)
