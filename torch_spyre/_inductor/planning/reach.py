# SPDX-License-Identifier: Apache-2.0
"""Reach: how many bytes of a tensor one execution of a node goes over on one core, and how trips shorten that.

The machine addresses 256 MiB of one tensor from where an operation starts. A node that goes further walks its slice in
trips, each an execution of its own: `trips_for` says along which dims, and how much of each a trip takes. Dims that
must be done at once (a reduced one, that of a scan) are not among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch_spyre import constants
from torch_spyre._inductor.passes.coordinates import rewrite_index
from torch_spyre._inductor.planning.candidates import granularity, in_sums
from torch_spyre._inductor.planning.ownership import REPLICA
from torch_spyre._inductor.planning.plan_graph import Layout, PlanGraph, PlanNode
from torch_spyre.constants import STICK_BYTES
from torch_spyre.ir.plan.tileops import Coord, Term
from torch_spyre.optable import Kind

Operand = tuple[int, Layout, tuple[Coord, ...] | None, Coord]  # number, layout, device coordinates, linear offset


def operands(graph: PlanGraph, node: PlanNode) -> Iterator[Operand]:
    """Operands in memory that are larger than the span; a shorter one cannot be too long."""
    for i, (value, coords) in enumerate(zip((*node.loads(), node.output), node.accesses, strict=True)):
        buffer = graph.buffers[value.buffer]
        layout = buffer.layout
        if layout is None or buffer.placement != "memory" or layout.bytes <= constants.MAX_SPAN_BYTES:
            continue
        yield i, layout, coords, rewrite_index(node, value.index) if coords is None else Coord()


def device_strides(layout: Layout) -> list[int]:
    """Bytes of one step along each device dim."""
    strides = [STICK_BYTES // layout.elems_per_stick]
    for n in reversed(layout.device_size[1:]):
        strides.insert(0, strides[0] * n)
    return strides


def reach(operand: Operand, extents: Mapping[str, int]) -> int:
    """Bytes between the first and the last element, as the back end counts them; dims that are not given stay."""
    _, layout, coords, offset = operand
    strides = device_strides(layout)
    if coords is None:
        return _linear_reach(layout, strides, offset, extents)
    total = 0
    for coord, stride, size in zip(coords, strides, layout.device_size, strict=True):
        steps = sum(abs(t.scale) * _steps(t, extents) for t in coord.terms)
        total += stride * min(steps, size - 1)
    return total


def _steps(term: Term, extents: Mapping[str, int]) -> int:
    """Slices and trips are whole sticks and whole units of every digit."""
    steps = (extents.get(term.dim, 1) - 1) // term.div
    return min(steps, term.mod - 1) if term.mod else steps


def _linear_reach(layout: Layout, strides: list[int], offset: Coord, extents: Mapping[str, int]) -> int:
    """Device dims take the quotients of the offset, the greatest host stride first."""
    way = sum(abs(t.scale) * _steps(t, extents) for t in offset.terms)
    total = 0
    for (host, size), stride in zip(layout.axes(), strides, strict=True):
        if size > 1 and host > 0:
            total += stride * min(-(-way // host), size - 1)
    return total


def excess(graph: PlanGraph, node: PlanNode, extents: Mapping[str, int]) -> tuple[int, Operand] | None:
    """The operand that goes furthest, if that is further than the span."""
    worst = max(((reach(o, extents), o) for o in operands(graph, node)), key=lambda r: r[0], default=None)
    return worst if worst is not None and worst[0] > constants.MAX_SPAN_BYTES else None


def whole_dims(node: PlanNode) -> set[str]:
    """Dims that one execution must do whole. What a scatter writes to one place comes in the order of its source: trips
    keep that along dims that tell places in the table apart, and along the outermost of the others."""
    if node.row.kind is not Kind.SCATTER:
        return {*node.reduced, node.along} - {""}
    fixed = node.fixed()
    outermost = next((d.name for d in node.tiles if d.size > 1 and d.name in fixed), "")
    return fixed - {outermost}


def trips_for(graph: PlanGraph, node: PlanNode, pieces: int = 1) -> dict[str, int] | None:
    """Elements of each dim that one trip takes, so that the node stays within the span and does at most 1/`pieces` of
    its slice at once; None if there are no such trips. A node that needs less scratch than it would take, and does
    some dims whole, gets trips of one size: the back end puts tiles that may end early together in scratch."""
    alike = pieces > 1 and bool(whole_dims(node))
    steps = _Steps(graph, node, granularity(graph, node), alike)
    start = math.prod(d.extent for d in node.tiles)
    extents, far = _within_span(graph, node, steps)
    if far is not None:
        return None
    while math.prod(extents.values()) * pieces > start:
        outer = steps.free(extents)
        if not outer:
            return extents if alike else None
        extents[outer[0]] = steps.smaller(outer[0], extents[outer[0]])
    return extents


def stuck(graph: PlanGraph, node: PlanNode) -> int | None:
    """The operand that reaches too far, however short the trips are."""
    return _within_span(graph, node, _Steps(graph, node, granularity(graph, node), False))[1]


def _within_span(graph: PlanGraph, node: PlanNode, steps: _Steps) -> tuple[dict[str, int], int | None]:
    """What one trip takes of each dim, and the operand that still reaches too far, if any."""
    extents = {d.name: d.chunk or d.extent for d in node.tiles}
    while (found := excess(graph, node, extents)) is not None:
        operand = found[1]
        reaching = [d for d in steps.free(extents) if reach(operand, {d: extents[d]})]
        if not reaching:
            return extents, operand[0]
        widest = max(reaching, key=lambda d: reach(operand, {d: extents[d]}))
        extents[widest] = steps.smaller(widest, extents[widest])
    return extents, None


class _Steps:
    """How far each dim of a node can be shortened."""

    def __init__(self, graph: PlanGraph, node: PlanNode, grains: Mapping[str, int], alike: bool) -> None:
        self.dims = {d.name: d for d in node.tiles}
        self.grains = grains
        self.even = set(self.dims) if alike else in_sums(node)
        self.whole = whole_dims(node) | {REPLICA}
        self.order = _outermost_first(graph, node)

    def free(self, extents: Mapping[str, int]) -> list[str]:
        """Dims that can become shorter, those with the longest steps in memory first."""
        return [d for d in self.order if d not in self.whole and self.smaller(d, extents[d]) < extents[d]]

    def smaller(self, name: str, extent: int) -> int:
        """About half as much, in whole sticks; where that is one stick, a power of two, which never crosses one. Parts
        of dims that move together must all be of one size."""
        dim, grain = self.dims[name], self.grains.get(name, 1)
        units = -(-extent // grain)
        half = (units + 1) // 2 * grain
        if half >= extent:
            half = 1 << (extent - 1).bit_length() >> 1 if extent > 1 else 1
        if name not in self.even:
            return half
        if not dim.even:
            return extent
        sizes = (n for n in range(half, 0, -1) if dim.extent % n == 0 and (n % grain == 0 or n & (n - 1) == 0))
        return next(sizes, extent)


def _outermost_first(graph: PlanGraph, node: PlanNode) -> list[str]:
    """Dims by their step in the result, or in the largest operand where the result does not move."""
    longest = dict.fromkeys((d.name for d in node.tiles), 0)
    for value, coords in zip((*node.loads(), node.output), node.accesses, strict=True):
        layout = graph.buffers[value.buffer].layout
        if layout is None or not coords:
            continue
        for coord, stride in zip(coords, device_strides(layout), strict=True):
            for t in coord.terms:
                longest[t.dim] = max(longest.get(t.dim, 0), abs(t.scale) * stride // t.div)
    return sorted((d.name for d in node.tiles), key=lambda d: -longest[d])


def walk_in_trips(node: PlanNode, extents: Mapping[str, int], loop: int) -> None:
    """Writes trips into the node's tiles."""
    node.tiles = tuple(replace(d, chunk=extents[d.name] if extents[d.name] < d.extent else 0) for d in node.tiles)
    node.loop = loop
