# SPDX-License-Identifier: Apache-2.0
"""Buffers, nodes and accesses of a TileGraph.

A graph knows nothing of layouts: a buffer has its host size and stride, an access is a linear host offset. It is what
a compiled artefact stores (`to_json`). Planning makes its own graph of it (`planning/plan_graph.py`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch_spyre import __version__
from torch_spyre._inductor.tilegraph.index import Index
from torch_spyre.errors import InvalidArgument
from torch_spyre.ir.plan.tileops import Coord, Term
from torch_spyre.optable import Row, TopK, lookup


@dataclass
class Buffer:
    """A host-shaped tensor. `kind`: input, output, temp, or scalar (a launch scalar)."""

    name: str
    dtype: str  # name in torch, e.g. float16
    size: tuple[int, ...]
    stride: tuple[int, ...]
    kind: str = "temp"
    returned_as: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # (size, stride) callers see, if not the above

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

    def text(self) -> str:
        return f"{self.kind} {self.name}: {self.dtype}{list(self.size)} stride {list(self.stride)}"


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

    def loads(self) -> Iterator[Load]:
        return (v for v in self.inputs if isinstance(v, Load))

    def clone(self: N) -> N:
        """A copy that a pass may change; what cannot change is shared."""
        other = copy.copy(self)
        other.constants = dict(self.constants)
        return other

    def lines(self) -> list[str]:
        """The node as text."""
        return [*self._what(), *self._whence()]

    def _what(self) -> list[str]:
        dims = ", ".join(f"{d}:{s}" for d, s in self.dims) or "one point"
        args = ", ".join(value_text(v) for v in self.inputs)
        lines = [f"{self.name}: {self.output.buffer}[{index_text(self.output.index)}] = {self.op}({args}) over {dims}"]
        if self.reduced:
            lines.append(f"  reduces {', '.join(self.reduced)}")
        return [*lines, f"  along {self.along}"] if self.along else lines

    def _whence(self) -> list[str]:
        return [f"  from {self.origin}"] if self.origin else []


B = TypeVar("B", bound=Buffer)
N = TypeVar("N", bound=Node)


@dataclass
class Nodes(Generic[B, N]):
    """What a graph and its plan have in common: nodes in execution order. `inputs` and `outputs` name buffers in call
    order."""

    name: str
    buffers: dict[str, B]
    nodes: list[N]
    inputs: list[str]
    outputs: list[str]

    def consumers(self) -> dict[str, list[N]]:
        users: dict[str, list[N]] = {name: [] for name in self.buffers}
        for node in self.nodes:
            for name in dict.fromkeys(load.buffer for load in node.loads()):
                users[name].append(node)
        return users

    def text(self) -> str:
        """One line per buffer and node, for dumps."""
        lines = [f"graph {self.name}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})"]
        lines += [f"  {b.text()}" for b in self.buffers.values()]
        lines += [f"  {line}" for n in self.nodes for line in n.lines()]
        return "\n".join(lines) + "\n"


@dataclass
class Graph(Nodes[Buffer, Node]):
    """A graph before planning."""

    def to_json(self) -> str:
        return json.dumps(_encode(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Graph:
        """The graph of `to_json`; InvalidArgument for other text, for instance that of another version."""
        try:
            graph = _decode(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgument(
                f"this is not a TileGraph of torch_spyre {__version__} ({error}); write it again with SPYRE_DUMP"
            ) from error
        if not isinstance(graph, Graph):
            raise InvalidArgument(f"a TileGraph was expected, not {text[:40]!r}")
        return graph

    def clone(self) -> Graph:
        """A copy that a pass may change; what cannot change is shared."""
        buffers = {name: copy.copy(b) for name, b in self.buffers.items()}
        return Graph(self.name, buffers, [n.clone() for n in self.nodes], list(self.inputs), list(self.outputs))


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

_CLASSES: dict[str, type] = {c.__name__: c for c in (Graph, Buffer, Node, Load, Const, Position, Index, Term, TopK)}


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
        if cls is Graph:
            fields |= {k: list(fields[k]) for k in ("nodes", "inputs", "outputs")}
        return cls(**fields)
    if isinstance(value, dict):
        return {k: _decode(v) for k, v in value.items()}
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    return value
