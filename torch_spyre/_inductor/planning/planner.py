# SPDX-License-Identifier: Apache-2.0
"""TileGraph + the layouts of its inputs -> planned kernel.

Enters: a layout-free graph and, for each input, its storage layout and offset. Leaves: a `tileops.Kernel` with the
layouts of its outputs. Planning is deterministic: the same graph, layouts and options give the same kernel.

A kernel is planned so that it can be displaced, if that is possible: its arguments end with the last byte that the
input's view touches, and a launch may begin further on in the storage (`_C.view_start`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_spyre._inductor.passes import (
    dedup,
    handover,
    hinted,
    layouts,
    parts,
    pieces,
    pool,
    residency,
    span_loops,
    spans,
    views,
)
from torch_spyre._inductor.passes.coordinates import rewrite_index
from torch_spyre._inductor.planning import view_ends
from torch_spyre._inductor.planning.matmul_dims import normalised
from torch_spyre._inductor.planning.placement import loop_bounds
from torch_spyre._inductor.planning.plan_graph import InputSpec, PlanBuffer, PlanGraph, PlanNode
from torch_spyre._inductor.planning.plan_options import PlanOptions
from torch_spyre._inductor.tilegraph.graph import Const, Graph, Load, Position
from torch_spyre.constants import LX_BYTES
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.plan.tileops import (
    Access,
    Coord,
    Immediate,
    Input,
    Kernel,
    KernelArg,
    LaunchScalar,
    LinearOperand,
    Operand,
    Positions,
    Space,
    Tensor,
    TileLoop,
    TileOp,
)

GRAPH_PASSES = (dedup, views)  # these need no layouts
PASSES = (hinted, spans, parts, pieces, layouts, residency, span_loops, pool)
COMPUTED = (
    "SEN169_FP16",
    "IEEE_FP32",
    "IEEE_INT32",
    "SENINT16",
    "SENINT8",
    "SENUINT32",
    "SEN143_FP8",
    "SEN152_FP8",
)


def _scalar_kind(dtype: str) -> str:
    """How the launcher converts a number: "i" to an integer, "f" to fp32, "h" as well, but as an operand of float16."""
    return "i" if "int" in dtype else "h" if dtype == "float16" else "f"


def _scalar_format(kind: str) -> str:
    return "IEEE_INT32" if kind == "i" else "IEEE_FP32"


@dataclass(frozen=True)
class Plan:
    """A planned kernel, its graph, and what each launch argument is: ("input", i), ("output", j) or ("pool", 0)."""

    kernel: Kernel
    graph: PlanGraph
    bindings: tuple[tuple[str, int], ...]
    scalars: tuple[tuple[int, str], ...]  # (input index, kind: see `_scalar_kind`)
    outputs: tuple[PlanBuffer, ...]  # freshly allocated results, in order
    pool_bytes: int
    displaced: bool = False  # may a launch move the inputs as `_C.view_start` says?


def plan(
    graph: Graph,
    inputs: Sequence[InputSpec],
    displaced: bool = True,
    options: PlanOptions | None = None,
) -> Plan:
    """The plan under these options, or those that the knobs give. `displaced` says whether it may become one that
    launches can move along its inputs."""
    _check(graph, inputs)
    extents = view_ends.extents(graph, inputs) if displaced else None
    graph = graph.clone()
    for early in GRAPH_PASSES:
        graph = early.run(graph)
    planned = PlanGraph.of(graph, inputs, options)
    for stage in PASSES:
        planned = stage.run(planned)
    return _Finalizer(planned, extents).plan()


def _check(graph: Graph, inputs: Sequence[InputSpec]) -> None:
    """Can the card compute with these inputs?"""
    for name, spec in zip(graph.inputs, inputs, strict=True):
        buffer = graph.buffers[name]
        if spec.layout is None and buffer.kind != "scalar":
            raise UnsupportedOp(f"input {name} of {graph.name} has no device layout: it is not on the card")
        if spec.layout is not None and spec.layout.format not in COMPUTED:
            raise UnsupportedOp(
                f"{graph.name}: {buffer.dtype} ({spec.layout.format}) can be stored on the card but not computed with; "
                "convert it to int32 or float16 on the host first"
            )


def explain(graph: PlanGraph) -> list[str]:
    """Every pass's own account of what it chose."""
    lines = []
    for stage in PASSES:
        name = stage.__name__.rsplit(".", 1)[-1]
        lines += [line if stage is residency else f"{name}: {line}" for line in stage.explain(graph)]
    return lines


class _Finalizer:
    """Turns a planned graph into tile operations over numbered launch arguments."""

    def __init__(self, graph: PlanGraph, extents: Mapping[str, tuple[int, ...]] | None) -> None:
        self.graph = graph
        self.extents = extents or {}
        self.displaced = extents is not None
        self.args: list[KernelArg] = []
        self.bindings: list[tuple[str, int]] = []
        self.arg_of: dict[str, int] = {}
        self.scalar_of: dict[str, int] = {}
        self.scalars: list[tuple[int, str]] = []
        self.fresh = [n for n in graph.outputs if graph.buffers[n].kind == "output"]

    def plan(self) -> Plan:
        self._number()
        ops = tuple(self._op(n) for n in self.graph.nodes)
        kernel = Kernel(
            self.graph.name,
            tuple(self.args),
            ops,
            scalars=tuple(_scalar_format(kind) for _, kind in self.scalars),
            cores=self.graph.options.cores,
            loops=self._loops(),
            lx_scratch_base=self._lx_top(),
        )
        outputs = tuple(self.graph.buffers[n] for n in self.fresh)
        bindings, scalars = tuple(self.bindings), tuple(self.scalars)
        return Plan(kernel, self.graph, bindings, scalars, outputs, pool.pool_bytes(self.graph), self.displaced)

    def _loops(self) -> tuple[TileLoop, ...]:
        loops = []
        for begin, end in loop_bounds(self.graph.nodes).values():
            trips = (-(-d.extent // d.chunk) for d in self.graph.nodes[begin].tiles if d.chunk)
            loops.append(TileLoop(begin, end + 1, math.prod(trips)))
        return tuple(loops)

    def _number(self) -> None:
        written = {n.output.buffer for n in self.graph.nodes}
        read = {load.buffer for n in self.graph.nodes for load in n.loads()}
        for i, name in enumerate(self.graph.inputs):
            buffer = self.graph.buffers[name]
            if buffer.kind == "scalar":
                self.scalar_of[name] = len(self.scalars)
                self.scalars.append((i, _scalar_kind(buffer.dtype)))
            elif name in written | read:
                access = (Access.READ if name in read else Access(0)) | (Access.WRITE if name in written else Access(0))
                self._arg(name, ("input", i), access)
        for j, name in enumerate(self.fresh):
            self._arg(name, ("output", j), Access.READ | Access.WRITE if name in read else Access.WRITE)
        size = pool.pool_bytes(self.graph)
        if size:
            self.pool = len(self.args)
            self.args.append(KernelArg("pool", size, Access.READ | Access.WRITE, "pool"))
            self.bindings.append(("pool", 0))

    def _arg(self, name: str, binding: tuple[str, int], access: Access) -> None:
        layout = self.graph.buffers[name].layout
        assert layout is not None
        self.arg_of[name] = len(self.args)
        size = view_ends.bytes_of(layout, self.extents[name]) if name in self.extents else layout.bytes
        self.args.append(KernelArg(name, size, access, binding[0]))
        self.bindings.append(binding)

    def _lx_top(self) -> int:
        top = 0
        for b in self.graph.buffers.values():
            if b.placement == "lx" and b.layout is not None:
                elements = 1
                for n in b.local_size:
                    elements *= n
                top = max(top, b.address + elements * 128 // b.layout.elems_per_stick)
        assert top <= LX_BYTES
        return top

    def _tensor(self, name: str, table: bool = False) -> Tensor:
        """A table says how many coordinates it has: any of them may be asked for."""
        b = self.graph.buffers[name]
        assert b.layout is not None
        if b.placement == "lx":
            return Tensor(name, b.layout.format, Space.LX, b.local_size, b.address, chunked=b.chunked)
        if name in self.arg_of:
            extent, arg = self.extents.get(name, ()) if table else (), self.arg_of[name]
            return Tensor(name, b.layout.format, Space.MEMORY, b.layout.device_size, 0, arg, extent=extent)
        return Tensor(name, b.layout.format, Space.MEMORY, b.layout.device_size, b.address, self.pool)

    def _access(self, node: PlanNode, load: Load, coords: tuple[Coord, ...] | None) -> Operand | LinearOperand:
        buffer = self.graph.buffers[load.buffer]
        if coords is not None:
            return Operand(self._tensor(load.buffer, any(c.index >= 0 for c in coords)), coords)
        assert buffer.layout is not None
        offset = rewrite_index(node, load.index.shifted(buffer.offset))
        # A device dim of extent 1 takes no part of the offset; its stride may be larger than that of an outer dim.
        strides = tuple(s if n > 1 else -1 for s, n in buffer.layout.axes())
        return LinearOperand(self._tensor(load.buffer), offset, strides)

    def _op(self, node: PlanNode) -> TileOp:
        accesses = iter(node.accesses)
        inputs: list[Input] = []
        for value in node.inputs:
            if isinstance(value, Const):
                inputs.append(Immediate(value.value, "IEEE_INT32" if "int" in value.dtype else "IEEE_FP32"))
                continue
            if isinstance(value, Position):
                inputs.append(Positions(rewrite_index(node, value.index)))
                continue
            coords = next(accesses)
            if value.buffer in self.scalar_of:
                index = self.scalar_of[value.buffer]
                inputs.append(LaunchScalar(index, _scalar_format(self.scalars[index][1])))
            else:
                inputs.append(self._access(node, value, coords))
        output = self._access(node, node.output, next(accesses))
        op = TileOp(
            node.name,
            node.op,
            node.tiles,
            tuple(inputs),
            output,
            node.reduced,
            node.core_order,
            node.constants,
            node.origin,
            node.along,
            node.top,
            handover.source_dims(node) if node.source else (),
            tuple(name for name, _, _ in node.source),
        )
        return normalised(op) if op.row.is_matmul else op
