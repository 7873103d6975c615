# SPDX-License-Identifier: Apache-2.0
"""Named dims and hints: which iteration dims of a node a user's hint means, and the split that it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from torch_spyre._inductor.planning.candidates import cut, granularity
from torch_spyre._inductor.planning.ownership import Split
from torch_spyre._inductor.planning.plan_graph import PlanGraph, PlanNode
from torch_spyre._inductor.tilegraph.graph import Load
from torch_spyre._inductor.tilegraph.index import decompose
from torch_spyre.errors import InvalidArgument
from torch_spyre.ir.plan.tileops import Coord


def run(graph: PlanGraph) -> PlanGraph:
    """Gives names to the dims of every node, from the named inputs onwards; real names win over none."""
    if not any(b.names for b in graph.buffers.values()) and not any(n.hints for n in graph.nodes):
        return graph
    for node in graph.nodes:
        names: dict[str, str] = {}
        for value in node.loads():
            for dim, name in _names(graph, node, value).items():
                names.setdefault(dim, name)
        node.names = names
        out = graph.buffers[node.output.buffer]
        coords = decompose(node.output.index, zip(out.stride, out.size, strict=True), node.result_sizes())
        if coords is not None and not names:
            names.update(_given(node, coords))
        if coords is not None and not out.names:
            out.names = tuple(
                names.get(c.terms[0].dim, "") if len(c.terms) == 1 and c.terms[0].div == 1 else "" for c in coords
            )
    return graph


def explain(graph: PlanGraph) -> list[str]:
    return [
        f"{n.name}: " + ", ".join(f"{kind} {name}={count}" for kind, h in n.hints.items() for name, count in h.items())
        for n in graph.nodes
        if n.hints
    ]


def _names(graph: PlanGraph, node: PlanNode, value: Load) -> dict[str, str]:
    buffer = graph.buffers[value.buffer]
    if not any(buffer.names):
        return {}
    sizes = node.sizes()
    if any(d not in sizes for d in value.index.dims):
        return {}
    coords = decompose(value.index, zip(buffer.stride, buffer.size, strict=True), sizes)
    if coords is None:
        return {}
    return {
        c.terms[0].dim: name
        for c, name in zip(coords, buffer.names, strict=True)
        if name and len(c.terms) == 1 and _plain(c)
    }


def _given(node: PlanNode, coords: Sequence[Coord]) -> dict[str, str]:
    """Names that a `named_dims` hint gives to the dims of what a node without named operands makes."""
    wanted = dict(node.hints.get("named_dims", {}))
    if wanted.pop("", None) != len(coords):
        return {}
    chosen = {coords[place]: name for name, place in wanted.items()}
    return {c.terms[0].dim: name for c, name in chosen.items() if len(c.terms) == 1 and _plain(c)}


def _plain(coord: Coord) -> bool:
    return (coord.terms[0].scale, coord.terms[0].div, coord.terms[0].mod) == (1, 1, 0)


def tiles_of(node: PlanNode, name: str) -> list[str]:
    """Refined dims of the node that belong to the dim called `name`, outer first."""
    dims = [d for d, n in node.names.items() if n == name]
    return [t.name for t in node.tiles if t.name in dims or t.name.split(".")[0] in dims]


def asked_split(graph: PlanGraph, node: PlanNode) -> Split | None:
    """The split that a `work_div` hint asks for; None without a hint or if it names no dim of the node."""
    wanted = node.hints.get("work_div", {})
    known = {name: count for name, count in wanted.items() if tiles_of(node, name)}
    if not known:
        return None
    product = 1
    for count in known.values():
        product *= count
    cores = graph.options.cores
    if product > cores:
        raise InvalidArgument(f"work_div {known} of {node.name} needs {product} cores; there are {cores}")
    grains, pieces = granularity(graph, node), []
    for name, count in known.items():
        left = count
        for tile in tiles_of(node, name):
            dim = next(d for d in node.tiles if d.name == tile)
            if dim.name in node.fixed() and not (node.row.is_matmul and dim.name == "k"):
                if count > 1:
                    raise InvalidArgument(f"work_div {name}={count}: {node.name} ({node.op}) cannot split dim {name}")
                continue
            piece = cut(dim, grains[dim.name], left)
            left = -(-left // piece[1])
            if piece[1] > 1:
                pieces.append(piece)
        if left > 1:
            raise InvalidArgument(
                f"work_div {name}={count}: dim {name} of {node.name} has fewer whole sticks than that"
            )
    position = {d.name: i for i, d in enumerate(node.tiles)}
    return tuple(sorted(pieces, key=lambda p: position[p[0]]))
