# SPDX-License-Identifier: Apache-2.0
"""The op table: what every op is, how each language spells it, and what it means.

What enters: nothing; it imports only errors and NumPy. What leaves: `OPS`, one `Row` per op of a plan, and
`PUBLISHED`, the names that a SuperDSC may use. What holds: everything that has to know an op by name reads these rows
(lowering, planner, KTIR, SuperDSC, back end, references), so that a new op is one row.
"""

from torch_spyre.optable.kinds import Gives, Kind, TopK, Unit
from torch_spyre.optable.rows import (
    BY_INDUCTOR,
    NONSTICK,
    OPS,
    PUBLISHED,
    RESTICKIFY,
    ROWS,
    SELECT,
    Row,
    WithConstant,
    lookup,
)

__all__ = [
    "BY_INDUCTOR",
    "NONSTICK",
    "OPS",
    "PUBLISHED",
    "RESTICKIFY",
    "ROWS",
    "SELECT",
    "Gives",
    "Kind",
    "Row",
    "TopK",
    "Unit",
    "WithConstant",
    "lookup",
]
