# SPDX-License-Identifier: Apache-2.0
"""Coarse tiling: where the slices of a chain do not fit into LX together, a tile loop runs the chain chunk by chunk.

A group is a run of neighbouring nodes that hand temporaries over in LX and share one iteration dim that none of them
reduces. Temporaries inside the group then hold one trip's chunk. The group and the dim are found by growing from the
node where LX overflows; the number of trips is the smallest that fits, and the loop is kept only if its issue cost is
below the cost of going through memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch_spyre._inductor.passes.hinted import tiles_of
from torch_spyre._inductor.passes.scratchpad import Resident, live_bytes, lives, residents
from torch_spyre._inductor.planning.candidates import granularity, in_sums
from torch_spyre._inductor.planning.ownership import REPLICA
from torch_spyre._inductor.planning.plan_graph import PlanGraph, PlanNode
from torch_spyre.ir.plan.tileops import Coord, Dim
from torch_spyre.perf.device import load

_REREAD_LIMIT = 256 << 10  # bytes that trips may read again without asking
_EXPECTED_TRIPS = 8


def run(graph: PlanGraph) -> PlanGraph:
    room = graph.options.room
    hopeless: set[str] = set()
    number = 0
    if room and any(n.hints.get("tiles") for n in graph.nodes) and graph.options.follows_hints:
        for wanted in _asked(graph):
            number += 1
            _apply(graph, wanted, number)
    while room and len(graph.nodes) > 1:
        found = residents(graph)
        group = _next_group(graph, found, room, hopeless)
        if group is None:
            break
        number += 1
        _apply(graph, group, number)
    return graph


def _asked(graph: PlanGraph) -> list[Group]:
    """Groups that hints ask for: runs of nodes with the same hint that hand over in LX only."""
    found, groups, i = residents(graph), [], 0
    while i < len(graph.nodes):
        wanted = graph.nodes[i].hints.get("tiles")
        j = i
        dims: dict[int, str] = {}
        name = _level(graph.nodes[i], wanted) if wanted else ""
        while wanted and j < len(graph.nodes) and graph.nodes[j].hints.get("tiles") == wanted:
            tiles = _looped(graph.nodes[j], name)
            if not tiles or not _local(graph, found, dims, j) or not _alike(graph, dims, j, tiles[0]):
                graph.nodes[j].notes.append(
                    f"no tile loop along {name}: it cannot run chunk by chunk with its neighbours"
                )
                break
            dims[j] = tiles[0]
            graph.nodes[j].notes += [f"no tile loop along {n} in that along {name}" for n in wanted if n != name]
            j += 1
        if dims and wanted:
            groups.append(_sized(graph, found, Group(dims), wanted[name]))
        i = max(j, i + 1)
    return [g for g in groups if g.trips > 1]


def _looped(node: PlanNode, name: str) -> list[str]:
    """The dims of a node called `name` that a loop may cut."""
    return [t for t in tiles_of(node, name) if t not in node.fixed()]


def _level(node: PlanNode, wanted: Mapping[str, int]) -> str:
    """Of nested hints the outermost that the node can follow: a loop has one dim."""
    return next((n for n in wanted if _looped(node, n)), next(iter(wanted)))


def _alike(graph: PlanGraph, dims: Mapping[int, str], j: int, name: str) -> bool:
    """Does node j cut its dim as the group before it does, so that all make the same trips?"""
    return all(_part_of(graph.nodes[i], d) == _part_of(graph.nodes[j], name) for i, d in dims.items())


def _local(graph: PlanGraph, found: dict[str, Resident], dims: dict[int, str], j: int) -> bool:
    """Does node j read what the group before it writes from LX only?"""
    written = {graph.nodes[i].output.buffer for i in dims}
    return all(v.buffer in found for v in graph.nodes[j].loads() if v.buffer in written)


def _sized(graph: PlanGraph, found: dict[str, Resident], group: Group, trips: int) -> Group:
    group.chunked = _inside(graph, found, group)
    group.trips = min(trips, *(_units(graph, graph.nodes[i], d) for i, d in group.dims.items()))
    return group


def explain(graph: PlanGraph) -> list[str]:
    lines = []
    for number in sorted({n.loop for n in graph.nodes if n.loop}):
        nodes = [n for n in graph.nodes if n.loop == number]
        dim = next(d for d in nodes[0].tiles if d.chunk)
        trips = -(-dim.extent // dim.chunk)
        lines.append(
            f"loop {number}: {trips} trips of {dim.chunk} along {dim.name} around {', '.join(n.name for n in nodes)}"
        )
    return lines


@dataclass
class Group:
    """Nodes `dims.keys()` (by position) with the dim that each is looped over; `hoisted` run before the loop."""

    dims: dict[int, str]
    hoisted: list[int] = field(default_factory=list)
    trips: int = 1
    chunked: set[str] = field(default_factory=set)
    reread: int = 0  # bytes that every further trip reads again, all cores


def _next_group(graph: PlanGraph, found: dict[str, Resident], room: int, hopeless: set[str]) -> Group | None:
    """For the first node at which more is alive than LX holds and that a loop helps; `hopeless` are those without."""
    load_at, near = live_bytes(graph, found), _touching(graph)
    for at, node in enumerate(graph.nodes):
        if load_at[at] > room and node.name not in hopeless and not node.loop:
            group = _best_group(graph, found, near, at, room)
            if group is not None and _pays(group, found, room):
                return group
            hopeless.add(node.name)
    return None


def _touching(graph: PlanGraph) -> dict[str, list[int]]:
    """Buffer -> positions of the nodes that read or write it."""
    near: dict[str, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for name in _buffers(node):
            near.setdefault(name, []).append(i)
    return near


def _buffers(node: PlanNode) -> set[str]:
    return {node.output.buffer, *(v.buffer for v in node.loads())}


def _best_group(
    graph: PlanGraph, found: dict[str, Resident], near: Mapping[str, list[int]], at: int, room: int
) -> Group | None:
    node = graph.nodes[at]
    ranges = lives(graph, found)
    fixed = node.fixed()
    best: tuple[tuple[int, int, int], Group] | None = None
    for dim in node.tiles:
        if dim.name in fixed or dim.name == REPLICA or dim.extent < 2 or node.row.has_table or node.source:
            continue
        group = _grow(graph, found, near, at, dim.name)
        if _fit(graph, found, ranges, group, room):
            key = (group.reread * (group.trips - 1), group.trips, -len(group.dims))
            if best is None or key < best[0]:
                best = (key, group)
    return best[1] if best else None


def _grow(graph: PlanGraph, found: dict[str, Resident], near: Mapping[str, list[int]], at: int, dim: str) -> Group:
    """Extends backwards, then forwards, as long as neighbours share the dim."""
    group = Group({at: dim})
    i = at - 1
    while i >= 0 and (joined := _joins(graph, found, near, group, i)):
        group.dims[i] = joined
        i -= 1
    i = at + 1
    while i < len(graph.nodes):
        joined = _joins(graph, found, near, group, i)
        if joined is None and _independent(graph, group.dims, i):
            group.hoisted.append(i)
        elif joined:
            group.dims[i] = joined
        else:
            break
        i += 1
    group.hoisted = [h for h in group.hoisted if h < max(group.dims)]
    group.reread = sum(_reread(graph, found, graph.nodes[i], d) for i, d in group.dims.items())
    return group


def _joins(
    graph: PlanGraph, found: dict[str, Resident], near: Mapping[str, list[int]], group: Group, i: int
) -> str | None:
    """The dim of node i that the loop would cut; None if it is not linked to the group, "" if it cannot join."""
    node = graph.nodes[i]
    linked: set[str] = set()
    handed = 0  # bytes that would go through memory if the node stayed outside
    for j in {j for name in _buffers(node) for j in near[name]} & group.dims.keys():
        dim = group.dims[j]
        first, second, known_first = (graph.nodes[j], node, True) if j < i else (node, graph.nodes[j], False)
        if second.output.buffer not in found and second.output.buffer in _buffers(first):
            return ""  # the trips of different cores are not in step
        for value, coords in zip(second.loads(), second.accesses, strict=False):
            if value.buffer != first.output.buffer:
                continue
            if value.buffer not in found or coords is None:
                return ""
            written, layout = first.accesses[-1], graph.buffers[value.buffer].layout
            assert written is not None and layout is not None
            handed += layout.bytes
            linked.add(_same_dim(written, coords, dim) if known_first else _same_dim(coords, written, dim))
    if not linked:
        return None
    dim = linked.pop()
    if linked or not dim or dim in node.fixed() or node.loop or node.row.has_table or node.source or dim == REPLICA:
        return ""
    if (_part_of(node, dim)) != _part_of(*next((graph.nodes[j], d) for j, d in group.dims.items())):
        return ""
    again = _EXPECTED_TRIPS * _reread(graph, found, node, dim)
    return dim if again <= max(_REREAD_LIMIT, 2 * handed) else ""


def _part_of(node: PlanNode, name: str) -> tuple[int, int, int]:
    dim = next(d for d in node.tiles if d.name == name)
    return dim.size, dim.slices, dim.extent


def _same_dim(source: tuple[Coord, ...], target: tuple[Coord, ...], dim: str) -> str:
    """The dim of `target` that moves along the tensor as `dim` does in `source`; "" if there is none."""
    names: set[str] = set()
    for a, b in zip(source, target, strict=True):
        for t in a.terms:
            if t.dim == dim:
                names.add(next((u.dim for u in b.terms if (u.scale, u.div, u.mod) == (t.scale, t.div, t.mod)), ""))
    return names.pop() if len(names) == 1 else ""


def _independent(graph: PlanGraph, others: Iterable[int], i: int) -> bool:
    """Could node i run before those others?"""
    node = graph.nodes[i]
    reads = {v.buffer for v in node.loads()}
    for j in others:
        other = graph.nodes[j]
        if other.output.buffer in reads or other.output.buffer == node.output.buffer:
            return False
        if node.output.buffer in {v.buffer for v in other.loads()}:
            return False
    return True


def reread(graph: PlanGraph, node: PlanNode, dim: str) -> int:
    """What each further trip reads again from memory, as everything is placed."""
    return _reread(graph, {n for n, b in graph.buffers.items() if b.placement == "lx"}, node, dim)


def _reread(graph: PlanGraph, found: Container[str], node: PlanNode, dim: str) -> int:
    """Bytes that each trip reads from memory again because they do not depend on the looped dim, shared ones once."""
    total = 0
    sizes = {d.name: d.size for d in node.tiles}
    for value, coords in zip(node.loads(), node.accesses, strict=False):
        layout = graph.buffers[value.buffer].layout
        if coords and layout is not None and value.buffer not in found:
            used = {t.dim for c in coords for t in c.terms}
            if dim not in used:
                elements = 1
                for d in used:
                    elements *= sizes[d]
                total += elements * 128 // layout.elems_per_stick
    return total


def _fit(
    graph: PlanGraph, found: dict[str, Resident], ranges: Mapping[str, tuple[int, int]], group: Group, room: int
) -> bool:
    """Finds the least number of trips with which everything alive in the group fits."""
    inside = group.chunked = _inside(graph, found, group)
    units = min(_units(graph, graph.nodes[i], d) for i, d in group.dims.items())
    span = (min(group.dims), max(group.dims))
    even = any(d in in_sums(graph.nodes[i]) for i, d in group.dims.items())
    if even and not all(_dim(graph.nodes[i], d).even for i, d in group.dims.items()):
        return False

    def fits(trips: int) -> bool:
        live = live_bytes(graph, found, dict.fromkeys(inside, (-(-units // trips), units)), span, ranges)
        return all(live[i] <= room for i in group.dims)

    # More trips never need more room, so the least number that fits is found by halving.
    for trips in range(2 + bisect_left(range(2, units + 1), True, key=fits), units + 1):
        if even and units % trips:
            continue
        if units <= 8 or trips <= 8 or trips % 4 == 0 or trips == units:
            group.trips = trips
            return True
    return False


def _dim(node: PlanNode, name: str) -> Dim:
    return next(d for d in node.tiles if d.name == name)


def _inside(graph: PlanGraph, found: dict[str, Resident], group: Group) -> set[str]:
    """Buffers in LX that nobody outside the group reads."""
    inside = {graph.nodes[i].output.buffer for i in group.dims} & found.keys()
    for i, node in enumerate(graph.nodes):
        if i not in group.dims:
            inside -= {v.buffer for v in node.loads()} | {node.output.buffer}
    return inside


def _units(graph: PlanGraph, node: PlanNode, name: str) -> int:
    dim = next(d for d in node.tiles if d.name == name)
    return -(-dim.extent // granularity(graph, node)[name])


def _pays(group: Group, found: dict[str, Resident], room: int) -> bool:
    """Issue of further trips and bytes read again, against the bytes that would go to memory and back."""
    device = load()
    extra = (group.trips - 1) * len(group.dims) * device["launch.loop_trip"] * 1e3
    extra += (group.trips - 1) * group.reread / device["memory.bandwidth"]
    most = max((found[n].bytes for n in group.chunked), default=0)
    return extra < 2 * most * device["cores.count"] / device["memory.bandwidth"]


def _apply(graph: PlanGraph, group: Group, number: int) -> None:
    grain = max(granularity(graph, graph.nodes[j])[d] for j, d in group.dims.items())
    for i, name in group.dims.items():
        node = graph.nodes[i]
        dim = next(d for d in node.tiles if d.name == name)
        units = -(-dim.extent // grain)
        chunk = -(-units // group.trips) * grain
        node.tiles = tuple(replace(d, chunk=chunk) if d.name == name else d for d in node.tiles)
        node.loop = number
        graph.buffers[node.output.buffer].chunked = node.output.buffer in group.chunked
    order = sorted(group.dims)
    before = list(range(order[0])) + sorted(group.hoisted)
    graph.nodes = [graph.nodes[i] for i in (*before, *order, *(j for j in range(order[-1] + 1, len(graph.nodes))))]
