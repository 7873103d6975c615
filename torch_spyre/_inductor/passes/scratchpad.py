# SPDX-License-Identifier: Apache-2.0
"""Scratchpad: keeps temporaries in LX where every core reads only what it wrote itself.

Residency is sound by ownership: a temporary may live in LX only if, for each core of each consumer, the slice the
consumer reads starts at the same device coordinates as the slice that core wrote and lies inside it. Everything else
goes through memory. Placement is first fit over live ranges in the part of LX that the back end does not reserve.
"""

from __future__ import annotations

import math

from torch_spyre import knobs
from torch_spyre._inductor.passes.placement import Request, live_ranges, place
from torch_spyre._inductor.tilegraph.graph import Buffer, Graph, Node
from torch_spyre._inductor.tilegraph.index import term_range
from torch_spyre.constants import LX_BYTES
from torch_spyre.ktir.tileops import Coord, Dim, Term

Coords = tuple[Coord, ...]


def run(graph: Graph) -> Graph:
    if not knobs.get("lx_planning"):
        return graph
    capacity = int(LX_BYTES * (1 - knobs.get("dxp_lx_frac_avail")))
    ranges = live_ranges(graph.nodes)
    requests = []
    for buffer in graph.buffers.values():
        local = _local_size(graph, buffer)
        if local is None:
            continue
        buffer.local_size = local
        elements = 1
        for n in local:
            elements *= n
        assert buffer.layout is not None
        first, last = ranges[buffer.name]
        requests.append(Request(buffer.name, elements * 128 // buffer.layout.elems_per_stick, first, last))
    addresses, _ = place(requests, capacity)
    for name, address in addresses.items():
        graph.buffers[name].placement = "lx"
        graph.buffers[name].address = address
    return graph


def explain(graph: Graph) -> list[str]:
    return [
        f"{b.name}: LX+0x{b.address:x} on each core, {list(b.local_size)}"
        for b in graph.buffers.values()
        if b.placement == "lx"
    ]


def core_slices(node: Node, core: int) -> dict[str, int] | None:
    """Slice index of every split dim on a core; None if the core has no work."""
    order = {d.name: d for d in node.tiles}
    index, rest = {}, core
    for name in node.core_order:
        rest, index[name] = divmod(rest, order[name].slices)
    return index if rest == 0 else None


def slice_start(coords: Coords, tiles: tuple[Dim, ...], index: dict[str, int]) -> tuple[int, ...]:
    """Device coordinates of a core's first element."""
    start = {d.name: index.get(d.name, 0) * d.extent for d in tiles}
    return tuple(c.const + sum(t.scale * _digit(t, start[t.dim]) for t in c.terms) for c in coords)


def _digit(t: Term, value: int) -> int:
    value //= t.div
    return value % t.mod if t.mod else value


def extents(coords: Coords, tiles: tuple[Dim, ...]) -> tuple[int, ...]:
    """Device coordinates a full slice spans along each device dim."""
    sizes = {d.name: d.extent for d in tiles}
    return tuple(1 + sum(t.scale * (term_range(t, sizes) - 1) for t in c.terms) for c in coords)


def _dense(coords: Coords, tiles: tuple[Dim, ...], span: tuple[int, ...]) -> bool:
    """Does a slice fill its box? An inner dim that is split leaves holes that other cores own."""
    sizes = {d.name: d.extent for d in tiles}
    return all(n == math.prod(term_range(t, sizes) for t in c.terms) for c, n in zip(coords, span, strict=True))


def _local_size(graph: Graph, buffer: Buffer) -> tuple[int, ...] | None:
    """device_size of one core's part if the buffer may live in LX, else None."""
    if buffer.kind != "temp" or buffer.layout is None:
        return None
    writers = [n for n in graph.nodes if n.output.buffer == buffer.name]
    if len(writers) != 1:
        return None
    writer = writers[0]
    written = writer.accesses[-1]
    if written is None or any(c.const for c in written):
        return None
    if any(d.slices > 1 for d in writer.tiles if d.name in writer.reduced):
        return None
    span = extents(written, writer.tiles)
    if not _dense(written, writer.tiles, span):
        return None
    for node in graph.nodes:
        for load, coords in zip(node.loads(), node.accesses, strict=False):
            if load.buffer == buffer.name and not _owned(writer, written, span, node, coords):
                return None
    return (*span[:-1], buffer.layout.elems_per_stick)


def _owned(writer: Node, written: Coords, span: tuple[int, ...], reader: Node, coords: Coords | None) -> bool:
    """Does every core of the reader find its slice in its own scratchpad?"""
    if coords is None:
        return False
    used = 1
    for d in reader.tiles:
        used *= d.slices
    reach = extents(coords, reader.tiles)
    for core in range(used):
        wrote = core_slices(writer, core)
        reads = core_slices(reader, core)
        if wrote is None or reads is None:
            return False
        begin = slice_start(written, writer.tiles, wrote)
        first = slice_start(coords, reader.tiles, reads)
        if any(f < b or f + r > b + s for f, b, r, s in zip(first, begin, reach, span, strict=True)):
            return False
        split = {d.name for d in reader.tiles if d.slices > 1}
        # Local addressing drops the slice start, so a shifted read is legal only along dims the reader does not
        # split.
        for f, b, c in zip(first, begin, coords, strict=True):
            if f - b != c.const and any(t.dim in split for t in c.terms):
                return False
    return True
