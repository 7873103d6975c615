# SPDX-License-Identifier: Apache-2.0
"""What a TileGraph computes, node by node in NumPy: the reference a kernel on the card is compared with.

Enters: a graph before planning, and one host array per input. Leaves: the arrays it returns and those it writes into.
Layouts, core splits and scratchpads play no part. Each node computes in float64 and its result rounds once to the
format its buffer has on the card; with ``rounded=False`` nothing rounds, which shows how much of a value is rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_spyre._inductor.tilegraph.graph import Buffer, Const, Graph, Load, Node, Position, Value
from torch_spyre._inductor.tilegraph.index import Index
from torch_spyre.errors import IndexOutOfRange, failed_check
from torch_spyre.ir.superdsc import arrays
from torch_spyre.optable import Kind

Array = Any  # np.ndarray

_FORMATS = {
    "float16": "SEN169_FP16",
    "bfloat16": "SEN169_FP16",
    "bool": "SEN169_FP16",
    "float8_e4m3fn": "SEN143_FP8",
    "float8_e5m2": "SEN152_FP8",
    "float8_e5m2fnuz": "SEN152_FP8",
}
_WORDS = {"int64": (-(2**31), 2**31 - 1), "int32": (-(2**31), 2**31 - 1)}
_NARROW = {"int16": (-(2**15), 2**15 - 1), "int8": (-128, 127), "uint8": (0, 255)}


def evaluate(graph: Graph, inputs: Sequence[Any], rounded: bool = True) -> dict[str, Array]:
    """Results and written inputs by buffer name, shaped as callers see them. A number stands for a launch scalar."""
    with np.errstate(all="ignore"):
        return _Evaluation(graph, inputs, rounded).run()


def written(graph: Graph) -> list[str]:
    """Buffers that a caller can look at afterwards: results, then inputs that some node writes."""
    targets = {n.output.buffer for n in graph.nodes}
    outputs = [n for n in graph.outputs if graph.buffers[n].kind == "output"]
    return outputs + [n for n in graph.inputs if n in targets]


def store(value: Array, dtype: str, rounded: bool = True) -> Array:
    """The value as a buffer of this dtype holds it."""
    if dtype in _WORDS:
        whole = value.astype(np.int64) if value.dtype.kind in "iu" else _whole(value, *_WORDS[dtype])
        return ((whole + 2**31) % 2**32 - 2**31).astype(np.int64)
    if dtype in _NARROW:
        return _whole(value, *_NARROW[dtype])
    value = value.astype(np.float64)
    if not rounded:
        return value
    if dtype == "float32":
        return value.astype(np.float32).astype(np.float64)
    return arrays.decode(arrays.encode(value, _FORMATS[dtype]), _FORMATS[dtype])


def _whole(value: Array, low: int, high: int) -> Array:
    return np.clip(np.nan_to_num(np.trunc(value), posinf=high, neginf=low), low, high).astype(np.int64)


class _Evaluation:
    def __init__(self, graph: Graph, inputs: Sequence[Any], rounded: bool) -> None:
        self.graph, self.rounded = graph, rounded
        self.memory: dict[str, Array] = {}
        for name, value in zip(graph.inputs, inputs, strict=True):
            self.memory[name] = self._filled(graph.buffers[name], np.asarray(value))

    def _filled(self, buffer: Buffer, value: Array) -> Array:
        flat = self._empty(buffer)
        flat[_places(buffer.size, buffer.stride)] = store(value.reshape(buffer.size), buffer.dtype, self.rounded)
        return flat

    def _empty(self, buffer: Buffer) -> Array:
        shapes = [(buffer.size, buffer.stride), *([buffer.returned_as] if buffer.returned_as else [])]
        span = max(_span(*shape) for shape in shapes)
        return np.zeros(span, dtype=np.int64 if "int" in buffer.dtype else np.float64)

    def run(self) -> dict[str, Array]:
        for name, buffer in self.graph.buffers.items():
            if name not in self.memory:
                self.memory[name] = self._empty(buffer)
        for node in self.graph.nodes:
            self._node(node)
        results = {}
        for name in written(self.graph):
            buffer = self.graph.buffers[name]
            size, stride = buffer.returned_as or (buffer.size, buffer.stride)
            results[name] = self.memory[name][_places(size, stride)]
        return results

    def _node(self, node: Node) -> None:
        sizes, row = node.sizes(), node.row
        if row.has_table:
            self._indexed(node, sizes)
            return
        values = [self._value(v, sizes) for v in node.inputs]
        if row.is_matmul:
            result = row.meaning(*values, summed=len(node.reduced))
        elif row.element_for_element:
            result = row.meaning(*values)
        else:
            whole = np.broadcast_to(values[0], tuple(sizes.values()))
            result = row.meaning(whole, **self._form(node, list(sizes)))
        kept = {d: 1 if d in node.reduced else n for d, n in node.result_sizes().items()}
        self._write(node.output, kept, np.asarray(result))

    def _form(self, node: Node, dims: list[str]) -> dict[str, Any]:
        """Along which axes an op goes, and what else its kind wants to know."""
        if node.row.kind is Kind.REDUCTION:
            return {"axis": tuple(dims.index(d) for d in node.reduced), "keepdims": True}
        form: dict[str, Any] = {"axis": dims.index(node.along)}
        if node.row.kind is Kind.SELECTION:
            form["top"] = node.top
        return form

    def _write(self, target: Load, sizes: Mapping[str, int], value: Array) -> None:
        buffer = self.graph.buffers[target.buffer]
        places = np.broadcast_to(_offsets(target.index, sizes), tuple(sizes.values()))
        held = store(value, buffer.dtype, self.rounded)
        self.memory[target.buffer][places] = np.broadcast_to(held, places.shape)

    def _value(self, value: Value, sizes: Mapping[str, int]) -> Array:
        if isinstance(value, Const):
            return np.asarray(value.value, dtype=np.int64 if "int" in value.dtype else np.float64)
        if isinstance(value, Position):
            return _offsets(value.index, sizes)
        return self.memory[value.buffer][_offsets(value.index, sizes)]

    def _indexed(self, node: Node, sizes: Mapping[str, int]) -> None:
        first, *index_values = node.inputs
        found = {}
        for j, (operand, limit) in enumerate(zip(index_values, node.limits, strict=True)):
            places = self._value(operand, sizes)
            outside = places[(places < 0) | (places >= limit)]
            if outside.size:
                check = failed_check(node.origin)
                if check is not None:
                    raise check
                raise IndexOutOfRange(f"{node.name}: index {outside.flat[0]} lies outside [0, {limit}): {node.origin}")
            found[f"@{j}"] = places
        table = node.output if node.row.kind is Kind.SCATTER else first
        assert isinstance(table, Load)
        held, at = self.memory[table.buffer], _offsets(table.index, sizes, found)
        if node.row.kind is Kind.GATHER:
            self._write(node.output, sizes, node.row.meaning(held, at))
            return
        source = np.broadcast_to(self._value(first, sizes), tuple(sizes.values()))
        node.row.meaning(held, np.broadcast_to(at, source.shape), source)
        held[:] = store(held, self.graph.buffers[table.buffer].dtype, self.rounded)


def _span(size: Sequence[int], stride: Sequence[int]) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0


def _places(size: Sequence[int], stride: Sequence[int]) -> Array:
    """Flat places of a strided array's elements, in the shape of the array."""
    places = np.zeros((), dtype=np.int64)
    for n, s in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(n) * s
    return places


def _offsets(index: Index, sizes: Mapping[str, int], extra: Mapping[str, Array] = {}) -> Array:
    """The index at every iteration point; an axis of size 1 where it does not depend on the dim."""
    total = np.full([1] * len(sizes), index.const, dtype=np.int64)
    for term in index.terms:
        if term.dim in extra:
            at = extra[term.dim]
        else:
            axis = list(sizes).index(term.dim)
            at = np.arange(sizes[term.dim]).reshape([-1 if i == axis else 1 for i in range(len(sizes))])
        at = at // term.div
        total = total + term.scale * (at % term.mod if term.mod else at)
    return total
