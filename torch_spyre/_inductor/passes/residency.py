# SPDX-License-Identifier: Apache-2.0
"""Division, tiling and scratchpad together: what one assumes, the next must keep.

Division may count on a tile loop to hold a temporary that is larger than LX. If the loop does not come about, the plan
is made again without counting on it, and the cheaper of the two is kept, priced as they really are. Where a node
reaches too far under any split, the plan is made again with that node's operands laid together.
"""

from __future__ import annotations

import math

from torch_spyre._inductor.passes import compaction, division, handover, scratchpad, staging, tiling
from torch_spyre._inductor.planning.cost import NodeCost
from torch_spyre._inductor.planning.ownership import split_of
from torch_spyre._inductor.planning.plan_graph import PlanGraph


def run(graph: PlanGraph) -> PlanGraph:
    before = graph.clone() if compaction.possible(graph) else None
    placed = _placed(graph)
    far = compaction.out_of_reach(placed) if before is not None else ()
    return _placed(compaction.run(before, far)) if before is not None and far else placed


def _placed(graph: PlanGraph) -> PlanGraph:
    first = graph.clone() if len(graph.nodes) > 1 else graph
    _plan(first, trust_loops=True)
    if not _misses_a_loop(first):
        return first
    _plan(graph, trust_loops=False)
    return first if price(first) <= price(graph) else graph


def _plan(graph: PlanGraph, trust_loops: bool) -> None:
    if graph.options.for_sdsc:  # it has no words for a hand-over, and names whole slices
        division.run(graph)
        scratchpad.run(graph)
        return
    division.run(graph, trust_loops)
    scratchpad.run(tiling.run(staging.run(handover.run(graph))))


def _misses_a_loop(graph: PlanGraph) -> bool:
    """Is a temporary in memory that only a tile loop could have kept in LX?"""
    room = graph.options.room
    found = scratchpad.residents(graph) if room else {}
    return any(r.bytes > room and graph.buffers[n].placement != "lx" for n, r in found.items())


def explain(graph: PlanGraph) -> list[str]:
    stages = (compaction, division, handover, staging, tiling, scratchpad)
    lines = [f"{s.__name__.rsplit('.', 1)[-1]}: {line}" for s in stages for line in s.explain(graph)]
    return [*lines, f"predicted: {price(graph) / 1e3:.1f} us"]


def price(graph: PlanGraph) -> float:
    """Nanoseconds of the nodes as they are placed, trips of tile loops and what they read again included."""
    total = 0.0
    for node in graph.nodes:
        in_lx = 0
        for i, value in enumerate((*node.loads(), node.output)):
            if graph.buffers[value.buffer].placement == "lx":
                in_lx |= 1 << i
        cost = NodeCost(graph, node)
        total += cost.ns(split_of(node), in_lx)
        looped = [d for d in node.tiles if d.chunk]
        if looped:
            again = sum(tiling.reread(graph, node, d.name) for d in looped)
            trips = math.prod(-(-d.extent // d.chunk) for d in looped)
            device = cost.device
            total += (trips - 1) * (device["launch.loop_trip"] * 1e3 + again / device["memory.bandwidth"])
    return total
