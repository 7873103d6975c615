# SPDX-License-Identifier: Apache-2.0
"""Pieces: a dim that one node must walk in pieces is walked in pieces by all its neighbours.

Attention over shared keys joins heads and rows into one dim of 4 x 512, a mask knows the rows only. The node that adds
the mask cuts the joined dim; if the others did not, their cores would hold rows that are not adjacent, and every
hand-over would go through memory. Dims that nodes hand to each other through temporaries are one class; where its
members ask for cuts that nest, all of them are cut, temporaries too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from torch_spyre._inductor.passes.coordinates import cut_pieces, rewrite
from torch_spyre._inductor.planning.matmul_dims import role
from torch_spyre._inductor.planning.plan_graph import PlanBuffer, PlanGraph, PlanNode
from torch_spyre._inductor.tilegraph.graph import Load, Position, Value
from torch_spyre._inductor.tilegraph.index import Index, decompose, term_range
from torch_spyre.backend.program.isa import MAX_DIMS
from torch_spyre.constants import STICK_BYTES
from torch_spyre.ir.plan.tileops import Coord

Member = tuple[str, str | int]  # (node, dim) or (buffer, axis)
_ROWS = 64  # rows of a matmul that stay together: fewer leave the array half empty
_MOST_DIMS = MAX_DIMS - 2  # leaves room for replication and for a cut of one operand
_MOST_AXES = 5  # with the stick, what a layout has


def run(graph: PlanGraph) -> PlanGraph:
    if len(graph.nodes) < 2:
        return graph
    classes = _Classes()
    sparse = _sparse(graph)
    for node in graph.nodes:
        _relate(graph, node, classes, sparse)
    cuts = {root: cut for root, wanted in classes.cuts.items() if (cut := classes.nested(root, wanted))}
    if not cuts:
        return graph
    _drop_wide(graph, classes, cuts)
    for node in graph.nodes:
        _cut_node(node, classes, cuts)
    for buffer in graph.buffers.values():
        if buffer.kind == "temp":
            _cut_buffer(buffer, classes, cuts)
    return graph


def explain(graph: PlanGraph) -> list[str]:
    return [f"{n.name}: {note}" for n in graph.nodes for note in n.notes if note.startswith("walked in pieces")]


class _Classes:
    """Members that are one dim, with the cuts that some of them need; union by representative."""

    def __init__(self) -> None:
        self.parent: dict[Member, Member] = {}
        self.size: dict[Member, int] = {}
        self.cuts: dict[Member, set[int]] = {}
        self.whole: set[Member] = set()  # classes that may not be cut
        self.lanes: set[Member] = set()  # classes that may be in sticks: cuts are at whole sticks

    def find(self, member: Member, size: int) -> Member:
        root = member
        while (above := self.parent.setdefault(root, root)) != root:
            root = above
        self.parent[member] = root
        self.size.setdefault(root, size)
        return root

    def join(self, a: Member, b: Member, size: int) -> None:
        first, second = self.find(a, size), self.find(b, size)
        if first != second:
            self.parent[second] = first
            self.cuts.setdefault(first, set()).update(self.cuts.pop(second, ()))
            for marked in (self.whole, self.lanes):
                if second in marked:
                    marked.add(first)

    def ask(self, member: Member, size: int, cuts: Iterable[int]) -> None:
        wanted = {c for c in cuts if 1 < c < size}
        if wanted:
            self.cuts.setdefault(self.find(member, size), set()).update(wanted)

    def forbid(self, member: Member, size: int) -> None:
        self.whole.add(self.find(member, size))

    def grain(self, member: Member, size: int) -> None:
        self.lanes.add(self.find(member, size))

    def nested(self, root: Member, wanted: set[int]) -> list[int]:
        """The cuts from small to large, if the class can be cut there."""
        cuts, size = sorted(wanted), self.size[root]
        if root in self.whole or any(size % c for c in cuts) or any(b % a for a, b in itertools.pairwise(cuts)):
            return []
        return [] if root in self.lanes and any(c % STICK_BYTES for c in cuts) else cuts


def _sparse(graph: PlanGraph) -> set[str]:
    """Temporaries with one value in each stick: sums over the last dim, and what is computed from those alone."""
    found: set[str] = set()
    for node in graph.nodes:
        loads = list(node.loads())
        if node.reduced and not node.row.is_matmul:
            inner = {t.dim for v in loads for t in v.index.terms if t.scale == 1 and t.div == 1}
            alone = bool(inner) and inner <= set(node.reduced)
        else:
            alone = bool(loads) and all(v.buffer in found for v in loads)
        if alone and graph.buffers[node.output.buffer].kind == "temp":
            found.add(node.output.buffer)
    return found


def _relate(graph: PlanGraph, node: PlanNode, classes: _Classes, sparse: set[str]) -> None:
    sizes = node.sizes()
    for dim, size in node.dims:
        if not _may_cut(node, dim):
            classes.forbid((node.name, dim), size)
    for value, seen in [*((v, sizes) for v in node.loads()), (node.output, node.result_sizes())]:
        buffer = graph.buffers[value.buffer]
        temp = buffer.kind == "temp"
        inside = all(d in seen for d in value.index.dims)
        axes = list(zip(buffer.stride, buffer.size, strict=True))
        coords = decompose(value.index, axes, seen) if inside else None
        for axis, size in enumerate(buffer.size):
            if temp and coords is None:
                classes.forbid((buffer.name, axis), size)
            if coords is None:
                continue
            if buffer.name not in sparse and _in_stick(buffer, axis):
                for t in coords[axis].terms:
                    classes.grain((node.name, t.dim), seen[t.dim])
            if coords[axis].terms:
                _relate_axis(node, classes, coords[axis], (buffer.name, axis) if temp else None, size, seen)


def _in_stick(buffer: PlanBuffer, axis: int) -> bool:
    """Is the axis in the sticks? It is known for inputs; others mostly have their last dim there."""
    if buffer.layout is not None:
        return buffer.stride[axis] == buffer.layout.stride_map[-1]
    return axis == len(buffer.size) - 1


def _may_cut(node: PlanNode, dim: str) -> bool:
    if node.row.has_table or dim in node.reduced or dim == node.along:
        return False
    return not node.row.is_matmul or role(dim) in "bm"


def _relate_axis(
    node: PlanNode, classes: _Classes, coord: Coord, axis: Member | None, size: int, sizes: dict[str, int]
) -> None:
    """One coordinate: the whole of a dim is that dim, digits ask for cuts of the dim, sums for cuts of the axis."""
    for t in coord.terms:
        whole = t.div == 1 and not t.mod
        if whole and len(coord.terms) == 1 and t.scale == 1 and not coord.const and sizes[t.dim] == size:
            if axis is not None:
                classes.join((node.name, t.dim), axis, size)
            return
        if not whole:
            cuts = [t.div, t.div * t.mod]
            if not node.row.is_matmul or min(c for c in (*cuts, sizes[t.dim]) if c > 1) >= _ROWS:
                classes.ask((node.name, t.dim), sizes[t.dim], cuts)
    if axis is None or not coord.terms:
        return
    reach = 1
    for t in sorted(coord.terms, key=lambda t: t.scale):
        if t.scale != reach:
            break
        reach *= term_range(t, sizes)
    if reach != size or coord.const:
        classes.forbid(axis, size)
    elif len(coord.terms) > 1:
        classes.ask(axis, size, (t.scale for t in coord.terms))


def _drop_wide(graph: PlanGraph, classes: _Classes, cuts: dict[Member, list[int]]) -> None:
    """Leaves classes whole that would give a node or a temporary more dims than the machine has."""
    owners: list[tuple[str, list[tuple[str | int, int]], int]] = []
    owners += [(n.name, list(n.dims), _MOST_DIMS) for n in graph.nodes]
    owners += [(b.name, list(enumerate(b.size)), _MOST_AXES) for b in graph.buffers.values() if b.kind == "temp"]
    for name, sizes, most in owners:
        roots = [classes.find((name, key), size) for key, size in sizes]
        total = sum(n > 1 for _, n in sizes) + sum(len(cuts.get(r, ())) for r in roots)
        if total > most:
            for root in roots:
                cuts.pop(root, None)
    for node in graph.nodes:
        if node.row.is_matmul:
            for dim, size in node.dims:
                root = classes.find((node.name, dim), size)
                if role(dim) == "m" and root in cuts and cuts[root][0] < _ROWS:
                    del cuts[root]


def _cut_node(node: PlanNode, classes: _Classes, cuts: dict[Member, list[int]]) -> None:
    pieces: dict[str, list[tuple[str, int, int]]] = {}
    for dim, size in node.dims:
        pieces[dim] = cut_pieces(dim, size, cuts.get(classes.find((node.name, dim), size), []))
    cut = [dim for dim, parts in pieces.items() if len(parts) > 1]
    if not cut:
        return
    node.dims = tuple((name, size) for dim, _ in node.dims for name, size, _ in pieces[dim])
    node.inputs = tuple(_recut(v, pieces) for v in node.inputs)
    node.output = Load(node.output.buffer, _index(node.output.index, pieces))
    shape = ", ".join(f"{dim} as {' x '.join(str(n) for _, n, _ in pieces[dim])}" for dim in cut)
    node.notes.append(f"walked in pieces like its neighbours: {shape}")


def _recut(value: Value, pieces: dict[str, list[tuple[str, int, int]]]) -> Value:
    if isinstance(value, Load):
        return Load(value.buffer, _index(value.index, pieces))
    return Position(_index(value.index, pieces)) if isinstance(value, Position) else value


def _index(index: Index, pieces: dict[str, list[tuple[str, int, int]]]) -> Index:
    found = rewrite(Coord(index.terms, index.const), pieces)
    return Index(found.terms, found.const)


def _cut_buffer(buffer: PlanBuffer, classes: _Classes, cuts: dict[Member, list[int]]) -> None:
    size: list[int] = []
    stride: list[int] = []
    for axis, (n, step) in enumerate(zip(buffer.size, buffer.stride, strict=True)):
        for _, extent, weight in cut_pieces("", n, cuts.get(classes.find((buffer.name, axis), n), [])):
            size.append(extent)
            stride.append(step * weight)
    if len(size) > len(buffer.size):
        buffer.size, buffer.stride, buffer.names = tuple(size), tuple(stride), ()
