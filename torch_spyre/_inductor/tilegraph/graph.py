# SPDX-License-Identifier: Apache-2.0
"""Buffers, nodes and accesses of a TileGraph.

A graph as built knows nothing of layouts: a buffer has its host size and stride, an access is a linear host offset.
It is what a compiled artefact stores (`to_json`). Planning copies it and fills the fields marked *planned*.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch_spyre._inductor.tilegraph.index import Index
from torch_spyre.ir.plan.tileops import Coord, Dim, Term
from torch_spyre.optable import Kind, Row, TopK, lookup


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


@dataclass
class Buffer:
    """A host-shaped tensor. `kind`: input, output, temp, or scalar (a launch scalar)."""

    name: str
    dtype: str  # name in torch, e.g. float16
    size: tuple[int, ...]
    stride: tuple[int, ...]
    kind: str = "temp"
    returned_as: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # (size, stride) callers see, if not the above
    names: tuple[str, ...] = ()  # of the dims, where the user named them
    # planned
    offset: int = 0  # storage offset of an input, in host elements
    layout: Layout | None = None
    placement: str = "memory"  # memory, lx
    address: int = 0  # byte offset in the pool, or LX address
    local_size: tuple[int, ...] = ()  # device_size of one core's slice, for LX buffers
    chunked: bool = False  # in a tile loop: LX holds one trip's part of the slice

    @property
    def numel(self) -> int:
        n = 1
        for s in self.size:
            n *= s
        return n

    @property
    def span(self) -> int:
        """Host elements from the first to the last, both included."""
        return 1 + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True)) if self.numel else 0


@dataclass(frozen=True)
class Load:
    """An operand read from (or written to) a buffer at a linear host offset."""

    buffer: str
    index: Index


@dataclass(frozen=True)
class Const:
    value: float | int
    dtype: str


@dataclass(frozen=True)
class Position:
    """An int32 computed from the iteration point."""

    index: Index


Value = Load | Const | Position


@dataclass
class Node:
    """One device operation. `op` names a row of the op table; `dims` are (name, size), outer to inner; those of a
    matmul end in m, n, k.

    A gather's inputs are its table and its index tensors, a scatter's its source and its index tensors; in the table's
    access (first input, or output) dim ``@j`` stands for the value of the j-th index tensor, below `limits[j]`.
    `along` names the dim of a scan, of a top-k (whose output has `top.count` elements there), or of an argmax.
    """

    name: str
    op: str
    dims: tuple[tuple[str, int], ...]
    inputs: tuple[Value, ...]
    output: Load
    reduced: tuple[str, ...] = ()
    constants: dict[str, float] = field(default_factory=dict)
    origin: str = ""
    along: str = ""
    limits: tuple[int, ...] = ()
    top: TopK | None = None
    hints: dict[str, dict[str, int]] = field(default_factory=dict)  # work_div, tiles: dim name -> count
    # planned
    names: dict[str, str] = field(default_factory=dict)  # dim -> the user's name of it
    tiles: tuple[Dim, ...] = ()  # refined dims with their split
    core_order: tuple[str, ...] = ()
    loop: int = 0  # number of the tile loop that the node belongs to; 0: none
    accesses: tuple[
        tuple[Coord, ...] | None, ...
    ] = ()  # device coordinates: inputs, then output; None: does not separate
    source: tuple[tuple[str, int, int], ...] = ()  # of a hand-over: the split in which its input lies
    notes: list[str] = field(default_factory=list)

    @property
    def row(self) -> Row:
        return lookup(self.op)

    def sizes(self) -> dict[str, int]:
        return dict(self.dims)

    def result_sizes(self) -> dict[str, int]:
        """As the output sees them: a top-k has k elements along its dim."""
        sizes = self.sizes()
        if self.top is not None:
            sizes[self.along] = self.top.count
        return sizes

    def fixed(self) -> set[str]:
        """Tiles that one core does whole: reduced dims, the dim of a scan, and for a scatter every dim that does not
        tell the cores' parts of the table apart."""
        fixed = {*self.reduced, self.along} - {""}
        written = self.accesses[-1] if self.accesses else None
        if self.row.kind is Kind.SCATTER and written is not None:
            apart = {t.dim for c in written for t in c.terms}
            fixed |= {d.name for d in self.tiles} - apart
        return fixed

    def loads(self) -> Iterator[Load]:
        return (v for v in self.inputs if isinstance(v, Load))


@dataclass
class Graph:
    """Nodes in execution order. `inputs` and `outputs` name buffers in call order."""

    name: str
    buffers: dict[str, Buffer]
    nodes: list[Node]
    inputs: list[str]
    outputs: list[str]

    def to_json(self) -> str:
        return json.dumps(_encode(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Graph:
        graph = _decode(json.loads(text))
        assert isinstance(graph, Graph)
        return graph

    def clone(self) -> Graph:
        """A copy that a plan may change; what cannot change is shared."""
        buffers = {name: copy.copy(b) for name, b in self.buffers.items()}
        nodes = []
        for node in self.nodes:
            other = copy.copy(node)
            other.constants, other.names, other.notes = dict(node.constants), dict(node.names), list(node.notes)
            nodes.append(other)
        return Graph(self.name, buffers, nodes, list(self.inputs), list(self.outputs))

    def consumers(self) -> dict[str, list[Node]]:
        users: dict[str, list[Node]] = {name: [] for name in self.buffers}
        for node in self.nodes:
            for name in dict.fromkeys(load.buffer for load in node.loads()):
                users[name].append(node)
        return users

    def text(self) -> str:
        """One line per buffer and node, for dumps."""
        lines = [f"graph {self.name}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})"]
        for b in self.buffers.values():
            where = f" {b.placement}+0x{b.address:x}" if b.layout else ""
            lines.append(
                f"  {b.kind} {b.name}: {b.dtype}{list(b.size)} stride {list(b.stride)} {b.layout or ''}{where}"
            )
        for n in self.nodes:
            lines += [f"  {line}" for line in node_text(n)]
        return "\n".join(lines) + "\n"


def node_text(node: Node) -> list[str]:
    dims = ", ".join(f"{d}:{s}" for d, s in node.dims)
    args = ", ".join(value_text(v) for v in node.inputs)
    lines = [f"{node.name}: {node.output.buffer}[{index_text(node.output.index)}] = {node.op}({args}) over {dims}"]
    if node.reduced:
        lines.append(f"  reduces {', '.join(node.reduced)}")
    if node.along:
        lines.append(f"  along {node.along}")
    if node.tiles:
        split = ", ".join(f"{d.name}:{d.size}/{d.slices}" for d in node.tiles)
        lines.append(f"  split {split}; cores by {', '.join(node.core_order) or 'one'}")
    values = [v for v in node.inputs if isinstance(v, Load)] + [node.output]
    for value, coords in zip(values, node.accesses, strict=False):
        shown = "[" + ", ".join(coord_text(c) for c in coords) + "]" if coords is not None else "by linear offset"
        lines.append(f"  {value.buffer} at {shown}")
    if node.origin:
        lines.append(f"  from {node.origin}")
    return lines + [f"  note: {note}" for note in node.notes]


def value_text(value: Value) -> str:
    if isinstance(value, Load):
        return f"{value.buffer}[{index_text(value.index)}]"
    return repr(value.value) if isinstance(value, Const) else f"position({index_text(value.index)})"


def term_text(t: Term) -> str:
    text = t.dim
    if t.div > 1:
        text += f"//{t.div}"
    if t.mod:
        text += f"%{t.mod}"
    return text if t.scale == 1 else f"{t.scale}*({text})" if t.div > 1 or t.mod else f"{t.scale}*{text}"


def coord_text(c: Coord | Index) -> str:
    if isinstance(c, Coord) and c.index >= 0:
        return f"input {c.index}"
    parts = [term_text(t) for t in c.terms]
    if c.const or not parts:
        parts.append(str(c.const))
    return "+".join(parts)


index_text = coord_text

_CLASSES: dict[str, type] = {
    c.__name__: c for c in (Graph, Buffer, Node, Load, Const, Position, Index, Layout, Term, Coord, Dim, TopK)
}


def _encode(value: Any) -> Any:
    if type(value).__name__ in _CLASSES:
        return {"_": type(value).__name__, **{k: _encode(v) for k, v in vars(value).items()}}
    if isinstance(value, (list, tuple)):
        return [_encode(v) for v in value]
    if isinstance(value, dict):
        return {k: _encode(v) for k, v in value.items()}
    return value


def _decode(value: Any) -> Any:
    """Inverse of `_encode`. Sequences come back as tuples except where a class declares a list."""
    if isinstance(value, dict) and "_" in value:
        cls = _CLASSES[value["_"]]
        fields = {k: _decode(v) for k, v in value.items() if k != "_"}
        for k in ("nodes", "inputs", "outputs", "notes"):
            if cls in (Graph, Node) and k in fields and not (cls is Node and k == "inputs"):
                fields[k] = list(fields[k])
        return cls(**fields)
    if isinstance(value, dict):
        return {k: _decode(v) for k, v in value.items()}
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    return value
