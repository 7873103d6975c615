# SPDX-License-Identifier: Apache-2.0
"""Where an operation stands in the text that it was read from."""

from __future__ import annotations

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation


def place(op: Operation) -> str:
    """`file:line:column: ` of an operation that was read from text, else nothing."""
    location = op.location
    if not isinstance(location, FileLineColLoc):
        return ""
    return f"{location.filename.data}:{location.line.data}:{location.column.data}: "
