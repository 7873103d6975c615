# SPDX-License-Identifier: Apache-2.0
"""Classes of ops and units of a core: what a pass or a printer asks before it looks at the op itself."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """What an op does with its operands. A printer has one form per kind."""

    POINTWISE = "pointwise"  # corresponding elements
    REDUCTION = "reduction"  # all elements along some dims
    MATMUL = "matmul"
    COPY = "copy"
    CAST = "cast"
    GATHER = "gather"  # reads a table at places that index tensors name
    SCATTER = "scatter"  # writes a table at such places
    SCAN = "scan"  # a running total along a dim
    EXCHANGE = "exchange"  # scratchpad slices change hands
    SELECTION = "selection"  # which elements along a dim, by order
    NORM = "norm"  # a step of layer normalisation: SuperDSC has it whole, a plan in several ops


@dataclass(frozen=True)
class TopK:
    """How many elements a top-k finds, the largest first or the smallest."""

    count: int
    ascending: bool = False


class Gives(enum.Enum):
    """What the elements of a result are."""

    VALUES = "values"
    TRUTH = "truth"  # 1 or 0
    PLACES = "places"  # positions along a dim


class Unit(enum.Enum):
    """The part of a core that runs an op, as SuperDSC names it."""

    PT = "pt"  # the array of multipliers
    SFP = "sfp"  # the special-function vector unit
