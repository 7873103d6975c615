# SPDX-License-Identifier: Apache-2.0
"""From a node of an FX graph back to the user's program: which aten ops, which file and line.

The text goes into TileGraph nodes, programs, messages and dumps: ``aten.mul.Tensor at "model.py", line 2, in forward``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

MARK = "# called by "  # begins a comment in generated code, in front of the call of one op
MOST_LINES = 3
_TORCH = str(Path(torch.__file__).parent)


def origin(nodes: Iterable[Node]) -> str:
    """The ops and, if the trace knows any, the user's lines."""
    nodes = sorted(nodes, key=_place)
    ops = ", ".join(dict.fromkeys(str(n.target) for n in nodes if n.op == "call_function"))
    lines = user_lines(nodes)
    return f"{ops} at {lines}" if lines else ops


def user_lines(nodes: Iterable[Node]) -> str:
    """Different lines in graph order, the last few if there are many: those are nearest to the result."""
    lines = [line for n in sorted(nodes, key=_place) if (line := _user_line(n.meta.get("stack_trace") or ""))]
    return "; ".join(list(dict.fromkeys(lines))[-MOST_LINES:])


def _user_line(trace: str) -> str:
    """The innermost frame outside torch, as Python prints it: ``"file", line 3, in f``."""
    frames = [line.strip().removeprefix("File ") for line in trace.splitlines() if line.strip().startswith("File ")]
    outside = [frame for frame in frames if not frame.startswith(f'"{_TORCH}')]
    return (outside or frames or [""])[-1]


def _place(node: Node) -> Any:
    return node._sort_key
