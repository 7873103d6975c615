# SPDX-License-Identifier: Apache-2.0
"""Layouts: gives every buffer a device layout and every access its device coordinates.

Rules of the machine. Pointwise operands share one stick dim; an operand without it is broadcast, one value per stick.
A matmul reads a with stick k and b with stick n and writes stick n. A reduction over the stick dim leaves one value
per stick (a *sparse* result). An access that breaks the rule is fed by a copy into a layout that keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_spyre._inductor.passes.coordinates import Conflict, refine, stick_dims, stick_form
from torch_spyre._inductor.passes.indirect import by_offset, direct, table_sizes, with_bounds
from torch_spyre._inductor.planning.matmul_dims import whole_k
from torch_spyre._inductor.planning.plan_graph import Layout, PlanBuffer, PlanGraph, PlanNode
from torch_spyre._inductor.tilegraph.graph import Const, Load, Value
from torch_spyre._inductor.tilegraph.index import Index, decompose
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.plan.tileops import Coord, Term
from torch_spyre.optable import Kind

Coords = tuple[Coord, ...]
_MAX_RANK = 6  # what the layout rule covers


class Rejected(UnsupportedOp):
    """A node cannot work with the layouts around it. The search drops the choice that led here; without a choice there
    is no plan for the graph."""


def make_layout(buffer: PlanBuffer, order: Sequence[int]) -> Layout:
    """The layout rule: dims in `order`, the last one in the stick; a trailing -1 puts one element in each stick."""
    import torch

    from torch_spyre._C import SpyreTensorLayout  # late: start-up

    if len(order) > _MAX_RANK:
        return _joined_layout(buffer, order)
    stl = SpyreTensorLayout(list(buffer.size), list(buffer.stride), getattr(torch, buffer.dtype), list(order))
    return from_stl(stl)


def _joined_layout(buffer: PlanBuffer, order: Sequence[int]) -> Layout:
    """For more dims than the layout rule covers: dims that are contiguous in the host tensor count as one."""
    import torch

    from torch_spyre._C import SpyreTensorLayout  # late: start-up

    single = [-1] if order[-1] == -1 else []
    dims = [(buffer.size[d], buffer.stride[d]) for d in order if d != -1 and buffer.size[d] != 1]
    while len(dims) + len(single) > _MAX_RANK:
        pairs = (i for i in range(len(dims) - 1) if dims[i][1] == dims[i + 1][0] * dims[i + 1][1])
        first = next(pairs, None)
        if first is None:
            by_stride = sorted(dims, key=lambda d: -d[1])
            if dims != by_stride:  # then in the order of the host tensor
                dims = by_stride
                continue
            shape = f"{list(buffer.size)} with one value per stick" if single else str(list(buffer.size))
            raise Rejected(f"{buffer.name}: {shape} has more than {_MAX_RANK} dims; flatten some of them first")
        (outer, _), (inner, stride) = dims[first : first + 2]
        dims[first : first + 2] = [(outer * inner, stride)]
    size, stride_of = [n for n, _ in dims], [s for _, s in dims]
    stl = SpyreTensorLayout(size, stride_of, getattr(torch, buffer.dtype), [*range(len(dims)), *single])
    return from_stl(stl)


def from_stl(stl: object) -> Layout:
    return Layout(tuple(stl.device_size), tuple(stl.stride_map), stl.device_dtype.name)  # type: ignore[attr-defined]


def coordinates(buffer: PlanBuffer, index: Index, sizes: dict[str, int]) -> Coords | None:
    """Device coordinates of an access, or None if they do not separate."""
    assert buffer.layout is not None
    coords = decompose(index.shifted(buffer.offset), buffer.layout.axes(), sizes)
    return None if coords is None else tuple(coords)


CHOICE = "restickify"  # how notes about choices begin


def assign(graph: PlanGraph, choices: Mapping[object, str] | None = None) -> PlanGraph:
    """Gives layouts node by node: each result takes the stick of its operands, or what `choices` say of its form."""
    return Layouts(graph, choices or {}).run()


def form(graph: PlanGraph, node: PlanNode) -> object:
    """What a choice is about: nodes alike in this choose alike, in every layer of a model."""
    out = graph.buffers[node.output.buffer]
    operands = tuple((graph.buffers[v.buffer].kind, graph.buffers[v.buffer].size, v.index) for v in node.loads())
    return node.op, node.dims, node.reduced, out.dtype, out.size, out.stride, node.output.index, operands


class Layouts:
    """Gives layouts to the nodes of a graph in order, and inserts copies before the nodes that need them."""

    def __init__(self, graph: PlanGraph, choices: Mapping[object, str]) -> None:
        self.graph, self.choices = graph, choices
        self.forms = {n.name: form(graph, n) for n in graph.nodes} if choices else {}
        self.nodes: list[PlanNode] = []
        self.copies: dict[tuple[object, ...], Load] = {}
        self.copied: dict[str, list[tuple[object, ...]]] = {}  # buffer -> keys of its copies

    def run(self) -> PlanGraph:
        for node in self.graph.nodes:
            self._plan(node)
            for key in self.copied.pop(node.output.buffer, ()):
                del self.copies[key]  # stale now
        self.graph.nodes = self.nodes
        for buffer in self.graph.buffers.values():
            if buffer.layout is None and buffer.kind == "output":  # empty: no node writes it
                buffer.layout = make_layout(buffer, list(range(len(buffer.size))))
        return self.graph

    def _plan(self, node: PlanNode) -> None:
        buffer = self.graph.buffers[node.output.buffer]
        if buffer.layout is None:
            buffer.layout = self._choose(node, buffer)
        elif not (node.row.is_copy or node.row.kind is Kind.SCATTER) and not self._writable(node, buffer):
            node = self._write_through_copy(node, buffer)
        if node.row.is_copy:
            self._finish_copy(node)
        elif node.row.has_table:
            self._finish_table(node)
        else:
            self._feed(node)
            self._finish(node)

    # Choosing the layout of a result

    def _choose(self, node: PlanNode, buffer: PlanBuffer) -> Layout:
        rank = len(buffer.size)
        if rank == 0 or node.row.kind is Kind.SCATTER:  # a table that nobody has written yet: as a fresh tensor
            return make_layout(buffer, list(range(rank)))
        stick = self._chosen(node, buffer)
        if stick is None:
            stick = self._stick_dim(node)
        host = decompose(node.output.index, zip(buffer.stride, buffer.size, strict=True), node.result_sizes())
        if host is None:
            raise Rejected(f"{node.name}: result index {node.output.index} does not separate over {buffer.size}")
        everything = list(range(rank))
        if rank > _MAX_RANK and node.row.is_copy:  # as a fresh tensor of that rank: flat over the range it spans
            span = 1 + sum((n - 1) * s for n, s in zip(buffer.size, buffer.stride, strict=True))
            return make_layout(PlanBuffer(buffer.name, buffer.dtype, (span,), (1,)), [0])
        if stick == _SPARSE:
            return make_layout(buffer, [*everything, -1])
        position = rank - 1
        for i, coord in enumerate(host):
            if any(t.dim == stick and t.div == 1 for t in coord.terms):
                position = i
        return make_layout(buffer, self._order(buffer, position))

    def _chosen(self, node: PlanNode, buffer: PlanBuffer) -> str | None:
        """The stick dim that was chosen for the node, _SPARSE if it is a reduced one; None without a choice."""
        wanted = self.choices.get(self.forms.get(node.name))
        if wanted is None or buffer.kind != "temp":
            return None
        return _SPARSE if wanted in node.reduced else wanted

    def _order(self, buffer: PlanBuffer, stick: int) -> list[int]:
        """Dim order of a result. The rows of a temporary follow each other: its other dims come from outside, and each
        entry of a batch is one run of sticks. Results that callers see keep the order of fresh tensors."""
        others = [i for i in range(len(buffer.size)) if i != stick]
        if buffer.kind == "temp" and len(others) > 1:
            others = [others[-1], *others[:-1]]
        return [*others, stick]

    def _stick_dim(self, node: PlanNode) -> str:
        """The dim inside the sticks of the result; _SPARSE for one value per stick, "" if no operand prefers one."""
        if node.row.is_matmul:
            return "n" if not _by_lane(node) else _LANE
        if node.row.is_copy:
            return ""
        sizes, inside = table_sizes(node), {t.dim for t in node.output.index.terms}
        found: list[str] = []
        tensors, copied = 0, False
        for load in [*node.loads()][: 1 if node.row.kind is Kind.GATHER else None]:
            buffer = self.graph.buffers[load.buffer]
            if buffer.kind == "scalar" or not buffer.size:
                continue
            coords = coordinates(buffer, load.index, sizes)
            tensors += 1
            if coords is not None:
                found += stick_dims(coords)
            else:
                copied = True  # the copy can have any stick
        preferred = list(dict.fromkeys(d for d in found if d in inside))
        if preferred and self._only_vectors(node, preferred):
            return ""
        if preferred:
            one = len(preferred) == 1 or node.row.kind is Kind.GATHER
            return preferred[0] if one else self._cheapest(node, preferred)
        if found and node.reduced and not any(d in inside for d in found):
            return _SPARSE
        if tensors and not found and not copied and inside and node.row.kind is not Kind.GATHER:
            return _SPARSE
        return ""

    def _only_vectors(self, node: PlanNode, preferred: Sequence[str]) -> bool:
        """Are all operands that prefer a stick dim far smaller than the result, whose last dim none of them has?

        Re-laying them costs less than a result that no other tensor matches.
        """
        buffer = self.graph.buffers[node.output.buffer]
        if node.reduced or node.along or node.row.has_table or buffer.kind != "temp" or not buffer.size:
            return False
        largest = max(self.graph.buffers[v.buffer].numel for v in node.loads())
        host = decompose(node.output.index, zip(buffer.stride, buffer.size, strict=True), node.sizes())
        last = {t.dim for t in host[-1].terms} if host else set()
        return bool(last) and not last & set(preferred) and largest * 32 <= buffer.numel

    def _cheapest(self, node: PlanNode, preferred: Sequence[str]) -> str:
        """Of the dims that operands have in their sticks, the one that leaves the fewest bytes to re-lay; the result's
        last dim among equals, because most tensors have that."""
        prices = {dim: sum(self._copy_bytes(node, load, dim) for load in node.loads()) for dim in preferred}
        buffer = self.graph.buffers[node.output.buffer]
        host = decompose(node.output.index, zip(buffer.stride, buffer.size, strict=True), node.result_sizes())
        last = {t.dim for t in host[-1].terms} if host else set()
        best = min(preferred, key=lambda d: (prices[d], d not in last))
        others = ", ".join(f"{d} {price} bytes" for d, price in prices.items() if d != best)
        node.notes.append(f"{best} in the sticks: {prices[best]} bytes to re-lay ({others})")
        return best

    def _copy_bytes(self, node: PlanNode, load: Load, stick: str) -> int:
        """What re-laying an operand for this stick dim would move; nothing if it fits or has been re-laid before."""
        buffer = self.graph.buffers[load.buffer]
        if buffer.kind == "scalar" or buffer.layout is None:
            return 0
        coords = coordinates(buffer, load.index, table_sizes(node))
        if self._keeps_rule(coords, buffer, load, stick) or self._copy_key(node, load, stick)[0] in self.copies:
            return 0
        return 2 * buffer.layout.bytes

    # Feeding operands

    def _writable(self, node: PlanNode, buffer: PlanBuffer) -> bool:
        """Can the node store straight into this (mutated) buffer?"""
        coords = coordinates(buffer, node.output.index, node.result_sizes())
        if coords is None or not stick_form(coords, buffer.layout):
            return False
        if node.row.kind is Kind.GATHER:
            return True
        wanted = self._stick_dim(node)
        return stick_dims(coords) == ([wanted] if wanted and wanted != _SPARSE else [])

    def _write_through_copy(self, node: PlanNode, target: PlanBuffer) -> PlanNode:
        """Computes into a temporary and copies it into the target; returns the copy."""
        sizes = node.result_sizes()
        dims = tuple((d, sizes[d]) for d, _ in node.dims if d not in node.reduced)
        temp = self._temp(dims, target.dtype)
        self._plan(replace(node, output=temp))
        return PlanNode(f"{node.name}_into", "identity", dims, (temp,), node.output, origin=node.origin)

    def _temp(self, dims: tuple[tuple[str, int], ...], dtype: str) -> Load:
        size = tuple(n for _, n in dims)
        step = 1
        strides: list[int] = []
        for n in reversed(size):
            strides.insert(0, step)
            step *= n
        name = f"c{len(self.graph.buffers)}"
        self.graph.buffers[name] = PlanBuffer(name, dtype, size, tuple(strides))
        return Load(name, Index(tuple(Term(d, s) for (d, n), s in zip(dims, strides, strict=True) if n > 1)))

    def _wanted(self, node: PlanNode, operand: int) -> str:
        """The stick dim that this operand must have if it varies along it."""
        if node.row.is_matmul:
            return ("k", "n")[operand] if not _by_lane(node) else _LANE
        if node.reduced:
            chosen = self.choices.get(self.forms.get(node.name))
            if chosen is not None:
                return chosen
            load = node.inputs[operand]
            assert isinstance(load, Load)
            coords = coordinates(self.graph.buffers[load.buffer], load.index, node.sizes())
            return (stick_dims(coords) or [""])[0] if coords is not None else node.dims[-1][0]
        buffer = self.graph.buffers[node.output.buffer]
        coords = coordinates(buffer, node.output.index, node.result_sizes())
        if coords is None:
            raise Rejected(f"{node.name}: result index {node.output.index} does not separate in {buffer.layout}")
        return (stick_dims(coords) or [""])[0]

    def _feed(self, node: PlanNode) -> None:
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

    def _keeps_rule(self, coords: Coords | None, buffer: PlanBuffer, load: Load, wanted: str) -> bool:
        if coords is None or not stick_form(coords, buffer.layout):
            return False
        inside = stick_dims(coords)
        return inside == ([wanted] if wanted in load.index.dims else [])

    def _copy(self, node: PlanNode, load: Load, stick: str) -> Load:
        """A copy of the operand, laid out over the node's dims with `stick` innermost.

        A dim that the operand follows in steps only (query heads that share a key) is copied once for each step.
        """
        steps = {
            d: math.gcd(*(t.div for t in load.index.terms if t.dim == d)) if d != stick else 1 for d in load.index.dims
        }
        if any(q > 1 for q in steps.values()):
            terms = tuple(replace(t, div=t.div // steps[t.dim]) for t in load.index.terms)
            thin = Load(load.buffer, Index(terms, load.index.const))
            sizes = tuple((d, -(-n // steps.get(d, 1))) for d, n in node.dims)
            made = self._copy(replace(node, dims=sizes), thin, stick)
            return Load(made.buffer, Index(tuple(replace(t, div=t.div * steps[t.dim]) for t in made.index.terms)))
        dims = tuple(d for d in node.dims if d[0] in load.index.dims)
        key, rename = self._copy_key(node, load, stick)
        if key in self.copies:
            known = self.copies[key]
            return Load(known.buffer, known.index.rename({v: k for k, v in rename.items()}))
        source = self.graph.buffers[load.buffer]
        temp = self._temp(dims, source.dtype)
        buffer = self.graph.buffers[temp.buffer]
        names = [d for d, _ in dims]
        buffer.layout = self._copy_layout(buffer, names, stick)
        copy = PlanNode(f"{node.name}_copy_{load.buffer}", "ReStickifyOpHBM", dims, (load,), temp, origin=node.origin)
        copy.notes.append(f"{load.buffer} re-laid with {stick or 'one value'} in the stick for {node.name}")
        try:
            self._finish_copy(copy)
        except Rejected:
            # A slice of joined dims (13 of 2 x 8 rows) ends inside the last step of a digit: all of that is copied.
            whole = _whole_digits(load.index, node.dims, source)
            if whole == node.dims:
                raise
            del self.graph.buffers[temp.buffer]
            temp = self._copy(replace(node, dims=whole), load, stick)
        if key not in self.copies:
            self.copied.setdefault(load.buffer, []).append(key)
        self.copies[key] = Load(temp.buffer, temp.index.rename(rename))
        return temp

    def _copy_layout(self, buffer: PlanBuffer, names: Sequence[str], stick: str) -> Layout:
        if stick in names:
            return make_layout(buffer, self._order(buffer, names.index(stick)))
        return make_layout(buffer, [*range(len(names)), -1] if names else [])

    def _copy_key(self, node: PlanNode, load: Load, stick: str) -> tuple[tuple[object, ...], dict[str, str]]:
        """What identifies a copy of an operand whatever its dims are called, and the names that it uses instead."""
        dims = [d for d in node.dims if d[0] in load.index.dims]
        rename = {d: f"x{i}" for i, (d, _) in enumerate(dims)}
        return (load.buffer, load.index.rename(rename), tuple(n for _, n in dims), rename.get(stick)), rename

    # Final coordinates

    def _accesses(self, node: PlanNode) -> list[Coords | None]:
        """Device coordinates of every load and of the result; a launch scalar has none to walk."""
        loads = [self._walked(node, v) for v in node.loads()]
        return [*loads, coordinates(self.graph.buffers[node.output.buffer], node.output.index, node.result_sizes())]

    def _walked(self, node: PlanNode, value: Load) -> Coords | None:
        buffer = self.graph.buffers[value.buffer]
        return () if buffer.kind == "scalar" else coordinates(buffer, value.index, node.sizes())

    def _joins(self, node: PlanNode) -> bool:
        """Do all operands walk the pieces of k at one pitch, so that they are one dim after all?"""
        layouts = self._layouts(node)
        if any(c is None or layout is None for c, layout in zip(node.accesses, layouts, strict=True)):
            return False
        accesses = [(layout.device_size, c) for c, layout in zip(node.accesses, layouts, strict=True) if c and layout]
        return whole_k(accesses, node.tiles) is not None

    def _finish(self, node: PlanNode) -> None:
        """Refines the dims so that every coordinate is a plain dim or a stick pair."""
        reduced = node.reduced
        try:
            refine(node, self._accesses(node), self._layouts(node))
        except Conflict as conflict:
            self._resolve(node, conflict.dim)
            self._refine(node)
        if node.row.is_matmul and node.reduced != reduced and not self._joins(node):
            node.reduced = reduced
            for dim in reduced:
                self._whole(node, dim)
            self._refine(node)
        if node.along and node.along not in [d.name for d in node.tiles]:
            node.reduced = reduced
            self._whole(node, node.along)
            self._refine(node)
        if node.along and node.along not in [d.name for d in node.tiles]:
            raise Rejected(f"{node.name} runs along dim {node.along}, which its operands cut ({node.origin})")
        self.nodes.append(node)

    def _refine(self, node: PlanNode) -> None:
        """The last attempt: operands have been re-laid as far as that goes."""
        try:
            refine(node, self._accesses(node), self._layouts(node))
        except Conflict as conflict:
            message = f"{node.name} cuts dim {conflict.dim} at places that do not nest ({node.origin})"
            raise Rejected(message) from None

    def _whole(self, node: PlanNode, dim: str) -> None:
        """A contraction or a scan runs over one dim: re-lay each operand that cuts `dim` anywhere but at its stick."""
        inputs = list(node.inputs)
        for i, value in enumerate(inputs):
            if not isinstance(value, Load):
                continue
            layout = self.graph.buffers[value.buffer].layout
            coords = coordinates(self.graph.buffers[value.buffer], value.index, node.sizes()) or ()
            assert layout is not None
            pair = {1, layout.elems_per_stick}
            if any(t.dim == dim and not {t.div, t.div * t.mod} - {0} <= pair for c in coords for t in c.terms):
                inputs[i] = self._copy(node, value, self._wanted(node, i))
        node.inputs = tuple(inputs)

    def _resolve(self, node: PlanNode, dim: str) -> None:
        """Operands tile `dim` differently: re-lay each one that cuts it anywhere but at its stick."""
        inputs = list(node.inputs)
        for i, value in enumerate(inputs):
            if isinstance(value, Load) and dim in value.index.dims:
                inputs[i] = self._copy(node, value, self._wanted(node, i))
        node.inputs = tuple(inputs)

    # Gathers and scatters

    def _finish_table(self, node: PlanNode) -> None:
        """Finds the index tensors of the table's device dims; other operands only have to separate."""
        if self._addressed(node):
            return
        if node.row.kind is Kind.GATHER:
            table, *places = node.inputs
            assert isinstance(table, Load)
            node.inputs = (self._flat(node, table), *places)
            if self._addressed(node):
                return
        raise Rejected(f"{node.name} cuts its dims at places that do not nest ({node.origin})")

    def _addressed(self, node: PlanNode) -> bool:
        gathers = node.row.kind is Kind.GATHER
        access = next(node.loads()) if gathers else node.output
        table = self.graph.buffers[access.buffer]
        places = [v for v in node.inputs[1:] if isinstance(v, Load)]
        for form in (direct, by_offset):
            found = form(table, access.index, node, places, lambda *spec: self._integers(node, *spec))
            if found is None:
                continue
            # Input 0 is the table, or the source.
            coords = tuple(Coord(index=c.index + 1) if c.index >= 0 else c for c in found.coords)
            used = tuple(self._separated(node, p) for p in found.places)
            source = node.inputs[0] if gathers else self._separated(node, node.inputs[0])
            node.inputs = (source, *used)
            rest = [*(used if gathers else node.loads()), *([node.output] if gathers else [])]
            others: list[Coords | None] = [self._walked(node, v) for v in rest]
            accesses = [coords, *others] if gathers else [*others, coords]
            try:
                refine(node, accesses, self._layouts(node))
            except Conflict:
                node.inputs = (source, *places)
                continue
            node.origin = with_bounds(node, places, found.places)
            self.nodes.append(node)
            return True
        return False

    def _flat(self, node: PlanNode, load: Load) -> Load:
        """A copy of a whole table as one dim, which two indices address, the stick and the lane."""
        source = self.graph.buffers[load.buffer]
        if source.numel != source.span:
            raise Rejected(f"{node.name} gathers from {source.size} with gaps between its rows ({node.origin})")
        key = (load.buffer, "flat")
        if key not in self.copies:
            dims = tuple((f"x{i}", n) for i, n in enumerate(source.size) if n > 1)
            whole = Index(
                tuple(
                    Term(f"x{i}", s) for i, (n, s) in enumerate(zip(source.size, source.stride, strict=True)) if n > 1
                )
            )
            temp = self._temp((("x", source.numel),), source.dtype)
            flat = self.graph.buffers[temp.buffer]
            flat.layout = make_layout(flat, [0])
            name, into = f"{node.name}_flat_{load.buffer}", Load(temp.buffer, whole)
            self._finish_copy(PlanNode(name, "identity", dims, (Load(load.buffer, whole),), into, origin=node.origin))
            self.copied.setdefault(load.buffer, []).append(key)
            self.copies[key] = temp
        return Load(self.copies[key].buffer, load.index)

    def _integers(self, node: PlanNode, op: str, inputs: Sequence[Value], dtype: str) -> Load:
        """The result of an operation on index tensors, over the dims that it depends on."""
        names = {d for v in inputs if not isinstance(v, Const) for d in v.index.dims}
        dims = tuple(d for d in node.dims if d[0] in names)
        temp = self._temp(dims, dtype)
        self._plan(PlanNode(f"{node.name}_{op}_{temp.buffer}", op, dims, tuple(inputs), temp, origin=node.origin))
        return temp

    def _separated(self, node: PlanNode, value: Any) -> Any:
        """The operand, or a copy of it where its device coordinates do not separate."""
        if not isinstance(value, Load) or self.graph.buffers[value.buffer].kind == "scalar":
            return value
        buffer = self.graph.buffers[value.buffer]
        coords = coordinates(buffer, value.index, node.sizes())
        if coords is not None and stick_form(coords, buffer.layout):
            return value
        return self._copy(node, value, value.index.dims[-1] if value.index.dims else "")

    def _layouts(self, node: PlanNode) -> list[Layout | None]:
        return [self.graph.buffers[v.buffer].layout for v in (*node.loads(), node.output)]

    def _finish_copy(self, node: PlanNode) -> None:
        """A copy may walk either side by linear offset, and does where the two sides tile a dim differently."""
        layouts = self._layouts(node)
        both: list[Coords | None] = [
            coords if coords is not None and stick_form(coords, layout, any_lane=True) else None
            for coords, layout in zip(self._accesses(node), layouts, strict=True)
        ]
        neither: list[Coords | None] = [a if a == () else None for a in both]
        for accesses in (both, [*neither[:-1], both[-1]], neither):
            values = zip((*node.loads(), node.output), accesses, strict=True)
            starts = ((v.index.shifted(self.graph.buffers[v.buffer].offset), a) for v, a in values)
            linear = [index for index, a in starts if a is None and _has_digits(index)]
            try:
                refine(node, accesses, layouts, linear)
            except Conflict as error:
                conflict = error
            else:
                self.nodes.append(node)
                return
        raise Rejected(f"{node.name} cuts dim {conflict.dim} at places that do not nest ({node.origin})")


def _whole_digits(index: Index, dims: tuple[tuple[str, int], ...], source: PlanBuffer) -> tuple[tuple[str, int], ...]:
    """The dims with sizes rounded up to whole periods of their digits; unchanged if that leaves the source."""
    sizes = dict(dims)
    for d in index.dims:
        period = math.lcm(*(t.div * (t.mod or 1) for t in index.terms if t.dim == d))
        sizes[d] = -(-sizes[d] // period) * period
    last = index.const
    for t in index.terms:
        digit = (sizes[t.dim] - 1) // t.div
        last += t.scale * (min(digit, t.mod - 1) if t.mod else digit)
    end = sum((n - 1) * stride for n, stride in zip(source.size, source.stride, strict=True))
    inside = last <= end and all(t.scale >= 0 for t in index.terms)
    return tuple(sizes.items()) if inside else dims


def _has_digits(index: Index) -> bool:
    """Is the offset a sum with digits in it? A single digit can be divided further, a sum of them cannot."""
    return any(t.div > 1 or t.mod for t in index.terms) and (len(index.terms) > 1 or index.const != 0)


def _by_lane(node: PlanNode) -> bool:
    """A sum over windows of single channels, one column each: the batch is in the sticks of all operands."""
    sizes = node.sizes()
    return len(node.reduced) > 1 and sizes.get(_LANE, 1) > 1 and sizes["n"] == sizes["k"] == 1


_LANE = "b0"  # the first batch dim of a matmul
_SPARSE = "\0sparse"
