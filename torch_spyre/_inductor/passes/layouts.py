# SPDX-License-Identifier: Apache-2.0
"""Layouts: gives every buffer a device layout and every access its device coordinates.

Rules of the machine. Pointwise operands share one stick dim; an operand without it is broadcast, one value per stick.
A matmul reads a with stick k and b with stick n and writes stick n. A reduction over the stick dim leaves one value
per stick (a *sparse* result). An access that breaks the rule is fed by a copy into a layout that keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_spyre._inductor.passes.coordinates import Conflict, refine, stick_dims, stick_form
from torch_spyre._inductor.tilegraph.graph import Buffer, Graph, Layout, Load, Node
from torch_spyre._inductor.tilegraph.index import Index, decompose
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ktir.tileops import Coord, Term

Coords = tuple[Coord, ...]
_MAX_RANK = 6  # what the layout rule covers
COPIES = ("identity", "ReStickifyOpHBM")


def make_layout(buffer: Buffer, order: Sequence[int]) -> Layout:
    """The layout rule: dims in `order`, the last one in the stick; a trailing -1 puts one element in each stick."""
    import torch

    from torch_spyre._C import SpyreTensorLayout

    if len(order) > _MAX_RANK:
        shape = f"{list(buffer.size)} with one value per stick" if -1 in order else str(list(buffer.size))
        raise UnsupportedOp(f"{buffer.name}: {shape} has more than {_MAX_RANK} dims; flatten some of them first")
    stl = SpyreTensorLayout(list(buffer.size), list(buffer.stride), getattr(torch, buffer.dtype), list(order))
    return from_stl(stl)


def from_stl(stl: object) -> Layout:
    return Layout(tuple(stl.device_size), tuple(stl.stride_map), stl.device_dtype.name)  # type: ignore[attr-defined]


def coordinates(buffer: Buffer, index: Index, sizes: dict[str, int]) -> Coords | None:
    """Device coordinates of an access, or None if they do not separate."""
    assert buffer.layout is not None
    coords = decompose(index.shifted(buffer.offset), buffer.layout.axes(), sizes)
    return None if coords is None else tuple(coords)


def run(graph: Graph) -> Graph:
    return _Layouts(graph).run()


def explain(graph: Graph) -> list[str]:
    return [f"{b.name}: {b.layout}" for b in graph.buffers.values() if b.layout is not None]


class _Layouts:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.copies: dict[tuple[object, ...], Load] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self._plan(node)
            written = node.output.buffer
            self.copies = {k: v for k, v in self.copies.items() if k[0] != written}  # stale now
        self.graph.nodes = self.nodes
        for buffer in self.graph.buffers.values():
            if buffer.layout is None and buffer.kind == "output":  # empty: no node writes it
                buffer.layout = make_layout(buffer, list(range(len(buffer.size))))
        return self.graph

    def _plan(self, node: Node) -> None:
        buffer = self.graph.buffers[node.output.buffer]
        if buffer.layout is None:
            buffer.layout = self._choose(node, buffer)
        elif node.op not in COPIES and not self._writable(node, buffer):
            node = self._write_through_copy(node, buffer)
        if node.op in COPIES:
            self._finish_copy(node)
        else:
            self._feed(node)
            self._finish(node)

    # Choosing the layout of a result

    def _choose(self, node: Node, buffer: Buffer) -> Layout:
        rank = len(buffer.size)
        if rank == 0:
            return make_layout(buffer, [])
        stick = self._stick_dim(node)
        host = decompose(node.output.index, zip(buffer.stride, buffer.size, strict=True), node.sizes())
        if host is None:
            raise UnsupportedOp(f"{node.name}: result index {node.output.index} does not separate over {buffer.size}")
        everything = list(range(rank))
        if rank > _MAX_RANK and node.op in COPIES:  # as a fresh tensor of that rank: flat over the range it spans
            span = 1 + sum((n - 1) * s for n, s in zip(buffer.size, buffer.stride, strict=True))
            return make_layout(Buffer(buffer.name, buffer.dtype, (span,), (1,)), [0])
        if stick == _SPARSE:
            return make_layout(buffer, [*everything, -1])
        position = rank - 1
        for i, coord in enumerate(host):
            if any(t.dim == stick and t.div == 1 for t in coord.terms):
                position = i
        return make_layout(buffer, [i for i in everything if i != position] + [position])

    def _stick_dim(self, node: Node) -> str:
        """The dim inside the sticks of the result; _SPARSE for one value per stick, "" for no wish."""
        if node.op == "batchmatmul":
            return "n"
        if node.op in COPIES:
            return ""
        sizes, inside = node.sizes(), {t.dim for t in node.output.index.terms}
        found: list[str] = []
        tensors, copied = 0, False
        for load in node.loads():
            buffer = self.graph.buffers[load.buffer]
            if buffer.kind == "scalar" or not buffer.size:
                continue
            coords = coordinates(buffer, load.index, sizes)
            tensors += 1
            if coords is not None:
                found += stick_dims(coords)
            else:
                copied = True  # the copy can have any stick
        for dim in found:
            if dim in inside:
                return dim
        if found and node.reduced and not any(d in inside for d in found):
            return _SPARSE
        if tensors and not found and not copied and inside:
            return _SPARSE
        return ""

    # Feeding operands

    def _writable(self, node: Node, buffer: Buffer) -> bool:
        """Can the node store straight into this (mutated) buffer?"""
        coords = coordinates(buffer, node.output.index, node.sizes())
        if coords is None or not stick_form(coords, buffer.layout):
            return False
        wanted = self._stick_dim(node)
        return stick_dims(coords) == ([wanted] if wanted and wanted != _SPARSE else [])

    def _write_through_copy(self, node: Node, target: Buffer) -> Node:
        """Computes into a temporary and copies it into the target; returns the copy."""
        dims = tuple(d for d in node.dims if d[0] not in node.reduced)
        temp = self._temp(dims, target.dtype)
        inner = Node(node.name, node.op, node.dims, node.inputs, temp, node.reduced, node.constants, node.origin)
        self._plan(inner)
        return Node(f"{node.name}_into", "identity", dims, (temp,), node.output, origin=node.origin)

    def _temp(self, dims: tuple[tuple[str, int], ...], dtype: str) -> Load:
        size = tuple(n for _, n in dims)
        step = 1
        strides: list[int] = []
        for n in reversed(size):
            strides.insert(0, step)
            step *= n
        name = f"c{len(self.graph.buffers)}"
        self.graph.buffers[name] = Buffer(name, dtype, size, tuple(strides))
        return Load(name, Index(tuple(Term(d, s) for (d, n), s in zip(dims, strides, strict=True) if n > 1)))

    def _wanted(self, node: Node, operand: int) -> str:
        """The stick dim that this operand must have if it varies along it."""
        if node.op == "batchmatmul":
            return ("k", "n")[operand]
        if node.reduced:
            load = node.inputs[operand]
            assert isinstance(load, Load)
            coords = coordinates(self.graph.buffers[load.buffer], load.index, node.sizes())
            return (stick_dims(coords) or [""])[0] if coords is not None else node.dims[-1][0]
        buffer = self.graph.buffers[node.output.buffer]
        coords = coordinates(buffer, node.output.index, node.sizes())
        assert coords is not None
        return (stick_dims(coords) or [""])[0]

    def _feed(self, node: Node) -> None:
        inputs = list(node.inputs)
        for i, value in enumerate(inputs):
            if not isinstance(value, Load):
                continue
            buffer = self.graph.buffers[value.buffer]
            if buffer.kind == "scalar":
                continue
            wanted = self._wanted(node, i)
            coords = coordinates(buffer, value.index, node.sizes())
            if not self._keeps_rule(coords, buffer, value, wanted):
                inputs[i] = self._copy(node, value, wanted)
        node.inputs = tuple(inputs)

    def _keeps_rule(self, coords: Coords | None, buffer: Buffer, load: Load, wanted: str) -> bool:
        if coords is None or not stick_form(coords, buffer.layout):
            return False
        inside = stick_dims(coords)
        return inside == ([wanted] if wanted in load.index.dims else [])

    def _copy(self, node: Node, load: Load, stick: str) -> Load:
        """A copy of the operand, laid out over the node's dims with `stick` innermost."""
        dims = tuple(d for d in node.dims if d[0] in load.index.dims)
        rename = {d: f"x{i}" for i, (d, _) in enumerate(dims)}
        key = (load.buffer, load.index.rename(rename), tuple(n for _, n in dims), rename.get(stick))
        if key in self.copies:
            known = self.copies[key]
            return Load(known.buffer, known.index.rename({v: k for k, v in rename.items()}))
        source = self.graph.buffers[load.buffer]
        temp = self._temp(dims, source.dtype)
        buffer = self.graph.buffers[temp.buffer]
        names = [d for d, _ in dims]
        if stick in names:
            at = names.index(stick)
            buffer.layout = make_layout(buffer, [i for i in range(len(names)) if i != at] + [at])
        else:
            buffer.layout = make_layout(buffer, [*range(len(names)), -1] if names else [])
        copy = Node(f"{node.name}_copy_{load.buffer}", "ReStickifyOpHBM", dims, (load,), temp, origin=node.origin)
        copy.notes.append(f"{load.buffer} re-laid with {stick or 'one value'} in the stick for {node.name}")
        self._finish_copy(copy)
        self.copies[key] = Load(temp.buffer, temp.index.rename(rename))
        return temp

    # Final coordinates

    def _accesses(self, node: Node) -> list[Coords | None]:
        """Device coordinates of every load and of the result; a launch scalar has none to walk."""
        sizes = node.sizes()
        values = [(self.graph.buffers[v.buffer], v) for v in (*node.loads(), node.output)]
        return [() if b.kind == "scalar" else coordinates(b, v.index, sizes) for b, v in values]

    def _finish(self, node: Node) -> None:
        """Refines the dims so that every coordinate is a plain dim or a stick pair."""
        try:
            refine(node, self._accesses(node), self._layouts(node))
        except Conflict as conflict:
            self._resolve(node, conflict.dim)
            refine(node, self._accesses(node), self._layouts(node))
        self.nodes.append(node)

    def _resolve(self, node: Node, dim: str) -> None:
        """Operands tile `dim` differently: re-lay each one that cuts it anywhere but at its stick."""
        inputs = list(node.inputs)
        for i, value in enumerate(inputs):
            if isinstance(value, Load) and dim in value.index.dims:
                inputs[i] = self._copy(node, value, self._wanted(node, i))
        node.inputs = tuple(inputs)

    def _layouts(self, node: Node) -> list[Layout | None]:
        return [self.graph.buffers[v.buffer].layout for v in (*node.loads(), node.output)]

    def _finish_copy(self, node: Node) -> None:
        """A copy may walk either side by linear offset, and does where the two sides tile a dim differently."""
        layouts = self._layouts(node)
        both: list[Coords | None] = [
            coords if coords is not None and stick_form(coords, layout, any_lane=True) else None
            for coords, layout in zip(self._accesses(node), layouts, strict=True)
        ]
        neither: list[Coords | None] = [a if a == () else None for a in both]
        for accesses in (both, [*neither[:-1], both[-1]], neither):
            values = zip((*node.loads(), node.output), accesses, strict=True)
            linear = [v.index for v, a in values if a is None and _has_digits(v.index)]
            try:
                refine(node, accesses, layouts, linear)
            except Conflict as error:
                conflict = error
            else:
                self.nodes.append(node)
                return
        raise UnsupportedOp(f"{node.name} cuts dim {conflict.dim} at places that do not nest ({node.origin})")


def _has_digits(index: Index) -> bool:
    """Is the offset a sum with digits in it? A single digit can be divided further, a sum of them cannot."""
    return any(t.div > 1 or t.mod for t in index.terms) and (len(index.terms) > 1 or index.const != 0)


_SPARSE = "\0sparse"
