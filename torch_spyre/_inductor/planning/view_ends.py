# SPDX-License-Identifier: Apache-2.0
"""Where the views that a graph takes end in their storages, so that a launch may move them.

Enters: a graph, and the layouts and offsets of its inputs. Leaves: how many device coordinates each input needs, or
None if the graph is one for these offsets only: because an offset is not the one that a launch would leave to the
program (`_C.view_start`), or because the graph reaches past its inputs (`as_strided`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from torch_spyre._inductor.passes.indirect import table_sizes
from torch_spyre._inductor.planning.plan_graph import InputSpec, Layout
from torch_spyre._inductor.tilegraph.graph import Buffer, Graph, Load, Node
from torch_spyre._inductor.tilegraph.index import Index, bounds, decompose, term_range
from torch_spyre.constants import STICK_BYTES


def extents(graph: Graph, inputs: Sequence[InputSpec]) -> dict[str, tuple[int, ...]] | None:
    """Of each input that needs less than its storage has; None if the graph cannot be moved."""
    found: dict[str, tuple[int, ...]] = {}
    stored = {name: spec for name, spec in zip(graph.inputs, inputs, strict=True) if spec.layout is not None}
    for name, spec in stored.items():
        assert spec.layout is not None
        extent = _extent(graph.buffers[name], spec.layout, spec.offset)
        if extent is None:
            return None
        if extent != spec.layout.device_size:
            found[name] = extent
    if all(_inside(graph, node, load, stored) for node in graph.nodes for load in (*node.loads(), node.output)):
        return found
    return None


def bytes_of(layout: Layout, extent: tuple[int, ...]) -> int:
    """Bytes from the first to the last stick that the extent reaches."""
    last = 0
    for size, reached in zip(layout.device_size[:-1], extent[:-1], strict=True):
        last = last * size + reached - 1
    return (last + 1) * STICK_BYTES


def _extent(buffer: Buffer, layout: Layout, offset: int) -> tuple[int, ...] | None:
    """Device coordinates that the view touches; None if its offset is one that a launch would move."""
    from torch_spyre import _C  # late: planning itself needs no torch

    stored = _C.SpyreTensorLayout(
        list(layout.device_size), list(layout.stride_map), getattr(_C.DataFormats, layout.format)
    )
    view = (stored, list(buffer.size), list(buffer.stride), offset)
    if _C.view_start(*view) != (offset, 0):
        return None
    return tuple(_C.view_extents(*view)) if math.prod(buffer.size) else layout.device_size


def _inside(graph: Graph, node: Node, load: Load, inputs: Collection[str]) -> bool:
    """Does the access stay on elements of the buffer, if that is an input?"""
    buffer = graph.buffers[load.buffer]
    if buffer.name not in inputs or not buffer.numel:
        return True
    sizes = {**table_sizes(node), **(node.result_sizes() if load is node.output else {})}
    if any(n == 0 for n in sizes.values()):
        return True
    first, last = bounds(load.index, sizes)
    if 0 <= first and last < buffer.span and _dense(buffer):
        return True
    upwards = tuple(replace(t, scale=abs(t.scale)) for t in load.index.terms)  # from the least offset, the same ones
    least = load.index.const + sum(t.scale * (term_range(t, sizes) - 1) for t in load.index.terms if t.scale < 0)
    return decompose(Index(upwards, least), zip(buffer.stride, buffer.size, strict=True), sizes) is not None


def _dense(buffer: Buffer) -> bool:
    """Is every offset from the first to the last an element of the buffer?"""
    reach = 1
    for stride, size in sorted(zip(buffer.stride, buffer.size, strict=True)):
        if size > 1 and stride > reach:
            return False
        reach += stride * (size - 1)
    return True
