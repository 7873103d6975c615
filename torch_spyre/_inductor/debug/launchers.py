# SPDX-License-Identifier: Apache-2.0
"""Launchers of compiled kernels that do more than launch, for people who look for a fault. Dynamic kernels have none.

``SPYRE_DUMP_INPUTS=1`` writes the values of every launch beside the kernel's reproducer. ``DUMP_SPYRE_CODE=1`` runs
each kernel as a JobPlan from its SpyreCode directory, the entry of the program cache, as published runtimes do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch_spyre import knobs
from torch_spyre._inductor.debug import inspect
from torch_spyre.errors import InvalidArgument
from torch_spyre.runtime import cache

Described = tuple[tuple[Any, ...], ...]
Describe = Callable[[Sequence[Any], bool], Described]
Launcher = Callable[..., Any]


def wanted() -> bool:
    return bool(knobs.get("dump_inputs") or knobs.get("dump_spyre_code"))


def wrapped(launcher: Launcher, graph_json: str, describe: Describe, plan: Callable[[str, Sequence[Any]], Any]) -> Any:
    """The launcher as the knobs want it. `describe` says how inputs are stored, as a kernel that launches may move sees
    them or as they are; `plan` makes the kernel for some inputs and puts it into the program cache."""
    if knobs.get("dump_spyre_code"):
        launcher = _from_directories(graph_json, describe, plan)
    return _saving(launcher, graph_json, describe) if knobs.get("dump_inputs") else launcher


def _saving(launcher: Launcher, graph_json: str, describe: Describe) -> Launcher:
    def launch(*inputs: Any) -> Any:
        for displaced in (True, False):
            inspect.save_inputs(graph_json, describe(inputs, displaced), inputs)
        return launcher(*inputs)

    return launch


def _from_directories(graph_json: str, describe: Describe, plan: Callable[[str, Sequence[Any]], Any]) -> Launcher:
    from torch_spyre.runtime.jobplan import JobPlan, launch_jobplan, prepare_kernel  # late: start-up

    prepared: dict[Described, JobPlan] = {}

    def launch(*inputs: Any) -> Any:
        exact = describe(inputs, False)
        if exact not in prepared:
            made = describe(inputs, plan(graph_json, inputs).displaced)
            if made not in prepared:
                prepared[made] = prepare_kernel(_directory(graph_json, made))
            prepared[exact] = prepared[made]
        return launch_jobplan(prepared[exact], inputs)

    return launch


def _directory(graph_json: str, described: Described) -> Path:
    entry = cache.key(graph_json, described)
    folder = cache.folder_of(entry)
    if cache.load(entry) is None:
        raise InvalidArgument(
            f"DUMP_SPYRE_CODE: {folder} was not written; set SPYRE_CACHE_DIR to a writable directory, or unset it"
        )
    return folder
