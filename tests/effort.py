# SPDX-License-Identifier: Apache-2.0
"""How much work a call does, counted rather than timed: the same on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def python_calls(work: Callable[[], Any]) -> int:
    """Calls of Python functions made by the second run of `work`; the first fills caches."""
    work()
    count = 0

    def tally(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
