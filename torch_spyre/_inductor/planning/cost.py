# SPDX-License-Identifier: Apache-2.0
"""What a node costs: the one function through which all plans get their prices.

A node under a split, with each operand in card memory or in the scratchpad, is described as the tile instruction it
will become (`perf.survey.Work`), and the laws of `perf/` price that with the constants of the device description. A
better time model therefore changes the plans by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch_spyre._inductor.planning.matmul_dims import ordered, role
from torch_spyre._inductor.planning.ownership import REPLICA, Split, cores_of
from torch_spyre._inductor.planning.plan_graph import Layout, PlanGraph, PlanNode
from torch_spyre.backend.program.isa import Space
from torch_spyre.formats import BYTES, CODE
from torch_spyre.ir.plan.tileops import Coord
from torch_spyre.perf.device import Device, load
from torch_spyre.perf.matmul import shared_reads
from torch_spyre.perf.requests import STICK_BYTES, Stream, runs
from torch_spyre.perf.survey import Work, over_windows
from torch_spyre.perf.timeline import combine, phase_times

_QUIET = Stream(Space.IMM, -1, 0, 0, 1, 0, 0, 0, ())
_SPACES = (Space.MEM, Space.LX)


@dataclass(frozen=True)
class _Access:
    """One operand, without any split: (dim, byte stride, digit's div and mod) of each address loop."""

    loops: tuple[tuple[str, int, int, int], ...]
    dims: tuple[str, ...]
    element: int  # bytes
    dense: bool


class NodeCost:
    """Prices of one node under any split and any residency of its operands."""

    def __init__(self, graph: PlanGraph, node: PlanNode, device: Device | None = None) -> None:
        self.device = device or load()
        self.node = node
        tiles = ordered(node.tiles) if node.row.is_matmul else node.tiles
        self.sizes = {d.name: d.size for d in tiles if d.name != REPLICA}
        self.order = {name: i for i, name in enumerate(self.sizes)}
        buffers = [graph.buffers[v.buffer] for v in (*node.loads(), node.output)]
        self.layouts = [b.layout for b in buffers]
        self.accesses = [
            _linear(layout, self.sizes) if c is None and layout is not None else _access(c, layout)
            for c, layout in zip(node.accesses, self.layouts, strict=True)
        ]
        self.kind = _kind(node)
        first = next((x for x in self.layouts if x is not None), None)
        self.format = CODE[first.format] if first is not None else CODE["SEN169_FP16"]
        self._known: dict[tuple[Split, int], float] = {}

    def ns(self, split: Split, in_lx: int = 0) -> float:
        """Nanoseconds. Bit i of `in_lx` puts operand i (the result is the last) into the scratchpad."""
        key = (split, in_lx)
        found = self._known.get(key)
        if found is None:
            works = self.works(split, in_lx)
            found = combine(phase_times(works, self.device), self.device) + self._fan_out(works[0])
            self._known[key] = found
        return found

    def _fan_out(self, work: Work) -> float:
        """A slice that more cores read than one multicast reaches leaves memory again: by the law that was measured on
        matmuls, whose price contains it already."""
        if work.kind == "matmul":
            return 0.0
        return sum(shared_reads(s, self.device) for s in work.inputs)

    def works(self, split: Split, in_lx: int) -> list[Work]:
        if self.node.source:
            layout = self.layouts[-1]
            assert layout is not None
            return exchange_works(self.sizes, self.node.source, split, layout)
        cores = cores_of(split)
        extents = dict(self.sizes)
        for name, _, extent in split:
            if name in extents:
                extents[name] = extent
        slices = {name: n for name, n, _ in split}
        ways = math.prod(slices.get(d, 1) for d in self.node.reduced)
        skip = len(extents) - 2 - len(self.node.reduced) if self.kind == "matmul" else 0
        streams = [
            self._stream(a, extents, slices, cores, bool(in_lx >> i & 1), skip) for i, a in enumerate(self.accesses)
        ]
        output, inputs = streams[-1], tuple(streams[:-1])
        box = tuple(extents.values())
        points = math.prod(box)
        depth = len(self.node.reduced) if self.kind == "matmul" else 0
        windows = depth > 1 and sum(role(d) == "k" for d, _ in self.node.dims) > 1
        if depth > 1 and not windows:
            box = (*box[:-depth], math.prod(box[-depth:]))
        row = self.node.row
        name = row.priced_as or row.vector or row.name if self.kind == "vop" else self.kind
        if ways == 1:
            pattern = _pattern(self.node, inputs[0], output) if self.kind == "copy" and inputs else "same"
            work = Work(self.kind, name, cores, points, inputs, output, box, self.format, 1, 0, pattern)
            if not windows:
                return [work]
            right = self.accesses[1].dims if self.accesses[1] is not None else ()
            return [over_windows(work, depth, [d not in right for d in [*extents][: -2 - depth]])]
        partial = _local(output, 4)
        kept = math.prod(n for d, n in extents.items() if d not in self.node.reduced)
        done = cores // ways
        summed = tuple(n for d, n in extents.items() if d not in self.node.reduced)
        sums = Work("ringsum", "ringsum", done, kept, (partial,), output, summed, self.format, ways)
        return [Work(self.kind, name, cores, points, inputs, partial, box, self.format, ways), sums]

    def _stream(
        self, a: _Access | None, extents: Mapping[str, int], slices: Mapping[str, int], cores: int, lx: bool, skip: int
    ) -> Stream:
        if a is None:
            return _QUIET
        space = _SPACES[lx]
        element = a.element if a.dense or lx else STICK_BYTES
        core_bytes = total = element
        distinct, nearest = 1, 0
        for d in a.dims:
            core_bytes *= extents[d]
            total *= self.sizes[d]
            distinct *= slices.get(d, 1)
        loops = []
        for dim, stride, div, mod in a.loops:
            count = -(-extents[dim] // div)
            count = min(count, mod) if mod else count
            if slices.get(dim, 1) > 1 and not mod:
                step = stride * (extents[dim] // div)
                nearest = min(nearest, step) if nearest else step
            if count > 1 and self.order[dim] >= skip:
                loops.append((stride, count, self.order[dim]))
        run, pitch, steps = runs(element, loops)
        return Stream(space, -1, core_bytes, total, max(1, round(cores / distinct)), run, pitch, nearest, steps)


def exchange_ns(sizes: Mapping[str, int], source: Split, target: Split, layout: Layout) -> float:
    """Nanoseconds of a hand-over from one split to another."""
    device = load()
    return combine(phase_times(exchange_works(sizes, source, target, layout), device), device)


def least_exchange_ns(elements: int, layout: Layout) -> float:
    """A bound from below: every core gets that many elements over the ring, by three instructions at least."""
    device = load()
    return elements * BYTES[layout.format] / device["ring.bandwidth"] + 3e3 * device["launch.loop_trip"]


def exchange_works(sizes: Mapping[str, int], source: Split, target: Split, layout: Layout) -> list[Work]:
    """A hand-over as the back end does it: what a core gives is set aside, each gets its parts over the ring, and the
    whole goes to its place."""
    coming, going = ({**sizes, **{n: e for n, _, e in s if n in sizes}} for s in (source, target))
    pieces = math.prod(-(-going[d] // coming[d]) for d in sizes)
    cores, code = cores_of(target), CODE[layout.format]

    def copy(points: int, space: Space) -> Work:
        size = points * BYTES[layout.format]
        inside, outside = (Stream(s, -1, size, size * cores, 1, 0, 0, 0, ()) for s in (space, Space.LX))
        return Work("copy", "copy", cores, points, (inside,), outside, (points,), code)

    given, got = math.prod(coming.values()), math.prod(going.values())
    parts = [copy(got // pieces, Space.LX_REMOTE) for _ in range(pieces)]
    return [copy(given, Space.LX), *parts, copy(got, Space.LX)]


def _local(output: Stream, element: int) -> Stream:
    return Stream(Space.LX, -1, output.core_bytes * element // 2, output.total * 2, 1, 0, 0, 0, ())


def _access(coords: tuple[Coord, ...] | None, layout: Layout | None) -> _Access | None:
    if not coords or layout is None:
        return None
    element = BYTES[layout.format]
    loops: list[tuple[str, int, int, int]] = []
    dims: dict[str, None] = {}
    stride = element
    for coord, size in zip(reversed(coords), reversed(layout.device_size), strict=True):
        for t in coord.terms:
            loops.append((t.dim, t.scale * stride, t.div, t.mod))
            dims[t.dim] = None
        stride *= size
    return _Access(tuple(loops), tuple(dims), element, any(s < STICK_BYTES for _, s, _, _ in loops))


def _linear(layout: Layout, sizes: Mapping[str, int]) -> _Access:
    """A copy that walks by host offset: whole sticks in an order that is not known."""
    return _Access((), tuple(sizes), BYTES[layout.format], True)


def _kind(node: PlanNode) -> str:
    if node.row.is_matmul:
        return "matmul"
    if node.reduced:
        return "reduce"
    return "copy" if node.row.is_move else "vop"


def _pattern(node: PlanNode, source: Stream, target: Stream) -> str:
    """As the survey of a program sees it: another dim in the sticks, or sticks in another order."""
    if not (source.in_memory and target.in_memory) or not (source.order and target.order):
        return "same"
    if source.order[0] != target.order[0]:
        return "restickify"
    if min(len(source.order), len(target.order)) > 1 and source.order[1] != target.order[1]:
        return "reorder"
    return "same"
