# SPDX-License-Identifier: Apache-2.0
"""Kernels as generated code sees them: a callable that finds or makes the program for the layouts it is given.

Enters: a layout-free TileGraph (JSON) and, at each call, tensors. Leaves: result tensors. The C++ launcher keeps one
plan per combination of input layouts; only a combination it has not seen comes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_spyre import _C, knobs
from torch_spyre._inductor import debug_launch, hints
from torch_spyre.runtime import cache
from torch_spyre.runtime.jobplan import output_arguments


def kernel(name: str, graph_json: str) -> Any:
    """The launcher of one kernel of a compiled graph."""
    launcher = _C.KernelLauncher(name, lambda inputs: launch_plan(graph_json, inputs))
    if not debug_launch.wanted():
        return launcher
    return debug_launch.wrapped(launcher, graph_json, describe_input, launch_plan)


def launch_plan(graph_json: str, inputs: Sequence[Any]) -> Any:
    """A ready LaunchPlan for these inputs: from the cache if possible, else planned, printed and assembled now."""
    described = [describe_input(x) for x in inputs]
    entry = cache.key(graph_json, described)
    from torch_spyre._inductor import inspect

    found = None if inspect.active() else cache.load(entry)
    if found is not None:
        try:
            return to_launch_plan(found)
        except Exception as error:  # whatever an entry of another version or with a fault does, compiling cures it
            cache.discard(entry, error)
    from torch_spyre._inductor.compile import compile_graph

    made = compile_graph(graph_json, described)
    if knobs.get("dump_inputs"):
        inspect.save_inputs(graph_json, described, inputs)
    plan = to_launch_plan(made)  # what the card refuses is not stored
    cache.store(entry, made)
    return plan


def to_launch_plan(found: cache.CachedKernel, program: Any = None) -> Any:
    """A LaunchPlan of the kernel's program, which is loaded unless it is given."""
    outputs = [output_arguments(o) for o in found.outputs]
    program = program or _C.Program.load(found.program)
    scalars = list(found.scalars)
    return _C.LaunchPlan(program, list(found.bindings), outputs, found.pool_bytes, [], scalars, found.name)


def describe_input(x: Any) -> tuple[Any, ...]:
    """One input as planning and the cache key see it: (device_size, stride_map, format, offset), () for a scalar.

    The names that a user gave to its dims follow, if there are any.
    """
    if not isinstance(x, torch.Tensor) or x.device.type == "cpu":
        return ()
    layout = _C.get_spyre_tensor_layout(x)
    names = hints.names_of(x)
    known = (tuple(layout.device_size), tuple(layout.stride_map), layout.device_dtype.name, x.storage_offset())
    return (*known, names) if names else known
