# SPDX-License-Identifier: Apache-2.0
"""The stages in one place: TileGraph -> plan -> KTIR -> program. Imported on a cache miss only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.planning.plan_graph import InputSpec, Layout
from torch_spyre._inductor.planning.plan_options import PlanOptions
from torch_spyre._inductor.planning.planner import Plan, plan
from torch_spyre._inductor.tilegraph.graph import Graph
from torch_spyre.errors import InvalidProgram, NotExpressible, ScratchpadFull, SpanExceeded, UnsupportedOp
from torch_spyre.ir.superdsc.steps import in_steps
from torch_spyre.runtime import driver
from torch_spyre.runtime.cache import CachedKernel, OutputSpec

log = logging.getLogger(__name__)
_SHARES = (0.4, 0.6, 0.8, 1.0)  # of LX that the back end gets where less was not enough
_MOST_PARTS = 1 << 24  # of a node's slice: more than any slice has sticks


def compile_graph(graph_json: str, inputs: Sequence[tuple[Any, ...]], displaced: bool = True) -> CachedKernel:
    """The kernel for inputs laid out like these; `displaced` says whether launches may move it along its inputs."""
    graph = Graph.from_json(graph_json)
    with inspect.compiling(graph, graph_json, inputs) as kernel:
        planned, module, program = _fitting(graph, _specs(inputs), displaced, PlanOptions.from_knobs())
        kernel.done(planned, module, program)
    return _cached(planned, program.binary)


def compiled_as(graph_json: str, inputs: Sequence[tuple[Any, ...]], options: PlanOptions) -> tuple[Plan, Any]:
    """Plan and program under options, for one place in the storages of the inputs."""
    planned, _, program = _fitting(Graph.from_json(graph_json), _specs(inputs), False, options)
    return planned, program


def _specs(inputs: Sequence[tuple[Any, ...]]) -> list[InputSpec]:
    return [InputSpec(Layout(*d[:3]), *d[3:]) if d else InputSpec(None) for d in inputs]


def _fitting(graph: Graph, specs: Sequence[InputSpec], displaced: bool, options: PlanOptions) -> tuple[Plan, Any, Any]:
    """Plan, module and program. Plans are tried in this order, each where the one before cannot be done:

    1. as the planner likes it, with a share of LX for the back end that grows as it asks for more;
    2. with all temporaries in memory: no tile loop of several nodes cuts an access then where the back end cannot;
    3. so, and with each node that needs too much scratch in as many parts as that takes.
    """
    displaced = displaced and not options.for_sdsc  # whose addresses say where a view begins
    try:
        return _sharing(graph, specs, displaced, options)
    except (UnsupportedOp, SpanExceeded, ScratchpadFull, NotExpressible) as error:
        first = error
    log.info("planned again without temporaries in the scratchpads, because %s", first)
    options = replace(options, keeps_in_lx=False)
    try:
        try:
            return _compiled(graph, specs, displaced, options)
        except ScratchpadFull:
            return _in_parts(graph, specs, displaced, replace(options, lx_share=1.0))
    except (InvalidProgram, UnsupportedOp, NotExpressible):
        raise first from None


def _sharing(graph: Graph, specs: Sequence[InputSpec], displaced: bool, options: PlanOptions) -> tuple[Plan, Any, Any]:
    """Where the back end needs more of LX than its share, the plan gets less of it, step by step: what the back end
    needs shrinks with the chunks of tile loops, so that the least share that is enough is not known before. Where no
    temporary takes any of LX, no share is enough."""
    for share in (options.lx_share, *(s for s in _SHARES if s > options.lx_share)):
        planned = _planned(graph, specs, displaced, replace(options, lx_share=share))
        try:
            return planned, *driver.build(planned.kernel)
        except ScratchpadFull as error:
            overflow = error
        if not planned.kernel.lx_scratch_base:
            break
    raise overflow


def _in_parts(graph: Graph, specs: Sequence[InputSpec], displaced: bool, options: PlanOptions) -> tuple[Plan, Any, Any]:
    """The node that overflows the scratchpads is done in more parts, until none does."""
    parts: dict[str, int] = {}
    while True:
        try:
            return _compiled(graph, specs, displaced, replace(options, parts=parts))
        except ScratchpadFull as error:
            name = error.op.partition(": ")[2].partition(": ")[0]  # an origin is "kernel: node: aten op"
            parts = {**parts, name: parts.get(name, 1) * max(2, -(-error.needed // error.available))}
            if parts[name] > _MOST_PARTS:
                raise


def _compiled(graph: Graph, specs: Sequence[InputSpec], displaced: bool, options: PlanOptions) -> tuple[Plan, Any, Any]:
    planned = _planned(graph, specs, displaced, options)
    return planned, *driver.build(planned.kernel)


def _planned(graph: Graph, specs: Sequence[InputSpec], displaced: bool, options: PlanOptions) -> Plan:
    """A plan; NotExpressible if it was to be one for SuperDSC and cannot be cut into bundles."""
    planned = plan(graph, specs, displaced, options)
    if options.for_sdsc:
        in_steps(planned.kernel)
    return planned


def _cached(planned: Plan, binary: bytes) -> CachedKernel:
    outputs = []
    for b in planned.outputs:
        assert b.layout is not None
        size, stride = b.returned_as or (b.size, b.stride)
        outputs.append(OutputSpec(size, stride, b.dtype, b.layout.device_size, b.layout.stride_map, b.layout.format))
    return CachedKernel(
        planned.kernel.name,
        binary,
        planned.bindings,
        planned.scalars,
        tuple(outputs),
        planned.pool_bytes,
        displaced=planned.displaced,
    )
