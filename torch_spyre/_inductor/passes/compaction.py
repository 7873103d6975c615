# SPDX-License-Identifier: Apache-2.0
"""Compaction: where a dim that must be done at once reaches too far, the operand is copied so that it is in one run.

A sum over dim 1 of 32 x 2048 x 4096 reads its 2048 elements from 256 KiB steps: 512 MiB on any core, for any split. A
copy has no such dim and can be done in trips of any shape. So the operand is copied into a layout that has the dims
done at once innermost, and a result that reaches too far is made in such a layout and copied into its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from torch_spyre import constants
from torch_spyre._inductor.passes.coordinates import stick_dims
from torch_spyre._inductor.planning import reach
from torch_spyre._inductor.planning.layout_rules import Layouts, make_layout
from torch_spyre._inductor.planning.ownership import apply
from torch_spyre._inductor.planning.plan_graph import Layout, PlanBuffer, PlanGraph, PlanNode
from torch_spyre._inductor.tilegraph.graph import Load, Value
from torch_spyre.constants import STICK_BYTES

_NOTE = "laid together"


def possible(graph: PlanGraph) -> bool:
    """Is there a tensor that is larger than the span?"""
    layouts = (b.layout for b in graph.buffers.values())
    return any(layout is not None and layout.bytes > constants.MAX_SPAN_BYTES for layout in layouts)


def out_of_reach(graph: PlanGraph) -> set[str]:
    """Nodes of a divided graph that no trips can do, as they are split or on one core."""
    found = set()
    for node in graph.nodes:
        if not node.row.has_table and not node.source and reach.stuck(graph, node) is not None:
            undivided = replace(node)
            apply(undivided, ())
            if reach.stuck(graph, undivided) is not None:
                found.add(node.name)
    return found


def run(graph: PlanGraph, far: Collection[str]) -> PlanGraph:
    """Lays the operands of these nodes together, in a graph that is not divided yet."""
    return _Compact(graph, {}).compacted(far)


def explain(graph: PlanGraph) -> list[str]:
    return [f"{n.name}: {note}" for n in graph.nodes for note in n.notes if note.startswith(_NOTE)]


class _Compact(Layouts):
    """Lays out again the nodes that have an operand out of reach."""

    whole: tuple[str, ...] = ()

    def compacted(self, far: Collection[str]) -> PlanGraph:
        for node in self.graph.nodes:
            if node.name in far:
                self._compact(node)
            else:
                self.nodes.append(node)
            for key in self.copied.pop(node.output.buffer, ()):
                del self.copies[key]
        self.graph.nodes = self.nodes
        return self.graph

    def _compact(self, node: PlanNode) -> None:
        last: PlanNode | None = None
        done: set[int] = set()
        while (at := reach.stuck(self.graph, node)) is not None and at not in done:
            self.whole = _before_refined(node, reach.whole_dims(node))
            operands = [at]
            stick = next(iter(_before_refined(node, stick_dims(node.accesses[at] or ()))), "")
            if node.along and not node.reduced and self._sparse(node):
                operands, stick = list(range(len(node.accesses))), node.along
            done.update(operands)
            changed = replace(node, reduced=_before_refined(node, node.reduced), notes=list(node.notes))
            if len(node.accesses) - 1 in operands:
                changed.output, last = self._aside(node, stick)
            changed.inputs = self._fed(node, operands, stick)
            held, self.nodes = self.nodes, []
            self._finish(changed)
            (node,), self.nodes = self.nodes, held
            node.notes.append(f"{_NOTE}: {', '.join(self.whole)} reach too far to be done at once")
        self.nodes.append(node)
        if last is not None:
            self._finish_copy(last)

    def _sparse(self, node: PlanNode) -> bool:
        """Would a scan or a sort reach too far with one element in each stick, in any layout?"""
        return node.sizes()[node.along] * STICK_BYTES > constants.MAX_SPAN_BYTES

    def _aside(self, node: PlanNode, stick: str) -> tuple[Load, PlanNode]:
        """A place for the result, and the copy from there."""
        sizes = node.result_sizes()
        dims = tuple((d, sizes[d]) for d, _ in node.dims if d in node.output.index.dims)
        temp = self._temp(dims, self.graph.buffers[node.output.buffer].dtype)
        buffer = self.graph.buffers[temp.buffer]
        buffer.layout = self._copy_layout(buffer, [d for d, _ in dims], stick)
        return temp, PlanNode(f"{node.name}_into", "identity", dims, (temp,), node.output, origin=node.origin)

    def _fed(self, node: PlanNode, operands: Collection[int], stick: str) -> tuple[Value, ...]:
        """The inputs, with copies of those operands."""
        number = -1
        inputs: list[Value] = []
        for value in node.inputs:
            number += isinstance(value, Load)
            copied = isinstance(value, Load) and number in operands
            inputs.append(self._copy(node, value, stick) if copied and isinstance(value, Load) else value)
        return tuple(inputs)

    def _copy_layout(self, buffer: PlanBuffer, names: Sequence[str], stick: str) -> Layout:
        """The dims done at once are inside all others."""
        if stick not in names:
            return make_layout(buffer, [*range(len(names)), -1] if names else [])
        single = make_layout(replace(buffer, size=(64,), stride=(1,)), [0])
        lanes, at = single.elems_per_stick, names.index(stick)
        sticks = (-(-buffer.size[at] // lanes), lanes * buffer.stride[at])
        steps = {d: (buffer.size[i], buffer.stride[i]) for i, d in enumerate(names) if d != stick}
        outside = [step for d, step in steps.items() if d not in self.whole]
        inside = [step for d, step in steps.items() if d in self.whole]
        ordered = [*outside, *inside, sticks] if stick in self.whole else [*outside, sticks, *inside]
        sizes, strides = zip(*ordered, (lanes, buffer.stride[at]), strict=True)
        return Layout(sizes, strides, single.format)


def _before_refined(node: PlanNode, pieces: Iterable[str]) -> tuple[str, ...]:
    """The node's own dims that these pieces are of."""
    names = set(pieces)
    return tuple(d for d, _ in node.dims if d in names or any(p.startswith(f"{d}.") for p in names))
