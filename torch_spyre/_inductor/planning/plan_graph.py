# SPDX-License-Identifier: Apache-2.0
"""The graph that planning works on: a TileGraph with the options that its plan is made under."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_spyre._inductor.planning.options import PlanOptions
from torch_spyre._inductor.tilegraph.graph import Graph


@dataclass
class PlanGraph(Graph):
    """A copy of a graph that passes may change."""

    options: PlanOptions = field(default_factory=PlanOptions.from_knobs)

    @staticmethod
    def of(graph: Graph, options: PlanOptions | None = None) -> PlanGraph:
        """To be planned under these options, or those that the knobs give."""
        found = Graph.clone(graph)
        return PlanGraph(
            found.name, found.buffers, found.nodes, found.inputs, found.outputs, options or PlanOptions.from_knobs()
        )

    def clone(self) -> PlanGraph:
        return PlanGraph.of(self, self.options)
