# SPDX-License-Identifier: Apache-2.0
"""Work division along the whole graph: one split for each node, chosen together.

Each node has a few candidate splits, its own and its neighbours' in its own dims. A beam search in execution order
picks one each: a node pays its price (`cost`) with every operand that it finds in its own scratchpad read from there;
the first reader that does not find a temporary there pays for writing it to memory. The greedy plan is priced by the
same function and kept if nothing better is found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch_spyre._inductor.passes import handover
from torch_spyre._inductor.planning import candidates
from torch_spyre._inductor.planning.cost import NodeCost, exchange_ns, least_exchange_ns
from torch_spyre._inductor.planning.ownership import REPLICA, Part, Split, holds, part, translate, union
from torch_spyre._inductor.planning.plan_graph import PlanGraph, PlanNode
from torch_spyre.backend.program.isa import MAX_DIMS

BEAM = 12
OWN = 5  # own candidates of a node
MOST = 16  # candidates of a node
ROOMY = 32  # how much larger than LX a temporary may be if a tile loop holds one chunk of it at a time
_IMPOSSIBLE = 1e15


@dataclass(frozen=True)
class Edge:
    """Input `operand` of a node is what the nodes `producers` wrote, each its part."""

    producers: tuple[int, ...]
    operand: int


@dataclass
class Problem:
    """A graph with everything that does not depend on the choice of splits."""

    graph: PlanGraph
    capacity: int  # bytes of LX that one temporary may take
    nodes: list[PlanNode] = field(default_factory=list)
    costs: list[NodeCost] = field(default_factory=list)
    edges: list[list[Edge]] = field(default_factory=list)
    last_use: list[int] = field(default_factory=list)
    pinned: list[bool] = field(default_factory=list)  # the result must be in memory anyway

    def __post_init__(self) -> None:
        graph = self.graph
        written: dict[str, tuple[int, ...]] = {}
        self.nodes = graph.nodes
        self.last_use = list(range(len(self.nodes)))
        known: dict[object, NodeCost] = {}
        for i, node in enumerate(self.nodes):
            self.costs.append(_shared_cost(graph, node, known))
            edges = []
            for j, load in enumerate(node.loads()):
                if load.buffer in written and node.accesses[j] is not None and not node.row.has_table:
                    edges.append(Edge(written[load.buffer], j))
                    for p in written[load.buffer]:
                        self.last_use[p] = i
            self.edges.append(edges)
            buffer = graph.buffers[node.output.buffer]
            self.pinned.append(buffer.kind != "temp" or node.accesses[-1] is None)
            if buffer.kind == "temp":
                written[buffer.name] = (*written.get(buffer.name, ()), i)

    def result(self, i: int, split: Split) -> Part | None:
        """What each core holds of node i's result, if it may stay there."""
        node = self.nodes[i]
        layout = self.costs[i].layouts[-1]
        if layout is None or any(name in node.reduced for name, _, _ in split):
            return None
        held = self.read(i, -1, split)
        if held is None:
            return None
        size = held.elements * 128 // layout.elems_per_stick
        return held if size <= self.capacity else None

    def read(self, i: int, operand: int, split: Split) -> Part | None:
        coords = self.nodes[i].accesses[operand]
        return None if coords is None else part(coords, self.costs[i].sizes, split)


def _shared_cost(graph: PlanGraph, node: PlanNode, known: dict[object, NodeCost]) -> NodeCost:
    """Nodes of equal form share their prices: a model repeats its layers."""
    layouts = tuple(graph.buffers[v.buffer].layout for v in (*node.loads(), node.output))
    key = (node.op, node.tiles, node.accesses, layouts, node.reduced, node.source)
    if key not in known:
        known[key] = NodeCost(graph, node)
    return known[key]


def _kept_even(problem: Problem, target: int, grains: dict[str, int], split: Split) -> bool:
    """SuperDSC names slices of one size, and the same core for the same slice: none that cores share."""
    if not problem.graph.options.for_sdsc:
        return True
    return candidates.even(problem.nodes[target], grains, split)


def all_candidates(problem: Problem, asked: Mapping[int, Split]) -> list[list[Split]]:
    """Own candidates of every node, then those of its consumers and producers, in that order.

    `asked` are splits that a user demands: these nodes have no other.
    """
    grains, sets = [], []
    priced: dict[int, list[Split]] = {}
    for i, node in enumerate(problem.nodes):
        grains.append(candidates.granularity(problem.graph, node))
        cost = problem.costs[i]
        if i in asked:
            sets.append([asked[i]])
            continue
        if id(cost) not in priced:
            priced[id(cost)] = candidates.own(node, grains[i], problem.graph.options, cost, OWN)
        sets.append(list(priced[id(cost)]))
    fixed = [n.fixed() for n in problem.nodes]
    for backward in (True, False):
        order = range(len(sets) - 1, -1, -1) if backward else range(len(sets))
        for i in order:
            for p, edge in ((p, e) for e in problem.edges[i] for p in e.producers):
                read, written = problem.nodes[i].accesses[edge.operand], problem.nodes[p].accesses[-1]
                if read is None or written is None:
                    continue
                source, target = (i, p) if backward else (p, i)
                if target in asked:
                    continue
                a, b = (read, written) if backward else (written, read)
                for split in list(sets[source]):
                    if len(sets[target]) >= MOST:
                        break
                    found = translate(
                        split,
                        a,
                        problem.costs[source].sizes,
                        b,
                        problem.costs[target].sizes,
                        fixed[target],
                        grains[target],
                    )
                    if (
                        found is not None
                        and found not in sets[target]
                        and _kept_even(problem, target, grains[target], found)
                        and candidates.keeps_sums(problem.nodes[target], grains[target], problem.graph.options, found)
                        and _allowed(problem, source, split, target, found)
                    ):
                        sets[target].append(found)
    return sets


def _allowed(problem: Problem, source: int, split: Split, target: int, found: Split) -> bool:
    """Doing work on several cores pays where it feeds a matmul, whose cores share rows of their left operand, and
    where it is little, such as converting a row of weights. It may not be written to memory by all of them.
    """
    copies = next((slices for name, slices, _ in found if name == REPLICA), 1)
    if copies == 1:
        return True
    node = problem.nodes[target]
    if problem.pinned[target] or node.row.is_matmul or len(node.tiles) >= MAX_DIMS:
        return False
    if any(name == REPLICA for name, _, _ in split) or problem.nodes[source].row.is_matmul:
        return True
    points = [math.prod(problem.costs[i].sizes.values()) for i in (source, target)]
    return points[1] * copies <= points[0]


class _Tables:
    """Prices and hand-overs of every candidate, by number, each worked out when it is first asked for.

    `forms` gives nodes that differ in nothing of this the same number: a model repeats its layers.
    """

    def __init__(self, problem: Problem, sets: Sequence[Sequence[Split]]) -> None:
        self.problem, self.sets = problem, sets
        self.forms = _forms(problem, sets)
        self.replicated = [[any(name == REPLICA for name, _, _ in s) for s in splits] for splits in sets]
        self.result_bit = []
        for i, splits in enumerate(sets):
            node = problem.nodes[i]
            bit = 0 if problem.pinned[i] else 1 << (len(node.accesses) - 1)
            self.result_bit.append([0 if any(n in node.reduced for n, _, _ in s) else bit for s in splits])
        self._ns: dict[tuple[int, int, int], float] = {}
        self._write: dict[tuple[int, int], float] = {}
        self._owned: dict[tuple[int, ...], bool] = {}
        self._ring: dict[tuple[int, ...], float] = {}
        self._parts: dict[tuple[int, int, int], Part | None] = {}

    def ns(self, i: int, c: int, in_lx: int) -> float:
        key = (self.forms[i], c, in_lx)
        found = self._ns.get(key)
        if found is None:
            cost, split = self.problem.costs[i], self.sets[i][c]
            found = self._ns[key] = cost.ns(split, in_lx) + candidates.span_penalty(cost, split)
        return found

    def write_ns(self, i: int, c: int) -> float:
        """What it costs to have node i's result in memory instead of the scratchpad."""
        key = (self.forms[i], c)
        found = self._write.get(key)
        if found is None:
            cost, split = self.problem.costs[i], self.sets[i][c]
            result = 1 << (len(self.problem.nodes[i].accesses) - 1)
            found = self._write[key] = max(0.0, cost.ns(split, 0) - cost.ns(split, result))
        return found

    def _key(self, edge: Edge, live: Mapping[int, tuple[int, bool]], i: int, c: int) -> tuple[int, ...]:
        key = [self.forms[i], edge.operand, c]
        for p in edge.producers:
            key += (self.forms[p], live[p][0])
        return tuple(key)

    def owned(self, edge: Edge, live: Mapping[int, tuple[int, bool]], i: int, c: int) -> bool:
        key = self._key(edge, live, i, c)
        found = self._owned.get(key)
        if found is None:
            mine = union([self._part(p, -1, live[p][0]) for p in edge.producers])
            yours = self._part(i, edge.operand, c) if mine is not None else None
            found = self._owned[key] = mine is not None and yours is not None and holds(mine, yours)
        return found

    def ring_ns(self, edge: Edge, live: Mapping[int, tuple[int, bool]], i: int, c: int, limit: float) -> float:
        """What it costs to bring the operand over the ring to the cores that read it; infinite if that is impossible
        or cannot be below `limit`."""
        key = self._key(edge, live, i, c)
        found = self._ring.get(key)
        if found is None:
            (p, *others), yours = edge.producers, self._part(i, edge.operand, c)
            layout = self.problem.costs[p].layouts[-1]
            if others or yours is None or layout is None:
                found = math.inf
            elif least_exchange_ns(yours.elements, layout) >= limit:
                return math.inf
            else:
                found = self._exchange_ns(p, live[p][0], yours, i, edge.operand, c)
            self._ring[key] = found
        return found

    def _exchange_ns(self, p: int, chosen: int, yours: Part, i: int, operand: int, c: int) -> float:
        problem, mine = self.problem, self._part(p, -1, chosen)
        written, read = problem.nodes[p].accesses[-1], problem.nodes[i].accesses[operand]
        layout, sizes = problem.costs[p].layouts[-1], problem.costs[i].sizes
        if mine is None or not written or not read or layout is None:
            return math.inf
        if not handover.movable(mine, yours, layout.elems_per_stick, problem.capacity, problem.graph.options.scratch):
            return math.inf
        found = handover.exchange(self.sets[p][chosen], written, problem.costs[p].sizes, self.sets[i][c], read, sizes)
        if found is None:
            return math.inf
        used = {t.dim for coord in read for t in coord.terms}
        return exchange_ns({d: n for d, n in sizes.items() if d in used}, found[0], found[1], layout)

    def _part(self, i: int, operand: int, c: int) -> Part | None:
        key = (self.forms[i], operand, c)
        if key not in self._parts:
            split = self.sets[i][c]
            found = self.problem.result(i, split) if operand < 0 else self.problem.read(i, operand, split)
            self._parts[key] = found
        return self._parts[key]


@dataclass(slots=True)
class _State:
    """A plan of the nodes so far. What later nodes can see of it is `live`: candidate and "is in memory" by node."""

    cost: float
    live: dict[int, tuple[int, bool]]
    candidate: int = 0  # of the last node
    before: _State | None = None


def search(problem: Problem, sets: Sequence[Sequence[Split]]) -> tuple[float, list[Split]]:
    """(price, split of every node) of the best plan that the beam finds.

    A model repeats its layers: where a node, what is alive around it and the beam look as they did before, so does the
    next beam (`known`). Costs in a beam count from its cheapest state, so that they can look alike.
    """
    tables = _Tables(problem, sets)
    ends: list[list[int]] = [[] for _ in sets]
    for j, last in enumerate(problem.last_use):
        ends[last].append(j)
    states, price_ns = [_State(0.0, {})], 0.0
    known: dict[object, list[_Step]] = {}
    for i in range(len(sets)):
        key = _signature(problem, tables.forms, states, i, ends[i])
        steps = known.get(key)
        if steps is None:
            steps = known[key] = _expand(tables, states, i, ends[i])
        base = steps[0].cost
        price_ns += base
        alive = [j for j in (*states[0].live, i) if j not in ends[i]]
        states = [
            _State(s.cost - base, dict(zip(alive, s.live, strict=True)), s.candidate, states[s.parent]) for s in steps
        ]
    return price_ns, [splits[c] for splits, c in zip(sets, _choices(states[0], len(sets)), strict=True)]


def _choices(state: _State | None, count: int) -> list[int]:
    found: list[int] = []
    while state is not None and len(found) < count:
        found.append(state.candidate)
        state = state.before
    return found[::-1]


def _forms(problem: Problem, sets: Sequence[Sequence[Split]]) -> list[int]:
    """A number for each node; equal numbers mean equal candidates, prices and parts."""
    numbers: dict[object, int] = {}
    return [
        numbers.setdefault((id(cost), tuple(splits), pinned), len(numbers))
        for cost, splits, pinned in zip(problem.costs, sets, problem.pinned, strict=True)
    ]


def _signature(problem: Problem, forms: Sequence[int], states: Sequence[_State], i: int, ends: Sequence[int]) -> object:
    """All that the next beam depends on, with nodes named by their place among those that are alive."""
    place = {j: n for n, j in enumerate(states[0].live)}
    edges = tuple((e.operand, *(place[p] for p in e.producers)) for e in problem.edges[i])
    gone = tuple(place.get(j, -1) for j in ends)
    return (
        (forms[i], edges, gone, tuple(forms[j] for j in place)),
        tuple((s.cost, tuple(s.live.values())) for s in states),
    )


@dataclass(slots=True)
class _Step:
    """A state of the next beam: the state it comes from, the candidate of its last node, what is alive after it."""

    parent: int
    candidate: int
    cost: float
    live: tuple[tuple[int, bool], ...]


def _expand(tables: _Tables, states: Sequence[_State], i: int, ends: Sequence[int]) -> list[_Step]:
    merged: dict[object, _Step] = {}
    for number, state in enumerate(states):
        for c in range(len(tables.sets[i])):
            step = _step(tables, state, i, c)
            if step is None:
                continue
            cost, spilled = step
            live = [(at, lost or j in spilled) for j, (at, lost) in state.live.items() if j not in ends]
            if i not in ends:
                live.append((c, False))
            key = tuple(live)
            found = merged.get(key)
            if found is None or cost < found.cost:
                merged[key] = _Step(number, c, cost, key)
    alive = [j for j in (*states[0].live, i) if j not in ends]
    return _keep(tables, sorted(merged.values(), key=lambda s: s.cost), alive)


def _keep(tables: _Tables, steps: list[_Step], alive: Sequence[int]) -> list[_Step]:
    """The cheapest states, at least one of which can still write everything to memory."""
    kept = steps[:BEAM]
    if not any(_free(tables, s, alive) for s in kept):
        kept += [s for s in steps[BEAM:] if _free(tables, s, alive)][:1]
    return kept


def _free(tables: _Tables, step: _Step, alive: Sequence[int]) -> bool:
    return not any(tables.replicated[j][c] for j, (c, _) in zip(alive, step.live, strict=True))


def _step(tables: _Tables, state: _State, i: int, c: int) -> tuple[float, set[int]] | None:
    """(cost so far, results that go to memory now) after node i runs with candidate c."""
    in_lx, cost, live = tables.result_bit[i][c], state.cost, state.live
    spilled: set[int] = set()
    for edge in tables.problem.edges[i]:
        if tables.owned(edge, live, i, c):
            in_lx |= 1 << edge.operand
            continue
        if not any(live[p][1] or p in spilled for p in edge.producers):
            limit = _memory_ns(tables, live, i, c, in_lx, edge)
            ring = tables.ring_ns(edge, live, i, c, limit)
            if ring < limit:
                cost += ring
                in_lx |= 1 << edge.operand
                continue
        for p in edge.producers:
            chosen, lost = live[p]
            if not lost and p not in spilled:
                if tables.replicated[p][chosen]:
                    return None
                cost += tables.write_ns(p, chosen)
                spilled.add(p)
    return cost + tables.ns(i, c, in_lx), spilled


def _memory_ns(tables: _Tables, live: Mapping[int, tuple[int, bool]], i: int, c: int, in_lx: int, edge: Edge) -> float:
    """What it costs to write an operand of node i to memory and read it there."""
    more = tables.ns(i, c, in_lx) - tables.ns(i, c, in_lx | 1 << edge.operand)
    return more + sum(tables.write_ns(p, live[p][0]) for p in edge.producers)


def price(problem: Problem, splits: Sequence[Split]) -> float:
    """The price of a whole assignment, by the function that the search uses."""
    tables = _Tables(problem, [[s] for s in splits])
    state = _State(0.0, {})
    for i in range(len(splits)):
        step = _step(tables, state, i, 0)
        if step is None:
            return _IMPOSSIBLE
        for p in step[1]:
            state.live[p] = (0, True)
        state.cost = step[0]
        state.live[i] = (0, False)
    return state.cost
