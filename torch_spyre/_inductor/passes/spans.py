# SPDX-License-Identifier: Apache-2.0
"""Spans: a matmul whose left operand reaches too far along k is done in parts of k.

A core may reach over 256 MiB of one tensor. The left operand has k in its sticks, so that even one row of it touches
every stick column from the first to the last; only a part of k reaches less. Where the result is small, division cuts
k over the cores. Where it is not, the parts are matmuls of their own, whose fp32 results are added in order of k and
rounded once, as partial sums of cores are.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch_spyre import constants
from torch_spyre._inductor.planning.candidates import MOST_K_WAYS
from torch_spyre._inductor.planning.matmul_dims import role
from torch_spyre._inductor.planning.plan_graph import PlanBuffer, PlanGraph, PlanNode
from torch_spyre._inductor.tilegraph.graph import Load
from torch_spyre._inductor.tilegraph.index import Index
from torch_spyre.constants import STICK_BYTES
from torch_spyre.ir.plan.tileops import Term

_STICK = 64  # elements of k that stay together
ROUNDING = {"float16": "fp32todl16", "bfloat16": "fp32todl16", "float32": "identity"}


def run(graph: PlanGraph) -> PlanGraph:
    if any(n.row.is_matmul for n in graph.nodes):
        graph.nodes = [part for node in graph.nodes for part in _parts(graph, node)]
    return graph


def explain(graph: PlanGraph) -> list[str]:
    return [f"{n.name}: {note}" for n in graph.nodes for note in n.notes if note.startswith("a part of k")]


def _parts(graph: PlanGraph, node: PlanNode) -> list[PlanNode]:
    ways = _ways(graph, node)
    if ways < 2:
        return [node]
    k = dict(node.dims)["k"]
    each = -(-k // (ways * _STICK)) * _STICK
    kept = tuple(d for d in node.dims if d[0] != "k")
    out = graph.buffers[node.output.buffer]
    found: list[PlanNode] = []
    total: Load | None = None
    for number, start in enumerate(range(0, k, each)):
        size = min(each, k - start)
        made = _wide(graph, out, node.output)
        inputs = tuple(Load(v.buffer, _moved(v.index, start)) for v in node.loads())
        dims = (*kept, ("k", size))
        part = replace(node, name=f"{node.name}_k{number}", dims=dims, inputs=inputs, output=made, notes=[])
        part.notes.append(f"a part of k, {size} of {k}: all of it spans more than {constants.MAX_SPAN_BYTES >> 20} MiB")
        found.append(part)
        if total is not None:
            inputs = (total, made)
            made = _wide(graph, out, node.output)
            found.append(PlanNode(f"{node.name}_sum{number}", "add", kept, inputs, made, origin=node.origin))
        total = made
    assert total is not None
    rounded = PlanNode(f"{node.name}_rounded", ROUNDING[out.dtype], kept, (total,), node.output, origin=node.origin)
    return [*found, rounded]


def _ways(graph: PlanGraph, node: PlanNode) -> int:
    """In how many parts of k the left operand stays within the span; 1 if it does anyway or the cores can cut k."""
    out, options = graph.buffers[node.output.buffer], graph.options
    if not node.row.is_matmul or node.constants or out.dtype not in ROUNDING or not _plain(node, out):
        return 1
    sizes, left = node.sizes(), next(node.loads())
    reach = 2 * math.prod(sizes[d] for d in left.index.dims if role(d) in "mk")
    reach = max(reach, STICK_BYTES * sizes["k"])  # one stick column of the right operand
    ways = -(-reach // constants.MAX_SPAN_BYTES)
    cores = 1 << (ways - 1).bit_length()  # that division would cut k over
    partial = 4 * math.prod(n for d, n in node.dims if d != "k") // max(1, options.cores // cores)
    most = min(MOST_K_WAYS, options.cores)
    return 1 if cores <= most and partial <= options.scratch else ways


def _plain(node: PlanNode, out: PlanBuffer) -> bool:
    """Do both operands walk k as one dim, and does the node write all of its result, one dim along each axis?"""
    steps = [t for v in node.loads() for t in v.index.terms if t.dim == "k"]
    axes = {(s, n) for s, n in zip(out.stride, out.size, strict=True) if n > 1}
    written = {(t.scale, node.sizes()[t.dim]) for t in node.output.index.terms}
    whole = all(t.div == 1 and not t.mod for t in (*steps, *node.output.index.terms))
    return len(steps) == 2 and whole and not node.output.index.const and axes == written


def _moved(index: Index, start: int) -> Index:
    step = next(t.scale for t in index.terms if t.dim == "k")
    return Index(index.terms, index.const + start * step)


def _wide(graph: PlanGraph, out: PlanBuffer, written: Load) -> Load:
    """A temporary for fp32 values of the result."""
    name = f"w{len(graph.buffers)}"
    strides: list[int] = []
    step = 1
    for n in reversed(out.size):
        strides.insert(0, step)
        step *= n
    graph.buffers[name] = PlanBuffer(name, "float32", out.size, tuple(strides))
    scale = {s: t for s, t, n in zip(out.stride, strides, out.size, strict=True) if n > 1}
    terms = tuple(Term(t.dim, scale.get(t.scale, t.scale), t.div, t.mod) for t in written.index.terms)
    return Load(name, Index(terms))
