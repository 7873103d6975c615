# SPDX-License-Identifier: Apache-2.0
"""Where restickifies are inserted: a local search over the stick dims of temporaries, priced by the time model.

The starting point is greedy: every result takes the stick of its operands, and an operand that a node cannot use is
re-laid right before it. Each such copy can move: upwards, by giving the node that made its source the wanted stick, so
that this node's operands are re-laid instead (fewer bytes above a conversion or a broadcast, one copy for several
readers); or downwards, by letting its reader keep the stick, so that the result is re-laid where it is needed (fewer
bytes below a reduction, none if nobody minds). A move continues as long as there is a copy to push further; the best of
all stations is kept, and the search ends when no move helps.

A long graph is searched in windows around its dearest copies, each kind of copy once, since layers repeat; what a
window chooses holds for the whole graph, and stays only if the whole graph gets cheaper. Work is bounded by how many
nodes are given layouts, not by time, so that plans do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch_spyre._inductor.passes.coordinates import stick_dims
from torch_spyre._inductor.planning import candidates
from torch_spyre._inductor.planning.cost import NodeCost
from torch_spyre._inductor.planning.layout_rules import CHOICE, Rejected, assign, coordinates, form
from torch_spyre._inductor.planning.plan_graph import PlanGraph, PlanNode
from torch_spyre._inductor.planning.sdsc_layouts import SdscLayouts
from torch_spyre._inductor.tilegraph.graph import Load
from torch_spyre._inductor.tilegraph.index import decompose
from torch_spyre.optable import RESTICKIFY

Choices = dict[object, str]
_ROUNDS = 4
_STATIONS = 8  # how far one move goes
_MOST_COPIES = 12  # kinds of copies that are tried
_WINDOW = 160  # nodes that are searched at a time
_WINDOWS = 16
_WORK = 60_000  # nodes that all trials of one graph may lay out
_WORTH = 0.005  # copies that take less than this part of the time stay where they are


@dataclass
class Work:
    """Nodes that may still be laid out."""

    left: int = _WORK

    def layouts(self, graph: PlanGraph, choices: Choices) -> PlanGraph | None:
        """The graph with layouts under these choices; None if they cannot be kept, or nothing is left to try them."""
        if self.left <= 0:
            return None
        self.left -= len(graph.nodes)
        try:
            return assign(graph.clone(), choices)
        except Rejected:
            return None


def run(graph: PlanGraph) -> PlanGraph:
    untouched = graph.clone()
    best = assign(graph)
    prices: dict[object, float] = {}
    choices: Choices = {}
    notes: dict[object, str] = {}
    seen: set[object] = set()
    work, cost = Work(), 0.0
    for _ in range(_WINDOWS):
        start = _next_window(untouched, best, prices, seen)
        if start is None or work.left <= 0:
            break
        part = _window(untouched, best, start)
        found, told = search(part, choices, prices, work, seen)
        notes = {**told, **notes}
        if found != choices:
            cost = cost or price(best, prices)
            trial = Work(len(untouched.nodes)).layouts(untouched, found)
            there = price(trial, prices) if trial is not None else cost
            if trial is not None and there < cost:
                best, cost, choices = trial, there, found
        if len(part.nodes) == len(untouched.nodes):
            break
    if notes:
        forms = ((n.name, form(untouched, n)) for n in untouched.nodes)
        _note(best, {name: notes[key] for name, key in forms if key in notes})
    return SdscLayouts(untouched, choices).run() if graph.options.for_sdsc else best


def _next_window(graph: PlanGraph, planned: PlanGraph, prices: dict[object, float], seen: set[object]) -> int | None:
    """Where the window begins that has the dearest kind of copy not yet seen in its middle."""
    paid: dict[object, float] = {}
    first: dict[object, str] = {}
    nodes = {n.name: n for n in graph.nodes}
    for copy in _copies(planned):
        kind = _kind(graph, nodes, copy)
        if kind not in seen:
            paid[kind] = paid.get(kind, 0.0) + _price(planned, copy.node, prices)
            first.setdefault(kind, copy.reader.name)
    if not paid:
        return None
    dearest = max(paid, key=lambda k: paid[k])
    seen.add(dearest)
    place = next((i for i, n in enumerate(graph.nodes) if n.name == first[dearest]), 0)
    return max(0, min(place - _WINDOW // 2, len(graph.nodes) - _WINDOW))


def _window(graph: PlanGraph, planned: PlanGraph, start: int) -> PlanGraph:
    """A part of the graph; what the nodes before it wrote keeps its planned layout."""
    part = graph.clone()
    for node in part.nodes[:start]:
        part.buffers[node.output.buffer].layout = planned.buffers[node.output.buffer].layout
    part.nodes = part.nodes[start : start + _WINDOW]
    return part


def search(
    graph: PlanGraph, choices: Choices, prices: dict[object, float], work: Work, seen: set[object]
) -> tuple[Choices, dict[object, str]]:
    """The choices that the cheapest plan found needs, and for the node of each copy what was considered."""
    notes: dict[object, str] = {}
    best = work.layouts(graph, choices)
    if best is None:
        return choices, notes
    cost = price(best, prices)
    for _ in range(_ROUNDS):
        better: tuple[float, Choices, PlanGraph] | None = None
        for copy in _kinds(graph, best, prices, cost * _WORTH, seen):
            stations: list[tuple[str, float]] = []
            for upwards in (True, False):
                for trial, planned in _move(graph, best, choices, copy, upwards, work):
                    there = price(planned, prices)
                    where = f"{'above' if upwards else 'below'} {trial.name}"
                    stations.append((where, there))
                    if there < (better[0] if better else cost) * (1 - 1e-9):
                        better = (there, trial.choices, planned)
            _remember(notes, graph, copy, cost, stations)
        if better is None:
            break
        cost, choices, best = better
    return choices, notes


def price(graph: PlanGraph, known: dict[object, float]) -> float:
    """Nanoseconds of a graph with layouts, each node as divided best by itself, temporaries in LX, copies in memory."""
    return sum(_price(graph, node, known) for node in graph.nodes)


def _price(graph: PlanGraph, node: PlanNode, known: dict[object, float]) -> float:
    buffers = [graph.buffers[v.buffer] for v in (*node.loads(), node.output)]
    temps = tuple(b.kind == "temp" for b in buffers)
    key = (node.op, node.tiles, node.accesses, tuple(b.layout for b in buffers), node.reduced, temps)
    if key not in known:
        known[key] = _node_ns(graph, node, temps)
    return known[key]


def _node_ns(graph: PlanGraph, node: PlanNode, temps: tuple[bool, ...]) -> float:
    cost = NodeCost(graph, node)
    in_lx = sum(1 << i for i, temp in enumerate(temps) if temp)
    if node.row.is_copy:
        in_lx &= (1 << (len(temps) - 1)) - 1
    splits = candidates.alone(node, candidates.granularity(graph, node), graph.options)
    return min(cost.ns(split, in_lx) for split in (*splits, ()))


@dataclass(frozen=True)
class Copy:
    """A restickify: of what `producer` wrote, for `reader`."""

    node: PlanNode
    producer: PlanNode | None
    reader: PlanNode


@dataclass(frozen=True)
class Trial:
    """Choices at one station of a move; `name` is the node that the copy has passed."""

    choices: Choices
    name: str


def _copies(graph: PlanGraph) -> Iterator[Copy]:
    writers: dict[str, list[PlanNode]] = {}
    for node in graph.nodes:
        writers.setdefault(node.output.buffer, []).append(node)
    readers = graph.consumers()
    for node in graph.nodes:
        if node.row is not RESTICKIFY:
            continue
        (source,) = node.loads()
        wrote = writers.get(source.buffer, [])
        temp = graph.buffers[source.buffer].kind == "temp"
        for reader in readers[node.output.buffer]:
            yield Copy(node, wrote[0] if temp and len(wrote) == 1 else None, reader)


def _kind(graph: PlanGraph, nodes: Mapping[str, PlanNode], copy: Copy) -> object:
    """Copies between nodes of one form move together."""
    ends = [nodes.get(n.name) if n is not None else None for n in (copy.producer, copy.reader)]
    return tuple(form(graph, n) if n is not None else None for n in ends), copy.node.dims


def _kinds(
    graph: PlanGraph, planned: PlanGraph, prices: dict[object, float], least: float, seen: set[object]
) -> list[Copy]:
    """One copy of each kind, the dearest first; those that are tried or not worth it are added to `seen`."""
    found: dict[object, list[Copy]] = {}
    nodes = {n.name: n for n in graph.nodes}
    for copy in _copies(planned):
        found.setdefault(_kind(graph, nodes, copy), []).append(copy)
    paid = {kind: sum(_price(planned, c.node, prices) for c in copies) for kind, copies in found.items()}
    worth = sorted((kind for kind in paid if paid[kind] >= least), key=lambda kind: -paid[kind])
    seen |= paid.keys() - set(worth[_MOST_COPIES:])
    return [found[kind][0] for kind in worth[:_MOST_COPIES]]


def _ends(graph: PlanGraph, copy: Copy) -> list[PlanNode | None]:
    """Producer and reader of a copy as they are in the graph without layouts."""
    names = [copy.producer.name if copy.producer else "", copy.reader.name]
    found = {n.name: n for n in graph.nodes if n.name in names}
    return [found.get(name) for name in names]


def _free(graph: PlanGraph, node: PlanNode | None) -> bool:
    """May the result of a node have any stick?"""
    if node is None or node.row.is_copy or node.row.has_table or node.row.is_matmul or node.along:
        return False
    return graph.buffers[node.output.buffer].kind == "temp"


def _move(
    graph: PlanGraph, planned: PlanGraph, choices: Mapping[object, str], copy: Copy, upwards: bool, work: Work
) -> Iterator[tuple[Trial, PlanGraph]]:
    """Pushes a copy past one node after the other; yields what comes out at each station."""
    front = [copy]
    made = dict(choices)
    for _ in range(_STATIONS):
        passed: dict[str, str] = {}
        for one in front:
            found = _past(graph, planned, one, upwards)
            if found is not None:
                passed.setdefault(*found)
        nodes = {n.name: n for n in graph.nodes if n.name in passed}
        fresh = {form(graph, n): passed[name] for name, n in nodes.items()}
        if not fresh or all(made.get(k) == v for k, v in fresh.items()):
            return
        made = {**made, **fresh}
        result = work.layouts(graph, made)
        if result is None:
            return
        planned = result
        yield Trial(made, ", ".join(passed)), planned
        front = [
            c
            for c in _copies(planned)
            if (c.reader.name in passed if upwards else c.producer is not None and c.producer.name in passed)
        ]


def _past(graph: PlanGraph, planned: PlanGraph, copy: Copy, upwards: bool) -> tuple[str, str] | None:
    """(node, stick dim of its result) that takes the copy to its other side; None if that node has no choice."""
    producer, reader = _ends(graph, copy)
    node = producer if upwards else reader
    if node is None or not _free(graph, node):
        return None
    (source,) = copy.node.loads()
    buffer = planned.buffers[source.buffer]
    if upwards:
        stick = _stick(planned, copy.node, copy.node.output)
        axes = decompose(source.index, zip(buffer.stride, buffer.size, strict=True), copy.node.sizes())
        mine = decompose(node.output.index, zip(buffer.stride, buffer.size, strict=True), node.result_sizes())
        if axes is None or mine is None or not stick:
            return None
        for theirs, own in zip(axes, mine, strict=True):
            if any(t.dim == stick and t.div == 1 for t in theirs.terms) and len(own.terms) == 1:
                return node.name, own.terms[0].dim
        return None
    stick = _stick(planned, copy.node, source)
    return (node.name, stick) if stick in node.sizes() else None


def _stick(graph: PlanGraph, node: PlanNode, value: Load) -> str:
    coords = coordinates(graph.buffers[value.buffer], value.index, node.sizes())
    inside = stick_dims(coords) if coords is not None else []
    return inside[0] if len(inside) == 1 else ""


def _remember(
    notes: dict[object, str], graph: PlanGraph, copy: Copy, cost: float, stations: Iterable[tuple[str, float]]
) -> None:
    reader = _ends(graph, copy)[1]
    if reader is None or not stations:
        return
    others = "; ".join(f"{where} {(there - cost) / 1e3:+.1f} us" for where, there in stations)
    (source,) = copy.node.loads()
    notes.setdefault(form(graph, reader), f"{CHOICE} of {source.buffer}, elsewhere: {others}")


def _note(graph: PlanGraph, notes: Mapping[str, str]) -> None:
    """Leaves the account with the nodes that the copies were for."""
    for node in graph.nodes:
        if node.name in notes:
            node.notes.append(notes[node.name])


def explain(graph: PlanGraph) -> list[str]:
    """Every layout, then every choice with the alternatives and their prices."""
    layouts = [f"{b.name}: {b.layout}" for b in graph.buffers.values() if b.layout is not None]
    return layouts + [f"{n.name}: {note}" for n in graph.nodes for note in n.notes if note.startswith(CHOICE)]
