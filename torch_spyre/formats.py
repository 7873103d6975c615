# SPDX-License-Identifier: Apache-2.0
"""Number formats by name: bytes per element and elements per stick, read from the card's own table."""

from __future__ import annotations

import re
from pathlib import Path

_TABLE = Path(__file__).parent / "csrc/card/include/spyre/formats.def"
_ROWS = re.findall(r"^FORMAT\((\d+), (\w+), (\d+), (\d+)\)", _TABLE.read_text(), re.MULTILINE)

CODE = {name: int(code) for code, name, _, _ in _ROWS}
BYTES = {name: int(count) for _, name, count, _ in _ROWS if int(count)}
WORD_BYTES = {name: int(count) for _, name, count, elems in _ROWS if int(count) and int(elems)}  # stored in sticks
ELEMS_PER_STICK = {name: int(elems) for _, name, _, elems in _ROWS if int(elems)}
