# SPDX-License-Identifier: Apache-2.0
"""Helpers: a graph planned ordinarily and for SuperDSC, both run on the same bytes, results compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_spyre import _card
from torch_spyre._inductor.compile import compiled_as
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.debug.bundles import ordinary
from torch_spyre._inductor.planning.plan_graph import Layout, PlanBuffer
from torch_spyre._inductor.planning.planner import Plan
from torch_spyre._inductor.tilegraph.graph import Graph
from torch_spyre.ir.superdsc import arrays
from torch_spyre.ir.superdsc.steps import Steps, write_steps
from torch_spyre.repro import random_inputs
from torch_spyre.sdsc import run_steps

Described = Sequence[tuple[Any, ...]]


def kernels(call: Callable[[], object]) -> list[tuple[str, Described]]:
    """Graph and inputs of each distinct kernel that a call compiles."""
    torch._dynamo.reset()
    inspect.start()
    before = len(inspect.records())
    try:
        call()
    finally:
        inspect.stop()
    return [*dict.fromkeys((r.graph_json, r.inputs) for r in inspect.records()[before:])]


def compiled(graph_json: str, inputs: Described, for_sdsc: bool) -> tuple[Plan, Any]:
    """Plan and program; sums of products have the same parts in both kinds of plan."""
    return compiled_as(graph_json, inputs, replace(ordinary(), for_sdsc=for_sdsc))


def places(layout: Layout, offsets: np.ndarray) -> np.ndarray:
    """Element of the device tensor that holds each host element: dims take what their stride divides, large first."""
    pitches = [int(np.prod(layout.device_size[i + 1 :])) for i in range(len(layout.device_size))]
    found, rest = np.zeros_like(offsets), offsets.copy()
    axes = [i for i, (stride, size) in enumerate(layout.axes()) if stride > 0 and size > 1]
    for axis in sorted(axes, key=lambda i: -layout.stride_map[i]):
        digit, rest = np.divmod(rest, layout.stride_map[axis])
        found += digit * pitches[axis]
    return found


def host_offsets(buffer: PlanBuffer) -> np.ndarray:
    total = np.full(buffer.size, buffer.offset, dtype=np.int64)
    for axis, (n, stride) in enumerate(zip(buffer.size, buffer.stride, strict=True)):
        total += (np.arange(n) * stride).reshape([-1 if i == axis else 1 for i in range(len(buffer.size))])
    return total


def to_bytes(buffer: PlanBuffer, value: torch.Tensor) -> bytes:
    """The tensor's storage on the card; what its view does not touch is 0."""
    assert buffer.layout is not None
    codes = np.zeros(int(np.prod(buffer.layout.device_size)), dtype=arrays.code_type(buffer.layout.format))
    host = value.double().numpy() if value.is_floating_point() else value.numpy().astype(np.int64)
    codes[places(buffer.layout, host_offsets(buffer))] = arrays.encode(host, buffer.layout.format).reshape(buffer.size)
    return codes.tobytes()


def elements(buffer: PlanBuffer, content: bytes) -> np.ndarray:
    """Codes of the tensor's elements."""
    assert buffer.layout is not None
    codes = np.frombuffer(content, dtype=arrays.code_type(buffer.layout.format))
    return codes[places(buffer.layout, host_offsets(buffer))]


def _arguments(plan: Plan, given: dict[str, bytes], scalars: Sequence[bytes] = ()) -> list[bytes]:
    found = [given.get(a.name, bytes(max(a.bytes, 128))) for a in plan.kernel.args]
    return [*found, *scalars]


def _run(plan: Plan, program: Any, arguments: Sequence[bytes], scalars: Sequence[Any]) -> list[bytes]:
    card = _card.Card()
    sizes = [max(len(a), 128) for a in arguments]
    addresses = [card.allocate(n) for n in sizes]
    for at, content in zip(addresses, arguments, strict=True):
        card.write(at, content)
    card.launch(_card.Program.load(program.binary), list(zip(addresses, sizes, strict=True)), list(scalars))
    card.synchronize()
    return [bytes(card.read(at, n)) for at, n in zip(addresses, sizes, strict=True)]


def compare(graph_json: str, inputs: Described, folder: Path) -> tuple[Steps, list[str], tuple[float, float]]:
    """The steps of a graph, which of its results differ from the ordinary plan's, and both times on the card in us."""
    ordinary, program = compiled(graph_json, inputs, for_sdsc=False)
    limited, other = compiled(graph_json, inputs, for_sdsc=True)
    made = write_steps(limited.kernel, folder)
    names = ordinary.graph.inputs
    values = dict(zip(names, random_inputs(Graph.from_json(graph_json)), strict=True))
    buffers = ordinary.graph.buffers
    given = {n: to_bytes(buffers[n], torch.as_tensor(values[n])) for n in names if buffers[n].kind != "scalar"}
    numbers = [values[names[i]].item() for i, _ in ordinary.scalars]
    sticks = [
        arrays.encode(np.full(1, v), f).tobytes().ljust(128, b"\0")
        for v, f in zip(numbers, limited.kernel.scalars, strict=True)
    ]
    want = _run(ordinary, program, _arguments(ordinary, given), numbers)
    got = run_steps.run(folder, _arguments(limited, given, sticks))
    written = {n.output.buffer for n in ordinary.graph.nodes}
    differ, computed = [], False
    place = {a.name: i for i, a in enumerate(limited.kernel.args)}
    for i, arg in enumerate(ordinary.kernel.args):
        if arg.name not in written or arg.role == "pool":
            continue
        computed |= any(want[i])
        a = elements(ordinary.graph.buffers[arg.name], want[i])
        b = elements(limited.graph.buffers[arg.name], got[place[arg.name]])
        if not np.array_equal(a, b):
            differ.append(f"{arg.name}: {int((a != b).sum())} of {a.size} elements")
    assert computed, "all results are zeros"
    return made, differ, (program.program.duration_ns / 1e3, other.program.duration_ns / 1e3)
