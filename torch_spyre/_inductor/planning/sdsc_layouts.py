# SPDX-License-Identifier: Apache-2.0
"""Layouts of a plan for SuperDSC: every node as an op that the format has a word for, as far as there is one.

The writer itself says what it can print. A copy whose coordinates do not separate (a slice that starts inside a stick,
a reshape across sticks) goes through tensors that have another dim in their sticks, or one element per stick: there
the same places are plain coordinates. Several such writes into one tensor, as of a cat, share that tensor; it is
re-laid once, before the first reader. An operand that a node walks in a form without words is copied first. What is
left is marked with the reason: it runs between bundles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch_spyre._inductor.passes.coordinates import Conflict, refine, rewrite_index
from torch_spyre._inductor.planning.layout_rules import Layouts, Rejected, make_layout
from torch_spyre._inductor.planning.matmul_dims import normalised
from torch_spyre._inductor.planning.plan_graph import Layout, PlanBuffer, PlanGraph, PlanNode
from torch_spyre._inductor.tilegraph.graph import Const, Load, Position, Value
from torch_spyre._inductor.tilegraph.index import Index
from torch_spyre.ir.plan.tileops import (
    Coord,
    Immediate,
    Input,
    Kernel,
    LaunchScalar,
    LinearOperand,
    Operand,
    Positions,
    Space,
    Tensor,
    Term,
    TileOp,
)
from torch_spyre.ir.superdsc.op_writer import has_word, refusal
from torch_spyre.ir.superdsc.operand_tensors import positions_as_tensors, scalars_as_tensors
from torch_spyre.optable import Kind

_Order = tuple[int, ...]
_FLAT = -2  # as the only dim of an order: the whole tensor as one dim of elements, one per stick
_ROWS = -3  # ... as one dim of rows, their elements in the sticks


class SdscLayouts(Layouts):
    """As Layouts, where every node is checked with the writer before it stays."""

    def __init__(self, graph: PlanGraph, choices: Mapping[object, str]) -> None:
        super().__init__(graph, choices)
        # tensor -> the one that holds its newest values, and the layout of that
        self.twins: dict[str, tuple[str, _Order]] = {}
        self.written = set(graph.inputs)

    def run(self) -> PlanGraph:
        graph = super().run()
        for name in [*self.twins]:
            self._settle(name)
        return graph

    def _plan(self, node: PlanNode) -> None:
        for name in {value.buffer for value in node.loads()}:
            self._settle(name)
        if not node.row.is_copy:
            self._settle(node.output.buffer)
        layout = self.graph.buffers[node.output.buffer].layout
        if not node.row.is_matmul or len(node.reduced) < 2 or self._kept(lambda: self._with_one_k(node)):
            self.graph.buffers[node.output.buffer].layout = layout
            super()._plan(node)
        self.written.add(node.output.buffer)

    def _settle(self, name: str) -> None:
        """Brings a tensor up to date."""
        if name in self.twins:
            twin, _ = self.twins.pop(name)
            self._whole_copy(twin, name)
            self.written.add(name)

    # Nodes

    def _with_one_k(self, node: PlanNode) -> str:
        """A sum over windows as a plain product: the windows are copied out, their places and channels are one dim."""
        inputs = tuple(self._windows(node, i) for i in range(2))
        count = math.prod(n for d, n in node.dims if d in node.reduced)
        dims = (*(d for d in node.dims if d[0] not in node.reduced), ("k", count))
        before = len(self.nodes)
        super()._plan(replace(node, dims=dims, reduced=("k",), inputs=inputs))
        return next((n.wordless for n in self.nodes[before:] if n.wordless), "")

    def _windows(self, node: PlanNode, operand: int) -> Load:
        """An operand over one k: in one copy, or in one for each place of the windows, which may overlap."""
        load, places = node.inputs[operand], [d for d in node.dims if d[0] in node.reduced]
        assert isinstance(load, Load)
        others = tuple(d for d in node.dims if d[0] in load.index.dims and d[0] not in node.reduced)
        count = math.prod(n for _, n in places)
        temp = self._temp((*others, ("k", count)), self.graph.buffers[load.buffer].dtype)
        buffer = self.graph.buffers[temp.buffer]
        buffer.layout = self._copy_layout(buffer, [*(d for d, _ in others), "k"], ("k", "n")[operand])
        steps = {d: math.prod(n for _, n in places[i + 1 :]) for i, (d, _) in enumerate(places)}
        target = tuple(t for t in temp.index.terms if t.dim != "k")
        *outer, inner = places
        copied = (*target, *(Term(d, steps[d]) for d, _ in places))
        whole = self._copy_node(node, load, Load(temp.buffer, Index(copied)), (*others, *places))
        if self._kept(lambda: self._copied(whole)):
            for place in itertools.product(*(range(n) for _, n in outer)):
                at = dict(zip((d for d, _ in outer), place, strict=True))
                start = sum(steps[d] * i for d, i in at.items())
                into = Index((*target, Term(inner[0], 1)), start)
                one = Load(load.buffer, _at(load.index, at))
                self._finish_copy(self._copy_node(node, one, Load(temp.buffer, into), (*others, inner)))
                self.written.add(temp.buffer)
        return self._settled(temp)

    def _copied(self, copy: PlanNode) -> str:
        self._finish_copy(copy)
        return self.nodes[-1].wordless

    @staticmethod
    def _copy_node(node: PlanNode, load: Load, into: Load, dims: tuple[tuple[str, int], ...]) -> PlanNode:
        name = f"{node.name}_windows_{load.buffer}_{into.index.const}"
        return PlanNode(name, "ReStickifyOpHBM", dims, (load,), into, origin=node.origin)

    def _copy(self, node: PlanNode, load: Load, stick: str) -> Load:
        return self._settled(super()._copy(node, load, stick))

    def _flat(self, node: PlanNode, load: Load) -> Load:
        return self._settled(super()._flat(node, load))

    def _settled(self, load: Load) -> Load:
        self._settle(load.buffer)
        return load

    def _finish(self, node: PlanNode) -> None:
        """As it is; with its operands copied; with its result through a tensor that has another dim in its sticks."""
        inputs, reduced = node.inputs, node.reduced

        def again(copied: bool) -> str:
            node.inputs, node.reduced = inputs, reduced
            if copied:
                node.inputs = tuple(self._relaid(node, i) for i in range(len(inputs)))
            super(SdscLayouts, self)._finish(node)
            return refusal(as_op(self.graph, node))

        def through(stick: str) -> str:
            sizes = node.result_sizes()
            dims = tuple((d, sizes[d]) for d, _ in node.dims if d not in reduced)
            temp = self._temp(dims, self.graph.buffers[node.output.buffer].dtype)
            buffer = self.graph.buffers[temp.buffer]
            buffer.layout = self._copy_layout(buffer, [d for d, _ in dims], stick)
            other = replace(node, inputs=inputs, reduced=reduced, output=temp)
            other.inputs = tuple(self._relaid(other, i) for i in range(len(inputs)))
            super(SdscLayouts, self)._finish(other)
            reason = refusal(as_op(self.graph, other))
            if not reason:
                self._finish_copy(
                    PlanNode(f"{node.name}_into", "identity", dims, (temp,), node.output, origin=node.origin)
                )
            return reason or self.nodes[-1].wordless

        reason = self._kept(lambda: again(copied=False))
        if not reason or (has_word(node.row) and not self._kept(lambda: again(copied=True))):
            return
        sticks = [""] if node.row.is_matmul else [d for d, _ in node.dims if d not in reduced]
        sticks = sticks if has_word(node.row) else []
        if all(self._kept(lambda stick=stick: through(stick)) for stick in sticks):
            again(copied=False)
            node.wordless = reason

    def _relaid(self, node: PlanNode, operand: int) -> Value:
        value = node.inputs[operand]
        if not isinstance(value, Load) or self.graph.buffers[value.buffer].kind == "scalar":
            return value
        if node.row.is_matmul:
            return self._expanded(node, value, operand)
        return self._copy(node, value, self._wanted(node, operand))

    def _expanded(self, node: PlanNode, load: Load, operand: int) -> Value:
        """A copy of a matmul's operand that has every batch dim, also those along which it is the same."""
        wanted = self._wanted(node, operand)
        dims = tuple(d for d in node.dims if d[0] in load.index.dims or d[0].startswith("b"))
        temp = self._temp(dims, self.graph.buffers[load.buffer].dtype)
        buffer = self.graph.buffers[temp.buffer]
        buffer.layout = self._copy_layout(buffer, [d for d, _ in dims], wanted)
        copy = PlanNode(f"{node.name}_copy_{load.buffer}", "ReStickifyOpHBM", dims, (load,), temp, origin=node.origin)
        self._finish_copy(copy)
        return self._settled(temp)

    def _finish_table(self, node: PlanNode) -> None:
        inputs, output, origin = node.inputs, node.output, node.origin
        table = node.inputs[0] if node.row.kind is Kind.GATHER else node.output
        assert isinstance(table, Load)

        def again(order: _Order | None) -> str:
            node.inputs, node.output, node.origin = inputs, output, origin
            if order is not None and node.row.kind is Kind.GATHER:
                node.inputs = (self._staged(table, order), *inputs[1:])
            elif order is not None:
                node.output = self._twin(table, order)
            before = len(self.nodes)
            super(SdscLayouts, self)._finish_table(node)
            mine = refusal(as_op(self.graph, node)) if not node.wordless else node.wordless
            return next((n.wordless for n in self.nodes[before:] if n.wordless), "") or mine

        reason = self._kept(lambda: again(None))
        orders = self._orders(table.buffer) if reason else ()
        if reason and all(self._kept(lambda order=order: again(order)) for order in orders):
            again(None)
            node.wordless = refusal(as_op(self.graph, node))

    def _finish_copy(self, node: PlanNode) -> None:
        """One op, or several through other layouts; a tensor with a newer twin is written there, or brought up to date
        before."""
        inputs, output = node.inputs, node.output
        source = next(node.loads(), None)

        def through(first: _Order | None, last: _Order | None) -> str:
            node.inputs, node.output = inputs, output
            if first is not None and source is not None:
                node.inputs = (self._staged(source, first),)
            if last is not None:
                node.output = self._twin(output, last)
            return self._direct(node)

        known = self.twins.get(output.buffer)
        if known is not None:
            if not self._kept(lambda: through(None, known[1])):
                return
            self._settle(output.buffer)
        sources = [None, *self._orders(source.buffer)] if source is not None else [None]
        pairs = itertools.product(sources, [None, *self._orders(output.buffer)])
        reason = ""
        for first, last in sorted(pairs, key=lambda p: sum(self._bytes(*x) for x in self._made(source, output, *p))):
            reason = self._kept(lambda first=first, last=last: through(first, last))
            if not reason:
                return
        node.inputs, node.output = inputs, output
        super()._finish_copy(node)
        node.wordless = reason

    def _made(
        self, source: Load | None, output: Load, first: _Order | None, last: _Order | None
    ) -> Iterator[tuple[str, _Order]]:
        if first is not None and source is not None:
            yield source.buffer, first
        if last is not None:
            yield output.buffer, last

    def _bytes(self, name: str, order: _Order) -> int:
        return self._other_layout(self._storage(name), order).bytes

    def _direct(self, node: PlanNode) -> str:
        """The copy as one op, or why it is none."""
        accesses = self._accesses(node)
        if any(a is None for a in accesses):
            return "coordinates do not separate"
        try:
            refine(node, accesses, self._layouts(node))
        except Conflict as conflict:
            return f"dim {conflict.dim} is cut at places that do not nest"
        reason = refusal(as_op(self.graph, node))
        if not reason:
            self.nodes.append(node)
        return reason

    def _kept(self, attempt: object) -> str:
        """Why an attempt came to nothing, in which case nothing of it stays."""
        nodes, copies, buffers = len(self.nodes), dict(self.copies), dict(self.graph.buffers)
        copied = {name: list(keys) for name, keys in self.copied.items()}
        twins = dict(self.twins)
        try:
            reason = str(attempt())  # type: ignore[operator]
        except Rejected as error:
            reason = str(error) or "rejected"
        if reason:
            del self.nodes[nodes:]
            self.copies, self.copied, self.twins = copies, copied, twins
            self.graph.buffers.clear()
            self.graph.buffers.update(buffers)
        return reason

    # Other layouts of a tensor

    def _orders(self, name: str) -> list[_Order]:
        """Layouts worth a try: another dim in the sticks, one element per stick, and that without dims."""
        buffer = self._storage(name)
        if buffer.layout is None or not buffer.size:
            return []
        rank = len(buffer.size)
        orders = [tuple([*(d for d in range(rank) if d != stick), stick]) for stick in range(rank)]
        dense = all(s == math.prod(buffer.size[i + 1 :]) for i, s in enumerate(buffer.stride))
        flat = [(_ROWS,), (_FLAT,)] if rank > 2 else [(_FLAT,)]
        return [*orders, (*range(rank), -1), *(flat if dense else [])]

    def _storage(self, name: str) -> PlanBuffer:
        """A tensor; of a view that does not start with its storage, the storage as its layout tells."""
        buffer = self.graph.buffers[name]
        if not buffer.offset:
            return buffer
        assert buffer.layout is not None
        elements, lane = buffer.layout.elems_per_stick, buffer.layout.stride_map[-1]
        axes = [(s, n) for s, n in buffer.layout.axes()[:-1] if s > 0 and n > 1]
        if lane > 0:
            sticks = next((n for s, n in axes if s == lane * elements), 1)
            axes = [(s, n) for s, n in axes if s != lane * elements] + [(lane, sticks * elements)]
        axes.sort(reverse=True)
        strides = [s for s, _ in axes]
        room = [n for _, n in axes[:1]] + [a // b for a, b in itertools.pairwise(strides)]  # without padding
        size = tuple(min(n, most) for (_, n), most in zip(axes, room, strict=True))
        return PlanBuffer(name, buffer.dtype, size, tuple(strides), layout=buffer.layout)

    @staticmethod
    def _other_layout(buffer: PlanBuffer, order: _Order) -> Layout:
        if order == (_FLAT,):
            return make_layout(PlanBuffer(buffer.name, buffer.dtype, (buffer.numel,), (1,)), [0, -1])
        if order == (_ROWS,):
            last = buffer.size[-1]
            return make_layout(PlanBuffer(buffer.name, buffer.dtype, (buffer.numel // last, last), (last, 1)), [0, 1])
        return make_layout(buffer, order)

    def _named(self, name: str, order: _Order) -> str:
        """A new tensor of the same size and strides in another layout; of a view, all that its storage holds."""
        buffer = self._storage(name)
        made = f"c{len(self.graph.buffers)}"
        other = PlanBuffer(made, buffer.dtype, buffer.size, buffer.stride)
        other.layout = self._other_layout(buffer, order)
        self.graph.buffers[made] = other
        return made

    def _staged(self, load: Load, order: _Order) -> Load:
        """The same elements, read from a copy of the whole tensor in another layout."""
        key = (load.buffer, "staged", order)
        if key not in self.copies:
            made = self._named(load.buffer, order)
            self._whole_copy(load.buffer, made)
            self.copied.setdefault(load.buffer, []).append(key)
            self.copies[key] = Load(made, Index(()))
        return Load(self.copies[key].buffer, load.index.shifted(self.graph.buffers[load.buffer].offset))

    def _twin(self, output: Load, order: _Order) -> Load:
        """The same elements of a tensor in another layout, which `_settle` copies back."""
        name = output.buffer
        made, known = self.twins.get(name, ("", ()))
        if known != order:
            self._settle(name)
            made = self._named(name, order)
            if name in self.written:
                self._whole_copy(name, made)
            self.twins[name] = (made, order)
        return Load(made, output.index.shifted(self.graph.buffers[name].offset))

    def _whole_copy(self, source: str, target: str) -> None:
        buffer = self._storage(source if self.graph.buffers[source].offset else target)
        axes = [(f"x{i}", n, s) for i, (n, s) in enumerate(zip(buffer.size, buffer.stride, strict=True)) if n > 1]
        index = Index(tuple(Term(x, stride) for x, _, stride in axes))
        name = f"{target}_of_{source}"
        dims = tuple((x, n) for x, n, _ in axes)
        both = [Load(n, index.shifted(-self.graph.buffers[n].offset)) for n in (source, target)]
        node = PlanNode(name, "ReStickifyOpHBM", dims, (both[0],), both[1])
        node.notes.append(
            f"{source} re-laid as {target}: SuperDSC has no word for a copy between parts of their sticks"
        )
        reason = self._direct(node)
        if reason:
            raise Rejected(f"{name}: {reason}")


def _at(index: Index, places: Mapping[str, int]) -> Index:
    """An index with some dims at fixed places."""
    const = index.const
    for t in index.terms:
        if t.dim in places:
            digit = places[t.dim] // t.div
            const += t.scale * (digit % t.mod if t.mod else digit)
    return Index(tuple(t for t in index.terms if t.dim not in places), const)


def as_op(graph: PlanGraph, node: PlanNode) -> TileOp:
    """What the writer would print for a node, with all tensors in memory and no dim split."""
    accesses = iter(node.accesses)
    numbers: dict[str, int] = {}
    inputs: list[Input] = []
    scalars: list[str] = []
    for value in node.inputs:
        if isinstance(value, Const):
            inputs.append(Immediate(value.value, "IEEE_INT32" if "int" in value.dtype else "IEEE_FP32"))
        elif isinstance(value, Position):
            inputs.append(Positions(rewrite_index(node, value.index)))
        elif graph.buffers[value.buffer].kind == "scalar":
            next(accesses)
            scalars.append("IEEE_INT32" if "int" in graph.buffers[value.buffer].dtype else "IEEE_FP32")
            inputs.append(LaunchScalar(len(scalars) - 1, scalars[-1]))
        else:
            inputs.append(_operand(graph, value, next(accesses), numbers))
    output = _operand(graph, node.output, next(accesses), numbers)
    op = TileOp(
        node.name,
        node.op,
        node.tiles,
        tuple(inputs),
        output,
        node.reduced,
        constants=node.constants,
        along=node.along,
        top=node.top,
    )
    op = normalised(op) if op.row.is_matmul else op
    kernel = scalars_as_tensors(Kernel(node.name, (), (op,), scalars=tuple(scalars)))
    return positions_as_tensors(kernel)[0].ops[0]


def _operand(
    graph: PlanGraph, value: Load, coords: Sequence[Coord] | None, numbers: dict[str, int]
) -> Operand | LinearOperand:
    layout = graph.buffers[value.buffer].layout
    assert layout is not None
    number = numbers.setdefault(value.buffer, len(numbers) + 8)  # after scalars and positions
    tensor = Tensor(value.buffer, layout.format, Space.MEMORY, layout.device_size, 0, number)
    if coords is None:
        return LinearOperand(tensor, Coord(), ())
    return Operand(tensor, tuple(coords))
