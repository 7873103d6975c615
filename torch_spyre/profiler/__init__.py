# SPDX-License-Identifier: Apache-2.0
"""Profiles of the device.

``torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1])`` is all a user needs: the
native part (csrc/aten/profiler*.cpp) gives host calls, kernels, transfers and memory to Kineto. This package describes
the programs behind the kernels (`programs`), writes traces with lanes for each core (`export`), and reads traces again
for ``spyre-trace`` (`trace`, `summary`, `pictures`). docs/profiling.md.
"""

from __future__ import annotations

from typing import Any


def is_available() -> bool:
    """Whether torch.profiler records the device; it does wherever the device exists."""
    return True


def export_chrome_trace(prof: Any, path: str, cores: bool = True) -> None:
    """The trace of a finished profile with bandwidth counters and, with `cores`, lanes of every core."""
    from torch_spyre.profiler.export import export_chrome_trace as export  # late: start-up

    export(prof, path, cores)


def trace_handler(directory: str, cores: bool = True) -> Any:
    """For ``profile(on_trace_ready=…)``: writes each finished cycle to `directory`."""
    from torch_spyre.profiler.export import trace_handler as handler  # late: start-up

    return handler(directory, cores)
