# SPDX-License-Identifier: Apache-2.0
"""One value, one node: joins pointwise nodes that compute the same temporary over renamed or reordered dims.

Inductor inlines a producer into each of its consumers, each time over the consumer's own loop dims, so a softmax over
columns computes its exponentials twice. Joined, they are computed once and can stay in the scratchpad.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from torch_spyre._inductor.tilegraph.expr import held_as
from torch_spyre._inductor.tilegraph.graph import Buffer, Const, Graph, Load, Node
from torch_spyre._inductor.tilegraph.index import Index, decompose


def run(graph: Graph) -> Graph:
    if len(graph.nodes) < 2:
        return graph
    writes = Counter(n.output.buffer for n in graph.nodes)
    readers = graph.consumers()
    seen: dict[tuple[Any, ...], list[Node]] = {}
    kept: list[Node] = []
    moved: dict[str, tuple[str, tuple[int, ...]]] = {}  # dropped buffer -> (kept buffer, its stride for each own dim)
    for node in graph.nodes:
        _redirect(graph, node, moved)
        if _joinable(graph, node, writes) and all(_separates(graph, node, r) for r in readers[node.output.buffer]):
            key = _key(node), held_as(graph.buffers[node.output.buffer].dtype)
            for twin in seen.get(key, ()):
                strides = _strides(graph, twin, node)
                if strides is not None:
                    moved[node.output.buffer] = (twin.output.buffer, strides)
                    break
            if node.output.buffer in moved:
                continue
            seen.setdefault(key, []).append(node)
        kept.append(node)
    if moved:
        graph.nodes = kept
        graph.buffers = {n: b for n, b in graph.buffers.items() if n not in moved}
    return graph


def _joinable(graph: Graph, node: Node, writes: Counter[str]) -> bool:
    """A pure function of buffers that are written once, into a temporary over exactly its dims."""
    out = graph.buffers[node.output.buffer]
    if node.reduced or node.along or node.limits or out.kind != "temp" or writes[out.name] != 1:
        return False
    if not all(isinstance(v, (Load, Const)) for v in node.inputs):
        return False
    if any(
        writes[v.buffer] > 1 or (writes[v.buffer] and graph.buffers[v.buffer].kind == "input") for v in node.loads()
    ):
        return False
    return _plain(node.output.index, node, out)


def _plain(index: Index, node: Node, out: Buffer) -> bool:
    """Is the result written at one stride per dim, dense?"""
    sizes = {d: n for d, n in node.dims if n > 1}
    return (
        index.const == 0
        and {t.dim for t in index.terms} == set(sizes)
        and len(index.terms) == len(sizes)
        and all(t.div == 1 and not t.mod for t in index.terms)
        and sorted((t.scale, sizes[t.dim]) for t in index.terms)
        == sorted((s, n) for s, n in zip(out.stride, out.size, strict=True) if n > 1)
    )


def _key(node: Node) -> tuple[Any, ...]:
    inputs = tuple((v.buffer, v.index.const) if isinstance(v, Load) else repr(v) for v in node.inputs)
    return node.op, inputs, tuple(sorted(n for _, n in node.dims)), repr(sorted(node.constants.items())), node.top


def _strides(graph: Graph, twin: Node, node: Node) -> tuple[int, ...] | None:
    """Stride in the twin's result for each dim of the node's result, if they compute the same; else None."""
    rename = _match(twin, node)
    if rename is None:
        return None
    theirs = {t.dim: t.scale for t in twin.output.index.terms}
    mine = {(t.scale, n): t.dim for t in node.output.index.terms for d, n in node.dims if d == t.dim}
    out = graph.buffers[node.output.buffer]
    if graph.buffers[twin.output.buffer].dtype != out.dtype:
        return None
    result = []
    for stride, size in zip(out.stride, out.size, strict=True):
        result.append(theirs[rename[mine[stride, size]]] if size > 1 else 0)
    return tuple(result)


def _match(twin: Node, node: Node) -> dict[str, str] | None:
    """node's dims -> twin's dims, such that all inputs are read alike."""
    sizes, theirs = node.sizes(), twin.sizes()
    rename: dict[str, str] = {}
    for mine, other in zip(node.inputs, twin.inputs, strict=True):
        if not isinstance(mine, Load) or not isinstance(other, Load):
            if mine != other:
                return None
            continue
        if len(mine.index.terms) != len(other.index.terms):
            return None
        places: dict[tuple[int, int, int, int], list[str]] = {}
        for t in other.index.terms:
            places.setdefault((t.scale, t.div, t.mod, theirs[t.dim]), []).append(t.dim)
        for t in mine.index.terms:
            found = places.get((t.scale, t.div, t.mod, sizes[t.dim]))
            if found is None or len(found) != 1 or rename.setdefault(t.dim, found[0]) != found[0]:
                return None
    live = {d for d, n in node.dims if n > 1}
    return rename if rename.keys() >= live and len(set(rename.values())) == len(rename) else None


def _redirect(graph: Graph, node: Node, moved: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    inputs = list(node.inputs)
    for i, value in enumerate(inputs):
        if isinstance(value, Load) and value.buffer in moved:
            inputs[i] = _reread(graph, node, value, *moved[value.buffer])
    node.inputs = tuple(inputs)


def _separates(graph: Graph, node: Node, reader: Node) -> bool:
    """Can every read of the node's result by `reader` be expressed in coordinates of the result?"""
    out = graph.buffers[node.output.buffer]
    return not reader.limits and all(
        decompose(v.index, zip(out.stride, out.size, strict=True), reader.sizes()) is not None
        for v in reader.loads()
        if v.buffer == out.name
    )


def _reread(graph: Graph, node: Node, load: Load, name: str, strides: tuple[int, ...]) -> Load:
    """The load of a dropped buffer, from the one that holds the same values."""
    dropped = graph.buffers[load.buffer]
    coords = decompose(load.index, zip(dropped.stride, dropped.size, strict=True), node.sizes())
    assert coords is not None, f"{node.name} reads {load.buffer} at {load.index}, which does not separate"
    terms = tuple(
        replace(t, scale=t.scale * stride) for c, stride in zip(coords, strides, strict=True) for t in c.terms
    )
    return Load(name, Index(terms, sum(c.const * stride for c, stride in zip(coords, strides, strict=True))))
