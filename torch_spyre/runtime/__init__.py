# SPDX-License-Identifier: Apache-2.0
"""From programs to launches.

Enters: a compiled kernel. Leaves: a SpyreCode directory (`spyrecode`, `cache`) and, on a card, a JobPlan (`jobplan`).
Holds: what the cache keeps is what the launch contract describes; whatever is refused is refused before it is queued.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["JobPlan", "launch_jobplan", "launch_kernel", "prepare_kernel"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("torch_spyre.runtime.jobplan"), name)  # late: start-up
    raise AttributeError(f"module 'torch_spyre.runtime' has no attribute {name!r}")
