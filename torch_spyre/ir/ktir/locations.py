# SPDX-License-Identifier: Apache-2.0
"""The line and column at which an operation was read."""

from __future__ import annotations

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation


def place(op: Operation) -> str:
    """`file:line:column: ` of an operation that was read from text, else nothing."""
    location = op.location
    if not isinstance(location, FileLineColLoc):
        return ""
    return f"{location.filename.data}:{location.line.data}:{location.column.data}: "
