# SPDX-License-Identifier: Apache-2.0
"""Hand-over: a temporary whose readers cut it otherwise than its writer goes from LX to LX over the ring.

A matmul leaves tiles of rows and columns, the norm after it wants whole rows: each core needs a little from each of a
few others. The time model decides between that exchange and the way through memory, for all readers of a buffer at
once, because a buffer is in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch_spyre._inductor.passes.scratchpad import live_bytes, residents, result_part
from torch_spyre._inductor.planning.cost import NodeCost
from torch_spyre._inductor.planning.ownership import (
    REPLICA,
    Coords,
    Part,
    Split,
    apply,
    holds,
    merge_replicas,
    part,
    split_of,
    translate,
)
from torch_spyre._inductor.planning.plan_graph import PlanGraph, PlanNode
from torch_spyre._inductor.tilegraph.graph import Load
from torch_spyre.ir.plan.handover_groups import Groups, groups
from torch_spyre.ir.plan.tileops import Dim

OP = "handover"
Reader = tuple[int, int]  # (position of the node, number of the operand)


def run(graph: PlanGraph) -> PlanGraph:
    room = graph.options.room
    if not room or len(graph.nodes) < 2:
        return graph
    found = residents(graph)
    busy = live_bytes(graph, found)
    readers: dict[str, list[Reader]] = {}
    writers: dict[str, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        writers.setdefault(node.output.buffer, []).append(i)
        for j, value in enumerate(node.loads()):
            readers.setdefault(value.buffer, []).append((i, j))
    inserted: list[tuple[int, PlanNode]] = []
    for name, (writer, *others) in writers.items():
        if graph.buffers[name].kind == "temp" and not others and name not in found and name in readers:
            inserted += _exchanged(graph, name, writer, readers[name], busy, room)
    for at, node in sorted(inserted, key=lambda n: -n[0]):
        graph.nodes.insert(at, node)
    return graph


def explain(graph: PlanGraph) -> list[str]:
    return [f"{n.name}: {n.notes[0]}" for n in graph.nodes if n.op == OP]


def exchange(
    source: Split,
    written: Coords,
    source_sizes: Mapping[str, int],
    target: Split,
    read: Coords,
    sizes: Mapping[str, int],
) -> tuple[Split, Split, Groups] | None:
    """The writer's split and the reader's, both in the reader's dims, and who exchanges with whom; None if one exchange
    does not do it or needs more of LX than the back end has."""
    coming = translate(source, written, source_sizes, read, sizes, (), {})
    used = {t.dim for c in read for t in c.terms}
    going = merge_replicas(tuple(p if p[0] in used else (REPLICA, p[1], 1) for p in target))
    if coming is None or going is None or any(name == REPLICA for name, _, _ in coming):
        return None
    dims = [(d, n) for d, n in sizes.items() if d in used]
    found = groups(_dims(dims, coming), [p[0] for p in coming], _dims(dims, going), [p[0] for p in going])
    return None if found is None or (found.pieces == 1 and not found.split) else (coming, going, found)


def movable(held: Part, wanted: Part, elems_per_stick: int, room: int, scratch: float) -> bool:
    """Are both parts plain boxes that fit into LX, and what a core gives and gets into the back end's share of it?"""
    if not (held.dense and wanted.dense) or any(held.consts) or any(wanted.consts):
        return False
    sizes = [p.elements * 128 // elems_per_stick for p in (held, wanted)]
    return max(sizes) <= room and sum(sizes) <= scratch


def _dims(sizes: Sequence[tuple[str, int]], split: Split) -> list[Dim]:
    cut = {name: (slices, extent) for name, slices, extent in split}
    dims = [Dim(name, size, *cut.get(name, (1, 0))) for name, size in sizes]
    return dims + [Dim(REPLICA, n, n, 1) for name, n, _ in split if name == REPLICA]


def source_dims(node: PlanNode) -> tuple[Dim, ...]:
    """The dims of a hand-over as its input is split."""
    return tuple(_dims([(d.name, d.size) for d in node.tiles if d.name != REPLICA], node.source))


def _exchanged(
    graph: PlanGraph, name: str, writer: int, readers: Sequence[Reader], busy: Sequence[int], room: int
) -> list[tuple[int, PlanNode]]:
    """The hand-overs that let a buffer stay in LX, with their places; none if it does not pay or does not fit."""
    held, layout = result_part(graph.nodes[writer]), graph.buffers[name].layout
    parts = _strangers(graph, held, readers)
    if not parts or held is None or layout is None:
        return []
    stick = layout.elems_per_stick
    size, last = held.elements * 128 // stick, max(group[0][0] for group in parts.values())
    fitting, spent = max(busy[writer : last + 1]) + size <= room, 0.0
    made: list[tuple[int, PlanNode]] = []
    for wanted, group in parts.items():
        first, until = group[0][0], max(i for i, _ in group)
        need = size + wanted.elements * 128 // stick
        fitting = fitting and max(busy[first : until + 1]) + need <= room
        fitting = fitting and movable(held, wanted, stick, room, graph.options.scratch)
        node = _node(graph, name, writer, group[0]) if fitting else None
        if node is None:
            fitting = False
            break
        spent += NodeCost(graph, node).ns(split_of(node), 3)
        made.append((first, node))
    saved = _memory_ns(graph, writer, [r for group in parts.values() for r in group])
    if not fitting or spent >= saved:
        for _, node in made:
            del graph.buffers[node.output.buffer]
        return []
    for (_, node), group in zip(made, parts.values(), strict=True):
        _redirect(graph, name, node, group)
        node.notes.append(
            f"{name} changes its split over the ring: {spent / 1e3:.1f} us, by memory {saved / 1e3:.1f} us"
        )
    return made


def _strangers(graph: PlanGraph, held: Part | None, readers: Sequence[Reader]) -> dict[Part, list[Reader]]:
    """Readers whose cores do not hold what they read, by what they read; none if one of them cannot read LX at all."""
    parts: dict[Part, list[Reader]] = {}
    if held is None or not held.dense or any(held.consts):
        return {}
    for i, j in readers:
        node, coords = graph.nodes[i], graph.nodes[i].accesses[j]
        wanted = None if not coords or node.row.has_table else part(coords, _sizes(node), split_of(node))
        if wanted is None or not wanted.dense or any(wanted.consts):
            return {}
        if not holds(held, wanted):
            parts.setdefault(wanted, []).append((i, j))
    return parts


def _sizes(node: PlanNode) -> dict[str, int]:
    return {d.name: d.size for d in node.tiles}


def _memory_ns(graph: PlanGraph, writer: int, readers: Sequence[Reader]) -> float:
    """What writing the buffer to memory and reading it there costs more than having it in LX."""
    node = graph.nodes[writer]
    cost, split = NodeCost(graph, node), split_of(node)
    total = cost.ns(split, 0) - cost.ns(split, 1 << (len(node.accesses) - 1))
    for i in dict.fromkeys(i for i, _ in readers):
        node = graph.nodes[i]
        cost, split = NodeCost(graph, node), split_of(node)
        bits = sum(1 << j for r, j in readers if r == i)
        total += cost.ns(split, 0) - cost.ns(split, bits)
    return total


def _node(graph: PlanGraph, name: str, writer: int, reader: Reader) -> PlanNode | None:
    producer, node = graph.nodes[writer], graph.nodes[reader[0]]
    load, coords, written = list(node.loads())[reader[1]], node.accesses[reader[1]], producer.accesses[-1]
    assert coords is not None and written is not None
    found = exchange(split_of(producer), written, _sizes(producer), split_of(node), coords, _sizes(node))
    if found is None:
        return None
    used = {t.dim for c in coords for t in c.terms}
    temp = f"{name}_ring{len(graph.buffers)}"
    graph.buffers[temp] = replace(graph.buffers[name], name=temp)
    dims = tuple(d for d in node.dims if any(u == d[0] or u.startswith(f"{d[0]}.") for u in used))
    moved = PlanNode(f"hand_{name}_{reader[0]}", OP, dims, (load,), Load(temp, load.index), origin=producer.origin)
    moved.tiles = tuple(d for d in node.tiles if d.name in used)
    moved.accesses = (coords, coords)
    moved.source = found[0]
    apply(moved, found[1])
    return moved


def _redirect(graph: PlanGraph, name: str, moved: PlanNode, readers: Sequence[Reader]) -> None:
    for i in dict.fromkeys(i for i, _ in readers):
        node = graph.nodes[i]
        numbers = {j for r, j in readers if r == i}
        inputs, number = [], -1
        for value in node.inputs:
            number += isinstance(value, Load)
            mine = isinstance(value, Load) and number in numbers and value.buffer == name
            inputs.append(Load(moved.output.buffer, value.index) if mine else value)  # type: ignore[union-attr]
        node.inputs = tuple(inputs)
