# SPDX-License-Identifier: Apache-2.0
"""Inductor's scheduling and wrapper back ends for the device.

The scheduler hands over one node at a time; we keep them until it must flush (end of graph, another device, a host
operation) and emit the whole run as one kernel. What the kernel holds in the generated module is the layout-free
TileGraph: programs are planned per input layout at the first call, or found in the program cache. A kernel whose sizes
are symbols is stored as a recipe for such graphs (`dynamic_recipe`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir, metrics
from torch._inductor.codegen.common import BackendFeature, DeviceOpOverrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    BaseScheduling,
    ForeachKernelSchedulerNode,
    FusedSchedulerNode,
    OutputNode,
    SchedulerNode,
)
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torch_spyre._inductor.debug import provenance
from torch_spyre._inductor.dynamic.recipe import Recipe, record
from torch_spyre._inductor.lowering import node_order
from torch_spyre._inductor.tilegraph.build import Builder, Computed, describe
from torch_spyre._inductor.tilegraph.carried import KEY
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import UnsupportedOp


class SpyreScheduling(BaseScheduling):
    """Gathers nodes into one kernel per run; fusion is the planner's business, not Inductor's."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self.pending: list[SchedulerNode] = []

    def get_backend_features(self, device: torch.device) -> OrderedSet[BackendFeature]:
        # Reductions stay whole: their order is part of the number format's contract.
        return OrderedSet([BackendFeature.REDUCE_TO_SINGLE_ELEMENT])

    def can_fuse_vertical(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        return False

    def can_fuse_horizontal(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        return False

    def group_fn(self, sizes: Sequence[Sequence[sympy.Expr]]) -> tuple[Any, ...]:
        return tuple(V.graph.sizevars.simplify(sympy_product(s)) for s in sizes)

    def codegen_template(self, *args: Any, **kwargs: Any) -> None:
        raise UnsupportedOp("templates are not used on spyre")

    def codegen_node(self, node: FusedSchedulerNode | SchedulerNode) -> None:
        self.pending += [n for n in node.get_nodes() if isinstance(n, SchedulerNode)]

    def codegen_sync(self) -> None:
        V.graph.wrapper_code.writeline(V.graph.device_ops.synchronize())

    def ready_to_flush(self) -> bool:
        return False

    def flush(self) -> None:
        if not self.pending:
            return
        nodes, self.pending = self.pending, []
        metrics.generated_kernel_count += 1
        wrapper = V.graph.wrapper_code
        name = f"{DEVICE_NAME}_kernel_{wrapper.next_kernel_suffix()}"  # a branch's kernels share the module's names
        computed = []
        for node in nodes:
            assert isinstance(node.node, ir.ComputedBuffer)
            computed.append(describe(node.node))
        outputs = self._visible(nodes)
        recipe = record(name, computed, outputs, graph_buffer) if _symbolic() else None
        call = self._dynamic(recipe) if recipe else self._static(name, computed, outputs)
        for buffer in outputs:
            wrapper.allocated.add(buffer)
        wrapper.writeline(f"{', '.join(outputs)}, = {call}" if outputs else call)

    def _static(self, name: str, computed: list[Computed], outputs: list[str]) -> str:
        """Defines the kernel; returns the call of it."""
        builder = Builder(name, graph_buffer)
        for made in computed:
            builder.add(made)
        graph = builder.graph(outputs)
        assert all(graph.buffers[b].kind == "output" for b in graph.outputs)
        V.graph.wrapper_code.header.writeline("from torch_spyre._inductor.kernel import kernel as spyre_kernel")
        V.graph.wrapper_code.define_kernel(name, f"spyre_kernel({name!r}, {graph.to_json()!r})", gpu=False)
        arguments = builder.arguments(graph)
        _draw_keys(arguments)
        return f"{name}({', '.join(arguments)})"

    def _dynamic(self, recipe: Recipe) -> str:
        wrapper = V.graph.wrapper_code
        wrapper.header.writeline("from torch_spyre._inductor.dynamic.launcher import kernel as spyre_dynamic_kernel")
        wrapper.define_kernel(recipe.name, f"spyre_dynamic_kernel({recipe.to_json()!r})", gpu=False)
        arguments = [g.name for g in recipe.given]
        _draw_keys(arguments)
        return f"{recipe.name}({', '.join([*arguments, *recipe.symbols])})"

    def _visible(self, nodes: list[SchedulerNode]) -> list[str]:
        """Buffers of these nodes that somebody else reads; the rest never leaves the kernel."""
        inside = {n.get_name() for n in nodes}
        made = [buffer for node in nodes for buffer in node.get_outputs() if not buffer.get_mutations()]
        wanted: set[str] = set()
        for node in nodes:
            for buffer in node.get_outputs():
                outside = any(
                    isinstance(user.node, OutputNode) or user.node.get_name() not in inside
                    for user in buffer.users
                    if not user.is_weak
                )
                if outside:  # a later version of a buffer is the buffer that it mutates
                    wanted.update(self._real_name(name) for name in buffer.get_mutations() or [buffer.get_name()])
        names = [buffer.get_name() for buffer in made]
        V.graph.removed_buffers.update(name for name in names if name not in wanted)
        return [name for name in names if name in wanted]

    def _real_name(self, name: str) -> str:
        return str(self.scheduler.mutation_real_name.get(name, name))


def register_groups() -> None:
    """With `combo_kernels` Inductor puts independent nodes into one kernel. Here all nodes of a run are one anyway."""
    groups = ForeachKernelSchedulerNode.group_algorithm_for_combo_kernels

    def of_other_devices(scheduler: Any) -> list[list[BaseSchedulerNode]]:
        return [nodes for nodes in groups(scheduler) if not any(_is_here(node) for node in nodes)]

    ForeachKernelSchedulerNode.set_group_algorithm_for_combo_kernels(of_other_devices)


def _is_here(node: BaseSchedulerNode) -> bool:
    device = node.get_device()
    return device is not None and device.type == DEVICE_NAME


def _draw_keys(arguments: Sequence[str]) -> None:
    """Lines that ask the device's generator for the keys among the arguments of a call, in the order of the draws."""
    wrapper = V.graph.wrapper_code
    keys = {a.rsplit("_", 1)[0] for a in arguments if a.startswith(KEY)}
    for key in sorted(keys, key=lambda key: int(key.removeprefix(KEY))):
        wrapper.header.writeline("from torch_spyre._C import draw_key as spyre_draw_key")
        wrapper.writeline(f"{key}_0, {key}_1 = spyre_draw_key({V.graph.get_current_device_or_throw().index or 0})")


def _symbolic() -> bool:
    """May sizes of the graph be symbols?"""
    return bool(V.graph.sizevars.shape_env.var_to_range)


def graph_buffer(name: str) -> tuple[torch.dtype, Sequence[Any], Sequence[Any], bool]:
    """(dtype, size, stride, is launch scalar) of a buffer that the kernel reads but does not compute."""
    if name.startswith(KEY):
        return torch.int32, (), (), True
    buffer = V.graph.get_buffer(name)
    layout = buffer.get_layout()
    device = buffer.get_device()
    assert device is not None
    if device.type == "cpu" and len(layout.size) == 0:
        return layout.dtype, (), (), True
    if device.type != DEVICE_NAME:
        raise UnsupportedOp(f"a spyre kernel reads {name}, which is on {device}: move it with .to('spyre') first")
    return layout.dtype, layout.size, layout.stride, False


class _HostCode(PythonWrapperCodegen):
    """Host code: the stock Python wrapper; kernels allocate their own results in the layout that was planned."""

    def push_codegened_graph(self, graph: Any) -> None:
        """Inductor's order is final when it calls this, and nothing is written yet. A branch or the body of a loop is
        announced to its parent first, before it has an order."""
        if graph.scheduler is not None:
            nodes = node_order.in_few_runs(graph.scheduler.nodes)
            if nodes != graph.scheduler.nodes:
                graph.scheduler.nodes = nodes
                graph.scheduler.compute_last_usage()
        super().push_codegened_graph(graph)

    def generate_fallback_kernel(self, node: ir.FallbackKernel) -> None:
        """A call of one op. The comment tells a report or warning about it which line of the user's asked for it."""
        lines = provenance.user_lines(node.get_origins())
        if lines:
            self.writeline(f"{provenance.MARK}{lines}")
        super().generate_fallback_kernel(node)


class SpyreSubgraphWrapperCodegen(_HostCode, SubgraphPythonWrapperCodegen):
    """Host code of a branch of `torch.cond`, of the body of a loop or of a shared subgraph: a function of its own."""


class SpyreWrapperCodegen(_HostCode):
    """Host code of a graph."""

    @staticmethod
    def create(
        is_subgraph: bool, subgraph_name: str | None, parent_wrapper: Any, partition_signatures: Any = None
    ) -> PythonWrapperCodegen:
        if is_subgraph:
            assert subgraph_name is not None
            return SpyreSubgraphWrapperCodegen(subgraph_name, parent_wrapper, partition_signatures)
        return SpyreWrapperCodegen()


class SpyreDeviceOpOverrides(DeviceOpOverrides):
    """Snippets of generated host code; streams and guards are the launcher's business."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from torch_spyre.device.interface import get_raw_stream as {name}"

    def set_device(self, device_idx: int) -> str:
        return f"torch.spyre.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.device('{DEVICE_NAME}', {device_idx})"
