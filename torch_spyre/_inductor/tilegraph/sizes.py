# SPDX-License-Identifier: Apache-2.0
"""Sizes of Inductor as numbers."""

from __future__ import annotations

from typing import Any

import sympy
from torch._inductor.virtualized import V

from torch_spyre.errors import UnsupportedOp


def static(value: Any) -> int:
    """A size as a number. A symbolic one gets its present value, and a guard: another size compiles another graph."""
    if isinstance(value, (int, sympy.Integer)):
        return int(value)
    try:
        return int(V.graph.sizevars.guard_int(value))
    except Exception as error:
        raise UnsupportedOp(f"size {value} depends on data: give it a fixed size") from error
