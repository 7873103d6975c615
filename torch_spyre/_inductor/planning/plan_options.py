# SPDX-License-Identifier: Apache-2.0
"""What a plan may choose from: the knobs that planning reads, as one value that travels with the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch_spyre import knobs
from torch_spyre.constants import LX_BYTES
from torch_spyre.perf.device import assumed


@dataclass(frozen=True)
class PlanOptions:
    """`parts` says of nodes in how many parts, at least, a core does its slice. A plan `for_sdsc` uses only what
    SuperDSC can say: even splits, no hand-overs, no tile loops of several nodes, copies whose coordinates separate."""

    cores: int
    lx_share: float  # of each scratchpad, for the back end
    keeps_in_lx: bool  # may temporaries be stored in the scratchpads?
    follows_hints: bool
    cuts_k: bool = True  # may the sums of a product be parted over cores?
    for_sdsc: bool = False
    even_k: bool = False  # parts of such sums are equal, as they are in plans for SuperDSC
    parts: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def from_knobs() -> PlanOptions:
        return PlanOptions(
            knobs.get("sencores"),
            _lx_share(),
            knobs.get("lx_planning"),
            not knobs.get("ignore_work_division_hints"),
            knobs.get("cut_k"),
            knobs.get("plan") == "sdsc",
        )

    @property
    def scratch(self) -> float:
        """LX bytes of each core for the back end."""
        return LX_BYTES * self.lx_share

    @property
    def room(self) -> int:
        """LX bytes of each core for temporaries; 0 if they all go through memory."""
        return int(LX_BYTES * (1 - self.lx_share)) if self.keeps_in_lx else 0


def _lx_share() -> float:
    """The back end's part of a scratchpad. A card that is assumed says it itself; LX that it lacks is taken too."""
    device = assumed()
    if device is None:
        return float(knobs.get("dxp_lx_frac_avail"))
    return 1 - (1 - device["cores.lx_fraction"]) * min(device["cores.lx"], LX_BYTES) / LX_BYTES
