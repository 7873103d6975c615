# SPDX-License-Identifier: Apache-2.0
"""Parts: a sum, a running total or an argmax over more bytes than the span is done in parts, combined in order.

These nodes do one dim, or several, at once on one core. Where that is more than a core can address however it is laid
out, each part is a node of its own. Sums and running totals stay fp32 until they are combined, part after part in
ascending order, and are rounded once, as partial sums of cores are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch_spyre import constants
from torch_spyre._inductor.passes.spans import ROUNDING
from torch_spyre._inductor.planning.plan_graph import PlanBuffer, PlanGraph, PlanNode
from torch_spyre._inductor.tilegraph.graph import Const, Load, Value
from torch_spyre._inductor.tilegraph.index import Index
from torch_spyre.constants import STICK_BYTES
from torch_spyre.ir.plan.tileops import Term
from torch_spyre.optable import Kind

_EXTREMES = {"max": ("greaterthan", math.inf), "min": ("lesserthan", -math.inf)}  # by reduction
_UNIT = 128  # elements that stay together: whole sticks of any format
_NARROW = ("float16", "bfloat16")
_NOTE = "a part of"


def run(graph: PlanGraph) -> PlanGraph:
    if any(b.numel * STICK_BYTES > constants.MAX_SPAN_BYTES for b in graph.buffers.values()):
        sticks = _sticks(graph)
        graph.nodes = [part for node in graph.nodes for part in _done_in_parts(graph, node, sticks)]
    return graph


def explain(graph: PlanGraph) -> list[str]:
    return [f"{n.name}: {note}" for n in graph.nodes for note in n.notes if note.startswith(_NOTE)]


def _sticks(graph: PlanGraph) -> dict[str, int]:
    """The host stride of the elements in each buffer's sticks: known of inputs, else that of what it is made from."""
    found = {b.name: b.layout.stride_map[-1] for b in graph.buffers.values() if b.layout is not None}
    for node in graph.nodes:
        inside = (t.dim for v in node.loads() for t in v.index.terms if t.scale == found.get(v.buffer) and t.div == 1)
        moved = {t.dim: t.scale for t in node.output.index.terms}
        found.setdefault(node.output.buffer, next((moved[d] for d in inside if d in moved), 1))
    return found


def _done_in_parts(graph: PlanGraph, node: PlanNode, sticks: Mapping[str, int]) -> list[PlanNode]:
    split = {Kind.REDUCTION: _reduction, Kind.SCAN: _scan, Kind.SELECTION: _extreme}.get(node.row.kind)
    if split is None or not node.row.reduction or not node.loads():  # what is made of constants reaches no memory
        return [node]
    cut = _cut(graph, node, sticks)
    return [node] if cut is None else split(_Parts(graph, node, sticks, *cut))


def _cut(graph: PlanGraph, node: PlanNode, known: Mapping[str, int]) -> tuple[str, int] | None:
    """The dim to cut and how much of it a part takes; None if the node can do all at once."""
    sizes, whole = node.sizes(), dict.fromkeys((*node.reduced, *filter(None, [node.along])))
    (source,) = node.loads()
    narrow = {graph.buffers[v.buffer].dtype for v in (source, node.output)} <= {*_NARROW, "bool"}
    lanes = 64 if narrow and node.row.kind is not Kind.SCAN else 32  # running totals stay fp32
    stride = known.get(source.buffer, 1)
    sticks = {t.dim for t in source.index.terms if t.dim in whole and t.scale == stride and t.div == 1}

    def reached(extents: Mapping[str, int]) -> int:
        """Bytes that the node does at once, laid together: whole sticks of a dim that is in them, or one each."""
        return STICK_BYTES * math.prod(-(-extents[d] // lanes) if d in sticks else extents[d] for d in whole)

    if reached(sizes) <= constants.MAX_SPAN_BYTES:
        return None
    for dim in sorted(whole, key=lambda d: -_step(graph, source, d, sizes[d])):
        periods = (t.div * max(t.mod, 1) for t in source.index.terms if t.dim == dim)
        unit = math.lcm(_UNIT if sizes[dim] > _UNIT else 1, *periods)
        units = constants.MAX_SPAN_BYTES // reached({**sizes, dim: unit})
        if 0 < units * unit < sizes[dim]:
            return dim, units * unit
    dim = max(whole, key=lambda d: sizes[d])  # the parts are cut again, along another dim
    return (dim, _UNIT) if sizes[dim] > _UNIT else None


def _step(graph: PlanGraph, source: Load, dim: str, size: int) -> int:
    """How far a dim moves at once: in the layout, where that is known, else in the host tensor."""
    layout = graph.buffers[source.buffer].layout
    step = max((abs(t.scale) // t.div for t in source.index.terms if t.dim == dim), default=0)
    if layout is None or not step:
        return step
    longest, inner = 0, 1
    for stride, n in reversed(layout.axes()):
        if n > 1 and step <= stride < step * size:
            longest = inner
        inner *= n
    return longest


class _Parts:
    """The parts of one node along one dim."""

    def __init__(self, graph: PlanGraph, node: PlanNode, sticks: Mapping[str, int], dim: str, each: int) -> None:
        self.graph, self.node, self.sticks, self.dim = graph, node, sticks, dim
        size = node.sizes()[dim]
        self.ranges = [(start, min(each, size - start)) for start in range(0, size, each)]
        (self.source,) = node.loads()
        self.kept = tuple(d for d in node.dims if d[0] not in node.reduced)
        dtype = graph.buffers[node.output.buffer].dtype
        self.wide = "float32" if dtype in _NARROW else dtype
        self.rounding = ROUNDING.get(dtype, "identity")
        self.nodes: list[PlanNode] = []

    def dims(self, count: int) -> tuple[tuple[str, int], ...]:
        return tuple((d, count if d == self.dim else n) for d, n in self.node.dims)

    def partial(self, op: str, start: int, count: int, output: Load, **changes: object) -> None:
        """The node over one range of the dim."""
        inputs: list[Value] = [Load(self.source.buffer, _moved(self.source.index, self.dim, start))]
        part = replace(self.node, op=op, dims=self.dims(count), inputs=tuple(inputs), output=output, **changes)  # type: ignore[arg-type]
        part.name = f"{self.node.name}_{self.dim}{start}_{op}"
        part.notes = [
            f"{_NOTE} {self.dim}, {count} of {self.node.sizes()[self.dim]}: all of it is more than a core reaches"
        ]
        self.nodes += _done_in_parts(self.graph, part, self.sticks)

    def add(self, op: str, dims: Sequence[tuple[str, int]], inputs: Sequence[Value], output: Load) -> Load:
        name = f"{self.node.name}_{op}_{len(self.graph.buffers)}_{len(self.nodes)}"
        self.nodes.append(PlanNode(name, op, tuple(dims), tuple(inputs), output, origin=self.node.origin))
        return output

    def temp(self, dims: Sequence[tuple[str, int]], dtype: str) -> Load:
        name = f"w{len(self.graph.buffers)}"
        strides = [math.prod(n for _, n in dims[i + 1 :]) for i in range(len(dims))]
        self.graph.buffers[name] = PlanBuffer(name, dtype, tuple(n for _, n in dims), tuple(strides))
        return Load(name, Index(tuple(Term(d, s) for (d, n), s in zip(dims, strides, strict=True) if n > 1)))


def _moved(index: Index, dim: str, start: int) -> Index:
    """The index from element `start` of a dim on, which is a whole number of periods of its digits."""
    const = index.const
    for t in index.terms:
        if t.dim == dim:
            const += t.scale * (start // t.div % t.mod if t.mod else start // t.div)
    return Index(index.terms, const)


def _reduction(parts: _Parts) -> list[PlanNode]:
    node = parts.node
    combine = node.row.combine
    total: Load | None = None
    for start, count in parts.ranges:
        made = parts.temp(parts.kept, parts.wide)
        parts.partial(node.row.reduction, start, count, made, constants={})
        total = (
            made if total is None else parts.add(combine, parts.kept, (total, made), parts.temp(parts.kept, parts.wide))
        )
    assert total is not None
    if node.row.scaled_by:
        factor = Const(node.constants[node.row.scaled_by], "float32")
        parts.add("mul", parts.kept, (total, factor), node.output)
    else:
        parts.add(parts.rounding, parts.kept, (total,), node.output)
    return parts.nodes


def _scan(parts: _Parts) -> list[PlanNode]:
    """Each part runs from its own first element; what came before it is added to all of it."""
    node, combine = parts.node, parts.node.row.combine
    before = tuple(d for d in node.dims if d[0] != parts.dim)
    carry: Load | None = None
    for start, count in parts.ranges:
        dims = parts.dims(count)
        running = parts.temp(dims, parts.wide)
        parts.partial(node.op, start, count, running)
        place = Load(node.output.buffer, _moved(node.output.index, parts.dim, start))
        last = _last(running, parts.dim, count)
        if carry is None:
            parts.add(parts.rounding, dims, (running,), place)
            carry = parts.add("identity", before, (last,), parts.temp(before, parts.wide))
        else:
            parts.add(combine, dims, (carry, running), place)
            carry = parts.add(combine, before, (carry, last), parts.temp(before, parts.wide))
    return parts.nodes


def _last(running: Load, dim: str, count: int) -> Load:
    index = _moved(running.index, dim, count - 1)
    return Load(running.buffer, Index(tuple(t for t in index.terms if t.dim != dim), index.const))


def _extreme(parts: _Parts) -> list[PlanNode]:
    """The first of the greatest: a later part counts only if it holds a greater value. NaN is the greatest of all."""
    node, kept = parts.node, parts.kept
    reduction = node.row.reduction
    better_than, end = _EXTREMES[reduction]
    dtype = parts.graph.buffers[parts.source.buffer].dtype
    place: Load | None = None
    best: Load | None = None
    for start, count in parts.ranges:
        value, found = parts.temp(kept, dtype), parts.temp(kept, "int32")
        parts.partial(node.op, start, count, found)
        parts.partial(reduction, start, count, value, along="", reduced=(parts.dim,))
        if start:
            found = parts.add("add", kept, (found, Const(start, "int32")), parts.temp(kept, "int32"))
        if "float" in dtype:
            missing = parts.add("isnan", kept, (value,), parts.temp(kept, "bool"))
            value = parts.add("where3", kept, (missing, Const(end, "float32"), value), parts.temp(kept, dtype))
        if place is None or best is None:
            place, best = found, value
            continue
        better = parts.add(better_than, kept, (value, best), parts.temp(kept, "bool"))
        place = parts.add("where3", kept, (better, found, place), parts.temp(kept, "int32"))
        best = parts.add("where3", kept, (better, value, best), parts.temp(kept, dtype))
    assert place is not None
    parts.add("identity", kept, (place,), node.output)
    return parts.nodes
