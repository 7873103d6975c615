# SPDX-License-Identifier: Apache-2.0
"""Inductor's scheduling and wrapper back ends for the device.

The scheduler hands over one node at a time; we keep them until it must flush (end of graph, another device, a host
operation) and emit the whole run as one kernel. What the kernel holds in the generated module is the layout-free
TileGraph: programs are planned per input layout at the first call, or found in the program cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.codegen.common import BackendFeature, DeviceOpOverrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.scheduler import BaseSchedulerNode, BaseScheduling, FusedSchedulerNode, OutputNode, SchedulerNode
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torch_spyre._inductor.tilegraph.build import Builder
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import UnsupportedOp


class SpyreScheduling(BaseScheduling):
    """Gathers nodes into one kernel per run; fusion is the planner's business, not Inductor's."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self.pending: list[SchedulerNode] = []
        self.numbers = itertools.count()

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
        wrapper = V.graph.wrapper_code
        name = f"{DEVICE_NAME}_kernel_{next(self.numbers)}"
        builder = Builder(name, graph_buffer)
        for node in nodes:
            assert isinstance(node.node, ir.ComputedBuffer)
            builder.add_computed(node.node)
        outputs = self._visible(nodes)
        graph = builder.graph(outputs)
        wrapper.header.writeline("from torch_spyre._inductor.kernel import kernel as spyre_kernel")
        wrapper.define_kernel(name, f"spyre_kernel({name!r}, {graph.to_json()!r})", gpu=False)
        arguments = ", ".join(builder.arguments(graph))
        fresh = [b for b in graph.outputs if graph.buffers[b].kind == "output"]
        for buffer in outputs:
            wrapper.allocated.add(buffer)
        call = f"{name}({arguments})"
        wrapper.writeline(f"{', '.join(fresh)}, = {call}" if fresh else call)

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


def graph_buffer(name: str) -> tuple[torch.dtype, Sequence[Any], Sequence[Any], bool]:
    """(dtype, size, stride, is launch scalar) of a buffer that the kernel reads but does not compute."""
    buffer = V.graph.get_buffer(name)
    layout = buffer.get_layout()
    device = buffer.get_device()
    assert device is not None
    if device.type == "cpu" and len(layout.size) == 0:
        return layout.dtype, (), (), True
    if device.type != DEVICE_NAME:
        raise UnsupportedOp(f"a spyre kernel reads {name}, which is on {device}: move it with .to('spyre') first")
    return layout.dtype, layout.size, layout.stride, False


class SpyreWrapperCodegen(PythonWrapperCodegen):
    """Host code: the stock Python wrapper; kernels allocate their own results in the layout that was planned."""

    @staticmethod
    def create(
        is_subgraph: bool, subgraph_name: str | None, parent_wrapper: Any, partition_signatures: Any = None
    ) -> PythonWrapperCodegen:
        if is_subgraph:
            return PythonWrapperCodegen.create(is_subgraph, subgraph_name, parent_wrapper, partition_signatures)
        return SpyreWrapperCodegen()


class SpyreDeviceOpOverrides(DeviceOpOverrides):
    """Snippets of generated host code; streams and guards are the launcher's business."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"def {name}(_):\n    return 0\n"

    def set_device(self, device_idx: int) -> str:
        return f"torch.spyre.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.device('{DEVICE_NAME}', {device_idx})"
