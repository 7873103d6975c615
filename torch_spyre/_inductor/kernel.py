# SPDX-License-Identifier: Apache-2.0
"""Kernels as generated code sees them: a callable that finds or makes the program for the layouts it is given.

Enters: a layout-free TileGraph (JSON) and, at each call, tensors. Leaves: result tensors. The C++ launcher keeps one
plan per combination of input layouts and positions within sticks; only a combination it has not seen comes here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_spyre import _C, knobs
from torch_spyre._inductor import hints
from torch_spyre._inductor.debug import inspect, launchers
from torch_spyre.errors import InvalidProgram, OutOfBounds
from torch_spyre.runtime import cache, driver

log = logging.getLogger(__name__)


def kernel(name: str, graph_json: str) -> Any:
    """The launcher of one kernel of a compiled graph."""
    launcher = _C.KernelLauncher(name, lambda inputs: launch_plan(graph_json, inputs))
    if not launchers.wanted():
        return launcher
    return launchers.wrapped(launcher, graph_json, describe_inputs, launch_plan)


def launch_plan(graph_json: str, inputs: Sequence[Any]) -> Any:
    """A ready LaunchPlan for these inputs: from the cache if possible, else planned, printed and assembled now."""
    return for_offsets(inputs, lambda described: _launch_plan(graph_json, described, inputs))


def for_offsets(inputs: Sequence[Any], make: Callable[[Sequence[tuple[Any, ...]]], Any]) -> Any:
    """What `make` makes for inputs that launches may move; if it cannot be moved, for the offsets that they have."""
    described, exact = (describe_inputs(inputs, displaced) for displaced in (True, False))
    made = make(described)
    return made if made.displaced or exact == described else make(exact)


def _launch_plan(graph_json: str, described: Sequence[tuple[Any, ...]], inputs: Sequence[Any]) -> Any:
    entry = cache.key(graph_json, described)
    return driver.launch_plan(driver.recall(entry) or _compiled(entry, graph_json, described, inputs))


def _compiled(
    entry: cache.Key, graph_json: str, described: Sequence[tuple[Any, ...]], inputs: Sequence[Any]
) -> driver.Loaded:
    from torch_spyre._inductor.compile import compile_graph  # late: start-up

    def make(displaced: bool) -> cache.CachedKernel:
        made = compile_graph(graph_json, described, displaced)
        if displaced and knobs.get("dump_inputs"):
            inspect.save_inputs(graph_json, described, inputs)
        return made

    return accepted(entry, make)


def accepted(entry: cache.Key, make: Callable[[bool], cache.CachedKernel], displaced: bool = True) -> driver.Loaded:
    """What `make` makes, loaded and stored: a kernel that launches may move along its inputs (`displaced`), or one that
    they may not, if the card refuses the first."""
    made = make(displaced)
    try:
        return driver.accept(entry, made)
    except (InvalidProgram, OutOfBounds) as error:
        if not made.displaced:
            raise
        log.warning("%s is planned for one offset at a time, because %s", made.name, error)
        return driver.accept(entry, make(False))


def describe_inputs(inputs: Sequence[Any], displaced: bool) -> tuple[tuple[Any, ...], ...]:
    return tuple(describe_input(x, displaced) for x in inputs)


def describe_input(x: Any, displaced: bool = True) -> tuple[Any, ...]:
    """One input as planning and the cache key see it: (device_size, stride_map, format, offset), () for a scalar.

    Of the offset only what the launch leaves to the program, unless the input is not to be `displaced`. The names that
    a user gave to its dims follow, if there are any.
    """
    if not isinstance(x, torch.Tensor) or x.device.type == "cpu":
        return ()
    layout = _C.get_spyre_tensor_layout(x)
    names = hints.names_of(x)
    offset = x.storage_offset()
    if displaced and offset:
        offset, _ = _C.view_start(layout, list(x.shape), list(x.stride()), offset)
    known = (tuple(layout.device_size), tuple(layout.stride_map), layout.device_dtype.name, offset)
    return (*known, names) if names else known
