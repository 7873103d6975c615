# SPDX-License-Identifier: Apache-2.0
"""Span loops: a node that reaches too far in one execution, or needs too much scratch for it, runs in trips.

Division keeps below the span where a split can. Where none does, the node gets a tile loop of its own, over as many
dims as it takes; each trip starts at an address of its own. A node that shares a tile loop with neighbours gets more
trips of that loop. Every element is computed as before, so the bits stay.
"""

from __future__ import annotations

import math

from torch_spyre import constants
from torch_spyre._inductor.passes.scratchpad import more_trips
from torch_spyre._inductor.planning import reach
from torch_spyre._inductor.planning.candidates import granularity
from torch_spyre._inductor.planning.ownership import Split, apply, split_of
from torch_spyre._inductor.planning.plan_graph import PlanGraph, PlanNode
from torch_spyre.errors import SpanExceeded

_NOTE = "runs in trips"


def run(graph: PlanGraph) -> PlanGraph:
    for number in sorted({n.loop for n in graph.nodes} - {0}):
        _shared_loop(graph, [n for n in graph.nodes if n.loop == number])
    last = max((n.loop for n in graph.nodes), default=0)
    for node in graph.nodes:
        wanted = graph.options.parts.get(node.name, 1)
        if node.loop or node.source or (wanted == 1 and reach.excess(graph, node, _extents(node)) is None):
            continue
        extents = _trips(graph, node, wanted)
        last += 1
        reach.walk_in_trips(node, extents, last)
        over = " x ".join(f"{-(-d.extent // d.chunk)} along {d.name}" for d in node.tiles if d.chunk)
        node.notes.append(f"{_NOTE}, {over}: its slice is more than one execution can do")
    return graph


def explain(graph: PlanGraph) -> list[str]:
    return [f"{n.name}: {note}" for n in graph.nodes for note in n.notes if note.startswith(_NOTE)]


def _extents(node: PlanNode) -> dict[str, int]:
    return {d.name: d.chunk or d.extent for d in node.tiles}


def _shared_loop(graph: PlanGraph, nodes: list[PlanNode]) -> None:
    """Shortens the trips of a tile loop until all its nodes stay within the span."""
    while (far := next((n for n in nodes if reach.excess(graph, n, _extents(n))), None)) is not None:
        if not more_trips(graph, nodes, math.inf):
            raise _too_far(graph, far)


def _trips(graph: PlanGraph, node: PlanNode, wanted: int) -> dict[str, int]:
    """What a trip takes of each dim. Dims that move together must be cut evenly: where the split of the cores is not
    even, those dims get fewer slices, and at last all is left to one core. What is in scratchpads stays where it is.
    """
    split = split_of(node)
    choices = [split, _even(graph, node, split), ()]
    if any(graph.buffers[v.buffer].placement == "lx" for v in (*node.loads(), node.output)):
        choices = [split]
    elif wanted > 1 and reach.whole_dims(node):
        choices = choices[1:]
    for fewer in dict.fromkeys(choices):
        apply(node, fewer)
        extents = reach.trips_for(graph, node, wanted)
        if extents is not None:
            return extents
    raise _too_far(graph, node)


def _even(graph: PlanGraph, node: PlanNode, split: Split) -> Split:
    """The split with as many slices of each dim as divide it."""
    grains = granularity(graph, node)
    sizes = {d.name: d.size for d in node.tiles}
    found = []
    for name, slices, _ in split:
        n = next(n for n in range(slices, 0, -1) if sizes[name] % (n * grains.get(name, 1)) == 0 or n == 1)
        if n > 1:
            found.append((name, n, sizes[name] // n))
    return tuple(found)


def _too_far(graph: PlanGraph, node: PlanNode) -> SpanExceeded:
    found = reach.excess(graph, node, _extents(node))
    over = f"reaches over {found[0]} bytes of a tensor" if found else "is too large for one execution"
    return SpanExceeded(f"{node.name} {over}, a core over {constants.MAX_SPAN_BYTES}, and no trips are short enough")
