# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing in compiled graphs: keys of random draws are kept, all else may be computed again.

PyTorch tags every node that a checkpointed region makes as one to compute again, and for the random ones it would save
the states of generators, of its own devices alone. Here the joint graph has the draw of a key apart from what is made
of it, and the tag of the draw is changed before the graph is cut into forward and backward: two numbers are saved.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.fx_passes import joint_graph
from torch._inductor.pattern_matcher import CallFunctionVarArgs, Match, register_graph_pattern
from torch.utils.checkpoint import CheckpointPolicy

from torch_spyre.decompositions.random_words import random_key


def register() -> None:
    @register_graph_pattern(CallFunctionVarArgs(random_key), pass_dict=joint_graph.early_patterns)
    def keep(match: Match, *args: Any, **kwargs: Any) -> None:
        drawn = match.output_node()
        for node in (drawn, *drawn.users):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
