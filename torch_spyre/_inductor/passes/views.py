# SPDX-License-Identifier: Apache-2.0
"""Views for free: readers look through copies, and broadcast dims are not computed.

A copy that PyTorch asks for (an expanded key, a contiguous transpose) is a node that moves bytes without changing them.
Its readers can address the source themselves; where a layout rule forbids that, the layout pass inserts the one copy
that is really needed. A pointwise node whose inputs do not vary along a dim computes one value and lets its readers
broadcast it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from torch_spyre._inductor.tilegraph.graph import Buffer, Graph, Load, Node
from torch_spyre._inductor.tilegraph.index import Index, decompose
from torch_spyre.ir.plan.tileops import Coord, Term
from torch_spyre.optable import Kind


def run(graph: Graph) -> Graph:
    if len(graph.nodes) < 2:
        return graph
    writes = Counter(n.output.buffer for n in graph.nodes)
    readers = graph.consumers()
    gone: set[int] = set()
    for node in graph.nodes:
        if graph.buffers[node.output.buffer].kind != "temp" or writes[node.output.buffer] != 1:
            continue
        if node.row.is_copy and _stable(graph, node, writes):
            if _look_through(graph, node, readers):
                gone.add(id(node))
        elif node.row.kind is Kind.POINTWISE:
            _shrink(graph, node, readers[node.output.buffer])
    graph.nodes = [n for n in graph.nodes if id(n) not in gone]
    return graph


def _stable(graph: Graph, node: Node, writes: Counter[str]) -> bool:
    """Does the copy's source keep its value for all readers of the copy?"""
    source = node.inputs[0]
    if not isinstance(source, Load) or source.buffer == node.output.buffer:
        return False
    buffer = graph.buffers[source.buffer]
    if buffer.dtype != graph.buffers[node.output.buffer].dtype or buffer.kind == "scalar":
        return False
    return writes[source.buffer] == 0 or (buffer.kind == "temp" and writes[source.buffer] == 1)


def _axes(node: Node, out: Buffer) -> dict[int, str] | None:
    """Axis of the result -> the dim that runs along it; None if it is not one plain dim for each axis."""
    coords = decompose(node.output.index, zip(out.stride, out.size, strict=True), node.sizes())
    if coords is None:
        return None
    axes: dict[int, str] = {}
    for axis, (coord, size) in enumerate(zip(coords, out.size, strict=True)):
        if size == 1 and not coord.terms and not coord.const:
            continue
        if len(coord.terms) != 1 or coord.const or coord.terms[0].scale != 1:
            return None
        term = coord.terms[0]
        if term.div != 1 or term.mod or node.sizes()[term.dim] != size or term.dim in axes.values():
            return None
        axes[axis] = term.dim
    return axes


def _look_through(graph: Graph, node: Node, readers: dict[str, list[Node]]) -> bool:
    """Lets every reader that can read the copy's source instead; True if nobody reads the copy any more."""
    out, source = graph.buffers[node.output.buffer], node.inputs[0]
    assert isinstance(source, Load)
    axes = _axes(node, out)
    if axes is None:
        return False
    left = []
    for reader in readers[out.name]:
        inputs = list(reader.inputs)
        for i, value in enumerate(inputs):
            if isinstance(value, Load) and value.buffer == out.name:
                found = None if reader.row.has_table else _through(out, value, source.index, axes, reader)
                if found is None:
                    left.append(reader)
                else:
                    inputs[i] = Load(source.buffer, found)
                    if all(r is not reader for r in readers[source.buffer]):
                        readers[source.buffer].append(reader)
        reader.inputs = tuple(inputs)
    readers[out.name] = left
    if not left:
        readers[source.buffer] = [r for r in readers[source.buffer] if r is not node]
        del graph.buffers[out.name]
    return not left


def _through(out: Buffer, read: Load, source: Index, axes: dict[int, str], reader: Node) -> Index | None:
    """The reader's access to the copy as an access to the copy's source."""
    coords = decompose(read.index, zip(out.stride, out.size, strict=True), reader.sizes())
    if coords is None:
        return None
    at = {dim: coords[axis] for axis, dim in axes.items()}
    terms: list[Term] = []
    const = source.const
    for term in source.terms:
        found = _compose(term, at[term.dim])
        if found is None:
            return None
        terms += found.terms
        const += found.const
    return _joined(terms, const)


def _compose(term: Term, value: Coord) -> Coord | None:
    """``scale * ((value // div) % mod)``."""
    if term.div == 1 and not term.mod:
        return Coord(tuple(replace(t, scale=t.scale * term.scale) for t in value.terms), value.const * term.scale)
    if not value.terms and not term.mod:
        return Coord((), value.const // term.div * term.scale)
    if len(value.terms) != 1 or value.const or value.terms[0].scale != 1:
        return None
    t = value.terms[0]
    if t.mod and t.mod % (term.div * max(term.mod, 1)):
        return None
    mod = term.mod or (t.mod // term.div if t.mod else 0)
    return Coord((Term(t.dim, term.scale, t.div * term.div, mod),))


def _joined(terms: Sequence[Term], const: int) -> Index | None:
    """An index with one term for each digit."""
    total: dict[tuple[str, int, int], int] = {}
    for t in terms:
        key = (t.dim, t.div, t.mod)
        total[key] = total.get(key, 0) + t.scale
    if any(scale < 0 for scale in total.values()):
        return None
    return Index(tuple(Term(d, s, div, mod) for (d, div, mod), s in total.items() if s), const)


def _shrink(graph: Graph, node: Node, readers: Sequence[Node]) -> None:
    """Takes the dims that no input varies along out of a pointwise node and its result."""
    out = graph.buffers[node.output.buffer]
    used = {d for v in node.inputs if hasattr(v, "index") for d in v.index.dims}
    idle = {d for d, n in node.dims if n > 1 and d not in used}
    if not idle or not used:
        return
    axes = _axes(node, out)
    if axes is None or any(r.row.has_table for r in readers):
        return
    kept = {axis: dim for axis, dim in axes.items() if dim not in idle}
    strides, step = {}, 1
    for axis in sorted(kept, reverse=True):
        strides[axis] = step
        step *= out.size[axis]
    indices = []
    for reader in readers:
        for value in reader.loads():
            if value.buffer == out.name:
                coords = decompose(value.index, zip(out.stride, out.size, strict=True), reader.sizes())
                if coords is None:
                    return
                terms = [replace(t, scale=t.scale * strides[a]) for a in kept for t in coords[a].terms]
                found = _joined(terms, sum(coords[a].const * strides[a] for a in kept))
                if found is None:
                    return
                indices.append(found)
    out.size = tuple(n if axis in kept else 1 for axis, n in enumerate(out.size))
    out.stride = tuple(strides.get(axis, 1) for axis in range(len(out.size)))
    node.dims = tuple(d for d in node.dims if d[0] not in idle)
    node.output = Load(out.name, Index(tuple(Term(dim, strides[a]) for a, dim in kept.items())))
    pending = iter(indices)
    for reader in readers:
        reader.inputs = tuple(
            Load(v.buffer, next(pending)) if isinstance(v, Load) and v.buffer == out.name else v for v in reader.inputs
        )
