# SPDX-License-Identifier: Apache-2.0
"""Copies that only carry a result to its place are dropped: the node that computes the value writes it there itself.

Mutation makes them. ``a.add_(b)`` is, functionally, a sum into a temporary and a copy of that into ``a``; the sum may
as well be written over ``a``, if nobody needs the old value in between.
"""

from __future__ import annotations

from torch_spyre._inductor.tilegraph.graph import Buffer, Graph, Load, Node
from torch_spyre._inductor.tilegraph.index import Index

_SAME_BITS = (("float16", "bfloat16"), ("int32", "int64"))


def forward_copies(graph: Graph) -> Graph:
    """The graph without the copies that can go; `graph` is changed in place."""
    readers = {name: sum(load.buffer == name for n in graph.nodes for load in n.loads()) for name in graph.buffers}
    position = 0
    while position < len(graph.nodes):
        copy = graph.nodes[position]
        at = _producer(graph, position, readers)
        if at is not None and _free(graph, at, position, copy.output.buffer):
            _retarget(graph.nodes[at], copy)
            del graph.nodes[position]
            source = copy.inputs[0]
            assert isinstance(source, Load)
            del graph.buffers[source.buffer]
            continue
        position += 1
    return graph


def _producer(graph: Graph, position: int, readers: dict[str, int]) -> int | None:
    """Position of the node whose result the copy at `position` carries over unchanged, if that is all it does."""
    copy = graph.nodes[position]
    if not copy.row.is_copy or len(copy.inputs) != 1 or not isinstance(copy.inputs[0], Load):
        return None
    source = copy.inputs[0]
    temp, target = graph.buffers[source.buffer], graph.buffers[copy.output.buffer]
    if temp.kind != "temp" or readers[temp.name] != 1 or not _same_bits(temp, target):
        return None
    writers = [i for i, n in enumerate(graph.nodes) if n.output.buffer == temp.name]
    if len(writers) != 1 or writers[0] > position:
        return None
    node = graph.nodes[writers[0]]
    kept = [d for d in node.dims if d[0] not in node.reduced]
    if [n for _, n in kept] != [n for _, n in copy.dims]:
        return None
    rename = {d: c for (d, _), (c, _) in zip(kept, copy.dims, strict=True)}
    return writers[0] if _same(node.output.index.rename(rename), source.index) else None


def _same_bits(a: Buffer, b: Buffer) -> bool:
    return a.dtype == b.dtype or any(a.dtype in same and b.dtype in same for same in _SAME_BITS)


def _free(graph: Graph, first: int, last: int, target: str) -> bool:
    """May the target be written at `first` instead of at `last`? The writer itself may read what it replaces."""
    for node in graph.nodes[first + 1 : last]:
        if node.output.buffer == target or any(load.buffer == target for load in node.loads()):
            return False
    writer, copy = graph.nodes[first], graph.nodes[last]
    old = [load for load in writer.loads() if load.buffer == target]
    return not old or (writer.row.element_for_element and all(_same(_place(writer, copy), load.index) for load in old))


def _same(a: Index, b: Index) -> bool:
    return a.const == b.const and frozenset(a.terms) == frozenset(b.terms)


def _place(writer: Node, copy: Node) -> Index:
    """Where the copy writes, in the dims of the writer."""
    kept = [d for d in writer.dims if d[0] not in writer.reduced]
    return copy.output.index.rename({c: d for (d, _), (c, _) in zip(kept, copy.dims, strict=True)})


def _retarget(writer: Node, copy: Node) -> None:
    writer.output = Load(copy.output.buffer, _place(writer, copy))
