# SPDX-License-Identifier: Apache-2.0
"""Memory pool: one launch buffer for all temporaries that do not live in LX, shared by live range.

The result of an elementwise node takes the place of an operand that dies there: each core reads what it writes itself.
"""

from __future__ import annotations

from collections import Counter

from torch_spyre._inductor.passes.scratchpad import parent
from torch_spyre._inductor.planning.placement import Request, live_ranges, place
from torch_spyre._inductor.planning.plan_graph import PlanGraph
from torch_spyre.constants import SEGMENT_BYTES
from torch_spyre.errors import SpyreError


def run(graph: PlanGraph) -> PlanGraph:
    ranges = live_ranges(graph.nodes)
    temps = [b for b in graph.buffers.values() if b.kind == "temp" and b.placement == "memory" and b.name in ranges]
    found = {b.name: b.layout for b in temps}
    writers = Counter(n.output.buffer for n in graph.nodes)
    parents = {
        n.output.buffer: parent(graph, n, found) for n in graph.nodes if not n.loop and writers[n.output.buffer] == 1
    }
    requests = []
    for b in temps:
        assert b.layout is not None
        requests.append(Request(b.name, b.layout.bytes, *ranges[b.name], parents.get(b.name, "")))
    addresses, _ = place(requests, SEGMENT_BYTES)
    for b in temps:
        if b.name not in addresses:
            raise SpyreError(f"OutOfMemory: temporaries of {graph.name} exceed one {SEGMENT_BYTES >> 30} GiB segment")
        b.address = addresses[b.name]
    return graph


def pool_bytes(graph: PlanGraph) -> int:
    return max(
        (
            b.address + b.layout.bytes
            for b in graph.buffers.values()
            if b.kind == "temp" and b.placement == "memory" and b.layout
        ),
        default=0,
    )


def explain(graph: PlanGraph) -> list[str]:
    lines = [
        f"{b.name}: pool+0x{b.address:x}, {b.layout.bytes} bytes"
        for b in graph.buffers.values()
        if b.kind == "temp" and b.placement == "memory" and b.layout
    ]
    return [*lines, f"pool: {pool_bytes(graph)} bytes"] if lines else []
