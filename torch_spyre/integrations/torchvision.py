# SPDX-License-Identifier: Apache-2.0
"""torchvision next to a CPU build of torch."""

from __future__ import annotations

from types import ModuleType

import torch

_OPS = ("nms", "qnms")
_library: torch.library.Library | None = None


def name_missing_ops(module: ModuleType) -> None:
    """`torchvision.extension`: PyPI's torchvision is built for CUDA, and its compiled ops do not load without CUDA.
    torchvision goes on without them, but its import registers functions for two ops that nobody declared then. Here
    they are declared; `torchvision.ops.nms` says by itself that it was not loaded. Missing hook: a wheel on PyPI for
    the CPU."""
    global _library
    if module._has_ops() or _library is not None:
        return
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _OPS:
        _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
