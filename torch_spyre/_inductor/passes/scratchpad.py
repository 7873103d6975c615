# SPDX-License-Identifier: Apache-2.0
"""Scratchpad: keeps temporaries in LX where every core reads only what it wrote itself.

Residency is sound by ownership: a temporary may live in LX only if, for each core of each consumer, the slice the
consumer reads starts at the same device coordinates as the slice that core wrote and is inside it. Everything else
goes through memory. Addresses come from live ranges, in the part of LX that the back end does not reserve; the result
of an elementwise node takes the place of an operand that dies there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from torch_spyre._inductor.planning.candidates import granularity, in_sums
from torch_spyre._inductor.planning.ownership import REPLICA, Part, apply, holds, part, split_of, union
from torch_spyre._inductor.planning.placement import Request, live_ranges, place
from torch_spyre._inductor.planning.plan_graph import PlanBuffer, PlanGraph, PlanNode
from torch_spyre._inductor.tilegraph.graph import Load
from torch_spyre.ir.plan.tileops import Coord
from torch_spyre.optable import Kind

Coords = tuple[Coord, ...]
_MOST_TRIPS = 64


@dataclass(frozen=True)
class Resident:
    """A buffer that may live in LX: device_size of one core's part, and its bytes."""

    local_size: tuple[int, ...]
    bytes: int


def run(graph: PlanGraph) -> PlanGraph:
    room = graph.options.room
    while True:
        found = residents(graph) if room else {}
        addresses, _ = place(requests(graph, found), room)
        if not _repair(graph, set(addresses)):
            break
    for name, address in addresses.items():
        buffer = graph.buffers[name]
        buffer.placement, buffer.address, buffer.local_size = "lx", address, found[name].local_size
    return graph


def explain(graph: PlanGraph) -> list[str]:
    return [
        f"{b.name}: LX+0x{b.address:x} on each core, {list(b.local_size)}{' per trip' if b.chunked else ''}"
        for b in graph.buffers.values()
        if b.placement == "lx"
    ]


def residents(graph: PlanGraph) -> dict[str, Resident]:
    """All buffers that may live in LX."""
    writers: dict[str, list[PlanNode]] = {}
    readers: dict[str, list[tuple[PlanNode, Coords | None]]] = {}
    for node in graph.nodes:
        writers.setdefault(node.output.buffer, []).append(node)
        for load, coords in zip(node.loads(), node.accesses, strict=False):
            readers.setdefault(load.buffer, []).append((node, coords))
    result = {}
    memory_only = _between_bundles(graph) | _restickified(graph) if graph.options.for_sdsc else set()
    for buffer in graph.buffers.values():
        wrote = writers.get(buffer.name, [])
        if buffer.kind != "temp" or buffer.layout is None or not wrote:
            continue
        if buffer.name in memory_only:
            continue
        held = union([result_part(node) for node in wrote])
        if held is not None and all(_reads_own(held, *reader) for reader in readers.get(buffer.name, ())):
            result[buffer.name] = _resident(buffer, wrote, held)
    return result


def _between_bundles(graph: PlanGraph) -> set[str]:
    """Buffers that are touched in several bundles, or between them: a node without words in SuperDSC ends a bundle."""
    found: dict[str, set[int]] = {}
    number = 0
    for node in graph.nodes:
        if bool(node.wordless) != bool(number % 2):  # odd numbers: between bundles
            number += 1
        for value in (*node.loads(), node.output):
            found.setdefault(value.buffer, set()).add(number)
    return {name for name, numbers in found.items() if len(numbers) > 1 or any(n % 2 for n in numbers)}


def _restickified(graph: PlanGraph) -> set[str]:
    """Both sides of copies that change the stick dim, which SuperDSC does from memory to memory."""
    found: set[str] = set()
    for node in graph.nodes:
        lanes = {frozenset(t.dim for t in coords[-1].terms) for coords in node.accesses if coords}
        if node.row.is_copy and len(lanes) > 1:
            found |= {value.buffer for value in (*node.loads(), node.output)}
    return found


def _resident(buffer: PlanBuffer, writers: Sequence[PlanNode], held: Part) -> Resident:
    assert buffer.layout is not None
    extents = held.extents
    if buffer.chunked:  # a chunk may leave holes in its box, which nobody touches
        trips = [part(w.accesses[-1] or (), {d.name: d.chunk or d.extent for d in w.tiles}, ()) for w in writers]
        spans = [[c + n for c, n in zip(t.consts, t.extents, strict=True)] for t in trips if t is not None]
        extents = tuple(map(max, *spans)) if len(spans) > 1 else tuple(spans[0])
    local = (*extents[:-1], buffer.layout.elems_per_stick)
    return Resident(local, math.prod(local[:-1]) * 128)


def result_part(node: PlanNode) -> Part | None:
    """What each core holds of a node's result, if it could stay in LX."""
    split, written = split_of(node), node.accesses[-1]
    if written is None or any(name in node.reduced for name, _, _ in split):
        return None
    sizes = {d.name: d.size for d in node.tiles}
    if node.top is not None:
        sizes[node.along] = node.top.count
    return part(written, sizes, split)


def _reads_own(held: Part, reader: PlanNode, coords: Coords | None) -> bool:
    if coords is None or reader.row.has_table:
        return False
    wanted = part(coords, {d.name: d.size for d in reader.tiles}, reader.source or split_of(reader))
    return wanted is not None and holds(held, wanted)


def requests(graph: PlanGraph, found: dict[str, Resident]) -> list[Request]:
    ranges = lives(graph, found)
    parents = {node.output.buffer: parent(graph, node, found) for node in graph.nodes}
    return [Request(n, r.bytes, *ranges[n], parents[n]) for n, r in found.items()]


def lives(graph: PlanGraph, found: Mapping[str, Resident]) -> dict[str, tuple[int, int]]:
    return live_ranges(graph.nodes, {n for n in found if graph.buffers[n].chunked})


def live_bytes(
    graph: PlanGraph,
    found: Mapping[str, Resident],
    parts: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    span: tuple[int, int] | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> list[int]:
    """LX bytes alive at each node.

    `parts` are buffers that a tile loop over `span` would shrink to m of n units; whatever else the loop touches would
    live through it. `ranges` are `lives` of the graph, where they are known.
    """
    ranges = lives(graph, found) if ranges is None else ranges
    total = [0] * (len(graph.nodes) + 1)
    for name, resident in found.items():
        first, last = ranges[name]
        if span is not None and name not in parts and first <= span[1] and span[0] <= last:
            first, last = min(first, span[0]), max(last, span[1])
        some, units = parts.get(name, (1, 1))
        size = -(-resident.bytes * some // units)
        total[first] += size
        total[last + 1] -= size
    for i in range(1, len(total)):
        total[i] += total[i - 1]
    return total[:-1]


def parent(graph: PlanGraph, node: PlanNode, found: Mapping[str, object]) -> str:
    """The operand whose bytes an elementwise result may take: read at the very coordinates that are written."""
    if node.row.kind is not Kind.POINTWISE or node.output.buffer not in found:
        return ""
    mine = graph.buffers[node.output.buffer]
    reads = list(zip(node.loads(), node.accesses, strict=False))
    for load, coords in reads:
        other = graph.buffers[load.buffer]
        if (
            load.buffer in found
            and coords == node.accesses[-1]
            and found[load.buffer] == found[mine.name]
            and (other.chunked, other.layout and other.layout.format)
            == (mine.chunked, mine.layout and mine.layout.format)
            and all(c == coords for v, c in reads if v.buffer == load.buffer)
        ):
            return load.buffer
    return ""


def _repair(graph: PlanGraph, placed: set[str]) -> bool:
    """Undoes what only works in LX where LX had no room: replication and tile loops. True if something changed."""
    for node in graph.nodes:
        if node.source and not {node.output.buffer, *(v.buffer for v in node.loads())} <= placed:
            undo(graph, node)
            return True
    changed = False
    for node in graph.nodes:
        if node.output.buffer not in placed and any(name == REPLICA for name in node.core_order):
            apply(node, tuple(p for p in split_of(node) if p[0] != REPLICA))
            changed = True
    broken = {
        n.loop
        for n in graph.nodes
        if n.loop and graph.buffers[n.output.buffer].chunked and n.output.buffer not in placed
    }
    for number in sorted(broken):
        nodes = [n for n in graph.nodes if n.loop == number]
        if not more_trips(graph, nodes):
            for node in nodes:
                unroll(graph, node)
        changed = True
    return changed


def undo(graph: PlanGraph, node: PlanNode) -> None:
    """Lets the readers of a hand-over read what it moved, in memory."""
    moved, source = node.output.buffer, next(node.loads()).buffer
    for other in graph.nodes:
        other.inputs = tuple(
            Load(source, v.index) if isinstance(v, Load) and v.buffer == moved else v for v in other.inputs
        )
    graph.nodes = [n for n in graph.nodes if n is not node]
    del graph.buffers[moved]


def more_trips(graph: PlanGraph, nodes: Sequence[PlanNode], most: float = _MOST_TRIPS) -> bool:
    """Makes the chunks of a tile loop smaller by at least one stick; False if they are that small already."""
    looped = [next(d for d in n.tiles if d.chunk) for n in nodes]
    grain = max(granularity(graph, n)[d.name] for n, d in zip(nodes, looped, strict=True))
    trips = -(-looped[0].extent // looped[0].chunk)
    units = -(-looped[0].extent // grain)
    smaller = min(-(-units // (trips + 1)), looped[0].chunk // grain - 1) * grain
    even = any(d.name in in_sums(n) for n, d in zip(nodes, looped, strict=True))
    while even and smaller > 0 and looped[0].extent % smaller:
        smaller -= grain
    if smaller <= 0 or -(-looped[0].extent // smaller) > most:
        return False
    for node in nodes:
        node.tiles = tuple(replace(d, chunk=smaller) if d.chunk else d for d in node.tiles)
    return True


def unroll(graph: PlanGraph, node: PlanNode) -> None:
    """Takes a node out of its tile loop: it does its whole slice at once."""
    node.loop = 0
    node.tiles = tuple(replace(d, chunk=0) for d in node.tiles)
    graph.buffers[node.output.buffer].chunked = False
