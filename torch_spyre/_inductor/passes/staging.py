# SPDX-License-Identifier: Apache-2.0
"""Staging: what several nodes of a chain read from memory with the same split is loaded into LX once.

The copy is one more node; it stays if the time model says that the reads it saves cost more.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch_spyre._inductor.passes.scratchpad import live_bytes, residents
from torch_spyre._inductor.planning.cost import NodeCost
from torch_spyre._inductor.planning.ownership import REPLICA, Part, Split, apply, merge_replicas, part, split_of
from torch_spyre._inductor.planning.plan_graph import PlanGraph, PlanNode
from torch_spyre._inductor.tilegraph.graph import Load

Reader = tuple[int, int]  # (position of the node, number of the operand)


def run(graph: PlanGraph) -> PlanGraph:
    room = graph.options.room
    if not room or len(graph.nodes) < 2:
        return graph
    found = residents(graph)
    groups: dict[tuple[str, Part], list[Reader]] = {}
    written = {n.output.buffer: i for i, n in enumerate(graph.nodes)}
    for i, node in enumerate(graph.nodes):
        if node.row.has_table or node.source:
            continue
        sizes = {d.name: d.size for d in node.tiles}
        for j, (value, coords) in enumerate(zip(node.loads(), node.accesses, strict=False)):
            if coords and value.buffer not in found and written.get(value.buffer, -1) < i:
                held = part(coords, sizes, split_of(node))
                if held is not None and held.dense and not any(held.consts):
                    groups.setdefault((value.buffer, held), []).append((i, j))
    copies: list[tuple[int, PlanNode]] = []
    busy = live_bytes(graph, found)
    for (name, held), readers in groups.items():
        first, last = readers[0][0], readers[-1][0]
        widest = _widest(graph, name, readers)
        if widest is not None and last > first and max(busy[first : last + 1]) + _bytes(graph, name, held) <= room:
            copy = _staged(graph, name, readers, widest)
            if copy is not None:
                copies.append((readers[0][0], copy))
    for at, copy in sorted(copies, key=lambda c: -c[0]):
        graph.nodes.insert(at, copy)
    return graph


def explain(graph: PlanGraph) -> list[str]:
    return [f"{n.name}: {n.notes[0]}" for n in graph.nodes if n.name.startswith("stage_")]


def _bytes(graph: PlanGraph, name: str, held: Part) -> int:
    layout = graph.buffers[name].layout
    assert layout is not None
    return held.elements * 128 // layout.elems_per_stick


def _widest(graph: PlanGraph, name: str, readers: list[Reader]) -> Reader | None:
    """The reader that reads all that the others do; None if there is none.

    They agree on their parts, which count whole sticks: one may still read fewer elements of its last stick, or fewer
    rows on the last core.
    """

    def shape(reader: Reader) -> list[tuple[int, ...]]:
        node = graph.nodes[reader[0]]
        sizes = {d.name: d.size for d in node.tiles}
        coords = node.accesses[reader[1]] or ()
        return [(sizes[t.dim], t.scale, t.div, t.mod) for c in coords for t in c.terms]

    def covers(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> bool:
        return len(one) == len(other) and all(a[0] >= b[0] and a[1:] == b[1:] for a, b in zip(one, other, strict=True))

    shapes = [shape(r) for r in readers]
    whole = graph.buffers[name].numel
    for reader, one in zip(readers, shapes, strict=True):
        if _elements(graph, reader) == whole or all(covers(one, other) for other in shapes):
            return reader
    return None


def _elements(graph: PlanGraph, reader: Reader) -> int:
    node = graph.nodes[reader[0]]
    used = {t.dim for c in node.accesses[reader[1]] or () for t in c.terms}
    return math.prod(d.size for d in node.tiles if d.name in used)


def _staged(graph: PlanGraph, name: str, readers: list[Reader], widest: Reader) -> PlanNode | None:
    """The copy node, with all readers reading its result; None if it does not pay."""
    copy, split = _copy_node(graph, name, widest)
    if split is None:
        return None
    gain = 0.0
    for i, _ in readers:
        node = graph.nodes[i]
        bits = sum(1 << j for r, j in readers if r == i)
        cost = NodeCost(graph, node)
        gain += (cost.ns(split_of(node), 0) - cost.ns(split_of(node), bits)) / len({j for r, j in readers if r == i})
    spent = NodeCost(graph, copy).ns(split, 1 << 1)
    if spent >= gain:
        del graph.buffers[copy.output.buffer]
        return None
    for i, _ in readers:
        node = graph.nodes[i]
        node.inputs = tuple(
            Load(copy.output.buffer, v.index) if isinstance(v, Load) and v.buffer == name else v for v in node.inputs
        )
    copy.notes.append(f"{name} is read {len(readers)} times: staging saves {(gain - spent) / 1e3:.1f} us")
    return copy


def _copy_node(graph: PlanGraph, name: str, reader: Reader) -> tuple[PlanNode, Split | None]:
    """A copy of what one reader reads, on the reader's cores."""
    node = graph.nodes[reader[0]]
    load = list(node.loads())[reader[1]]
    coords = node.accesses[reader[1]]
    assert coords is not None
    used = {t.dim for c in coords for t in c.terms}
    source = graph.buffers[name]
    temp = f"{name}_lx{len(graph.buffers)}"
    graph.buffers[temp] = replace(source, name=temp, kind="temp", returned_as=None, placement="memory", address=0)
    dims = tuple(d for d in node.dims if any(u == d[0] or u.startswith(f"{d[0]}.") for u in used))
    copy = PlanNode(f"stage_{name}_{reader[0]}", "identity", dims, (load,), Load(temp, load.index), origin=node.origin)
    copy.tiles = tuple(d for d in node.tiles if d.name in used)
    copy.accesses = (coords, coords)
    split = merge_replicas(tuple(p if p[0] in used else (REPLICA, p[1], 1) for p in split_of(node)))
    if split is not None:
        apply(copy, split)
    return copy, split
