# SPDX-License-Identifier: Apache-2.0
"""The graph that planning works on: a TileGraph with layouts, splits and places, under the options of its plan.

`PlanGraph.of` makes it of a graph and of how the graph's inputs are stored; each pass fills its fields or changes its
nodes, and `planner` turns the last one into a `tileops.Kernel`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_spyre._inductor.planning.plan_options import PlanOptions
from torch_spyre._inductor.tilegraph.graph import Buffer, Graph, Node, Nodes, coord_text
from torch_spyre.ir.plan.tileops import Coord, Dim
from torch_spyre.optable import Kind


@dataclass(frozen=True)
class Layout:
    """A SpyreTensorLayout as plain data: what planning needs, hashable and printable."""

    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    format: str

    @property
    def elems_per_stick(self) -> int:
        return self.device_size[-1]

    @property
    def bytes(self) -> int:
        total = 128
        for n in self.device_size[:-1]:
            total *= n
        return total

    def axes(self) -> list[tuple[int, int]]:
        return list(zip(self.stride_map, self.device_size, strict=True))

    def __str__(self) -> str:
        return f"{list(self.device_size)}/{list(self.stride_map)} {self.format}"


@dataclass(frozen=True)
class InputSpec:
    """What planning needs to know of one input tensor. A launch scalar has no layout."""

    layout: Layout | None
    offset: int = 0
    names: tuple[str, ...] = ()  # of the dims, where the user named them


@dataclass
class PlanBuffer(Buffer):
    """A tensor and where it is stored."""

    names: tuple[str, ...] = ()  # of the dims, where the user named them
    offset: int = 0  # storage offset of an input, in host elements
    layout: Layout | None = None
    placement: str = "memory"  # memory, lx
    address: int = 0  # byte offset in the pool, or LX address
    local_size: tuple[int, ...] = ()  # device_size of one core's slice, for LX buffers
    chunked: bool = False  # in a tile loop: LX holds one trip's part of the slice

    def text(self) -> str:
        if self.layout is None:
            return super().text()
        local = f" {list(self.local_size)}" if self.local_size else ""
        trip = " per trip" if self.chunked else ""
        return f"{super().text()} {self.layout} {self.placement}+0x{self.address:x}{local}{trip}"


@dataclass
class PlanNode(Node):
    """A node and how the cores do it."""

    names: dict[str, str] = field(default_factory=dict)  # dim -> the user's name of it
    tiles: tuple[Dim, ...] = ()  # refined dims with their split
    core_order: tuple[str, ...] = ()
    loop: int = 0  # number of the tile loop that the node belongs to; 0: none
    accesses: tuple[tuple[Coord, ...] | None, ...] = ()  # device coordinates: inputs, output; None: does not separate
    source: tuple[tuple[str, int, int], ...] = ()  # of a hand-over: the split in which its input is stored
    wordless: str = ""  # in a plan for SuperDSC: why the node has no form there; it is a step between bundles
    notes: list[str] = field(default_factory=list)

    def fixed(self) -> set[str]:
        """Tiles that one core does whole: reduced dims, the dim of a scan, and for a scatter every dim that does not
        tell the cores' parts of the table apart."""
        fixed = {*self.reduced, self.along} - {""}
        written = self.accesses[-1] if self.accesses else None
        if self.row.kind is Kind.SCATTER and written is not None:
            apart = {t.dim for c in written for t in c.terms}
            fixed |= {d.name for d in self.tiles} - apart
        return fixed

    def clone(self) -> PlanNode:
        other = super().clone()
        other.names, other.notes = dict(self.names), list(self.notes)
        return other

    def lines(self) -> list[str]:
        return [*self._what(), *self._how(), *self._whence(), *(f"  note: {note}" for note in self.notes)]

    def _how(self) -> list[str]:
        lines = []
        if self.tiles:
            split = ", ".join(f"{d.name}:{d.size}/{d.slices}{f' by {d.chunk}' if d.chunk else ''}" for d in self.tiles)
            lines.append(f"  split {split}; cores by {', '.join(self.core_order) or 'one'}")
        if self.loop:
            lines.append(f"  in tile loop {self.loop}")
        for value, coords in zip([*self.loads(), self.output], self.accesses, strict=False):
            shown = "[" + ", ".join(coord_text(c) for c in coords) + "]" if coords is not None else "by linear offset"
            lines.append(f"  {value.buffer} at {shown}")
        return lines


@dataclass
class PlanGraph(Nodes[PlanBuffer, PlanNode]):
    """A graph that passes plan, in place."""

    options: PlanOptions = field(default_factory=PlanOptions.from_knobs)

    @staticmethod
    def of(graph: Graph, inputs: Sequence[InputSpec], options: PlanOptions | None = None) -> PlanGraph:
        """A graph whose inputs are stored like this, to be planned under these options, or those that the knobs give.
        The graph itself stays as it is."""
        buffers = {name: PlanBuffer(**vars(b)) for name, b in graph.buffers.items()}
        for name, spec in zip(graph.inputs, inputs, strict=True):
            buffer = buffers[name]
            buffer.layout, buffer.offset, buffer.names = spec.layout, spec.offset, spec.names
        nodes = [PlanNode(**vars(n.clone())) for n in graph.nodes]
        chosen = options or PlanOptions.from_knobs()
        return PlanGraph(graph.name, buffers, nodes, list(graph.inputs), list(graph.outputs), chosen)

    def clone(self) -> PlanGraph:
        """A copy that a pass may change; what cannot change is shared."""
        buffers = {name: copy.copy(b) for name, b in self.buffers.items()}
        nodes = [n.clone() for n in self.nodes]
        return PlanGraph(self.name, buffers, nodes, list(self.inputs), list(self.outputs), self.options)
