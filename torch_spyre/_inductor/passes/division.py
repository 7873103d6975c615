# SPDX-License-Identifier: Apache-2.0
"""Work division: cuts each node's iteration space into slices, one per core.

Two plans are made and the cheaper one is kept. The greedy one goes node by node: the split of the producer of the
largest operand, so that the hand-over can stay in the scratchpad, else the largest dims in even slices; a matmul
balances rows against columns. The joint one (`joint_division`) searches over all nodes together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch_spyre._inductor.passes import joint_division, scratchpad
from torch_spyre._inductor.passes.hinted import asked_split
from torch_spyre._inductor.planning import candidates
from torch_spyre._inductor.planning.candidates import granularity
from torch_spyre._inductor.planning.cost import NodeCost
from torch_spyre._inductor.planning.ownership import Split as Pieces
from torch_spyre._inductor.planning.ownership import apply, split_of
from torch_spyre._inductor.planning.plan_graph import PlanGraph, PlanNode
from torch_spyre.ir.plan.tileops import Coord, Dim

Split = dict[str, int]  # dim -> number of slices
Slices = dict[str, tuple[int, int]]  # dim -> (number of slices, elements in each)


def run(graph: PlanGraph, trust_loops: bool = False) -> None:
    """Chooses the splits. With `trust_loops`, temporaries larger than LX may stay there, chunk by chunk."""
    greedy(graph)
    asked = _asked(graph)
    if asked:
        for i, split in asked.items():
            apply(graph.nodes[i], split)
    elif len(graph.nodes) == 1:
        _alone(graph, graph.nodes[0])
        return
    room = graph.options.room * (joint_division.ROOMY if trust_loops else 1)
    problem = joint_division.Problem(graph, room)
    before = [split_of(n) for n in graph.nodes]
    joint, chosen = _joint(problem, before, asked)
    if joint < joint_division.price(problem, before):
        for node, split in zip(graph.nodes, chosen, strict=True):
            apply(node, split)


def _alone(graph: PlanGraph, node: PlanNode) -> None:
    """One node, as in eager execution: the cheapest of its own splits."""
    cost = NodeCost(graph, node)
    splits = candidates.alone(node, granularity(graph, node), graph.options)
    apply(node, candidates.best((*splits, split_of(node)), cost, 1)[0])


def _asked(graph: PlanGraph) -> dict[int, Pieces]:
    """Splits that hints demand."""
    if not graph.options.follows_hints:
        return {}
    found = {i: asked_split(graph, n) for i, n in enumerate(graph.nodes) if n.hints}
    return {i: split for i, split in found.items() if split is not None}


def _joint(
    problem: joint_division.Problem, before: Sequence[Pieces], asked: Mapping[int, Pieces]
) -> tuple[float, list[Pieces]]:
    sets = joint_division.all_candidates(problem, asked)
    for known, split in zip(sets, before, strict=True):
        if split not in known:
            known.append(split)
    return joint_division.search(problem, sets)


def compare(graph: PlanGraph) -> tuple[float, float]:
    """Prices in nanoseconds of the greedy division and of the chosen one, for a planned graph that stays as it is."""
    graph = graph.clone()
    for node in [n for n in graph.nodes if n.source]:
        scratchpad.undo(graph, node)
    for node in graph.nodes:
        apply(node, ())
    greedy(graph)
    problem = joint_division.Problem(graph, graph.options.room)
    before = [split_of(n) for n in graph.nodes]
    alone = joint_division.price(problem, before)
    return alone, min(alone, _joint(problem, before, {})[0])


def greedy(graph: PlanGraph) -> None:
    """PlanNode by node: the producer's split if it fits, else the largest dims, evenly."""
    cores = graph.options.cores
    producers: dict[str, PlanNode] = {}
    for node in graph.nodes:
        grains = granularity(graph, node)
        own = _matmul_split(node, grains, cores) if node.row.is_matmul else _spread(node, grains, cores)
        inherited = None if node.row.is_matmul else _inherit(graph, node, producers, grains, cores)
        if inherited is not None and 2 * inherited[0] >= math.prod(own.values()):
            _apply(node, inherited[1], inherited[2])
        else:
            slices = {d.name: (own[d.name], _tile(d, grains, own)) for d in node.tiles if d.name in own}
            _apply(node, slices, list(slices))
            if not candidates.keeps_sums(node, grains, graph.options, split_of(node)):
                own_splits = candidates.alone(node, grains, graph.options)
                apply(node, candidates.best(own_splits, NodeCost(graph, node), 1)[0])
        producers[node.output.buffer] = node


def explain(graph: PlanGraph) -> list[str]:
    lines = []
    for n in graph.nodes:
        split = ", ".join(f"{d.name} {d.size} in {d.slices}" for d in n.tiles if d.slices > 1)
        lines.append(f"{n.name}: {cores_used(n)} cores ({split or 'whole'})")
    return lines


def cores_used(node: PlanNode) -> int:
    return math.prod(d.slices for d in node.tiles)


def _units(dim: Dim, grain: int) -> int:
    return -(-dim.size // grain)


def _tile(dim: Dim, grains: dict[str, int], split: Split) -> int:
    return _units(dim, grains[dim.name]) // split[dim.name] * grains[dim.name]


def _largest_divisor(n: int, limit: int) -> int:
    return max(d for d in range(1, min(n, limit) + 1) if n % d == 0)


def _spread(node: PlanNode, grains: dict[str, int], cores: int) -> Split:
    """Largest dims first, as many slices as divide them."""
    split: Split = {}
    fixed = node.fixed()
    kept = [d for d in node.tiles if d.name not in fixed]
    for dim in sorted(kept, key=lambda d: -_units(d, grains[d.name])):
        slices = _largest_divisor(_units(dim, grains[dim.name]), cores)
        if slices > 1:
            split[dim.name] = slices
            cores //= slices
    return split


def _matmul_split(node: PlanNode, grains: dict[str, int], cores: int) -> Split:
    """As many cores as possible; among those, the least operand bytes per core."""
    size = {d.name: d for d in node.tiles}
    rows = [n for n in size if n == "m" or n.startswith("m.")]
    columns = [n for n in size if n == "n" or n.startswith("n.")]
    batch = [n for n in size if n.startswith("b")]
    best: tuple[tuple[float, ...], Split] | None = None
    b_units = math.prod(size[b].size for b in batch)
    for b in _divisors(b_units, cores):
        for m in _divisors(math.prod(size[r].size for r in rows), cores // b):
            for n in _divisors(math.prod(_units(size[c], grains[c]) for c in columns), cores // (b * m)):
                split = {
                    **_over(batch, b, size, grains),
                    **_over(rows, m, size, grains),
                    **_over(columns, n, size, grains),
                }
                if math.prod(split.values()) != b * m * n:
                    continue
                m_tile = math.prod(size[r].size for r in rows) / m
                n_tile = math.prod(size[c].size for c in columns) / n
                cost = (-b * m * n, m_tile + n_tile, m)
                if best is None or cost < best[0]:
                    best = (cost, split)
    assert best is not None
    return {k: v for k, v in best[1].items() if v > 1}


def _divisors(n: int, limit: int) -> list[int]:
    return [d for d in range(1, min(n, limit) + 1) if n % d == 0]


def _over(names: list[str], slices: int, size: dict[str, Dim], grains: dict[str, int]) -> Split:
    """Spreads a number of slices over the pieces of one logical dim, outer first."""
    split: Split = {}
    for name in names:
        take = math.gcd(slices, _units(size[name], grains[name]))
        split[name] = take
        slices //= take
    return split


def _inherit(
    graph: PlanGraph, node: PlanNode, producers: dict[str, PlanNode], grains: dict[str, int], cores: int
) -> tuple[int, Slices, list[str]] | None:
    """(cores, slices, core order) of the producer of the largest temporary operand, if it fits this node."""
    best: tuple[int, Slices, list[str]] | None = None
    largest = 0
    for load, coords in zip(node.loads(), node.accesses, strict=False):
        producer = producers.get(load.buffer)
        buffer = graph.buffers[load.buffer]
        if producer is None or not coords or buffer.numel <= largest:
            continue
        written = producer.accesses[-1]
        if written is None:
            continue
        candidate = _translate(producer, written, node, coords, grains)
        if candidate is not None:
            used = math.prod(slices for slices, _ in candidate[0].values())
            if used <= cores:
                largest = buffer.numel
                best = (used, *candidate)
    return best


def _translate(
    producer: PlanNode, written: tuple[Coord, ...], node: PlanNode, read: tuple[Coord, ...], grains: dict[str, int]
) -> tuple[Slices, list[str]] | None:
    """The producer's slices in the consumer's dims: same device coordinate, same digit, same size, same tile."""
    split: Slices = {}
    names: dict[str, str] = {}
    for dim in producer.tiles:
        if dim.slices == 1:
            continue
        match = None
        for w, r in zip(written, read, strict=True):
            for t in w.terms:
                if t.dim != dim.name:
                    continue
                for u in r.terms:
                    other = next(d for d in node.tiles if d.name == u.dim)
                    if (u.scale, u.div, u.mod) == (t.scale, t.div, t.mod) and other.size == dim.size:
                        match = other
        if match is None or match.name in node.fixed() or dim.extent % grains[match.name]:
            return None
        split[match.name] = (dim.slices, dim.extent)
        names[dim.name] = match.name
    return split, [names[d] for d in producer.core_order if d in names]


def _apply(node: PlanNode, split: Slices, order: list[str]) -> None:
    tiles = []
    for dim in node.tiles:
        slices, tile = split.get(dim.name, (1, 0))
        tiles.append(replace(dim, slices=slices, tile=tile))
    node.tiles = tuple(tiles)
    node.core_order = tuple(order)
