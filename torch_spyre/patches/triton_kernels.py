# SPDX-License-Identifier: Apache-2.0
"""Kernels of Triton inside of `torch.compile`. Nothing here imports Triton before somebody else does."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME


def known_to_dynamo() -> None:
    """Dynamo traces the launch of a kernel if `has_triton()` says so, which knows four devices by name. Missing hook: a
    device that says for itself that it runs them. Ours adds the card, where its driver is the active one."""
    if importlib.util.find_spec("triton") is None:
        return
    import torch.utils._triton as support

    known = support.has_triton

    @functools.cache
    def has_triton() -> bool:
        return known() or _runs_on_the_card()

    support.has_triton = has_triton


def _runs_on_the_card() -> bool:
    from triton.runtime import driver

    try:
        return bool(driver.active.get_current_target().backend == DEVICE_NAME)
    except RuntimeError:  # no driver is active, or several
        return False


def timed_on_the_card() -> None:
    """Several configurations of a kernel are measured by a function for each device. This is PyTorch's own hook; it
    cannot be used before Inductor is imported."""
    if importlib.util.find_spec("triton") is None:
        return
    from torch._inductor.runtime import benchmarking

    benchmarking.register_benchmarker(DEVICE_NAME, _milliseconds, override=True)


def _milliseconds(benchmarker: Any, call: Callable[[], Any], **_: Any) -> float:
    """On the card's clock, which gives the same time for each run."""
    import torch

    device = _C.current_device()
    call()
    torch.spyre.synchronize()
    start = _C.clock_ns(device)
    call()
    torch.spyre.synchronize()
    return float(_C.clock_ns(device) - start) / 1e6
